"""The study of the constraint in numbers: a table for every dataset, and what stands out in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphjoule.errors import counted
from graphjoule.report.drawings.evidence import Evidence
from graphjoule.report.drawings.instruments import Factors, Readings
from graphjoule.report.drawings.sides import factors_of, sides_of
from graphjoule.report.results.fates import fates_table
from graphjoule.report.results.missing import say_missing
from graphjoule.report.results.order import welch
from graphjoule.report.results.sides import Side, accuracy_text, find_sides, short_number
from graphjoule.studies.study import Cell
from graphjoule.studies.verdict import LEVEL, Outcome

__all__ = ["side_words"]

_COLUMNS: Final = (
    "model",
    "layers",
    "side",
    "test accuracy (n)",
    "factor past a limit",
    "layers held",
    "lowest rank",
    "last rank",
    "gradient first / last",
    "seconds per run",
)


def side_words(evidence: Evidence) -> list[str]:
    """How often a side is better than the first one, a table for every dataset, and what is missing."""
    sides, factors = find_sides(evidence), factors_of(evidence.cells)
    if not sides or factors is None:
        return say_missing(evidence)
    parts = [_about(factors)]
    for dataset in dict.fromkeys(side.cell.dataset for side in sides):
        here = [side for side in sides if side.cell.dataset == dataset]
        parts += [_counts(dataset, here, sides_of(evidence.cells)), _table(here), *fates_table(here)]
    return [*parts, *say_missing(evidence)]


def _about(factors: Factors) -> str:
    return (
        f"Every side is measured by the limits of the constrained one, c_min = {factors.c_min:g} and c_max = "
        f"{factors.c_max:g}. Factor past a limit: how many times the worst layer is above or below where its limit is, "
        "1 where all hold. Layers held: those that miss no limit by more than 1 %, of the hidden layers after the "
        "first. Lowest and last rank: the smallest effective rank of all hidden layers, and that of the last. Gradient "
        "first / last: the norm of the loss's gradient at the first hidden layer, divided by that at the last. All of "
        "these are medians over the runs, of the selected networks in evaluation mode."
    )


def _counts(dataset: str, sides: Sequence[Side], names: Sequence[str]) -> str:
    """By Welch's test, in how many places each side is better or worse than the first."""
    first, *others = names
    found = {(_place(side.cell), side.cell.variant.value): side.outcome for side in sides}
    told = []
    for name in others:
        pairs = [(ours, found.get((place, first))) for (place, side), ours in found.items() if side == name]
        signs = [_sign(ours, free) for ours, free in pairs if free is not None]
        told.append(
            f"{name}: better than {first} in {signs.count(1)} of {counted(len(signs), 'place')} (model and depth), "
            f"worse in {signs.count(-1)}"
        )
    return f"**{dataset.capitalize()}.** Test accuracy by Welch's test at the level {LEVEL:g}. {'. '.join(told)}."


def _place(cell: Cell) -> tuple[str, int]:
    return cell.model, cell.num_layers


def _sign(ours: Outcome, free: Outcome) -> int:
    """1 where the first is better, -1 where it is worse, 0 where a test does not tell.

    >>> low, high = (Outcome(mean, 1.0, 10, 0, None, None, "") for mean in (70.0, 80.0))
    >>> _sign(high, low), _sign(low, high), _sign(low, low)
    (1, -1, 0)
    """
    if ours.mean is None or free.mean is None or ours.std is None or free.std is None:
        return 0
    if welch(ours, free) >= LEVEL:
        return 0
    return 1 if ours.mean > free.mean else -1


def _table(sides: Sequence[Side]) -> str:
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(_line(side))} |" for side in sides)])


def _line(side: Side) -> list[str]:
    cell = side.cell
    named = [cell.model, f"{cell.num_layers:,}", cell.variant.value, accuracy_text(side.outcome)]
    return [*named, *_readings_text(side.found), "" if side.seconds is None else f"{side.seconds:.1f}"]


def _readings_text(found: Readings | None) -> list[str]:
    if found is None:
        return [""] * 5
    return [
        "" if found.violation is None else short_number(1 + found.violation),
        "" if found.num_held is None else f"{found.num_held:g} of {found.num_layers}",
        "" if found.lowest_rank is None else f"{found.lowest_rank:.1f}",
        "" if found.last_rank is None else f"{found.last_rank:.1f}",
        "" if found.gradient_ratio is None else short_number(found.gradient_ratio),
    ]
