"""What a user's table says of the edges between known nodes; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphjoule.errors import GraphjouleError, counted
from graphjoule.tasks.columns import positions, read_numbers
from graphjoule.tasks.encoders import DIRECTIONS, EDGE_TYPES, Direction
from graphjoule.tasks.own_graph import NodeTable, TableOptions, id_hint, in_graph
from graphjoule.tasks.reading import Table, first_code, shorten

MOST_TYPES = 50
"""Types of edges that may have operators of their own."""
DEFAULT_WEIGHT = "weight"
_ENDS = (("source", "target"), ("src", "dst"), ("from", "to"))


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """The edges of a table as node numbers.

    Attributes:
        table: the file.
        index: shape ``[2, num_edges]``, as the rows stand; rows that name a node that is not there are left out.
        weight: one per edge, or None.
        columns: which column is what, fields of `TableColumns`.
        num_nodes: how many nodes there are.
        num_rows: how many rows the table has.
        dangling: how many of them name a node that is not there.
        types: how many rows there are of every type, if there are types.
        blank: how many rows have no weight in the column of weights; they weigh 1.
        codes: place of every edge's type among `types`, if there are types.
        untyped: how many rows were left out because a trained model does not know their type.
    """

    table: Table
    index: np.ndarray
    weight: np.ndarray | None
    columns: dict[str, Any]
    num_nodes: int
    num_rows: int
    dangling: int = 0
    types: dict[str, int] = field(default_factory=dict)
    blank: int = 0
    codes: np.ndarray | None = None
    untyped: int = 0

    def counts(self) -> tuple[int, int]:
        """How many edges lead from one node to another, and how many of these pairs there are in either direction."""
        source, target = self.index[:, self.index[0] != self.index[1]]
        low, high = np.minimum(source, target), np.maximum(source, target)
        key = np.sort(2 * (low * self.num_nodes + high) + (source > target))  # one sort counts both
        first = min(len(key), 1)
        return first + int(np.count_nonzero(np.diff(key))), first + int(np.count_nonzero(np.diff(key >> 1)))

    def unused(self) -> list[str]:
        """A line if there are columns that mean nothing."""
        graphs = self.columns["graphs"]
        used = {*self.columns.values(), None if graphs is None else graphs.edge}
        unused = [name for name in self.table.names if name not in used]
        return [f"columns not used: {shorten(unused)}"] if unused else []

    def facts(self) -> list[str]:
        """What is to be said about the rows beside how many there are."""
        loops = int((self.index[0] == self.index[1]).sum())
        edges, pairs = self.counts()
        again, one_way = self.index.shape[1] - loops - edges, 2 * pairs - edges
        zeros = 0 if self.weight is None else int((self.weight == 0).sum())
        merged = "counted once" if self.weight is None else "weights added"
        said = [f"weights from {self.columns['weight']!r}"] if self.columns["weight"] else []
        if said and self.weight is not None and self.weight.size:
            said[0] += f" ({self.weight.min():.4g} to {self.weight.max():.4g}, where a node itself weighs 1)"
        if self.types:
            kinds = shorten([f"{name or 'blank'} {count:,}" for name, count in self.types.items()])
            how = EDGE_TYPES["merged" if self.columns["types"] is None else "separate"]
            said.append(f"types from {self.columns['edge_type']!r} ({kinds}): {how}")
        said += [f"{counted(self.untyped, 'row')} of a type the model does not know left out"] if self.untyped else []
        said += self.unused()
        said += [f"{counted(self.dangling, 'row')} naming no node left out"] if self.dangling else []
        said += [f"{counted(loops, 'self-loop')} dropped"] if loops else []
        said += [f"{counted(again, 'repeated row')} ({merged})"] if again and not self.types else []
        said += [f"{counted(zeros, 'row')} of weight 0 left out"] if zeros else []
        said += [f"{counted(self.blank, 'blank weight')} taken as 1"] if self.blank else []
        direction: Direction = self.columns["direction"]
        some = f"{counted(one_way, 'edge')} in one direction only: " if one_way < edges and direction != "kept" else ""
        return said + ([some + DIRECTIONS[direction]] if one_way or direction == "kept" else [])


def read_edges(path: str | Path, options: TableOptions, nodes: NodeTable, *, is_trained: bool = False) -> EdgeTable:
    """Read a table of edges between known nodes; a header without a row is a graph without edges.

    Names are compared as text, so "1" and "1.0" are different nodes. With `is_trained` the columns are those of a
    trained model, and nothing is left to a default.
    """
    table = Table(path)
    columns = edge_columns(table, options, is_trained=is_trained)
    source, target, weight, edge_type = (columns[key] for key in ("source", "target", "weight", "edge_type"))
    assert source is not None
    assert target is not None
    graph = None if options.graphs is None else options.graphs.edge
    as_text = [name for name in (source, target, edge_type, graph) if name]
    if not is_trained and (positions(pa.chunked_array([pa.array([source, target])]), nodes.ids) >= 0).all():
        raise GraphjouleError(
            f"{table.path}, line 1: {source!r} and {target!r} are nodes of {nodes.table.path}, not names of columns; "
            "write a header line above them, such as source,target."
        )
    values = table.read(as_text, [weight] if weight else [], may_be_empty=True)
    ends = (values[end] if graph is None else in_graph(values[graph], values[end]) for end in (source, target))
    index = np.stack([positions(end, nodes.ids) for end in ends])
    is_dangling = (index < 0).any(axis=0)
    if is_dangling.any() and 2 * is_dangling.sum() >= is_dangling.size:
        row = int(np.flatnonzero(is_dangling)[0])
        column = source if index[0, row] < 0 else target
        name = values[column][row].as_py()
        if name is None:
            table.refuse(row, column, "the value is blank; an edge needs the id of a node at both ends.")
        of_graph = "" if graph is None else f" of graph {values[graph][row].as_py()!r}"
        where = f"{nodes.table.path}{'' if nodes.beside is None else f', nor in {nodes.beside}'}"
        hint = "" if is_trained else id_hint(nodes.columns.id, options)
        many = (
            f"; so it is with {int(is_dangling.sum()):,} of {is_dangling.size:,} rows" if is_dangling.size > 1 else ""
        )
        table.refuse(
            row,
            column,
            f"there is no node {name!r}{of_graph} in {where}{many}{hint or '; ids are compared as text'}.",
        )
    if nodes.graph is not None:
        is_between = ~is_dangling & (nodes.graph[index[0]] != nodes.graph[index[1]])
        if is_between.any():
            row = int(np.flatnonzero(is_between)[0])
            assert options.graphs is not None
            one, two = (nodes.values[options.graphs.node][int(node)].as_py() for node in index[:, row])
            table.refuse(
                row,
                target,
                f"the edge leads from graph {one!r} to graph {two!r}; both ends must be nodes of one graph.",
            )
    weights, num_blank = (None, 0) if weight is None else _weights(table, weight, values[weight])
    dangling = int(is_dangling.sum())
    kept = np.flatnonzero(~is_dangling)
    codes, types, untyped = None, {}, 0
    if edge_type:
        text = pc.fill_null(values[edge_type], "")
        names = options.known_types or sorted(pc.unique(text).to_pylist())
        if options.types == "separate" and len(names) > MOST_TYPES:
            raise GraphjouleError(
                f"{table.path}: the column {edge_type!r} has {len(names):,} types; with `types=separate` there may be "
                f"{MOST_TYPES}. Is it the right `edge_type`?"
            )
        found = positions(text, names)
        untyped = int((found[kept] < 0).sum())
        kept = kept[found[kept] >= 0]
        codes = found[kept]
        types = dict(zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True))
        columns["types"] = tuple(names) if options.types == "separate" else None
    index = index[:, kept]
    weights = None if weights is None else weights[kept]
    if codes is not None and weights is None:  # of one type an edge counts once, and types add up
        num_nodes = len(nodes.ids)
        _, first = np.unique((codes * num_nodes + index[0]) * num_nodes + index[1], return_index=True)
        index, codes, weights = index[:, first], codes[first], np.ones(len(first))
    counts = (len(nodes.ids), is_dangling.size, dangling)
    return EdgeTable(table, index, weights, columns, *counts, types, num_blank, codes, untyped)


def edge_columns(table: Table, options: TableOptions, *, is_trained: bool) -> dict[str, Any]:
    """The columns of a table of edges, with nothing left to a default."""
    graph = None if options.graphs is None else options.graphs.edge
    if graph is not None:
        table.find(graph, None)
    names = [name for name in table.names if name != graph]
    if len(names) < 2:
        raise GraphjouleError(
            f"{table.path}, line 1: there is one column, {table.names[0]!r}; an edge needs two, source and target."
        )
    usual = next((pair for pair in _ENDS if pair[0] in table and pair[1] in table), tuple(names[:2]))
    found: dict[str, Any] = {"source": usual[0], "target": usual[1], "weight": None, "edge_type": None}
    for argument in found:
        if (name := getattr(options, argument)) is not None:
            found[argument] = table.find(name, None if is_trained else argument)
    if found["source"] == found["target"]:
        raise GraphjouleError(
            f"{table.path}, line 1: the column {found['source']!r} is both source and target of every edge; name the "
            "other one with `source` or `target`."
        )
    for argument in ("weight", "edge_type"):
        if (name := found[argument]) is not None and name in (found["source"], found["target"]):
            raise GraphjouleError(
                f"{table.path}, line 1: the column {name!r} is named by `{argument}`, but it holds an end of every "
                "edge."
            )
    # A weight column that the training graph did not have would change what an edge means.
    if not is_trained and options.weight is None and DEFAULT_WEIGHT in table:
        found["weight"] = DEFAULT_WEIGHT if DEFAULT_WEIGHT not in found.values() else None
    return found | {"direction": options.direction, "types": None, "graphs": options.graphs}


def _weights(table: Table, name: str, column: pa.ChunkedArray) -> tuple[np.ndarray, int]:
    """The weight of every row, and how many are blank, which weigh 1."""
    if pa.types.is_string(column.type) and (code := first_code(column)) is not None:
        row = int(pc.index(column, pa.scalar(code)).as_py())
        table.refuse(row, name, f"{code!r} is a code, not a number; a weight has no zero in front.")
    weights = read_numbers(table, name, column)
    num_blank = int(np.isnan(weights).sum())
    weights = np.where(np.isnan(weights), 1.0, weights)
    negative = np.flatnonzero(weights < 0)
    if negative.size:
        row = int(negative[0])
        table.refuse(row, name, f"the weight {weights[row]} is negative; weights must be 0 or more.")
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(weights.sum())
    if not is_finite:
        row = int(weights.argmax())
        table.refuse(
            row,
            name,
            f"the weight {weights[row]} is so large that the sum of all is no number any more; divide all weights by "
            "the same number.",
        )
    return weights, num_blank
