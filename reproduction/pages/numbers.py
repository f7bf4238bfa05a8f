"""Numbers within sentences, from the records: what stands between ``<!--= WORDS -->`` and ``<!--/-->`` is made anew.

    <!--= mean depth egnn cora 1024 -->85.42 ± 0.30<!--/-->

The first word is a key of `FORMS`, the others say of what.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from graphjoule import GraphjouleError
from graphjoule.report import find_sweeps
from graphjoule.studies import LedgerRow, p_text
from reproduction.pages.drawings import means
from reproduction.pages.measured import curves_apart, value_of
from reproduction.pages.order import welch
from reproduction.pages.page import Results

__all__ = ["FORMS", "with_numbers"]

_MARKS: Final = re.compile(r"(<!--= ([^>]+?) -->).*?(<!--/-->)", flags=re.DOTALL)


def with_numbers(text: str, results: Results) -> str:
    """The text with every marked number made anew.

    Raises:
        GraphjouleError: A mark names no form, or no cell.
    """

    def number(found: re.Match[str]) -> str:
        form, *words = found[2].split()
        if form not in FORMS:
            raise GraphjouleError(f'"{form}" is not a form of a number; the choices are: {", ".join(sorted(FORMS))}.')
        return f"{found[1]}{FORMS[form](results, *words)}{found[3]}"

    return _MARKS.sub(number, text)


def _row(results: Results, study: str, model: str, dataset: str, layers: str, *variant: str) -> LedgerRow:
    """The row of a cell."""
    rows = [
        row
        for row in results.evidence[study].rows
        if (row.cell.model, row.cell.dataset, row.cell.num_layers) == (model, dataset, int(layers))
        and (not variant or row.cell.variant.value == " ".join(variant))
    ]
    if len(rows) != 1 or rows[0].outcome.mean is None:
        named = " ".join([study, model, dataset, layers, *variant])
        raise GraphjouleError(f"{named} is not one cell with runs of the study; {len(rows)} are.")
    return rows[0]


def _mean(digits: int) -> Callable[..., str]:
    return lambda results, *words: f"{_row(results, *words).outcome.mean:.{digits}f}"


def _with_std(results: Results, *words: str) -> str:
    outcome = _row(results, *words).outcome
    return f"{outcome.mean:.2f} ± {outcome.std:.2f}"


def _reading(results: Results, study: str, model: str, dataset: str, layers: str, setting: str) -> str:
    """A cell under another reading of the paper, such as ``select_on=accuracy``."""
    row, settings = _row(results, study, model, dataset, layers), setting.replace("=", " = ")
    found = [one for one in row.readings if one.settings == settings]
    if len(found) != 1:
        raise GraphjouleError(f"{study} {model} {dataset} {layers} has no reading {setting}.")
    return f"{found[0].outcome.mean:.2f} ± {found[0].outcome.std:.2f}"


def _pair(results: Results, study: str, first: str, second: str, dataset: str, layers: str) -> tuple[float, float]:
    one, other = (_row(results, study, model, dataset, layers).outcome for model in (first, second))
    return (one.mean or 0.0) - (other.mean or 0.0), welch(one, other)


def _count(results: Results, study: str, verdict: str, *datasets: str) -> str:
    """How many cells of a study have a verdict, "run" for all that were run; a recipe in two rows counts once."""
    rows = {row.cell.recipe.fingerprint() + str(row.cell.reference): row for row in results.evidence[study].rows}
    kept = [row for row in rows.values() if not datasets or row.cell.dataset in datasets]
    return str(sum(row.outcome.n > 0 if verdict == "run" else row.outcome.verdict == verdict for row in kept))


def _farthest(results: Results, study: str, model: str, *datasets: str) -> str:
    """The lowest difference of a model's cells from the paper, without its sign."""
    rows = [row for row in results.evidence[study].rows if row.cell.model == model]
    rows = [row for row in rows if not datasets or row.cell.dataset in datasets]
    return f"{-min(row.outcome.difference or 0.0 for row in rows):.2f}"


def _runs_beyond(results: Results, layers: str) -> list[tuple[int, int]]:
    """Epochs of every run of the study of depth beyond some layers, and the most that it could have had."""
    evidence = results.evidence["depth"]
    cells = [cell for cell in evidence.cells if cell.num_layers > int(layers)]
    return [(run.epochs_run, cell.recipe.train.epochs) for cell in cells for run in evidence.runs(cell)]


def _at_the_cap(results: Results, layers: str) -> str:
    runs = _runs_beyond(results, layers)
    return f"{sum(epochs == most for epochs, most in runs)} of {len(runs)}"


def _most_epochs(results: Results, study: str, model: str, dataset: str, layers: str) -> str:
    """How many epochs a run of a cell could have had."""
    return f"{_row(results, study, model, dataset, layers).cell.recipe.train.epochs:,}"


def _runs(results: Results, study: str) -> str:
    """How many runs of a study are recorded; those that two cells share count once."""
    evidence = results.evidence[study]
    found = {cell.recipe.fingerprint(): evidence.runs(cell) for cell in evidence.cells}
    return f"{sum(map(len, found.values())):,}"


def _missing(results: Results, study: str, seeds: str) -> str:
    """How many runs the cells of a study lack that have some."""
    rows = [row for row in results.evidence[study].rows if row.seeds]
    return str(sum(int(seeds) - len(row.seeds) for row in rows))


def _sweeps(results: Results, study: str, where: str) -> str:
    """The lowest and the highest mean of a study's sweeps within the recommended ranges, or outside of them."""
    sweeps = [sweep for several in find_sweeps(results.evidence[study]).values() for sweep in several]
    found = [mean for sweep in sweeps for mean in means(sweep, inside=where == "within")]
    if not found:
        raise GraphjouleError(f"{study} has no runs {where} the recommended ranges.")
    return f"{min(found):.1f} to {max(found):.1f}"


FORMS: Final[dict[str, Callable[..., str]]] = {
    "mean": _with_std,
    "mean0": _mean(0),
    "mean1": _mean(1),
    "mean2": _mean(2),
    "reading": _reading,
    "lead": lambda results, *words: f"{_pair(results, *words)[0]:.2f}",
    "lead_p": lambda results, *words: p_text(_pair(results, *words)[1]),
    "count": _count,
    "farthest": _farthest,
    "sweeps": _sweeps,
    "most_epochs": _most_epochs,
    "runs": _runs,
    "at_the_cap": _at_the_cap,
    "missing": _missing,
    "apart": lambda results, *words: curves_apart(*words),
    "of": lambda results, *words: value_of(*words),
    "minutes": lambda results, study: f"{results.times[study].wall_seconds / 60:.1f}",
}
"""What a number can be, by the first word of its mark."""
