"""Your own graph, or many, from your own files: tables of nodes, of edges or nearest neighbours instead, of graphs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphjoule.errors import GraphjouleError, counted
from graphjoule.graph import Propagation
from graphjoule.graph.features import Features, as_dense
from graphjoule.graph.relations import DirectedPropagation, MixedPropagation, RelationPropagation
from graphjoule.tasks.columns import encode
from graphjoule.tasks.digits import knn_edge_index
from graphjoule.tasks.encoders import Direction, EdgeTypes, LossName, ObjectiveName, PoolingName, TableColumns
from graphjoule.tasks.facts import Source, SourceFile
from graphjoule.tasks.objective import OBJECTIVES, Binary, Classification, MultiLabel, Objective, Ordinal, Regression
from graphjoule.tasks.own_edges import EdgeTable, read_edges
from graphjoule.tasks.own_graph import (
    NodeTable,
    TableOptions,
    about_split,
    check_one_graph,
    read_graphs,
    read_graphs_like,
    read_ids,
    read_nodes,
    read_nodes_like,
    split_parts,
)
from graphjoule.tasks.pooling import Pooling
from graphjoule.tasks.reading import check_file, file_sha256, shorten
from graphjoule.tasks.splits import Split, stratified_rule
from graphjoule.tasks.table_report import (
    about_graphs,
    unused_columns,
    warnings_of,
    warnings_of_copies,
    warnings_of_names,
)
from graphjoule.tasks.task import ModelInput, Task, pack_features

DEFAULT_NEIGHBORS = 10
_MANY_NODES = 20_000  # from here on a neighbour graph is minutes of work on two cores
logger = logging.getLogger("graphjoule")


def load_tables(
    nodes: str | Path,
    edges: str | Path | None = None,
    *,
    id: str | None = None,
    label: str | Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    one_hot: Sequence[str] = (),
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    edge_type: str | None = None,
    types: EdgeTypes = "merged",
    direction: Direction = "both",
    knn: int | None = None,
    objective: ObjectiveName | None = None,
    loss: LossName | None = None,
    positive: str | None = None,
    order: Sequence[str] | None = None,
    test_fraction: float = 0.0,
    graphs: str | Path | None = None,
    graph_column: str | None = None,
    pooling: PoolingName = "mean",
) -> Task:
    """A task from a table of nodes and a table of edges, CSV or Parquet; with a table of graphs, a task about these.

    What a column holds is recognised: numbers, booleans and dates are standardised with mean and standard deviation of
    all nodes, and a missing one becomes the mean and is marked; categories become one feature each, free text one per
    frequent word. Constant columns and columns of names are left out. A line says so. Labels that are blank are to be
    predicted. By default a fifth of each class validates, and no node is held back to test. A column "split" of train,
    val and test, in the table of nodes or else of graphs, is the split "public" instead, and no feature.

    Args:
        nodes: one row per node: its id, its label, its features.
        edges: one row per edge; None links every node with its nearest neighbours in the features.
        id: column of the nodes' names: by default "id"; if there is none, the first column where edges name the nodes,
            else the nodes are called 1, 2, and so on.
        label: column of what is to be predicted: by default "label". Several, in a list or with commas, are several
            numbers of a node, or labels that are each there or not.
        features: columns that are features: by default all but id, label and split.
        one_hot: columns among them, or besides them, that are categories whatever they look like.
        source: column of an edge's one end: by default "source", "src", "from" or the first column.
        target: column of its other end: by default "target", "dst", "to" or the second column.
        weight: column of its weight: by default "weight" if there is such a column, else every edge weighs 1.
        edge_type: column of its type.
        types: "merged" lets an edge of two types weigh 2, or the sum of its weights; "separate" gives every type an
            operator of its own, and ``P`` is their mean, see `MixedPropagation`.
        direction: "both" lets a row count in both directions, the larger weight where both stand there; "mutual" keeps
            edges that stand in both directions; "kept" lets a node read from the sources of the edges that lead to it
            alone, see `DirectedPropagation`.
        knn: neighbours per node, without `edges`; by default 10, or all others if there are fewer.
        objective: "classification" or "binary", where every different label is a class, "ordinal", where the classes
            are in order, "regression", where labels are numbers, or "multilabel", where a label such as ``a;b`` is
            several. By default a classification; labels that look like something else are refused until it
            is said.
        loss: of a regression or of ordered classes: "squared" (the default) or "absolute" error.
        positive: of a binary objective the positive class: by default the second of the two in their order.
        order: of an ordinal objective the classes, lowest first; by default they must be numbers.
        test_fraction: share of the labelled nodes of each class to hold back and score once at the end.
        graphs: one row per graph: its id, in the column `graph_column`, "id" or the first, and its label; then what is
            said above about the labels of nodes holds for graphs, and an edge between two graphs is refused.
        graph_column: column of the nodes that names their graph: by default "graph". If the edges have it too, ids of
            nodes need differ within a graph alone; else all must differ.
        pooling: how outputs of nodes become those of graphs: "mean", "sum" or "max".

    Returns:
        The task, with the names of nodes or graphs and the files it came from; its name is that of the file of these.
    """
    options = TableOptions(
        *(id, label, features, one_hot, source, target, weight, edge_type, types, direction, knn),
        *(objective, loss, positive, order),
        graph_column=graph_column,
        pooling=pooling,
    )
    check_one_graph(edges, knn)
    drawn = stratified_rule(test_fraction)
    units = None
    if graphs is not None:
        units, options = read_graphs(graphs, nodes, edges, options)
    elif graph_column is not None:
        raise GraphjouleError(f"`graph_column` is {graph_column!r}, but it is for `graphs`, which is not given.")
    read = read_nodes(nodes, options, has_edges=edges is not None, graphs=units)
    labelled = units or read
    asked = _objective(labelled, options)
    targets = _targets(labelled, asked)
    x, _ = _features(read)
    graph, linked = graph_of(edges, options, read, x)
    own_split = _own_split(labelled, asked.is_known(targets), test_fraction, "node" if units is None else "graph")
    made = Task(
        name=labelled.table.path.name,
        features=x,
        graph=graph,
        targets=targets,
        objective=asked,
        fixed_splits=() if own_split is None else (own_split,),
        default_split=drawn if own_split is None else own_split.name,
        node_ids=tuple(labelled.ids.to_pylist()),
        source=Source(
            files=source_files(nodes=nodes, edges=edges, graphs=graphs),
            columns=read.columns.model_copy(update=linked),
        ),
        pooling=_pooling(read),
    )
    _log_columns(read)
    copies = warnings_of_copies(read, targets.numpy()) if units is None else []
    for said in (*warnings_of_names(asked.names), *copies):
        logger.warning("%s: %s", labelled.table.path, said)
    if units is not None:
        logger.info("%s: %s %s", nodes, counted(made.num_nodes, "node"), about_graphs(units, read))
        for said in unused_columns(units):
            logger.warning("%s", said)
    log_nodes(labelled.table.path, made)
    return made


def load_graph(
    nodes: str | Path, edges: str | Path | None = None, graphs: str | Path | None = None, **columns: Any
) -> Propagation:
    """The graph alone of a table of nodes and a table of edges: no node needs a label, and one node is enough.

    With `edges`, of the nodes only the names are read; the features matter where they are to say who is linked.

    Args:
        nodes: as for `load_tables`.
        edges: one row per edge; None links every node with its nearest neighbours in the features.
        graphs: one row per graph, where there are many; they need no labels.
        columns: which column is what, `direction` and `knn`, as for `load_tables`.
    """
    options, units = TableOptions(**columns), None
    check_one_graph(edges, options.knn)
    if graphs is not None:
        units, options = read_graphs(graphs, nodes, edges, options, needs_label=False)
    if edges is not None:
        return graph_of(edges, options, read_ids(nodes, options, units), None)[0]
    read = read_nodes(nodes, options, has_edges=False, needs_label=False)
    return graph_of(None, options, read, _features(read)[0])[0]


def load_tables_like(
    columns: TableColumns,
    objective: Objective,
    nodes: str | Path,
    edges: str | Path | None = None,
    graphs: str | Path | None = None,
) -> ModelInput:
    """Another graph, or graphs, read as those of the training were and scaled with their numbers; what is new is said.

    Args:
        columns: how the training graph was read.
        objective: what the model predicts: the label's column holds its classes, or numbers.
        nodes: a table with the same columns; the label's may be missing.
        edges: a table with the same columns; None links nearest neighbours if that is how the training graph was made,
            else every node stands alone.
        graphs: a table with the same columns, if the model predicts graphs; the label's may be missing.
    """
    if (graphs is None or edges is None) and columns.graphs is not None:
        missing = "graphs" if graphs is None else "edges"
        raise GraphjouleError(
            f"The model predicts graphs, and `{missing}` is missing; it needs `graphs`, `nodes` and `edges`."
        )
    if graphs is not None and columns.graphs is None:
        raise GraphjouleError(f"`graphs` is {graphs}, but the model predicts nodes; give `nodes` and `edges` alone.")
    units = None if graphs is None else read_graphs_like(graphs, columns)
    read = read_nodes_like(nodes, columns, units)
    labelled = units or read
    targets = targets_like(labelled, objective)
    x, said = _features(read)
    if edges is None and columns.knn is None:
        logger.warning("%s: no edges given, so every node stands alone; the model was trained with edges", nodes)
        graph = Propagation.from_edge_index(torch.empty(2, 0, dtype=torch.int64), num_nodes=len(read.ids))
    else:
        graph, _ = graph_of(edges, options_like(columns, len(read.ids)), read, x, is_trained=True)
    if said:
        logger.warning("%s: %s", nodes, "; ".join(said))
    return ModelInput(x, graph, targets, tuple(labelled.ids.to_pylist()), _pooling(read))


def targets_like(read: NodeTable, objective: Objective) -> torch.Tensor:
    """What a table for a trained model says of its nodes' targets; all are unknown where it has no such column."""
    return objective.unknown(len(read.ids)) if read.labels is None else _targets(read, objective)


