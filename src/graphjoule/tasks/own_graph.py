"""What a user's tables say of nodes and of graphs, before anything is built from it: features and targets.

Nothing here imports torch: `graphjoule data check` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphjoule.errors import GraphjouleError, choices, counted
from graphjoule.tasks.columns import Finding, Values, keep_constant, positions, recognise
from graphjoule.tasks.encoders import (
    DIRECTIONS,
    EDGE_TYPES,
    CategoryColumn,
    Direction,
    EdgeTypes,
    GraphColumns,
    LossName,
    NumberColumn,
    ObjectiveName,
    PoolingName,
    TableColumns,
    TextColumn,
)
from graphjoule.tasks.labels import (
    check_objective,
    find_objective,
    find_objective_of_columns,
    read_target_columns,
    read_targets,
)
from graphjoule.tasks.reading import Table, shorten

DEFAULT_ID, DEFAULT_LABEL, DEFAULT_GRAPH = "id", "label", "graph"
SPLIT_COLUMN = "split"
"""A column that says which part each node is of, or each graph in a table of these."""
SPLIT_PARTS = {
    "train": ("train",),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}
"""How its values call the three parts, in small letters."""
_PART_NAMES = tuple(name for names in SPLIT_PARTS.values() for name in names)


@dataclass(frozen=True)
class TableOptions:
    """Which column of the tables is what, and what is asked; None is the default, see `load_tables`."""

    id: str | None = None
    label: str | Sequence[str] | None = None
    features: Sequence[str] | None = None
    one_hot: Sequence[str] = ()
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    edge_type: str | None = None
    types: EdgeTypes = "merged"
    direction: Direction = "both"
    knn: int | None = None
    objective: ObjectiveName | None = None
    loss: LossName | None = None
    positive: str | None = None
    order: Sequence[str] | None = None
    known_types: tuple[str, ...] | None = None  # of a trained model
    graph_column: str | None = None
    pooling: PoolingName = "mean"
    graphs: GraphColumns | None = None  # as `read_graphs` finds them, or of a trained model

    def __post_init__(self) -> None:
        check_objective(self.objective, self.loss, self.positive, self.order)
        if self.direction not in DIRECTIONS:
            raise GraphjouleError(f"`direction` is {self.direction!r}; the choices are: {choices(DIRECTIONS)}.")
        if self.types not in EDGE_TYPES:
            raise GraphjouleError(f"`types` is {self.types!r}; the choices are: {choices(EDGE_TYPES)}.")
        if self.pooling not in get_args(PoolingName):
            raise GraphjouleError(f"`pooling` is {self.pooling!r}; the choices are: {choices(get_args(PoolingName))}.")
        if self.types != "merged" and self.edge_type is None:
            raise GraphjouleError(f"`types` is {self.types!r}, but it is for `edge_type`, which is not given.")


@dataclass(frozen=True, eq=False)
class NodeTable:
    """A table of nodes as it was read, or of graphs, which has no features.

    Attributes:
        table: the file.
        values: the columns' values.
        columns: which column is what, and the features' numbers.
        ids: the nodes' names, in text; behind that of their graph and a NUL where only both together name a node.
        findings: what every column of features was recognised as; empty for the table of a trained model.
        graph: the number of every node's graph, where there is a table of graphs.
        beside: the table of the training graph, whose nodes edges may name too.
    """

    table: Table
    values: Values
    columns: TableColumns
    ids: pa.Array
    findings: tuple[Finding, ...] = ()
    graph: np.ndarray | None = None
    beside: Path | None = None

    @property
    def labels(self) -> Values | None:
        """The text of the targets by column, if the table has them."""
        found = {name: self.values[name] for name in self.columns.labels if name in self.values}
        return found if len(found) == len(self.columns.labels) else None

    def find_objective(self, options: TableOptions) -> tuple[ObjectiveName, tuple[str, ...]]:
        """What the labels and the options ask for, and the names of the classes, labels or targets."""
        assert self.labels is not None
        if len(self.labels) > 1:
            return find_objective_of_columns(self.table, self.labels, options.objective)
        ((name, column),) = self.labels.items()
        return find_objective(self.table, name, column, options.objective, options.positive, options.order)

    def targets(self, objective: str, names: Sequence[str]) -> np.ndarray:
        """Every node's target or targets, see `read_targets`; one that does not fit the objective is refused."""
        assert self.labels is not None
        if len(self.labels) > 1:
            return read_target_columns(self.table, self.labels, objective)
        ((name, column),) = self.labels.items()
        return read_targets(self.table, name, column, objective, names)

    def refuse_large(self, targets: np.ndarray, largest: float = float(np.finfo(np.float32).max)) -> None:
        """Refuse targets that are beyond the largest number a model can hold: float32's, unless torch has another."""
        rows = targets.reshape(len(targets), -1)
        wrong = np.argwhere(np.abs(rows) > largest)
        if wrong.size:
            row, column = (int(place) for place in wrong[0])
            self.table.refuse(
                row,
                self.columns.labels[min(column, len(self.columns.labels) - 1)],
                f"{rows[row, column]} is too large to train on; divide all numbers by the same one.",
            )


