"""The numbers of the paper's two tables: test accuracy in percent, the mean of ten runs, rounded to one decimal.

Zhou et al., "Dirichlet Energy Constrained Learning for Deep Graph Neural Networks", NeurIPS 2021, tables 1 and 2.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import Final

__all__ = ["PAPER_RUNS", "Place", "paper_accuracies"]

Place = tuple[str, int]
"""A dataset and a number of layers: a column of the tables."""

PAPER_RUNS: Final = 10
"""How many runs each of the paper's means is of."""


@cache
def paper_accuracies(table: str) -> dict[tuple[str, ...], dict[Place, float]]:
    """A table of the paper, by the names of its row and by its column.

    Args:
        table: "table1", whose rows are models, or "table2", whose rows are a component and its type.

    Returns:
        Percent by row and column, in the paper's order.

    >>> paper_accuracies("table1")["egnn",]["cora", 64]
    85.7
    >>> paper_accuracies("table2")["c_min", "0.95"]["physics", 32]
    90.5
    """
    text = (resources.files(__package__) / "paper" / f"{table}.csv").read_text(encoding="utf-8")
    rows: dict[tuple[str, ...], dict[Place, float]] = {}
    for row in csv.DictReader(text.splitlines()):
        names = tuple(value.lower() for key, value in row.items() if "_" not in key)
        rows[names] = {_place(key): float(value) for key, value in row.items() if "_" in key}
    return rows


def _place(column: str) -> Place:
    dataset, _, layers = column.partition("_")
    return dataset, int(layers)
