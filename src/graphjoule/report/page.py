"""The page itself: one HTML file that loads nothing, says so to the browser, and stays small."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from graphjoule.errors import GraphjouleError, counted, harmless
from graphjoule.files import json_text, printable, read_bytes, write_text
from graphjoule.report.cells import AFTER, PARTS, Cell, Part, mean_score, score_of, variants
from graphjoule.report.evaluation import evaluation_view
from graphjoule.report.figures import curve_charts, energy_chart, script_data
from graphjoule.report.svg import NUM_STYLES, Chart, draw
from graphjoule.tasks.objective import Metric
from graphjoule.training.comparison import Comparison
from graphjoule.training.evaluation import Evaluation, spread
from graphjoule.training.records import summarise
from graphjoule.version import __version__

MOST_BYTES: Final = 2_000_000
"""What a page may weigh: it is sent by mail."""
_GENERATOR = '<meta name="generator" content="graphjoule'
_MOST_CLASSES = 50


@dataclass(frozen=True)
class Reference:
    """Published results that stand beside ours.

    Attributes:
        name: what the column is called, such as "paper".
        source: where the numbers are from, in words.
        metric: name of the metric that they are.
        values: the numbers as they are written, in percent for a share, by dataset, model and depth.
    """

    name: str
    source: str
    metric: str
    values: Mapping[tuple[str, str, int], float]

    def beside(self, cell: Cell) -> tuple[str, str]:
        """The published number of a cell, and ours minus it; both are empty where there is none.

        A cell that is not as our recipes have it is another experiment than the published one.
        """
        theirs = self.values.get(cell.key)
        metric = next((metric for metric in cell.metrics if metric.name == self.metric), None)
        if theirs is None or metric is None or cell.changed_settings:
            return "", ""
        ours, _ = mean_score(cell.records, "test", metric)
        return f"{theirs:.1f}", "" if ours is None else f"{metric.scaled(ours) - theirs:+.2f}"


class _Detail(NamedTuple):
    """How much a page holds of every cell."""

    curve_points: int
    energy_rows: int
    has_tables: bool
    plane_points: int
    evaluations: Literal["all", "best", "none"]


_LEAST_ROW = 60  # bytes of a row of a table
# From all that a screen can show down to what hundreds of cells leave room for; the first that fits is taken.
_DETAILS = (
    _Detail(240, 65, True, 2000, "all"),
    _Detail(240, 65, True, 500, "all"),
    _Detail(120, 33, True, 1000, "best"),
    _Detail(60, 17, True, 0, "best"),
    _Detail(24, 5, False, 0, "none"),
)


def report_page(
    cells: Sequence[Cell],
    *,
    title: str,
    reference: Reference | None = None,
    command: Callable[[Cell], str] = lambda cell: "",
) -> str:
    """The report on some cells as the text of one HTML file.

    Args:
        cells: at least one, in the order of the table.
        title: what the report is on, such as the folder's name.
        reference: published results to compare with.
        command: the command that trains a cell once more; empty where there is none.

    Returns:
        HTML of at most `MOST_BYTES`; the same cells give the same text. Everything from data is escaped.

    Example:
        >>> from graphjoule.training.recipe import load_recipe
        >>> from graphjoule.training.records import Record
        >>> recipe = load_recipe("egnn", "cora", 64)
        >>> scores = {"val": {"accuracy": 0.8}, "test": {"accuracy": 0.85}, "curve": {}, "epochs_run": 0}
        >>> record = Record.of(recipe, seed=0, split_sha256="", device="cpu", runs_at_once=1, seconds=1, **scores)
        >>> page = report_page([Cell(recipe, [record])], title="a run")
        >>> page.startswith("<!doctype html>"), "85.00" in page
        (True, True)
    """
    if not cells:
        raise GraphjouleError("There is nothing to report on: no cell was given, expected at least one.")
    rows = sum(len(cell.records) for cell in cells)
    for detail in _DETAILS:
        if detail.has_tables and rows * _LEAST_ROW > MOST_BYTES:  # a row per run
            continue
        text = printable(_render(cells, title, reference, command, detail))
        if len(text.encode()) <= MOST_BYTES:
            return text
    raise GraphjouleError(
        f"A report on {len(cells)} cells would weigh {len(text.encode()):,} bytes, more than the {MOST_BYTES:,} that a "
        "page may have; report on a part of the folder."
    )


def check_report_path(path: Path) -> None:
    """Refuse a path without a folder, or of a file that is not a report, before anything is computed."""
    if not path.absolute().parent.is_dir():
        raise GraphjouleError(f"The report is to be {path}, but there is no folder {path.absolute().parent}.")
    if path.is_dir():
        raise GraphjouleError(f"{path} is a folder; name a file for the report, such as {path / 'report.html'}.")
    if path.exists() and _GENERATOR.encode() not in read_bytes(path, 4096):
        raise GraphjouleError(f"{path} is there already and is no report of graphjoule's; name another file.")


def write_report(path: Path, page: str) -> None:
    """Write a page; an earlier report is replaced, anything else is refused, see `check_report_path`."""
    check_report_path(path)
    write_text(path, page)


def headline_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Of every dataset and question the cell with the best score on the validation nodes: test nodes choose nothing."""
    best: dict[tuple[str, str], tuple[float | None, Cell]] = {}
    for cell in cells:
        metric = cell.metrics[0]
        mean, _ = mean_score(cell.records, "val", metric)
        key = cell.key[0], cell.question
        if key not in best or metric.is_better(mean, best[key][0]):
            best[key] = mean, cell
    return [cell for _, cell in best.values()]


