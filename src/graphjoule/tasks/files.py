"""Your own graph from your own files: a table of nodes, and a table of edges or the nearest neighbours instead."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, counted
from graphjoule.graph import Propagation
from graphjoule.graph.features import Features, SparseFeatures
from graphjoule.tasks.columns import build_features
from graphjoule.tasks.edges import EdgeOptions, EdgeTable, read_edges
from graphjoule.tasks.facts import Source, SourceFile, TableColumns
from graphjoule.tasks.inputs import ModelInput
from graphjoule.tasks.knn import knn_edge_index
from graphjoule.tasks.loglines import tell_graph, tell_nodes
from graphjoule.tasks.nodes import (
    NodeOptions,
    class_numbers,
    find_classes,
    id_hint,
    node_ids,
    read_ids,
    read_nodes,
    read_nodes_like,
)
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.rules import stratified_rule
from graphjoule.tasks.table import check_file, file_sha256
from graphjoule.tasks.task import Task

DEFAULT_NEIGHBORS = 10
_MANY_NODES = 20_000  # from here on a neighbour graph is minutes of work on two cores
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
    test_fraction: float = 0.0,
) -> Task:
    """A task from a table of nodes and a table of edges, CSV or Parquet.

    Numbers are standardised with mean and standard deviation of all nodes. An edge counts in both directions; labels
    that are blank are to be predicted. By default a fifth of each class validates, and no node is held back to test.

    Args:
        nodes: one row per node: its id, its label, its features.
        edges: one row per edge; None links every node with its nearest neighbours in the features.
        id: column of the nodes' names; see `NodeOptions` for this and the next three and for their defaults.
        label: column of the classes.
        features: columns that are features.
        one_hot: columns of text that are features.
        source: column of an edge's one end; see `EdgeOptions` for this and the next two.
        target: column of its other end.
        weight: column of its weight.
        knn: neighbours per node, without `edges`; by default 10, or all others if there are fewer.
        test_fraction: share of the labelled nodes of each class to hold back and score once at the end.

    Returns:
        The task, with the nodes' names and the files it came from; its name is that of the file of nodes.
    """
    _check_one_graph(edges, knn)
    options = NodeOptions(id, label, None if features is None else tuple(features), tuple(one_hot))
    table, columns = read_nodes(nodes, options, has_edges=edges is not None)
    ids, classes = node_ids(table, columns.id, options), find_classes(table, columns.label)
    labels = torch.from_numpy(class_numbers(table, columns.label, classes))
    x = build_features(table, columns)
    if edges is None:
        knn = _num_neighbors(knn, len(ids))
        columns = columns.model_copy(update={"knn": knn})
        graph = _neighbour_graph(x, knn)
    else:
        hint = id_hint(columns.id, options)
        read = read_edges(edges, EdgeOptions(source, target, weight), ids, str(nodes), hint=hint)
        columns = columns.model_copy(update=_edge_columns(read))
        graph = read.graph(len(ids))
        _tell_edges(edges, read, graph)
    tell_nodes(nodes, len(columns.feature_names), labels, classes)
    return Task(
        name=Path(nodes).name,
        features=x,
        graph=graph,
        targets=labels,
        objective=Classification(len(classes), classes),
        default_split=stratified_rule(test_fraction),
        node_ids=ids,
        source=Source(files=source_files(nodes=nodes, edges=edges), columns=columns),
    )


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
        label: column of the classes, which is no feature.
        features: columns that are features.
        one_hot: columns of text that are features.
        source: column of an edge's one end.
        target: column of its other end.
        weight: column of its weight.
        knn: neighbours per node, without `edges`.
    """
    _check_one_graph(edges, knn)
    options = NodeOptions(id, label, None if features is None else tuple(features), tuple(one_hot))
    if edges is None:
        table, columns = read_nodes(nodes, options, has_edges=False, needs_labels=False)
        node_ids(table, columns.id, options)  # refused as in a training
        return _neighbour_graph(build_features(table, columns), _num_neighbors(knn, table.num_rows))
    ids, column = read_ids(nodes, options)
    read = read_edges(edges, EdgeOptions(source, target, weight), ids, str(nodes), hint=id_hint(column, options))
    graph = read.graph(len(ids))
    _tell_edges(edges, read, graph)
    return graph