def options_like(columns: TableColumns, num_nodes: int) -> TableOptions:
    """The options that read edges as those of the training graph were."""
    return TableOptions(
        source=columns.source,
        target=columns.target,
        weight=columns.weight,
        edge_type=columns.edge_type,
        types="merged" if columns.types is None else "separate",
        known_types=columns.types,
        direction=columns.direction,
        knn=None if columns.knn is None else min(columns.knn, max(num_nodes - 1, 1)),
        graphs=columns.graphs,
    )


def unchanged(file: SourceFile) -> Path:
    """The path of a file of the training graph, if it is still there and still holds what it held."""
    path = Path(file.path)
    if not path.exists():
        raise GraphjouleError(
            f"The {file.role} of the training graph, {path}, are not there any more; put the file back, or predict on "
            f"another with `{file.role}`."
        )
    if file_sha256(check_file(path)) != file.sha256:
        raise GraphjouleError(
            f"{path} has changed since the model was trained; put the old file back, or, to predict on this one as it "
            f"is now, name it with `{file.role}`."
        )
    return path


def source_files(**paths: str | Path | None) -> tuple[SourceFile, ...]:
    """The files by role, each with its hash; None is a role without a file."""
    return tuple(
        SourceFile.model_validate({"role": role, "path": str(Path(path).absolute()), "sha256": file_sha256(Path(path))})
        for role, path in paths.items()
        if path is not None
    )


