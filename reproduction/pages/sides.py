"""The study of the constraint in numbers: a table for every dataset, and which networks collapse."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from graphjoule.report import Evidence, variant_styles
from graphjoule.studies import LEVEL, Cell, Outcome
from reproduction.pages.layers import Factors, Readings, factors_of, readings
from reproduction.pages.order import COLLAPSE, welch
from reproduction.pages.phrases import accuracy_text, counted, say_missing, short_number

__all__ = ["Side", "collapse_table", "find_sides", "side_words"]

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
_MEASURES: Final[Mapping[str, Callable[[Readings], float | None]]] = {
    "factor past a limit": lambda found: None if found.violation is None else 1 + found.violation,
    "lowest rank": lambda found: found.lowest_rank,
    "last rank": lambda found: found.last_rank,
    "gradient first / last": lambda found: found.gradient_ratio,
}


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


def side_words(evidence: Evidence) -> list[str]:
    """How often a side is better than the first one, a table for every dataset, and what is missing."""
    sides, factors = find_sides(evidence), factors_of(evidence.cells)
    if not sides or factors is None:
        return say_missing(evidence)
    parts = [_about(factors)]
    for dataset in dict.fromkeys(side.cell.dataset for side in sides):
        here = [side for side in sides if side.cell.dataset == dataset]
        parts += [_counts(dataset, here, list(variant_styles(evidence.cells))), _table(here), *collapse_table(here)]
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
    counts = []
    for name in others:
        pairs = [(ours, found.get((place, first))) for (place, side), ours in found.items() if side == name]
        signs = [_sign(ours, free) for ours, free in pairs if free is not None]
        counts.append(
            f"{name}: better than {first} in {signs.count(1)} of {counted(len(signs), 'place')} (model and depth), "
            f"worse in {signs.count(-1)}"
        )
    return f"**{dataset.capitalize()}.** Test accuracy by Welch's test at the level {LEVEL:g}. {'. '.join(counts)}."


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


def collapse_table(sides: Sequence[Side]) -> list[str]:
    """The range of every measure in cells that have collapsed and in the others, of models that have both.

    Args:
        sides: cells of one dataset.

    Returns:
        A sentence and a table; nothing where no model has cells of both kinds.
    """
    judged = [(side, collapsed) for side in sides if (collapsed := _has_collapsed(side, sides)) is not None]
    kinds: dict[str, set[bool]] = {}
    for side, collapsed in judged:
        kinds.setdefault(side.cell.model, set()).add(collapsed)
    models = [model for model, found in kinds.items() if len(found) > 1]
    if not models:
        return []
    head = ["cells", "test accuracy", *_MEASURES]
    rows = [
        _collapse_row(kind, [side for side, collapsed in judged if collapsed == wanted and side.cell.model in models])
        for kind, wanted in (("collapsed", True), ("alive", False))
    ]
    about = (
        f"The range of every number in {' and '.join(models)}, which collapse in some cells and not in others. "
        f"Collapsed: below {100 * COLLAPSE:.0f} % of what the same side has at the fewest layers, which are left out."
    )
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [about, "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])]


def _has_collapsed(side: Side, sides: Sequence[Side]) -> bool | None:
    """Whether a cell has collapsed; None at the fewest layers, which are the measure, and without a number."""
    name = side.cell.model, side.cell.variant.value
    family = [other for other in sides if (other.cell.model, other.cell.variant.value) == name]
    first = min(family, key=lambda other: other.cell.num_layers)
    if first is side or first.outcome.mean is None or side.outcome.mean is None or side.found is None:
        return None
    return side.outcome.mean < COLLAPSE * first.outcome.mean


def _collapse_row(kind: str, sides: Sequence[Side]) -> list[str]:
    means = [side.outcome.mean for side in sides if side.outcome.mean is not None]
    accuracy = f"{min(means):.1f} to {max(means):.1f} %"
    return [f"{len(sides)} {kind}", accuracy, *(_range(measure, sides) for measure in _MEASURES.values())]


def _range(measure: Callable[[Readings], float | None], sides: Sequence[Side]) -> str:
    found = [value for side in sides if side.found is not None and (value := measure(side.found)) is not None]
    return f"{short_number(min(found))} to {short_number(max(found))}" if found else ""
