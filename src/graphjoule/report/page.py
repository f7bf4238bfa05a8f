"""The page itself: one HTML file that loads nothing, says so to the browser, and stays small."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text, write_text
from graphjoule.report.cell import Cell, variants
from graphjoule.report.figures import chosen_first, companions, curve_charts, energy_chart, script_data
from graphjoule.report.svg import NUM_STYLES, Chart, draw
from graphjoule.report.view import cell_view, environments
from graphjoule.report.words import Paper, headline_cells
from graphjoule.version import __version__

MOST_BYTES: Final = 2_000_000
"""What a page may weigh: it is sent by mail."""
_GENERATOR = '<meta name="generator" content="graphjoule'
_NOTHING: Mapping[tuple[str, str, int], float] = {}


class _Detail(NamedTuple):
    """How much a page holds of every cell."""

    curve_points: int
    energy_rows: int
    has_tables: bool


# From all that a screen can show down to what hundreds of cells leave room for; the first that fits is taken.
_DETAILS = (_Detail(240, 65, True), _Detail(120, 33, True), _Detail(60, 17, True), _Detail(24, 5, False))


def report_page(cells: Sequence[Cell], *, title: str, paper: Paper = _NOTHING) -> str:
    """The report on some cells as the text of one HTML file.

    Args:
        cells: at least one, in the order of the table.
        title: what the report is on, such as the folder's name.
        paper: the paper's accuracies in percent, by dataset, model and depth.

    Returns:
        HTML of at most `MOST_BYTES`; the same cells give the same text. Everything from data is escaped.

    Example:
        >>> from graphjoule.training.recipe import load_recipe
        >>> from graphjoule.training.records import Record
        >>> recipe = load_recipe("egnn", "cora", 64)
        >>> measured = {"device": "cpu", "runs_at_once": 1, "seconds": 1, "curve": {}, "epochs_run": 0}
        >>> record = Record.of(recipe, seed=0, split_sha256="", val_accuracy=0.8, test_accuracy=0.85, **measured)
        >>> page = report_page([Cell(recipe, [record])], title="a run")
        >>> page.startswith("<!doctype html>"), "85.00" in page
        (True, True)
    """
    if not cells:
        raise GraphjouleError("There is nothing to report on: no cell was given, expected at least one.")
    for detail in _DETAILS:
        text = _render(cells, title, paper, detail)
        if len(text.encode()) <= MOST_BYTES:
            return text
    raise GraphjouleError(
        f"A report on {len(cells)} cells would weigh {len(text.encode()):,} bytes, more than the {MOST_BYTES:,} that a "
        "page may have; report on a part of the folder."
    )


def check_report_path(path: Path) -> None:
    """Refuse a place for a report, before anything is computed: no folder for it, or a file there that is no report."""
    if not path.absolute().parent.is_dir():
        raise GraphjouleError(f"The report is to be {path}, but there is no folder {path.absolute().parent}.")
    if path.is_dir():
        raise GraphjouleError(f"{path} is a folder; name a file for the report, such as {path / 'report.html'}.")
    if path.exists() and _GENERATOR.encode() not in path.read_bytes()[:4096]:
        raise GraphjouleError(f"{path} is there already and is no report of graphjoule's; name another file.")


def write_report(path: Path, page: str) -> None:
    """Write a page; an earlier report is replaced, anything else is refused, see `check_report_path`."""
    check_report_path(path)
    write_text(path, page)


def script_json(data: Any) -> Markup:
    r"""Data for a script element: what could end the element or begin a comment is written as an escape.

    >>> script_json({"name": "</script><!--"})
    Markup('{"name": "\\u003c/script\\u003e\\u003c!--"}')
    """
    text = json_text(data)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # nothing of it can be read as markup now


def _render(cells: Sequence[Cell], title: str, paper: Paper, detail: _Detail) -> str:
    differences, best = variants(cells), headline_cells(cells)
    views = [cell_view(*pair, paper, detail.energy_rows) for pair in zip(cells, differences, strict=True)]
    chosen = chosen_first(cells, best)
    style, script = _packaged("report.css"), _packaged("report.js")
    energy = energy_chart(cells, cells[chosen])
    return (
        _environment()
        .get_template("report.html")
        .render(
            title=title,
            version=__version__,
            style=Markup(style),
            script=Markup(script),
            style_hash=_hash(style),
            script_hash=_hash(script),
            views=views,
            best=[views[next(k for k, cell in enumerate(cells) if cell is one)] for one in best],
            chosen=views[chosen],
            is_compared=len(companions(cells, cells[chosen])) > 1,
            energy=_figure(energy) if energy.lines else None,
            curves=[_figure(chart) for chart in curve_charts(cells[chosen], detail.curve_points)],
            environments=environments(cells),
            has_paper=any(view["paper"] for view in views),
            has_variant=any(differences),
            has_tables=detail.has_tables,
            num_runs=sum(view["n"] for view in views),
            num_failed=sum(view["num_failed"] for view in views),
            data=script_json(script_data(cells, differences, chosen, detail.curve_points)),
        )
    )


def _figure(chart: Chart) -> dict[str, Any]:
    legend = [(line.label, line.style % NUM_STYLES) for line in chart.lines]
    return {"title": chart.title, "svg": draw(chart), "legend": legend, "band": chart.band and chart.band.label}


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("graphjoule.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _packaged(name: str) -> str:
    return (resources.files("graphjoule.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What the page's content security policy calls an inline element by: only that one is run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
