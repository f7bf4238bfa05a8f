"""The order of the paper: which models are first and second at the deepest setting, and which have collapsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scipy.stats import ttest_ind_from_stats

from graphjoule.studies import LEVEL, LedgerRow, Outcome, p_text

__all__ = ["COLLAPSE", "Order", "find_orders", "order_table", "welch"]

COLLAPSE: Final = 0.5
"""A network has collapsed if its accuracy is below this share of what the same model has at the fewest layers."""


@dataclass(frozen=True)
class Order:
    """The models of one dataset at the deepest setting, best first.

    Attributes:
        dataset: which dataset.
        num_layers: how deep.
        paper: models in the paper's order.
        ours: models in our order; those that are not run are left out.
        outcomes: of our models.
        paper_collapsed: models that have collapsed in the paper.
        collapsed: models that have collapsed here.
    """

    dataset: str
    num_layers: int
    paper: tuple[str, ...]
    ours: tuple[str, ...]
    outcomes: dict[str, Outcome]
    paper_collapsed: tuple[str, ...]
    collapsed: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every model of the paper is run."""
        return set(self.ours) == set(self.paper)


def find_orders(rows: Sequence[LedgerRow]) -> list[Order]:
    """The order of every dataset of a table whose rows are models.

    Args:
        rows: the table's ledger, every cell with the paper's number.
    """
    return [
        _order(dataset, [row for row in rows if row.cell.dataset == dataset])
        for dataset in dict.fromkeys(row.cell.dataset for row in rows)
    ]


def _order(dataset: str, rows: Sequence[LedgerRow]) -> Order:
    depths = [row.cell.num_layers for row in rows]
    shallow = {row.cell.model: row for row in rows if row.cell.num_layers == min(depths)}
    deep = {row.cell.model: row for row in rows if row.cell.num_layers == max(depths)}
    paper = {model: row.cell.reference for model, row in deep.items() if row.cell.reference is not None}
    ours = {model: row.outcome.mean for model, row in deep.items() if row.outcome.mean is not None}
    before = {model: row.outcome.mean for model, row in shallow.items()}
    paper_before = {model: row.cell.reference for model, row in shallow.items()}
    return Order(
        dataset,
        max(depths),
        _best_first(paper),
        _best_first(ours),
        {model: deep[model].outcome for model in ours},
        tuple(model for model, mean in paper.items() if _has_collapsed(mean, paper_before.get(model))),
        tuple(model for model, mean in ours.items() if _has_collapsed(mean, before.get(model))),
    )


def _best_first(means: dict[str, float]) -> tuple[str, ...]:
    return tuple(sorted(means, key=lambda model: -means[model]))


def _has_collapsed(mean: float, before: float | None) -> bool:
    return before is not None and mean < COLLAPSE * before


def order_table(orders: Sequence[Order]) -> str:
    """What holds of the paper's order and what does not, a line per dataset."""
    lines = [
        "| dataset | layers | the paper's first two | ours | does it hold | collapsed in the paper | here |",
        "|---|---|---|---|---|---|---|",
    ]
    for order in orders:
        ours = ", ".join(f"{model} {order.outcomes[model].mean:.2f}" for model in order.ours[:3])
        lines.append(
            f"| {order.dataset} | {order.num_layers} | {', '.join(order.paper[:2])} | {ours or 'not run'} | "
            f"{says(order)} | {', '.join(order.paper_collapsed) or 'none'} | {says_collapse(order)} |"
        )
    return "\n".join(lines)


def says(order: Order) -> str:
    """Whether the paper's first two models are ours, and how surely each is ahead of the next."""
    if not order.ours:
        return "not run"
    if len(order.ours) == 1:
        return f"only {order.ours[0]} is run"
    parts = []
    for place, word in enumerate(("first", "second")):
        model = order.paper[place]
        if model not in order.outcomes:
            parts.append(f"{model} is not run")
        elif order.ours.index(model) == place:
            parts.append(f"yes: {model} is {word}{_margin(order, place)}")
        else:
            parts.append(f"**no**: {order.ours[place]} is {word}, not {model}{_margin(order, place)}")
    if not order.is_complete:
        parts.append(f"without {', '.join(sorted(set(order.paper) - set(order.ours)))}")
    return "; ".join(parts)


def says_collapse(order: Order) -> str:
    """Which models have collapsed here, and where that is not as in the paper."""
    if not order.ours:
        return "not run"
    standing = [model for model in order.paper_collapsed if model in order.ours and model not in order.collapsed]
    missing = [model for model in order.paper_collapsed if model not in order.ours]
    parts = [", ".join(order.collapsed)] if order.collapsed else []
    parts += [f"**not** {', '.join(standing)}"] if standing else []
    parts += [f"not run: {', '.join(missing)}"] if missing else []
    return "; ".join(parts) or "none"


def _margin(order: Order, place: int) -> str:
    """By how much the model at a place is ahead of the next, and Welch's p for it."""
    if place + 1 >= len(order.ours):
        return ""
    first, second = (order.outcomes[model] for model in order.ours[place : place + 2])
    if first.mean is None or second.mean is None or first.std is None or second.std is None:
        return ""
    p = welch(first, second)
    surely = "" if p < LEVEL else ", not significantly"
    return f" by {first.mean - second.mean:.2f} (p {p_text(p)}{surely})"


def welch(first: Outcome, second: Outcome) -> float:
    """Two-sided p of Welch's test for two means.

    >>> outcomes = [Outcome(mean, 0.3, 10, 0, None, None, "undecided") for mean in (85.5, 85.2)]
    >>> round(welch(*outcomes), 3)
    0.038
    """
    if not first.std and not second.std:
        return 1.0 if first.mean == second.mean else 0.0
    numbers = (first.mean, first.std, first.n, second.mean, second.std, second.n)
    return float(ttest_ind_from_stats(*numbers, equal_var=False).pvalue)