def _objective(read: NodeTable, options: TableOptions) -> Objective:
    """The objective that the labels and the options ask for."""
    name, names = read.find_objective(options)
    if name == Regression.name:
        return Regression(len(names), options.loss or "squared", names)
    if name == Ordinal.name:
        return Ordinal(len(names), names, options.loss or "squared")
    return OBJECTIVES[name](len(names), names)  # type: ignore[call-arg]


def _targets(read: NodeTable, objective: Objective) -> torch.Tensor:
    """Every node's target, in the form of the objective."""
    values = read.targets(objective.name, objective.names)
    targets = torch.from_numpy(values)
    if not targets.is_floating_point():
        return targets
    read.refuse_large(values, torch.finfo(torch.get_default_dtype()).max)
    return targets.to(torch.get_default_dtype())


def _features(read: NodeTable) -> tuple[Features, list[str]]:
    dtype = torch.empty(0).numpy().dtype  # torch's default
    matrix, said = encode(read.table, read.columns, read.values, dtype)
    return pack_features(torch.from_numpy(matrix) if isinstance(matrix, np.ndarray) else matrix), said


def _own_split(read: NodeTable, is_known: torch.Tensor, test_fraction: float, unit: str) -> Split | None:
    """The split that a table has in a column, of those whose target is known; None if it has none."""
    found = split_parts(read, is_known.numpy(), test_fraction, unit)
    if found is None:
        return None
    logger.info("%s: %s", read.table.path, about_split(found))
    return Split("public", None, *(torch.from_numpy(part) for part in found))