def read_nodes(
    path: str | Path,
    options: TableOptions,
    *,
    has_edges: bool,
    needs_label: bool = True,
    is_check: bool = False,
    graphs: NodeTable | None = None,
) -> NodeTable:
    """Read a table of nodes to train on, and measure its columns.

    Args:
        path: the table.
        options: which column is what.
        has_edges: whether a table of edges will name the nodes.
        needs_label: whether the column of the labels must be there even if no option names it.
        is_check: leave the problems of columns in the findings instead of refusing them.
        graphs: the graphs that the nodes are of, which have the labels then; `options` are those of `read_graphs`.
    """
    table = Table(path)
    id_column = id_of(table, options, has_edges=has_edges)
    labels = _label_columns(table, options) if graphs is None else graphs.columns.labels
    has_label = graphs is None and (needs_label or options.label is not None or labels[0] in table)
    others = {id_column, *([table.find(label, "label") for label in labels] if has_label else labels)}
    has_split = graphs is None and _has_split(table, others, options)
    others |= {SPLIT_COLUMN} if has_split else set()
    if graphs is not None:
        assert options.graphs is not None
        if (known := next((name for name in labels if name in table), None)) and options.features is None:
            raise GraphjouleError(
                f"{table.path}, line 1: the column {known!r} is what is to be predicted for every graph, and stands "
                "among its nodes too; take it out, or name the columns to learn from with `features`."
            )
        others |= {options.graphs.node}
    if id_column in labels and options.label is not None and graphs is None:
        raise GraphjouleError(f"{table.path}, line 1: the column {id_column!r} is named by `label`, but it is the id.")
    one_hot = dict.fromkeys(options.one_hot)
    named = options.features if options.features is not None else [n for n in table.names if n not in others]
    for argument, names in (("one_hot", options.one_hot), ("features", named)):
        _refuse_twice(table, names, argument)
        for name in names:
            if table.find(name, argument) in others:
                raise GraphjouleError(
                    f"{table.path}, line 1: the column {name!r} is named by `{argument}`, but it is the id or the "
                    f"label{'' if graphs is None else ', or names the graph'}."
                )
    features = dict.fromkeys([*named, *one_hot])
    if not features:
        if options.features is not None:
            raise GraphjouleError("`features` names no column; expected one at least, or leave it out to take all.")
        raise GraphjouleError(
            f"{table.path}, line 1: there is no column of features besides id and label; at least one is needed."
        )
    as_text = [*([id_column] if id_column is not None else []), *(labels if has_label else []), *one_hot]
    as_text += [options.graphs.node] if options.graphs is not None else []
    as_text += [SPLIT_COLUMN] if has_split else []
    values = table.read(as_text, [name for name in features if name not in one_hot])
    found = tuple(recognise(table, name, values[name], is_category=name in one_hot) for name in features)
    problem = next((finding.problem for finding in found if finding.problem is not None), None)
    if problem is not None and not is_check:
        raise GraphjouleError(problem)
    used = [each.encoder for each in found if each.encoder is not None and each.kind != "constant"]
    num_rows = len(next(iter(values.values())))
    if not used and problem is None:
        constant = [each.encoder for each in found if each.encoder is not None]
        if not constant:
            raise GraphjouleError(
                f"{table.path}: no column can be a feature: "
                f"{shorten([f'{each.name} is {each.becomes}' for each in found])}; `one_hot` makes a column categories."
            )
        if num_rows > 1 and not has_edges:
            raise GraphjouleError(
                f"{table.path}: every feature is constant, so that no node is nearer than another; give the edges with "
                "`edges`, or a feature in which the nodes differ."
            )
        # Zeros, which constants would become, leave a network nothing to multiply with.
        used = [keep_constant(encoder) for encoder in constant]
        found = tuple(replace(f, becomes="kept, scaled to size 1") if f.encoder else f for f in found)
    columns = TableColumns(
        id=id_column,
        label=labels[0] if len(labels) == 1 else labels,
        numbers=tuple(each for each in used if isinstance(each, NumberColumn)),
        categories=tuple(each for each in used if isinstance(each, CategoryColumn)),
        texts=tuple(each for each in used if isinstance(each, TextColumn)),
        graphs=options.graphs,
    )
    ids = _node_ids(table, values, num_rows, columns, options)
    return NodeTable(table, values, columns, ids, found, _graph_of_nodes(table, values, columns, graphs))


