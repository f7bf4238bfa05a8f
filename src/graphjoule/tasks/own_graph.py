"""What a user's two tables say, before anything is built from it: nodes with features and targets, and edges.

Nothing here imports torch: `graphjoule data check` answers at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphjoule.errors import GraphjouleError, choices, counted
from graphjoule.tasks.columns import (
    Finding,
    LossName,
    ObjectiveName,
    Values,
    check_objective,
    find_objective,
    keep_constant,
    positions,
    read_numbers,
    recognise,
)
from graphjoule.tasks.encoders import DIRECTIONS, CategoryColumn, Direction, NumberColumn, TableColumns, TextColumn
from graphjoule.tasks.reading import Table, shorten

DEFAULT_ID, DEFAULT_LABEL, DEFAULT_WEIGHT = "id", "label", "weight"
_ENDS = (("source", "target"), ("src", "dst"), ("from", "to"))


@dataclass(frozen=True)
class TableOptions:
    """Which column of the tables is what, and what is asked; None is the default, see `load_tables`."""

    id: str | None = None
    label: str | None = None
    features: Sequence[str] | None = None
    one_hot: Sequence[str] = ()
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    edge_type: str | None = None
    direction: Direction = "both"
    knn: int | None = None
    objective: ObjectiveName | None = None
    loss: LossName | None = None

    def __post_init__(self) -> None:
        check_objective(self.objective, self.loss)
        if self.direction not in DIRECTIONS:
            raise GraphjouleError(f"`direction` is {self.direction!r}; the choices are: {choices(DIRECTIONS)}.")


@dataclass(frozen=True, eq=False)
class NodeTable:
    """A table of nodes as it was read.

    Attributes:
        table: the file.
        values: the columns' values.
        columns: which column is what, and the features' numbers.
        ids: the nodes' names, in text.
        findings: what every column of features was recognised as; empty for the table of a trained model.
    """

    table: Table
    values: Values
    columns: TableColumns
    ids: pa.Array
    findings: tuple[Finding, ...] = ()

    @property
    def labels(self) -> pa.ChunkedArray | None:
        """The text of the targets, if the table has them."""
        return self.values.get(self.columns.label)


def read_nodes(
    path: str | Path, options: TableOptions, *, has_edges: bool, needs_label: bool = True, is_check: bool = False
) -> NodeTable:
    """Read a table of nodes to train on, and measure its columns.

    Args:
        path: the table.
        options: which column is what.
        has_edges: whether a table of edges will name the nodes.
        needs_label: whether the column of the labels must be there even if no option names it.
        is_check: leave the problems of columns in the findings instead of refusing them.
    """
    table = Table(path)
    id_column = id_of(table, options, has_edges=has_edges)
    label = DEFAULT_LABEL if options.label is None else options.label
    has_label = needs_label or options.label is not None or label in table
    others = {id_column, table.find(label, "label") if has_label else label}
    one_hot = dict.fromkeys(options.one_hot)
    named = options.features if options.features is not None else [n for n in table.names if n not in others]
    for argument, names in (("one_hot", one_hot), ("features", named)):
        for name in names:
            if table.find(name, argument) in others:
                raise GraphjouleError(
                    f"{table.path}, line 1: the column {name!r} is named by `{argument}`, but it is the id or the "
                    "label."
                )
    features = dict.fromkeys([*named, *one_hot])
    if not features:
        raise GraphjouleError(
            f"{table.path}, line 1: there is no column of features besides id and label; at least one is needed."
        )
    as_text = [*([id_column] if id_column is not None else []), *([label] if has_label else []), *one_hot]
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
        label=label,
        numbers=tuple(each for each in used if isinstance(each, NumberColumn)),
        categories=tuple(each for each in used if isinstance(each, CategoryColumn)),
        texts=tuple(each for each in used if isinstance(each, TextColumn)),
    )
    return NodeTable(table, values, columns, _node_ids(table, values, num_rows, columns, options), found)


def read_nodes_like(path: str | Path, columns: TableColumns) -> NodeTable:
    """Read a table with the columns of the one that a model was trained with; that of the label may be missing."""
    table = Table(path)
    ids = [table.find(columns.id, None)] if columns.id is not None else []
    numbers = [table.find(column.name, None) for column in columns.numbers]
    texts = [
        table.find(name, None) for name in [*(c.name for c in columns.categories), *(c.name for c in columns.texts)]
    ]
    labels = [columns.label] if columns.label in table else []
    values = table.read([*ids, *labels, *texts], numbers)
    return NodeTable(table, values, columns, _node_ids(table, values, len(next(iter(values.values()))), columns))


def read_ids(path: str | Path, options: TableOptions) -> NodeTable:
    """Read the nodes' names alone."""
    table = Table(path)
    column = id_of(table, options, has_edges=True)
    assert column is not None
    values = table.read([column])
    columns = TableColumns(id=column, label=DEFAULT_LABEL, numbers=())
    return NodeTable(table, values, columns, _node_ids(table, values, len(values[column]), columns, options))


