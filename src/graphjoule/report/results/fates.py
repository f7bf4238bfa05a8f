"""Which of the instruments tell networks that have collapsed from those that have not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from graphjoule.report.drawings.instruments import Readings
from graphjoule.report.results.order import COLLAPSE
from graphjoule.report.results.sides import Side, short_number

__all__ = ["fates_table"]

_MEASURES: Final[Mapping[str, Callable[[Readings], float | None]]] = {
    "factor past a limit": lambda found: None if found.violation is None else 1 + found.violation,
    "lowest rank": lambda found: found.lowest_rank,
    "last rank": lambda found: found.last_rank,
    "gradient first / last": lambda found: found.gradient_ratio,
}


def fates_table(sides: Sequence[Side]) -> list[str]:
    """The range of every measure in cells that have collapsed and in the others, of models that have both.

    Args:
        sides: cells of one dataset.

    Returns:
        A sentence and a table; nothing where no model has cells of both kinds.
    """
    fates = [(side, fate) for side in sides if (fate := _has_collapsed(side, sides)) is not None]
    kinds: dict[str, set[bool]] = {}
    for side, fate in fates:
        kinds.setdefault(side.cell.model, set()).add(fate)
    models = [model for model, found in kinds.items() if len(found) > 1]
    if not models:
        return []
    head = ["cells", "test accuracy", *_MEASURES]
    rows = [
        _row(kind, [side for side, fate in fates if fate == collapsed and side.cell.model in models])
        for kind, collapsed in (("collapsed", True), ("alive", False))
    ]
    told = (
        f"The range of every number in {' and '.join(models)}, which collapse in some cells and not in others. "
        f"Collapsed: below {100 * COLLAPSE:.0f} % of what the same side has at the fewest layers, which are left out."
    )
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [told, "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])]


def _has_collapsed(side: Side, sides: Sequence[Side]) -> bool | None:
    """Whether a cell has; None for those at the fewest layers, which are the measure, and those without a number."""
    name = side.cell.model, side.cell.variant.value
    family = [other for other in sides if (other.cell.model, other.cell.variant.value) == name]
    first = min(family, key=lambda other: other.cell.num_layers)
    if first is side or first.outcome.mean is None or side.outcome.mean is None or side.found is None:
        return None
    return side.outcome.mean < COLLAPSE * first.outcome.mean


def _row(kind: str, sides: Sequence[Side]) -> list[str]:
    means = [side.outcome.mean for side in sides if side.outcome.mean is not None]
    accuracy = f"{min(means):.1f} to {max(means):.1f} %"
    return [f"{len(sides)} {kind}", accuracy, *(_range(measure, sides) for measure in _MEASURES.values())]


def _range(measure: Callable[[Readings], float | None], sides: Sequence[Side]) -> str:
    found = [value for side in sides if side.found is not None and (value := measure(side.found)) is not None]
    return f"{short_number(min(found))} to {short_number(max(found))}" if found else ""