def _label_columns(table: Table, options: TableOptions) -> tuple[str, ...]:
    """The columns that `label` names: one, several, or several with commas between them."""
    if options.label is None:
        return (DEFAULT_LABEL,)
    if not isinstance(options.label, str):
        names = tuple(options.label)
    elif options.label in table or "," not in options.label:
        names = (options.label,)
    else:
        names = tuple(name for part in options.label.split(",") if (name := part.strip()))
    _refuse_twice(table, names, "label")
    return names


def _refuse_twice(table: Table, names: Sequence[str], argument: str) -> None:
    """Refuse a list with a name that stands in it twice, where another column may have been meant."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise GraphjouleError(f"{table.path}: `{argument}` names the column {twice[0]!r} twice; expected it once.")


def read_nodes_like(path: str | Path, columns: TableColumns, graphs: NodeTable | None = None) -> NodeTable:
    """Read a table with the columns of the one that a model was trained with; that of the label may be missing.

    If the model predicts graphs, `graphs` are those that the nodes are of.
    """
    table = Table(path)
    ids = [table.find(columns.id, None)] if columns.id is not None else []
    numbers = [table.find(column.name, None) for column in columns.numbers]
    texts = [
        table.find(name, None) for name in [*(c.name for c in columns.categories), *(c.name for c in columns.texts)]
    ]
    if columns.graphs is not None:
        labels = [table.find(columns.graphs.node, None)]
    else:
        labels = [name for name in columns.labels if all(each in table for each in columns.labels)]
    values = table.read([*ids, *labels, *texts], numbers)
    names = _node_ids(table, values, len(next(iter(values.values()))), columns)
    return NodeTable(table, values, columns, names, graph=_graph_of_nodes(table, values, columns, graphs))


def read_ids(path: str | Path, options: TableOptions, graphs: NodeTable | None = None) -> NodeTable:
    """Read the nodes' names alone, and those of their graphs if there are many."""
    table = Table(path)
    column = id_of(table, options, has_edges=True)
    assert column is not None
    values = table.read([column, *([options.graphs.node] if options.graphs is not None else [])])
    columns = TableColumns(id=column, label=DEFAULT_LABEL, numbers=(), graphs=options.graphs)
    ids = _node_ids(table, values, len(values[column]), columns, options)
    return NodeTable(table, values, columns, ids, graph=_graph_of_nodes(table, values, columns, graphs))


def id_of(table: Table, options: TableOptions, *, has_edges: bool) -> str | None:
    """The column of the nodes' names; None if they are called by their row's number."""
    graph = None if options.graphs is None else options.graphs.node
    if options.id is not None:
        if options.id == graph:
            raise GraphjouleError(f"{table.path}: {graph!r} is named by `id`, but it is the column of the graphs.")
        return table.find(options.id, "id")
    if DEFAULT_ID in table:
        return DEFAULT_ID
    if not has_edges:
        return None
    if table.names == (graph,):
        raise GraphjouleError(f"{table.path}, line 1: there is no column besides {graph!r}; nodes need ids.")
    return next(name for name in table.names if name != graph)


def id_hint(column: str | None, options: TableOptions | None) -> str:
    """Where the ids came from, if nobody said so, for the end of a sentence about one that does not fit."""
    if column in (None, DEFAULT_ID) or options is None or options.id is not None:
        return ""
    return (
        f"; ids were taken from the column {column!r}, as there is no column {DEFAULT_ID!r}: name the right one with "
        "`id`"
    )


