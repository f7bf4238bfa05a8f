"""The cells of the study of the constraint: accuracy, what the instruments say, and time."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from graphjoule.report.drawings.evidence import Evidence
from graphjoule.report.drawings.instruments import Factors, Readings, readings
from graphjoule.report.drawings.sides import factors_of
from graphjoule.studies.study import Cell
from graphjoule.studies.verdict import Outcome

__all__ = ["Side", "accuracy_text", "find_sides", "short_number"]


@dataclass(frozen=True)
class Side:
    """One cell of the study.

    Attributes:
        cell: what was trained.
        outcome: its accuracies.
        found: what the instruments say; None where there is no record of them.
        seconds: of a run, the mean; None for runs that are not recorded.
    """

    cell: Cell
    outcome: Outcome
    found: Readings | None
    seconds: float | None


def find_sides(evidence: Evidence) -> list[Side]:
    """The cells that are run, in the study's order."""
    factors = factors_of(evidence.cells)
    sides = [_side(evidence, cell, factors) for cell in evidence.cells]
    return [side for side in sides if side.outcome.n or side.outcome.num_failed]


def _side(evidence: Evidence, cell: Cell, factors: Factors | None) -> Side:
    record = evidence.energies_of(cell)
    runs = evidence.recorded.of(cell.recipe)
    seconds = [run.seconds for seed, run in runs.items() if evidence.seeds is None or seed in evidence.seeds]
    return Side(
        cell,
        evidence.outcome(cell),
        None if record is None or factors is None else readings(record, factors),
        statistics.fmean(seconds) if seconds else None,
    )


def short_number(value: float) -> str:
    """A number that may be anything, in few characters.

    >>> [short_number(value) for value in (1.6643, 9.1, 196.4, 9071.0, 1.27e28, 2.1e-7, float("inf"), 0.0)]
    ['1.66', '9.1', '196', '9e+03', '1e+28', '2e-07', 'inf', '0']
    """
    return f"{value:.3g}" if value == 0 or 0.01 <= value < 1000 else f"{value:.0e}"


def accuracy_text(outcome: Outcome) -> str:
    """Mean, standard deviation and number of runs, or why there are none.

    >>> accuracy_text(Outcome(81.284, 0.887, 9, 1, None, None, ""))
    '81.28 ± 0.89 (9, 1 failed)'
    >>> accuracy_text(Outcome(None, None, 0, 0, None, None, "not run"))
    'not run'
    """
    if outcome.mean is None:
        return outcome.verdict
    failed = f", {outcome.num_failed} failed" if outcome.num_failed else ""
    return f"{outcome.mean:.2f}{'' if outcome.std is None else f' ± {outcome.std:.2f}'} ({outcome.n}{failed})"