def _pooling(read: NodeTable) -> Pooling | None:
    if read.graph is None:
        return None
    assert read.columns.graphs is not None
    return Pooling(torch.from_numpy(read.graph), read.columns.graphs.pooling)


def graph_of(
    edges: str | Path | None, options: TableOptions, read: NodeTable, x: Features | None, *, is_trained: bool = False
) -> tuple[Propagation, dict[str, Any]]:
    """The graph of a table of edges, or of nearest neighbours, and the columns it came from."""
    if edges is not None:
        linked = read_edges(edges, options, read, is_trained=is_trained)
        graph = linked_graph(linked)
        if not linked.index.shape[1]:
            logger.warning("%s has no row of two known nodes: the graph has no edges", edges)
        elif not graph.num_edges:
            logger.warning("%s: no row is left to be an edge: the graph has no edges", edges)
        log_graph(edges, graph, linked.facts())
        return graph, linked.columns
    assert x is not None
    dense = as_dense(x)
    num_nodes = dense.size(0)
    knn = min(DEFAULT_NEIGHBORS, max(num_nodes - 1, 1)) if options.knn is None else options.knn
    slowly = ", which takes minutes for so many" if num_nodes >= _MANY_NODES else ""
    logger.info("no edges given: linking every node with its %d nearest in the features%s", knn, slowly)
    index = torch.empty(2, 0, dtype=torch.int64) if num_nodes == 1 else knn_edge_index(dense, knn)
    return Propagation.from_edge_index(index, num_nodes=num_nodes, symmetrize=True), {"knn": knn}


def linked_graph(edges: EdgeTable) -> Propagation:
    """The graph of a table: self-loops are dropped, and rows that repeat one direction add their weights."""
    if edges.columns["types"] is None or not edges.types:  # no types, or no edge that has one
        return _operator(edges, np.arange(edges.index.shape[1]))
    assert edges.codes is not None
    return MixedPropagation.of([_operator(edges, np.flatnonzero(edges.codes == k)) for k in range(len(edges.types))])


def _operator(edges: EdgeTable, rows: np.ndarray) -> Propagation:
    """The operator of some rows of a table."""
    index, weight = edges.index[:, rows], None if edges.weight is None else edges.weight[rows]
    direction: Direction = edges.columns["direction"]
    if direction == "mutual":
        low, high = np.sort(index, axis=0)
        _, pair = np.unique(low * edges.num_nodes + high, return_inverse=True)
        is_there = np.zeros((2, len(pair)), dtype=bool)
        is_there[(index[0] > index[1]).astype(np.int64), pair] = True
        kept = (is_there[0] & is_there[1])[pair]
        index, weight, rows = index[:, kept], None if weight is None else weight[kept], rows[kept]
    if edges.codes is not None and direction != "kept" and len(edges.types) > 1:
        assert weight is not None
        index, weight = _pairs_of_types(index, weight, edges.codes[rows], edges.num_nodes)
    # A copy of the weights: pyarrow's arrays cannot be written to.
    tensors = torch.from_numpy(index), None if weight is None else torch.from_numpy(np.array(weight))
    try:
        if direction == "kept":
            return DirectedPropagation.of(*tensors, edges.num_nodes)
        return Propagation.from_edge_index(*tensors, edges.num_nodes, symmetrize=True)
    except GraphjouleError as error:
        raise GraphjouleError(f"{edges.table.path}: {error}") from error


