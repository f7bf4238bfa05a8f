"""Your own graph from your own files: a table of nodes, and a table of edges or the nearest neighbours instead."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, counted
from graphjoule.graph import Propagation
from graphjoule.graph.features import Features, SparseFeatures
from graphjoule.tasks.columns import (
    LossName,
    TaskName,
    build_features,
    check_objective,
    find_objective,
    find_positions,
    keep_constant,
    measure_categories,
    measure_numbers,
    read_targets,
)
from graphjoule.tasks.digits import knn_edge_index
from graphjoule.tasks.facts import Source, SourceFile, TableColumns
from graphjoule.tasks.inputs import ModelInput
from graphjoule.tasks.objective import Classification, Objective
from graphjoule.tasks.reading import Header, Table, Wanted, check_file, file_sha256, read_table, shorten
from graphjoule.tasks.splits import stratified_rule
from graphjoule.tasks.task import Task

DEFAULT_ID, DEFAULT_LABEL, DEFAULT_WEIGHT = "id", "label", "weight"
DEFAULT_NEIGHBORS = 10
_ENDS = (("source", "target"), ("src", "dst"), ("from", "to"))
_MANY_NODES = 20_000  # from here on a neighbour graph is minutes of work on two cores
_FEATURE_HINT = "; every feature must be a finite number, unless `one_hot` names the column or `features` leaves it out"
logger = logging.getLogger("graphjoule")


def load_tables(
    nodes: str | Path,
    edges: str | Path | None = None,
    *,
    id: str | None = None,
    label: str | None = None,
    features: Sequence[str] | None = None,
    one_hot: Sequence[str] = (),
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    knn: int | None = None,
    task: TaskName | None = None,
    loss: LossName | None = None,
    test_fraction: float = 0.0,
) -> Task:
    """A task from a table of nodes and a table of edges, CSV or Parquet.

    Numbers are standardised with mean and standard deviation of all nodes. An edge counts in both directions; labels
    that are blank are to be predicted. By default a fifth of each class validates, and no node is held back to test.

    Args:
        nodes: one row per node: its id, its label, its features.
        edges: one row per edge; None links every node with its nearest neighbours in the features.
        id: column of the nodes' names: by default "id"; if there is none, the first column where edges name the nodes,
            else the nodes are called 1, 2, and so on.
        label: column of what is to be predicted, classes or numbers: by default "label".
        features: columns that are features: by default all but id and label.
        one_hot: the text columns among them, or besides them.
        source: column of an edge's one end: by default "source", "src", "from" or the first column.
        target: column of its other end: by default "target", "dst", "to" or the second column.
        weight: column of its weight: by default "weight" if there is such a column, else every edge weighs 1.
        knn: neighbours per node, without `edges`; by default 10, or all others if there are fewer.
        task: "classification", where every different label is a class, or "regression", where labels are numbers. By
            default a classification, unless the labels are so many different numbers that it has to be said.
        loss: of a regression: "squared" (the default) or "absolute" error.
        test_fraction: share of the labelled nodes of each class to hold back and score once at the end.

    Returns:
        The task, with the nodes' names and the files it came from; its name is that of the file of nodes.
    """
    options = _NodeOptions.of(id, label, features, one_hot)
    _check_one_graph(edges, knn)
    check_objective(task, loss)
    table, columns = _read_nodes(nodes, options, has_edges=edges is not None)
    ids, objective = _node_ids(table, columns.id, options), find_objective(table, columns.label, task, loss)
    targets = read_targets(table, columns.label, objective)
    x = build_features(table, columns)
    if edges is None:
        knn = _num_neighbors(knn, len(ids))
        columns = columns.model_copy(update={"knn": knn})
        graph = _neighbour_graph(x, knn)
    else:
        hint = _id_hint(columns.id, options)
        read = _read_edges(edges, _Ends(source, target, weight), ids, str(nodes), hint=hint)
        columns = columns.model_copy(update=vars(read.ends))
        graph = read.graph(len(ids))
        _log_edges(edges, read, graph)
    made = Task(
        name=Path(nodes).name,
        features=x,
        graph=graph,
        targets=targets,
        objective=objective,
        default_split=stratified_rule(test_fraction),
        node_ids=ids,
        source=Source(files=source_files(nodes=nodes, edges=edges), columns=columns),
    )
    log_nodes(nodes, made)
    return made


def load_graph(
    nodes: str | Path,
    edges: str | Path | None = None,
    *,
    id: str | None = None,
    label: str | None = None,
    features: Sequence[str] | None = None,
    one_hot: Sequence[str] = (),
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    knn: int | None = None,
) -> Propagation:
    """The graph alone of a table of nodes and a table of edges: no node needs a label, and one node is enough.

    With `edges`, of the nodes only the names are read; the features matter where they are to say who is linked.

    Args:
        nodes: as for `load_tables`, and so are all others.
        edges: one row per edge; None links every node with its nearest neighbours in the features.
        id: column of the nodes' names.
        label: column of the labels, which is no feature.
        features: columns that are features.
        one_hot: columns of text that are features.
        source: column of an edge's one end.
        target: column of its other end.
        weight: column of its weight.
        knn: neighbours per node, without `edges`.
    """
    options = _NodeOptions.of(id, label, features, one_hot)
    _check_one_graph(edges, knn)
    if edges is None:
        table, columns = _read_nodes(nodes, options, has_edges=False, needs_labels=False)
        _node_ids(table, columns.id, options)  # refused as in a training
        return _neighbour_graph(build_features(table, columns), _num_neighbors(knn, table.num_rows))
    table = read_table(nodes, lambda header: Wanted([_id_column(header, options, has_edges=True) or header.names[0]]))
    (column,) = table.text
    ids = _node_ids(table, column, options)
    read = _read_edges(edges, _Ends(source, target, weight), ids, str(nodes), hint=_id_hint(column, options))
    graph = read.graph(len(ids))
    _log_edges(edges, read, graph)
    return graph


def load_tables_like(
    columns: TableColumns, objective: Objective, nodes: str | Path, edges: str | Path | None = None
) -> ModelInput:
    """Another graph, read as the training graph was and scaled with its numbers.

    Args:
        columns: how the training graph was read.
        objective: what the model predicts: the label's column holds its classes, or numbers.
        nodes: a table with the same columns; the label's may be missing.
        edges: a table with the same columns; None if the training graph was one of nearest neighbours too.
    """
    if edges is None and columns.knn is None:
        raise GraphjouleError(
            f"`edges` is missing: the model was trained on a graph with edges (columns {columns.source!r} and "
            f"{columns.target!r}); give the edges between the nodes of {nodes}."
        )

    def choose(header: Header) -> Wanted:
        needed = [columns.id] if columns.id is not None else []
        needed += [column.name for column in columns.categories]
        numbers = [column.name for column in columns.numbers]
        for name in (*needed, *numbers):
            header.find(name, None)
        labels = [columns.label] if columns.label in header else []
        return Wanted([*needed, *labels], numbers, "; every feature must be a finite number")

    table = read_table(nodes, choose)
    ids = _node_ids(table, columns.id)
    has_labels = columns.label in table.text
    targets = read_targets(table, columns.label, objective) if has_labels else objective.unknown(len(ids))
    features = build_features(table, columns)
    if edges is None:
        assert columns.knn is not None
        graph = _neighbour_graph(features, min(columns.knn, max(len(ids) - 1, 1)))
    else:
        ends = _Ends(columns.source, columns.target, columns.weight)
        graph = _read_edges(edges, ends, ids, str(nodes), is_trained=True).graph(len(ids))
    return ModelInput(features, graph, targets, ids)


def unchanged(file: SourceFile) -> Path:
    """The path of a file of the training graph, if it is still there and still holds what it held."""
    path = Path(file.path)
    if not path.exists():
        raise GraphjouleError(
            f"The {file.role} of the training graph, {path}, are not there any more; name the file with `{file.role}`."
        )
    if file_sha256(check_file(path)) != file.sha256:
        raise GraphjouleError(
            f"{path} has changed since the model was trained; to predict on it as it is now, name it with "
            f"`{file.role}`."
        )
    return path


def source_files(**paths: str | Path | None) -> tuple[SourceFile, ...]:
    """The files by role, each with its hash; None is a role without a file."""
    return tuple(
        SourceFile.model_validate({"role": role, "path": str(Path(path).absolute()), "sha256": file_sha256(Path(path))})
        for role, path in paths.items()
        if path is not None
    )


# Nodes


@dataclass(frozen=True)
class _NodeOptions:
    """Which column of a table of nodes is what; None is the default, see `load_tables`."""

    id: str | None
    label: str | None
    features: tuple[str, ...] | None
    one_hot: tuple[str, ...]

    @classmethod
    def of(
        cls, id: str | None, label: str | None, features: Sequence[str] | None, one_hot: Sequence[str]
    ) -> _NodeOptions:
        given = None if features is None else tuple(dict.fromkeys(features))
        return cls(id, label, given, tuple(dict.fromkeys(one_hot)))


def _read_nodes(
    path: str | Path, options: _NodeOptions, *, has_edges: bool, needs_labels: bool = True
) -> tuple[Table, TableColumns]:
    """Read a table of nodes to train on, and measure its columns.

    Args:
        path: the table.
        options: which column is what.
        has_edges: whether a table of edges will name the nodes.
        needs_labels: whether the column of the labels must be there even if no option names it.

    Returns:
        The table, and how it was read, with mean and standard deviation of every number and the categories.
    """
    id_column: str | None = None
    label = DEFAULT_LABEL if options.label is None else options.label

    def choose(header: Header) -> Wanted:
        nonlocal id_column
        id_column = _id_column(header, options, has_edges=has_edges)
        has_labels = needs_labels or options.label is not None or label in header
        labels = [header.find(label, "label")] if has_labels else []
        numbers = _number_columns(header, options, {id_column, label})
        ids = [id_column] if id_column is not None else []
        return Wanted([*ids, *labels, *options.one_hot], numbers, _FEATURE_HINT)

    table = read_table(path, choose)
    numbers = tuple(measure_numbers(name, values) for name, values in table.numbers.items())
    categories = tuple(measure_categories(name, table) for name in options.one_hot)
    differ = any(column.std for column in numbers) or any(len(pc.unique(table.text[c.name])) > 1 for c in categories)
    if table.num_rows > 1 and not differ:
        if not has_edges:
            raise GraphjouleError(
                f"{table.path}: every feature is constant, so that no node is nearer than another; give the edges with "
                "`edges`, or a feature in which the nodes differ."
            )
        logger.warning(
            "%s: every feature is constant and is kept, scaled to size 1; the edges alone tell the nodes apart",
            table.path,
        )
        # Zeros, which constants become otherwise, would leave a network nothing to multiply with.
        numbers = tuple(keep_constant(column) for column in numbers)
    return table, TableColumns(id=id_column, label=label, numbers=numbers, categories=categories)


def _id_column(header: Header, options: _NodeOptions, *, has_edges: bool) -> str | None:
    if options.id is not None:
        return header.find(options.id, "id")
    if DEFAULT_ID in header:
        return DEFAULT_ID
    return header.names[0] if has_edges else None


def _id_hint(column: str | None, options: _NodeOptions | None) -> str:
    """Where the ids came from, if nobody said so, for the end of a sentence about one that does not fit."""
    if column in (None, DEFAULT_ID) or options is None or options.id is not None:
        return ""
    return (
        f"; ids were taken from the column {column!r}, as there is no column {DEFAULT_ID!r}: name the right one with "
        "`id`"
    )


def _number_columns(header: Header, options: _NodeOptions, others: set[str | None]) -> tuple[str, ...]:
    """The numeric columns that are features."""
    given = options.features if options.features is not None else tuple(n for n in header.names if n not in others)
    for argument, names in (("one_hot", options.one_hot), ("features", given)):
        for name in names:
            if header.find(name, argument) in others:
                raise GraphjouleError(
                    f"{header.path}, line 1: the column {name!r} is named by `{argument}`, but it is the id or the "
                    "label."
                )
    categories = set(options.one_hot)
    numbers = tuple(name for name in given if name not in categories)
    if not numbers and not categories:
        raise GraphjouleError(
            f"{header.path}, line 1: there is no column of features besides id and label; at least one is needed."
        )
    return numbers


def _node_ids(table: Table, column: str | None, options: _NodeOptions | None = None) -> tuple[str, ...]:
    """The nodes' names, each given once; the row's number from 1 where there is no column of names.

    Args:
        table: the nodes.
        column: the column of their names.
        options: what was asked for, to say of a wrong column why it is the one; None if it is a trained model's.
    """
    if column is None:
        return tuple(str(number) for number in range(1, table.num_rows + 1))
    ids: list[str] = table.text[column].to_pylist()
    if "" in ids:
        table.refuse(ids.index(""), column, f"the id is blank; every node needs one{_id_hint(column, options)}.")
    if nul := next((name for name in ids if "\0" in name), None):
        table.refuse(ids.index(nul), column, f"the id {nul!r} holds a NUL byte; expected text.")
    first: dict[str, int] = {}
    for row, name in enumerate(ids):
        if first.setdefault(name, row) != row:
            table.refuse(
                row,
                column,
                f"the id {name!r} stands on {table.unit} {table.place(first[name])} already; ids must differ"
                f"{_id_hint(column, options)}.",
            )
    return tuple(ids)


def log_nodes(path: str | Path, task: Task) -> None:
    """Say how many nodes, features, labels and classes there are; warn of a class with a single label."""
    known = task.is_known
    num_known = int(known.sum())
    head = f"{path}: {counted(task.num_nodes, 'node')}, {counted(task.num_features, 'feature')}"
    if not isinstance(task.objective, Classification):
        values = task.targets[known]
        logger.info(
            "%s; %s with a number from %.6g to %.6g, %s to predict",
            head,
            f"{num_known:,}",
            float(values.min()),
            float(values.max()),
            f"{task.num_nodes - num_known:,}",
        )
        return
    classes = task.objective.classes
    logger.info(
        "%s; %s labelled with %s (%s), %s to predict",
        head,
        f"{num_known:,}",
        counted(len(classes), "class", "classes"),
        shorten(classes),
        f"{task.num_nodes - num_known:,}",
    )
    counts = torch.bincount(task.targets[known], minlength=len(classes))
    if single := [name for name, count in zip(classes, counts.tolist(), strict=True) if count == 1]:
        logger.warning(
            "%s: one labelled node alone in %s: it trains, and nothing validates what is learnt of it",
            path,
            f"the classes {shorten(single)}" if len(single) > 1 else f"the class {single[0]}",
        )


# Edges


@dataclass(frozen=True)
class _Ends:
    """Which column of a table of edges is what; None is the default, see `load_tables`."""

    source: str | None = None
    target: str | None = None
    weight: str | None = None


@dataclass(frozen=True, eq=False)
class _EdgeTable:
    """The edges of a table as node numbers.

    Attributes:
        edge_index: shape ``[2, num_edges]``, as the rows stand.
        edge_weight: one per edge, or None.
        ends: the columns they came from; nothing in it is left to a default.
    """

    edge_index: Tensor
    edge_weight: Tensor | None
    ends: _Ends

    def graph(self, num_nodes: int) -> Propagation:
        """The undirected graph: each row counts in both directions, self-loops are dropped.

        Rows that repeat one direction add their weights; of the two directions the larger weight counts.
        """
        return Propagation.from_edge_index(self.edge_index, self.edge_weight, num_nodes, symmetrize=True)


def _read_edges(
    path: str | Path, ends: _Ends, ids: Sequence[str], nodes: str, *, is_trained: bool = False, hint: str = ""
) -> _EdgeTable:
    """Read a table of edges between known nodes.

    Args:
        path: the table; a header without a row is a graph without edges.
        ends: which column is what.
        ids: the nodes' names; compared as text, so "1" and "1.0" are different nodes.
        nodes: the file of nodes, for the sentence about a node it does not have.
        is_trained: the columns are those of a trained model, and nothing is left to a default.
        hint: how to end the sentence about a node that is not there.
    """

    def choose(header: Header) -> Wanted:
        nonlocal ends
        ends = _settle(header, ends, is_trained=is_trained)
        assert ends.source is not None
        assert ends.target is not None
        weights = [ends.weight] if ends.weight is not None else []
        return Wanted([ends.source, ends.target], weights, "; a weight must be a finite number")

    table = read_table(path, choose, may_be_empty=True)
    index = []
    for column in table.text:
        numbers, unknown = find_positions(table, column, ids)
        blank = np.flatnonzero(numbers < 0)
        if unknown is not None and unknown == blank[0]:
            where = f"in {nodes}{hint or '; ids are compared as text'}"
            table.refuse(unknown, column, f"there is no node {table.text[column][unknown].as_py()!r} {where}.")
        if blank.size:
            table.refuse(int(blank[0]), column, "the value is blank; an edge needs the id of a node at both ends.")
        index.append(torch.from_numpy(numbers))
    return _EdgeTable(torch.stack(index), _weights(table, ends.weight), ends)


def _settle(header: Header, ends: _Ends, *, is_trained: bool) -> _Ends:
    """The columns of a table of edges, with nothing left to a default."""
    if len(header.names) < 2:
        raise GraphjouleError(
            f"{header.path}, line 1: there is one column, {header.names[0]!r}; an edge needs two, source and target."
        )
    found = next((pair for pair in _ENDS if pair[0] in header and pair[1] in header), header.names[:2])
    source = header.find(found[0] if ends.source is None else ends.source, None if is_trained else "source")
    target = header.find(found[1] if ends.target is None else ends.target, None if is_trained else "target")
    if source == target:
        raise GraphjouleError(
            f"{header.path}, line 1: the column {source!r} is both source and target of every edge; name the other one "
            "with `source` or `target`."
        )
    if ends.weight is not None:
        return _Ends(source, target, header.find(ends.weight, None if is_trained else "weight"))
    # A weight column that the training graph did not have would change what an edge means.
    has_weight = not is_trained and DEFAULT_WEIGHT in header and DEFAULT_WEIGHT not in (source, target)
    return _Ends(source, target, DEFAULT_WEIGHT if has_weight else None)


def _weights(table: Table, column: str | None) -> Tensor | None:
    if column is None:
        return None
    weights = table.numbers[column]
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
    return torch.from_numpy(weights.copy())  # torch warns of pyarrow's arrays, which cannot be written to


def _check_one_graph(edges: str | Path | None, knn: int | None) -> None:
    if edges is not None and knn is not None:
        raise GraphjouleError(f"`knn` is {knn} and `edges` is {edges}; give one of them, the graph comes from one.")


def _num_neighbors(knn: int | None, num_nodes: int) -> int:
    return min(DEFAULT_NEIGHBORS, max(num_nodes - 1, 1)) if knn is None else knn


def _neighbour_graph(features: Features, knn: int) -> Propagation:
    dense: Tensor = features.to_dense() if isinstance(features, SparseFeatures) else features
    slowly = ", which takes minutes for so many" if dense.size(0) >= _MANY_NODES else ""
    logger.info("no edges given: linking every node with its %d nearest in the features%s", knn, slowly)
    if dense.size(0) == 1:  # nobody to link with
        return Propagation.from_edge_index(torch.empty(2, 0, dtype=torch.int64), num_nodes=1)
    return Propagation.from_edge_index(knn_edge_index(dense, knn), num_nodes=dense.size(0), symmetrize=True)


def _log_edges(path: str | Path, read: _EdgeTable, graph: Propagation) -> None:
    if not read.edge_index.size(1):
        logger.warning("%s has a header but no row below it: the graph has no edges", path)
    loops = int((read.edge_index[0] == read.edge_index[1]).sum())
    zeros = 0 if read.edge_weight is None else int((read.edge_weight == 0).sum())
    more = [f"{counted(loops, 'self-loop')} dropped"] if loops else []
    more += [f"weights from {read.ends.weight!r}"] if read.ends.weight else []
    more += [f"{counted(zeros, 'row')} of weight 0 left out"] if zeros else []
    log_graph(path, graph, more)


def log_graph(path: str | Path, graph: Propagation, more: Sequence[str] = ()) -> None:
    """Say how many edges and nodes there are, and how many nodes are alone."""
    alone = int((graph.degree == 0).sum())
    parts = [f"{counted(graph.num_edges, 'edge')} between {counted(graph.num_nodes, 'node')}", *more]
    parts += [f"{counted(alone, 'node')} without an edge"] if alone else []
    logger.info("%s: %s", path, ", ".join(parts))
