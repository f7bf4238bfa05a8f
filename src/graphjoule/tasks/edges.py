"""A table of edges: from the nodes' names to their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.tasks.reading import read_table
from graphjoule.tasks.table import Header, Table, Wanted

_ENDS = (("source", "target"), ("src", "dst"), ("from", "to"))
_WEIGHT = "weight"


@dataclass(frozen=True)
class EdgeOptions:
    """Which column of a table of edges is what; None is the default.

    Attributes:
        source: one end: by default "source", "src", "from" or the first column.
        target: the other end: by default "target", "dst", "to" or the second column.
        weight: by default "weight" if there is such a column, else every edge weighs 1.
    """

    source: str | None = None
    target: str | None = None
    weight: str | None = None


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """The edges of a table as node numbers.

    Attributes:
        edge_index: shape ``[2, num_edges]``, as the rows stand.
        edge_weight: one per edge, or None.
        options: the columns they came from; nothing in it is left to a default.
    """

    edge_index: Tensor
    edge_weight: Tensor | None
    options: EdgeOptions

    def graph(self, num_nodes: int) -> Propagation:
        """The undirected graph: each row counts in both directions, self-loops are dropped.

        Rows that repeat one direction add their weights; of the two directions the larger weight counts.
        """
        return Propagation.from_edge_index(self.edge_index, self.edge_weight, num_nodes, symmetrize=True)


def read_edges(
    path: str | Path,
    options: EdgeOptions,
    ids: Sequence[str],
    nodes: str,
    *,
    is_trained: bool = False,
    hint: str = "",
) -> EdgeTable:
    """Read a table of edges between known nodes.

    Args:
        path: the table; a header without a row is a graph without edges.
        options: which column is what.
        ids: the nodes' names; compared as text, so "1" and "1.0" are different nodes.
        nodes: the file of nodes, for the sentence about a node it does not have.
        is_trained: the options are those of a trained model, and nothing is left to a default.
        hint: how to end the sentence about a node that is not there.
    """
    settled = options

    def choose(header: Header) -> Wanted:
        nonlocal settled
        settled = _settle(header, options, is_trained=is_trained)
        assert settled.source is not None
        assert settled.target is not None
        weights = [settled.weight] if settled.weight is not None else []
        return Wanted([settled.source, settled.target], weights, "; a weight must be a finite number")

    table = read_table(path, choose, may_be_empty=True)
    numbers = {name: number for number, name in enumerate(ids)}
    ends = [
        _numbers(table, column, numbers, f"in {nodes}{hint or '; ids are compared as text'}")
        for column in (settled.source, settled.target)
        if column
    ]
    return EdgeTable(torch.from_numpy(np.stack(ends)), _weights(table, settled.weight), settled)


def _settle(header: Header, options: EdgeOptions, *, is_trained: bool) -> EdgeOptions:
    if len(header.names) < 2:
        raise GraphjouleError(
            f"{header.path}, line 1: there is one column, {header.names[0]!r}; an edge needs two, source and target."
        )
    found = next((pair for pair in _ENDS if set(pair) <= set(header.names)), header.names[:2])
    source = header.find(found[0] if options.source is None else options.source, None if is_trained else "--source")
    target = header.find(found[1] if options.target is None else options.target, None if is_trained else "--target")
    if source == target:
        raise GraphjouleError(
            f"{header.path}, line 1: the column {source!r} is both source and target of every edge; name the other one "
            "with --source or --target."
        )
    if options.weight is not None:
        return EdgeOptions(source, target, header.find(options.weight, None if is_trained else "--weight"))
    # A weight column that the training graph did not have would change what an edge means.
    has_weight = not is_trained and _WEIGHT in header.names and _WEIGHT not in (source, target)
    return EdgeOptions(source, target, _WEIGHT if has_weight else None)


def _numbers(table: Table, column: str, numbers: dict[str, int], where: str) -> np.ndarray:
    values = table.text[column]
    found = np.fromiter((numbers.get(value, -1) for value in values), dtype=np.int64, count=len(values))
    unknown = np.flatnonzero(found < 0)
    if unknown.size:
        row = int(unknown[0])
        if not values[row]:
            table.refuse(row, column, "the value is blank; an edge needs the id of a node at both ends.")
        table.refuse(row, column, f"there is no node {values[row]!r} {where}.")
    return found


def _weights(table: Table, column: str | None) -> Tensor | None:
    if column is None:
        return None
    weights = table.numbers.get(column, np.empty(0))
    negative = np.flatnonzero(weights < 0)
    if negative.size:
        row = int(negative[0])
        table.refuse(row, column, f"the weight {weights[row]} is negative; weights must be 0 or more.")
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(weights.sum())
    if not is_finite:
        row = int(weights.argmax())
        table.refuse(
            row,
            column,
            f"the weight {weights[row]} is so large that the sum of all is no number any more; divide all weights by "
            "the same number.",
        )
    return torch.from_numpy(weights.copy())  # torch warns of Parquet's arrays, which cannot be written to