def id_of(table: Table, options: TableOptions, *, has_edges: bool) -> str | None:
    """The column of the nodes' names; None if they are called by their row's number."""
    if options.id is not None:
        return table.find(options.id, "id")
    if DEFAULT_ID in table:
        return DEFAULT_ID
    return table.names[0] if has_edges else None


def id_hint(column: str | None, options: TableOptions | None) -> str:
    """Where the ids came from, if nobody said so, for the end of a sentence about one that does not fit."""
    if column in (None, DEFAULT_ID) or options is None or options.id is not None:
        return ""
    return (
        f"; ids were taken from the column {column!r}, as there is no column {DEFAULT_ID!r}: name the right one with "
        "`id`"
    )


def _node_ids(
    table: Table, values: Values, num_rows: int, columns: TableColumns, options: TableOptions | None = None
) -> pa.Array:
    """The nodes' names, each given once; the row's number from 1 where there is no column of names."""
    if columns.id is None:
        return pa.array(np.arange(1, num_rows + 1)).cast(pa.string())
    ids = values[columns.id].combine_chunks()
    hint = id_hint(columns.id, options)
    if ids.null_count:
        row = int(pc.index(ids.is_null(), True).as_py())
        table.refuse(row, columns.id, f"the id is blank; every node needs one{hint}.")
    has_nul = pc.match_substring(ids, "\0")
    if pc.any(has_nul).as_py():
        row = int(pc.index(has_nul, True).as_py())
        table.refuse(row, columns.id, f"the id {ids[row].as_py()!r} holds a NUL byte; expected text.")
    first = positions(ids, ids)
    again = np.flatnonzero(first != np.arange(num_rows))
    if again.size:
        row = int(again[0])
        table.refuse(
            row,
            columns.id,
            f"the id {ids[row].as_py()!r} stands on {table.unit} {table.place(int(first[row]))} already; ids must "
            f"differ{hint}.",
        )
    return ids