def _pairs_of_types(
    index: np.ndarray, weight: np.ndarray, codes: np.ndarray, num_nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """One edge for every pair of nodes and type, with the larger weight of its two directions.

    Weights of types add up whichever way their rows point: the larger direction of all types together would leave out a
    type whose row points the other way.
    """
    low, high = np.sort(index, axis=0)
    key, pair = np.unique((codes * num_nodes + low) * num_nodes + high, return_inverse=True)
    sums = np.bincount(2 * pair + (index[0] > index[1]), weight, minlength=2 * len(key))
    return np.stack([key // num_nodes % num_nodes, key % num_nodes]), sums.reshape(-1, 2).max(axis=1)


# What is said about it.


def _log_columns(read: NodeTable) -> None:
    path = read.table.path
    kinds: dict[str, list[str]] = {}
    for finding in read.findings:
        if not finding.becomes.startswith("left out"):
            kinds.setdefault(finding.kind, []).append(finding.name)
    logger.info("%s: %s", path, "; ".join(f"{kind}: {shorten(names, most=6)}" for kind, names in kinds.items()))
    if missing := {each.name: f"{each.missing:,}" for each in read.findings if each.missing}:
        logger.info("%s: missing: %s", path, shorten([f"{name} {count}" for name, count in missing.items()]))
    if any(finding.kind == "constant" and "kept" in finding.becomes for finding in read.findings):
        logger.warning(
            "%s: every feature is constant and is kept, scaled to size 1; the edges alone tell the nodes apart", path
        )
    for said in warnings_of(read.findings):
        logger.warning("%s: %s", path, said)


def log_nodes(path: str | Path, task: Task) -> None:
    """Say how many nodes or graphs, features, labels and classes there are; warn of a class with a single label."""
    known = task.is_known
    num_known = int(known.sum())
    head = f"{path}: {counted(task.num_units, task.unit)}, {counted(task.num_features, 'feature')}"
    to_predict = f"{task.num_units - num_known:,} to predict"
    if isinstance(task.objective, Regression):
        columns = task.targets if task.targets.dim() == 2 else task.targets[:, None]
        spans = []
        for column in columns.unbind(dim=1):
            values = column[~column.isnan()]
            spans.append(f"{float(values.min()):.6g} to {float(values.max()):.6g}" if len(values) else "none")
        numbers = f"a number from {spans[0]}" if len(spans) == 1 else f"numbers from {shorten(spans)}"
        logger.info("%s; %s with %s, %s", head, f"{num_known:,}", numbers, to_predict)
        return
    if isinstance(task.objective, MultiLabel):
        labels = f"{counted(task.objective.num_labels, 'label')} ({shorten(task.objective.labels)})"
        logger.info("%s; %s with a target of %s, %s", head, f"{num_known:,}", labels, to_predict)
        return
    if not isinstance(task.objective, Classification | Ordinal):
        logger.info("%s; %s with a target, %s", head, f"{num_known:,}", to_predict)
        return
    classes = task.objective.classes
    kind = " in order" if isinstance(task.objective, Ordinal) else ""
    positive = f", positive is {classes[task.objective.positive]}" if isinstance(task.objective, Binary) else ""
    logger.info(
        "%s; %s labelled with %s%s (%s)%s, %s",
        head,
        f"{num_known:,}",
        counted(len(classes), "class", "classes"),
        kind,
        shorten(classes),
        positive,
        to_predict,
    )
    counts = torch.bincount(task.targets[known], minlength=len(classes))
    if single := [name for name, count in zip(classes, counts.tolist(), strict=True) if count == 1]:
        logger.warning(
            "%s: one labelled %s alone in %s: it trains, and nothing validates what is learnt of it",
            path,
            task.unit,
            f"the classes {shorten(single)}" if len(single) > 1 else f"the class {single[0]}",
        )


def log_graph(path: str | Path, graph: Propagation, more: Sequence[str] = ()) -> None:
    """Say how many edges and nodes there are, and how many nodes are alone."""
    alone = int((graph.degree == 0).sum())
    to_it = " that leads to it" if graph.is_directed else ""
    parts = [f"{counted(graph.num_edges, 'edge')} between {counted(graph.num_nodes, 'node')}", *more]
    parts += [f"{counted(alone, 'node')} without an edge{to_it}"] if alone else []
    parts += ["energies are those of the merged undirected graph"] if isinstance(graph, RelationPropagation) else []
    logger.info("%s: %s", path, ", ".join(parts))