def _node_ids(
    table: Table,
    values: Values,
    num_rows: int,
    columns: TableColumns,
    options: TableOptions | None = None,
    unit: str = "node",
) -> pa.Array:
    """The nodes' names, each given once; the row's number from 1 where there is no column of names."""
    if columns.id is None:
        return pa.array(np.arange(1, num_rows + 1)).cast(pa.string())
    ids = values[columns.id].combine_chunks()
    hint = id_hint(columns.id, options)
    if ids.null_count:
        row = int(pc.index(ids.is_null(), True).as_py())
        table.refuse(row, columns.id, f"the id is blank; every {unit} needs one{hint}.")
    has_nul = pc.match_substring(ids, "\0")
    if pc.any(has_nul).as_py():
        row = int(pc.index(has_nul, True).as_py())
        table.refuse(row, columns.id, f"the id {ids[row].as_py()!r} holds a NUL byte; expected text.")
    names, must = ids, "differ"
    if columns.graphs is not None and columns.graphs.edge is not None:
        names, must = in_graph(values[columns.graphs.node], ids).combine_chunks(), "differ within a graph"
    elif columns.graphs is not None:
        must = f"differ, or differ within a graph if the edges have the column {columns.graphs.node!r} too"
    first = positions(names, names)
    again = np.flatnonzero((first != np.arange(num_rows)) & (first >= 0))
    if again.size:
        row = int(again[0])
        table.refuse(
            row,
            columns.id,
            f"the id {ids[row].as_py()!r} stands on {table.unit} {table.place(int(first[row]))} already; ids must "
            f"{must}{hint}.",
        )
    return names


# Many graphs.


def read_graphs(
    path: str | Path, nodes: str | Path, edges: str | Path | None, options: TableOptions, *, needs_label: bool = True
) -> tuple[NodeTable, TableOptions]:
    """Read a table of graphs, and find the columns by which the other tables name them.

    Args:
        path: the table: a graph's name, in the column that names it in the other tables, else in "id", else in the
            first; and its targets.
        nodes: the table of nodes, in which `graph_column` names the graph, by default "graph".
        edges: the table of edges; if it has that column too, ids need differ within a graph alone.
        options: which column is what.
        needs_label: whether the column of the labels must be there.

    Returns:
        The graphs, and the options to read nodes and edges with.
    """
    if edges is None:
        raise GraphjouleError(
            f"`graphs` is {path}, but `edges` is missing; of graphs without an edge it is a file with a header alone."
        )
    table, column = Table(path), options.graph_column or DEFAULT_GRAPH
    Table(nodes).find(column, "graph_column")
    names = next(name for name in (column, DEFAULT_ID, table.names[0]) if name in table)
    found = GraphColumns(
        id=names, node=column, edge=column if column in Table(edges) else None, pooling=options.pooling
    )
    labels = _label_columns(table, options)
    if needs_label and names in [table.find(label, "label") for label in labels]:
        raise GraphjouleError(f"{table.path}, line 1: the column {names!r} is named by `label`, but it is the id.")
    columns = TableColumns(id=names, label=labels[0] if len(labels) == 1 else labels, numbers=())
    asked = list(labels) if needs_label else []
    asked += [SPLIT_COLUMN] if asked and SPLIT_COLUMN in table else []
    return _graph_table(table, columns, asked), replace(options, graphs=found)


def split_parts(
    read: NodeTable, is_known: np.ndarray, test_fraction: float = 0.0, unit: str = "graph"
) -> list[np.ndarray] | None:
    """The nodes or graphs that train, validate and test by a column of their table; None if there is no such column.

    One without a known target is to be predicted, whatever its part is. A `test_fraction` contradicts such a column.
    """
    is_feature = any(finding.name == SPLIT_COLUMN for finding in read.findings)
    if SPLIT_COLUMN not in read.values or SPLIT_COLUMN in (read.columns.id, *read.columns.labels) or is_feature:
        return None
    if test_fraction:
        raise GraphjouleError(
            f"`test_fraction` is {test_fraction}, but the column 'split' of {read.table.path} says who tests; leave "
            "one out."
        )
    column = read.values[SPLIT_COLUMN]
    found = positions(pc.utf8_lower(column), _PART_NAMES)
    wrong = np.flatnonzero((found < 0) & ~np.asarray(column.is_null()))
    if wrong.size:
        row = int(wrong[0])
        other = "" if unit == "graph" else "; if the column is a feature, name it among the `features`"
        read.table.refuse(
            row,
            SPLIT_COLUMN,
            f"{column[row].as_py()!r} is not a part; expected {choices(SPLIT_PARTS)}, or a blank{other}.",
        )
    parts = {
        part: np.flatnonzero(np.isin(found, [_PART_NAMES.index(name) for name in names]) & is_known)
        for part, names in SPLIT_PARTS.items()
    }
    for name in ("train", "val"):
        if not parts[name].size:
            raise GraphjouleError(
                f"{read.table.path}: no {unit} with a target is in the part {name!r} of the column {SPLIT_COLUMN!r}; "
                f"some must {'train' if name == 'train' else 'validate, such as a fifth of those that train'}."
            )
    return list(parts.values())