# Edges.


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
    """

    table: Table
    index: np.ndarray
    weight: np.ndarray | None
    columns: dict[str, str | None]
    num_nodes: int
    num_rows: int
    dangling: int = 0
    types: dict[str, int] = field(default_factory=dict)

    def counts(self) -> tuple[int, int]:
        """How many edges lead from one node to another, and how many of these pairs there are in either direction."""
        source, target = self.index[:, self.index[0] != self.index[1]]
        low, high = np.minimum(source, target), np.maximum(source, target)
        key = np.sort(2 * (low * self.num_nodes + high) + (source > target))  # one sort counts both
        first = min(len(key), 1)
        return first + int(np.count_nonzero(np.diff(key))), first + int(np.count_nonzero(np.diff(key >> 1)))

    def facts(self) -> list[str]:
        """What is to be said about the rows beside how many there are."""
        loops = int((self.index[0] == self.index[1]).sum())
        edges, pairs = self.counts()
        again, one_way = self.index.shape[1] - loops - edges, 2 * pairs - edges
        zeros = 0 if self.weight is None else int((self.weight == 0).sum())
        merged = "counted once" if self.weight is None else "weights added"
        said = [f"weights from {self.columns['weight']!r}"] if self.columns["weight"] else []
        if self.types:
            kinds = shorten([f"{name} {count:,}" for name, count in self.types.items()])
            said.append(f"types from {self.columns['edge_type']!r} ({kinds}) merged into one graph, weights added")
        said += [f"{counted(self.dangling, 'row')} naming no node left out"] if self.dangling else []
        said += [f"{counted(loops, 'self-loop')} dropped"] if loops else []
        said += [f"{counted(again, 'repeated row')} ({merged})"] if again and not self.types else []
        said += [f"{counted(zeros, 'row')} of weight 0 left out"] if zeros else []
        way = DIRECTIONS[self.columns["direction"]]  # type: ignore[index]
        some = f"{counted(one_way, 'edge')} in one direction only: " if one_way < edges else ""
        return said + ([some + way] if one_way else [])


def read_edges(path: str | Path, options: TableOptions, nodes: NodeTable, *, is_trained: bool = False) -> EdgeTable:
    """Read a table of edges between known nodes.

    Args:
        path: the table; a header without a row is a graph without edges.
        options: which column is what.
        nodes: the nodes; names are compared as text, so "1" and "1.0" are different nodes.
        is_trained: the columns are those of a trained model, and nothing is left to a default.
    """
    table = Table(path)
    columns = _edge_columns(table, options, is_trained=is_trained)
    source, target, weight, edge_type = (columns[key] for key in ("source", "target", "weight", "edge_type"))
    assert source is not None
    assert target is not None
    as_text = [source, target, *([edge_type] if edge_type else [])]
    values = table.read(as_text, [weight] if weight else [], may_be_empty=True)
    index = np.stack([positions(values[end], nodes.ids) for end in (source, target)])
    is_dangling = (index < 0).any(axis=0)
    if is_dangling.any() and 2 * is_dangling.sum() >= is_dangling.size:
        row = int(np.flatnonzero(is_dangling)[0])
        column = source if index[0, row] < 0 else target
        name = values[column][row].as_py()
        if name is None:
            table.refuse(row, column, "the value is blank; an edge needs the id of a node at both ends.")
        hint = "" if is_trained else id_hint(nodes.columns.id, options)
        many = (
            f"; so it is with {int(is_dangling.sum()):,} of {is_dangling.size:,} rows" if is_dangling.size > 1 else ""
        )
        table.refuse(
            row,
            column,
            f"there is no node {name!r} in {nodes.table.path}{many}{hint or '; ids are compared as text'}.",
        )
    weights = None if weight is None else _weights(table, weight, values[weight])
    kept = np.flatnonzero(~is_dangling)
    index = index[:, kept]
    weights = None if weights is None else weights[kept]
    types: dict[str, int] = {}
    if edge_type:
        kinds = pc.fill_null(values[edge_type], "").combine_chunks().dictionary_encode()
        codes = kinds.indices.to_numpy()[kept].astype(np.int64)
        counts = np.bincount(codes, minlength=len(kinds.dictionary)).tolist()
        types = dict(sorted(zip(kinds.dictionary.to_pylist(), counts, strict=True)))
        if weights is None:  # of one type an edge counts once, and types add up
            num_nodes = len(nodes.ids)
            _, first = np.unique((codes * num_nodes + index[0]) * num_nodes + index[1], return_index=True)
            index, weights = index[:, first], np.ones(len(first))
    dangling = int(is_dangling.sum())
    return EdgeTable(table, index, weights, columns, len(nodes.ids), is_dangling.size, dangling, types)


def _edge_columns(table: Table, options: TableOptions, *, is_trained: bool) -> dict[str, str | None]:
    """The columns of a table of edges, with nothing left to a default."""
    if len(table.names) < 2:
        raise GraphjouleError(
            f"{table.path}, line 1: there is one column, {table.names[0]!r}; an edge needs two, source and target."
        )
    usual = next((pair for pair in _ENDS if pair[0] in table and pair[1] in table), table.names[:2])
    found: dict[str, str | None] = {"source": usual[0], "target": usual[1], "weight": None, "edge_type": None}
    for argument in found:
        if (name := getattr(options, argument)) is not None:
            found[argument] = table.find(name, None if is_trained else argument)
    if found["source"] == found["target"]:
        raise GraphjouleError(
            f"{table.path}, line 1: the column {found['source']!r} is both source and target of every edge; name the "
            "other one with `source` or `target`."
        )
    # A weight column that the training graph did not have would change what an edge means.
    if not is_trained and options.weight is None and DEFAULT_WEIGHT in table:
        found["weight"] = DEFAULT_WEIGHT if DEFAULT_WEIGHT not in found.values() else None
    return found | {"direction": options.direction}


def _weights(table: Table, name: str, column: pa.ChunkedArray) -> np.ndarray:
    weights = read_numbers(table, name, column)
    missing = np.flatnonzero(np.isnan(weights))
    if missing.size:
        more = f", and {missing.size - 1:,} more are" if missing.size > 1 else ""
        table.refuse(int(missing[0]), name, f"the value is blank{more}; a weight must be a finite number.")
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
    return weights


# What a user hears before anything trains.


@dataclass(frozen=True)
class TableReport:
    """What was found in two tables.

    Attributes:
        nodes: about the nodes, one line.
        columns: what becomes of every column of features.
        target: about the target, one line; None if it is refused.
        edges: about the edges, one line.
        warnings: what a training goes on in spite of.
        problems: what a training refuses.
    """

    nodes: str
    columns: tuple[Finding, ...]
    target: str | None
    edges: str | None
    warnings: tuple[str, ...]
    problems: tuple[str, ...]


def check_tables(nodes: str | Path, edges: str | Path | None, options: TableOptions) -> TableReport:
    """Read two tables as a training would, and say what becomes of them.

    Args:
        nodes: the table of nodes.
        edges: the table of edges; None if nearest neighbours are to be linked.
        options: which column is what.
    """
    read = read_nodes(nodes, options, has_edges=edges is not None, is_check=True)
    problems = [finding.problem for finding in read.findings if finding.problem is not None]
    about_target = about_edges = None
    assert read.labels is not None
    unknown = read.labels.null_count
    try:
        objective, names = find_objective(read.table, read.columns.label, read.labels, options.objective)
        many = f" of {len(names):,} ({shorten(names)})" if objective != "regression" else ""
        known = f"{len(read.labels) - unknown:,} known, {unknown:,} to predict"
        about_target = f"{read.columns.label!r}, {objective}{many}; {known}"
    except GraphjouleError as error:
        problems.append(str(error))
    try:
        if edges is not None:
            linked = read_edges(edges, options, read)
            about_edges = ", ".join([f"{edges}: {counted(linked.num_rows, 'row')}", *linked.facts()])
    except GraphjouleError as error:
        problems.append(str(error))
    called = f"called by {read.columns.id!r}" if read.columns.id else "called 1, 2, and so on"
    about_nodes = f"{nodes}: {counted(len(read.ids), 'node')}, {called}"
    warnings = tuple(warnings_of(read.findings))
    return TableReport(about_nodes, read.findings, about_target, about_edges, warnings, tuple(problems))


def warnings_of(findings: Sequence[Finding]) -> list[str]:
    """One line for every reason why columns are left out, or are suspicious."""
    said = []
    for finding in findings:
        if finding.becomes.startswith("left out"):
            said.append(f"{finding.name!r} is {finding.becomes}")
        elif finding.kind == "number" and re.search(r"(^|[_ ])(id|no|number|code|zip)$", finding.name.lower()):
            said.append(f"{finding.name!r} is taken for a number, whatever its name says")
    return said
