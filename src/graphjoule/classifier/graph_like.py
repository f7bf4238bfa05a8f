"""The ways to give a graph in Python, read into one shape: a pair, a `Task` or PyG's `Data`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import Features, SparseFeatures, check_features
from graphjoule.tasks import Task
from graphjoule.tasks.task import pack_features


@dataclass(frozen=True, eq=False)
class GraphLike:
    """A graph with features, and labels where it brought some.

    Attributes:
        features: finite floating-point matrix, one row per node.
        graph: the normalised operator.
        labels: one per node, the source's own names where it has names; None if it brought none.
        is_known: which of them are known; None without labels, and where the source has no way to say it.
    """

    features: Features
    graph: Propagation
    labels: np.ndarray | None = None
    is_known: np.ndarray | None = None


def read_graph_like(given: Any) -> GraphLike | None:
    """The graph in what was given, or None if it is features alone.

    Args:
        given: ``(X, graph)`` with a `Propagation`, an ``edge_index`` or a SciPy sparse adjacency; a `Task`; or
            PyG's `Data` with ``x`` and ``edge_index``. An edge counts in both directions.
    """
    if isinstance(given, Task):
        return GraphLike(given.features, given.graph, *_task_labels(given))
    if hasattr(given, "edge_index") and hasattr(given, "x"):
        return _from_data(given)
    if isinstance(given, tuple) and len(given) == 2 and _is_graph(given[1]):
        features = _features(given[0])
        return GraphLike(features, _graph(given[1], features.size(0)))
    return None


def _is_graph(graph: Any) -> bool:
    if isinstance(graph, Propagation) or sp.issparse(graph):
        return True
    return isinstance(graph, Tensor | np.ndarray) and graph.ndim == 2 and graph.shape[0] == 2


def _from_data(data: Any) -> GraphLike:
    """PyG's `Data`; only the attributes are looked at, so that PyG itself is not imported."""
    if not isinstance(data.x, Tensor) or not isinstance(data.edge_index, Tensor):
        raise GraphjouleError("The graph given as Data lacks x or edge_index; expected both as tensors.")
    features = _features(data.x.cpu())
    weight = getattr(data, "edge_weight", None)
    graph = Propagation.from_edge_index(data.edge_index, weight, features.size(0), symmetrize=True)
    if not isinstance(labels := getattr(data, "y", None), Tensor):
        return GraphLike(features, graph)
    return GraphLike(features, graph, labels.cpu().view(-1).numpy())


def _task_labels(task: Task) -> tuple[np.ndarray, np.ndarray]:
    labels = task.targets.cpu().numpy()
    names = np.array(task.objective.class_names) if task.objective.class_names else np.arange(task.out_channels)
    return names[labels.clip(min=0)], labels >= 0


def _features(x: Any) -> Features:
    if isinstance(x, SparseFeatures):
        return x
    if sp.issparse(x):
        features = pack_features(x)
    else:
        features = torch.as_tensor(np.asarray(x) if not isinstance(x, Tensor) else x)
        features = features.to(torch.get_default_dtype())
    check_features(features)
    return features


def _graph(graph: Any, num_nodes: int) -> Propagation:
    if isinstance(graph, Propagation):
        return graph
    if sp.issparse(graph):
        if graph.shape != (num_nodes, num_nodes):
            raise GraphjouleError(
                f"The adjacency has shape {list(graph.shape)}; expected [{num_nodes}, {num_nodes}], as X has rows."
            )
        links = graph.tocoo()
        edge_index = torch.from_numpy(np.stack([links.row, links.col]).astype(np.int64))
        weight = torch.from_numpy(links.data.astype(np.float64))
        return Propagation.from_edge_index(edge_index, weight, num_nodes, symmetrize=True)
    return Propagation.from_edge_index(torch.as_tensor(graph), None, num_nodes, symmetrize=True)