def about_split(parts: Sequence[np.ndarray]) -> str:
    """How many nodes or graphs a column puts into each part."""
    sizes = ", ".join(f"{len(part):,} {name}" for name, part in zip(SPLIT_PARTS, parts, strict=True))
    return f"its column {SPLIT_COLUMN!r} is the split 'public': {sizes}"


def _has_split(table: Table, others: set[str | None], options: TableOptions) -> bool:
    """Whether a table of nodes has a column that divides them, which is no feature unless it is named as one."""
    if SPLIT_COLUMN not in table or SPLIT_COLUMN in {*others, *options.one_hot, *(options.features or ())}:
        return False
    column = table.read(inferred=[SPLIT_COLUMN])[SPLIT_COLUMN]
    if not pa.types.is_string(column.type):
        return False
    # One of the two names is enough: a third name beside them, such as "holdout", is refused and not learnt from.
    return bool(pc.any(pc.is_in(pc.utf8_lower(column), pa.array(["train", "test"]))).as_py())


def read_graphs_like(path: str | Path, columns: TableColumns) -> NodeTable:
    """Read a table of graphs with the columns of the one that a model was trained with; the labels may be missing."""
    assert columns.graphs is not None
    table = Table(path)
    own = TableColumns(id=table.find(columns.graphs.id, None), label=columns.label, numbers=())
    return _graph_table(table, own, own.labels if all(name in table for name in own.labels) else ())


def _graph_table(table: Table, columns: TableColumns, labels: Sequence[str]) -> NodeTable:
    assert columns.id is not None
    values = table.read([columns.id, *labels])
    return NodeTable(table, values, columns, _node_ids(table, values, len(values[columns.id]), columns, unit="graph"))


def _graph_of_nodes(table: Table, values: Values, columns: TableColumns, graphs: NodeTable | None) -> np.ndarray | None:
    """The number of every node's graph; a node of no known graph and a graph without a node are refused."""
    if graphs is None:
        return None
    assert columns.graphs is not None
    assert graphs.columns.id is not None
    named = values[columns.graphs.node]
    found = positions(named, graphs.ids)
    if (found < 0).any():
        row = int(np.flatnonzero(found < 0)[0])
        name = named[row].as_py()
        missing = f"there is no graph {name!r} in {graphs.table.path}, whose graphs are called by {graphs.columns.id!r}"
        table.refuse(
            row, columns.graphs.node, "the graph is blank; every node needs one." if name is None else f"{missing}."
        )
    empty = np.flatnonzero(np.bincount(found, minlength=len(graphs.ids)) == 0)
    if empty.size:
        row = int(empty[0])
        graphs.table.refuse(
            row, graphs.columns.id, f"the graph {graphs.ids[row].as_py()!r} has no node in {table.path}; it needs one."
        )
    return found


def in_graph(graph: pa.ChunkedArray, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Names of nodes that hold over all graphs; NUL, which no id may hold, stands between."""
    return pc.binary_join_element_wise(graph, ids, "\0")


def check_one_graph(edges: str | Path | None, knn: int | None) -> None:
    """Refuse to link nodes in two ways."""
    if edges is not None and knn is not None:
        raise GraphjouleError(f"`knn` is {knn} and `edges` is {edges}; give one of them, the graph comes from one.")


def check_neighbors(num_neighbors: int, num_nodes: int) -> None:
    """Refuse a number of neighbours that nodes cannot have."""
    if not 1 <= num_neighbors < num_nodes:
        raise GraphjouleError(
            f"{num_neighbors} neighbours were asked for; with {counted(num_nodes, 'node')} it must be 1 to "
            f"{num_nodes - 1}."
        )