def load_tables_like(
    columns: TableColumns, classes: tuple[str, ...], nodes: str | Path, edges: str | Path | None = None
) -> ModelInput:
    """Another graph, read as the training graph was and scaled with its numbers.

    Args:
        columns: how the training graph was read.
        classes: the model's classes.
        nodes: a table with the same columns; the label's may be missing.
        edges: a table with the same columns; None if the training graph was one of nearest neighbours too.
    """
    if edges is None and columns.knn is None:
        raise GraphjouleError(
            f"--edges is missing: the model was trained on a graph with edges (columns {columns.source!r} and "
            f"{columns.target!r}); give the edges between the nodes of {nodes}."
        )
    table = read_nodes_like(nodes, columns)
    ids = node_ids(table, columns.id)
    has_labels = columns.label in table.text
    labels = class_numbers(table, columns.label, classes) if has_labels else [-1] * len(ids)
    features = build_features(table, columns)
    if edges is None:
        assert columns.knn is not None
        graph = _neighbour_graph(features, min(columns.knn, max(len(ids) - 1, 1)))
    else:
        options = EdgeOptions(columns.source, columns.target, columns.weight)
        graph = read_edges(edges, options, ids, str(nodes), is_trained=True).graph(len(ids))
    return ModelInput(features, graph, torch.as_tensor(labels, dtype=torch.int64), ids)


def unchanged(file: SourceFile) -> Path:
    """The path of a file of the training graph, if it is still there and still holds what it held."""
    path = Path(file.path)
    if not path.exists():
        raise GraphjouleError(
            f"The {file.role} of the training graph, {path}, are not there any more; name the file with --{file.role}."
        )
    if file_sha256(check_file(path)) != file.sha256:
        raise GraphjouleError(
            f"{path} has changed since the model was trained; to predict on it as it is now, name it with "
            f"--{file.role}."
        )
    return path


def source_files(**paths: str | Path | None) -> tuple[SourceFile, ...]:
    """The files by role, each with its hash; None is a role without a file."""
    return tuple(
        SourceFile.model_validate({"role": role, "path": str(Path(path).absolute()), "sha256": file_sha256(Path(path))})
        for role, path in paths.items()
        if path is not None
    )


def _check_one_graph(edges: str | Path | None, knn: int | None) -> None:
    if edges is not None and knn is not None:
        raise GraphjouleError(f"--knn is {knn} and --edges is {edges}; give one of them, the graph comes from one.")


def _num_neighbors(knn: int | None, num_nodes: int) -> int:
    return min(DEFAULT_NEIGHBORS, max(num_nodes - 1, 1)) if knn is None else knn


def _neighbour_graph(features: Features, knn: int) -> Propagation:
    dense: Tensor = features.to_dense() if isinstance(features, SparseFeatures) else features
    slowly = ", which takes minutes for so many" if dense.size(0) >= _MANY_NODES else ""
    logger.info("no edges given: linking every node with its %d nearest in the features%s", knn, slowly)
    if dense.size(0) == 1:  # nobody to link with
        return Propagation.from_edge_index(torch.empty(2, 0, dtype=torch.int64), num_nodes=1)
    return Propagation.from_edge_index(knn_edge_index(dense, knn), num_nodes=dense.size(0), symmetrize=True)


def _edge_columns(read: EdgeTable) -> dict[str, str | None]:
    return {"source": read.options.source, "target": read.options.target, "weight": read.options.weight}


def _tell_edges(path: str | Path, read: EdgeTable, graph: Propagation) -> None:
    if not read.edge_index.size(1):
        logger.warning("%s has a header but no row below it: the graph has no edges", path)
    loops = int((read.edge_index[0] == read.edge_index[1]).sum())
    zeros = 0 if read.edge_weight is None else int((read.edge_weight == 0).sum())
    more = [f"{counted(loops, 'self-loop')} dropped"] if loops else []
    more += [f"weights from {read.options.weight!r}"] if read.options.weight else []
    more += [f"{counted(zeros, 'row')} of weight 0 left out"] if zeros else []
    tell_graph(path, graph, more)
