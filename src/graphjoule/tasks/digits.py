"""A graph from features alone, by nearest neighbours; and the task that needs no download, handwritten digits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.features import check_features
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.task import Task

NUM_NEIGHBORS = 8
_LARGEST_PIXEL = 16


def load_digits() -> Task:
    """1,797 images of 8 x 8 pixels in 0..1; two are linked if either is among the 8 nearest of the other."""
    from sklearn import datasets  # here and not above: it takes a second

    pixels, labels = datasets.load_digits(return_X_y=True)
    features = torch.from_numpy(pixels / _LARGEST_PIXEL).to(torch.get_default_dtype())
    return Task(
        name="digits",
        features=features,
        graph=Propagation.from_edge_index(
            knn_edge_index(features, NUM_NEIGHBORS), num_nodes=features.size(0), symmetrize=True
        ),
        targets=torch.from_numpy(labels).long(),
        objective=Classification(10, tuple("0123456789")),
        default_split="per-class-5-10",
    )


def knn_edge_index(x: Tensor, num_neighbors: int) -> Tensor:
    """Edges from every row of `x` to its nearest other rows in Euclidean distance; of equally near, the lower index.

    The graph is directed: `Propagation.from_edge_index` makes it undirected with ``symmetrize=True``.

    Args:
        x: finite floating-point matrix ``[num_nodes, num_features]``.
        num_neighbors: neighbours per node, 1 to ``num_nodes - 1``.

    Returns:
        ``edge_index`` of shape ``[2, num_nodes * num_neighbors]``.

    >>> knn_edge_index(torch.tensor([[0.0], [1.0], [5.0]]), 1)
    tensor([[0, 1, 2],
            [1, 0, 1]])
    """
    from graphjoule.tasks.own_graph import check_neighbors  # here and not above: it is about tables

    check_features(x)
    num_nodes = x.size(0)
    check_neighbors(num_neighbors, num_nodes)
    source = torch.arange(num_nodes).repeat_interleave(num_neighbors)
    return torch.stack([source, _nearest(None, x, num_neighbors).reshape(-1)])


def nearest_rows(x: Tensor, reference: Tensor, num_neighbors: int) -> Tensor:
    """For every row of `x` its nearest rows of `reference` in Euclidean distance; of equally near, the lower index.

    Args:
        x: finite matrix ``[num_new, num_features]``.
        reference: finite matrix ``[num_nodes, num_features]``.
        num_neighbors: 1 to ``num_nodes``.

    Returns:
        Row numbers, shape ``[num_new, num_neighbors]``, sorted within a row.

    >>> nearest_rows(torch.tensor([[0.9]]), torch.tensor([[0.0], [1.0], [5.0]]), 2)
    tensor([[0, 1]])
    """
    return _nearest(x, reference, num_neighbors).sort(dim=1).values


def _nearest(x: Tensor | None, reference: Tensor, num_neighbors: int) -> Tensor:
    """The nearest rows of `reference`, the nearest first; for its own rows if `x` is None, which are not their own."""
    from sklearn.neighbors import NearestNeighbors  # here and not above: it takes a second

    # Among equally near rows scikit-learn picks by thread count: 47 of the 1,797 digits change neighbours between one
    # thread and two. So ask for twice as many, order them by distance and index, and keep the first.
    candidates = min(2 * num_neighbors, len(reference) - (x is None))
    search = NearestNeighbors(n_neighbors=candidates).fit(reference.double().cpu().numpy())
    distance, index = search.kneighbors(None if x is None else x.double().cpu().numpy())
    order = np.lexsort((index, distance), axis=-1)[:, :num_neighbors]
    return torch.from_numpy(np.take_along_axis(index, order, axis=1).astype(np.int64))