def chosen_first(cells: Sequence[Cell], best: Sequence[Cell]) -> int:
    """Number of the cell that the page opens with: the first of the best that was traced, else of any."""
    traced = [cell for cell in (*best, *cells) if cell.states] or list(best)
    return next(number for number, cell in enumerate(cells) if cell is traced[0])


def script_json(data: Any) -> Markup:
    r"""Data for a script element: what could end the element or begin a comment is written as an escape.

    >>> script_json({"name": "</script><!--"})
    Markup('{"name": "\\u003c/script\\u003e\\u003c!--"}')
    """
    text = json_text(data)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # nothing of it can be read as markup now


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(0.42), duration(75), duration(7300)
    ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _render(
    cells: Sequence[Cell], title: str, reference: Reference | None, command: Callable[[Cell], str], detail: _Detail
) -> str:
    differences, best = variants(cells), headline_cells(cells)
    views = [
        _cell_view(cell, variant, reference, command(cell), detail)
        for cell, variant in zip(cells, differences, strict=True)
    ]
    chosen, curves = chosen_first(cells, best), [curve_charts(cell, detail.curve_points) for cell in cells]
    folder = resources.files("graphjoule.report") / "templates"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    # What the page's content security policy calls its inline elements by: only these are run.
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    shown = {"all": cells, "best": best, "none": []}[detail.evaluations]
    evaluated = [
        {"view": view, **_evaluation(cell.evaluation, detail.plane_points)}
        for cell, view in zip(cells, views, strict=True)
        if cell.evaluation is not None and any(cell is one for one in shown)
    ]
    planes = [one["plane"] for one in evaluated if one["plane"]]
    for k, plane in enumerate(planes):
        plane["number"] = k
    energy, metrics = energy_chart(cells, cells[chosen]), list(dict.fromkeys(m for cell in cells for m in cell.metrics))
    has_reference = any(view["published"] for view in views)
    groups: dict[str, list[dict[str, Any]]] = {}
    for place, (cell, view) in enumerate(zip(cells, views, strict=True), start=1):
        groups.setdefault(cell.question, []).append(view | {"number": place})
    environment = Environment(
        loader=PackageLoader("graphjoule.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html").render(
        title=title,
        version=__version__,
        style=Markup(style),
        script=Markup(script),
        style_hash=f"sha256-{hashes[0]}",
        script_hash=f"sha256-{hashes[1]}",
        views=views,
        best=[views[next(k for k, cell in enumerate(cells) if cell is one)] for one in best],
        chosen=views[chosen],
        scores_title=metrics[0].label.capitalize() if len(metrics) == 1 else "Scores",
        groups=[
            {"title": question, "views": rows, "heads": _heads(rows, reference if has_reference else None)}
            for question, rows in groups.items()
        ],
        reference=reference if has_reference else None,
        energy=_figure(energy) if energy.lines else None,
        curves=[_figure(chart) for chart in curves[chosen]],
        environments=_environments(cells),
        compared=[view for view in views if view["worth"]] if detail.evaluations != "none" else [],
        has_variant=any(differences),
        has_tables=detail.has_tables,
        num_runs=sum(view["n"] for view in views),
        num_failed=sum(view["num_failed"] for view in views),
        evaluated=evaluated,
        num_unevaluated=sum(cell.evaluation is not None for cell in cells) - len(evaluated),
        data=script_json(
            script_data(cells, differences, curves, chosen) | {"planes": [plane["data"] for plane in planes]}
        ),
    )
    return harmless(page)


def _figure(chart: Chart) -> dict[str, Any]:
    legend = [(line.label, line.style % NUM_STYLES) for line in chart.lines]
    return {"title": chart.title, "svg": draw(chart), "legend": legend, "band": chart.band and chart.band.label}


def _evaluation(evaluation: Evaluation, plane_points: int) -> dict[str, Any]:
    view = evaluation_view(evaluation, plane_points)
    for part in view["parts"]:
        for kind in ("charts", "places"):
            part[kind] = [_figure(chart) for chart in part[kind]]
    return view


def _heads(views: Sequence[Mapping[str, Any]], reference: Reference | None) -> list[str]:
    """The columns of scores: of each metric the test nodes', what was published, the validation nodes', if any is."""
    heads = []
    for metric in dict.fromkeys(metric for view in views for metric in view["cell"].metrics):
        heads.append(_head("test", metric))
        if reference is not None and reference.metric == metric.name:
            heads += [metric.heading(reference.name), "difference"]
        heads.append(_head("val", metric))
    return [head for head in heads if any(view["scores"].get(head) for view in views)] or heads


def _head(part: Part, metric: Metric) -> str:
    return metric.heading(f"{PARTS[part]} {metric.label}")


def _cell_view(cell: Cell, variant: str, reference: Reference | None, command: str, detail: _Detail) -> dict[str, Any]:
    """A cell, and what the template shows of it as text."""
    (dataset, model, layers), metrics, summary = cell.key, cell.metrics, summarise(cell.records)
    scores = {
        _head(part, metric): metric.number(*mean_score(cell.records, part, metric))
        for metric in metrics
        for part in PARTS
    }
    score_heads = list(scores)
    headline = metrics[0]
    test, validation = scores[_head("test", headline)], scores[_head("val", headline)]
    published, difference = reference.beside(cell) if reference else ("", "")
    if reference and published:
        metric = next(metric for metric in metrics if metric.name == reference.metric)
        scores |= {metric.heading(reference.name): published, "difference": difference}
    found, energy_words = cell.states.get(AFTER), cell.untraced
    if found is not None and found.diagnosis is not None:
        limits = "" if found.limits is None else f" {found.limits.summary()}"
        of = "the energy and the reach" if found.reaches else "the energy alone"
        words = [f"Diagnosis after training, of {of}: {found.diagnosis.verdict}.{limits}", *found.reach_words()]
        energy_words = " ".join(words)
    return {
        "cell": cell,
        "dataset": dataset,
        "model": model,
        "layers": layers,
        "variant": variant,
        "score": test or validation,
        "unit": headline.unit,
        "question": cell.question,
        "kind": f"test {headline.label}" if test else f"validation {headline.label}, no test nodes",
        "scores": scores,
        "published": published,
        "difference": difference,
        "runs": counted(summary.n, "run"),
        "n": summary.n,
        "num_failed": summary.num_failed,
        "time": duration(summary.seconds),
        "energy_words": energy_words,
        "warnings": [] if cell.evaluation is None else cell.evaluation.warnings(),
        "worth": None if cell.comparison is None else _worth(cell.comparison),
        "energies": _energy_rows(cell, detail.energy_rows),
        "run_heads": ["seed", "status", "selected epoch", "epochs", *score_heads, "seconds"],
        "records": [
            [
                *(str(record.seed), record.status),
                "" if record.selected_epoch is None else str(record.selected_epoch),
                str(record.epochs_run),
                *(metric.number(score_of(record, part, metric)) for metric in metrics for part in PARTS),
                f"{record.seconds:.1f}",
            ]
            for record in (cell.records if detail.has_tables else ())
        ],
        "data": _about_data(cell),
        "command": command,
    }


def _worth(comparison: Comparison) -> dict[str, Any]:
    """A comparison's table and sentences; a row that is advised says so."""
    head, rows = comparison.table()
    said = [(row, row[0] == comparison.advised) for row in rows]
    return {"head": head, "rows": said, "sentences": comparison.sentences(), "notes": comparison.notes}


def _energy_rows(cell: Cell, most: int) -> list[list[str]]:
    """A row for every layer, or for some spread evenly: its number, its energy in every state, its limits at the end.

    Limits are those of the last state; they are empty where there are none.
    """
    if not cell.states:
        return []
    columns = [cell.energies(state) for state in cell.states]
    first, last = columns[0][0], list(cell.states.values())[-1]
    limits = {} if last.limits is None else dict(enumerate(last.limits.layers, start=1))
    rows = []
    for k in spread(min(len(column) for _, column in columns), most):
        bounds = limits.get(k + first)
        ends = ["", ""] if bounds is None else [f"{bounds.lower:.3g}", f"{bounds.upper:.3g}"]
        rows.append([str(k + first), *(f"{column[k].energy:.3g}" for _, column in columns), *ends])
    return rows


def _about_data(cell: Cell) -> str:
    """What was trained on, in one sentence or two."""
    data = cell.data
    if data is None:
        return f"The dataset {cell.key[0]}."
    size = [counted(data.num_nodes, "node"), counted(data.num_edges, "edge"), counted(data.num_features, "feature")]
    unit = data.unit
    size += [] if data.num_graphs is None else [counted(data.num_graphs, "graph")]
    words, names = f"{data.name}: {', '.join(size)}", data.classes
    if not names:
        return f"{words}; {counted(data.num_labels, unit)} with a target."
    more = f" and {len(names) - _MOST_CLASSES:,} more" if len(names) > _MOST_CLASSES else ""
    labelled = f"{counted(data.num_labels, f'labelled {unit}')} of {len(names):,} classes"
    return f"{words}; {labelled}: {', '.join(names[:_MOST_CLASSES])}{more}."


def _environments(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The different devices and sets of versions, with how many runs each had and when the last one ended."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for cell in cells:
        for record in cell.records:
            found.setdefault((record.device, tuple(record.versions.items())), []).append(record.created)
    return [
        {
            "device": device,
            "versions": ", ".join(f"{name} {number}" for name, number in versions),
            "runs": counted(len(times), "run"),
            "last": max(times),
        }
        for (device, versions), times in found.items()
    ]
