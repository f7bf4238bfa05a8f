"""New nodes beside a graph that stays as it is: each looks at its nearest, and nobody looks at it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphjoule.graph import Propagation


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
    from sklearn.neighbors import NearestNeighbors  # here and not above: it takes a second

    # Twice as many, then ordered by distance and index: among equally near rows scikit-learn picks by thread count.
    candidates = min(2 * num_neighbors, len(reference))
    search = NearestNeighbors(n_neighbors=candidates).fit(reference.double().cpu().numpy())
    distance, index = search.kneighbors(x.double().cpu().numpy())
    order = np.lexsort((index, distance), axis=-1)[:, :num_neighbors]
    return torch.from_numpy(np.sort(np.take_along_axis(index, order, axis=1), axis=1).astype(np.int64))


def extend_graph(graph: Propagation, neighbor: Tensor) -> Propagation:
    """The operator of a graph with new nodes, in which an old row is what it was.

    A new node i with k neighbours has ``P_ij = 1 / sqrt((k + 1) (d_j + 1))`` and ``P_ii = 1 / (k + 1)``; the edge back
    is left out. So what is predicted for one new node does not depend on which others are asked about. The operator is
    not symmetric, and therefore for prediction alone: the backward pass of a layer takes ``P`` for its own transpose.

    Args:
        graph: the graph, ``n`` nodes, on the CPU.
        neighbor: old nodes that each new one looks at, sorted, shape ``[num_new, k]``.

    Returns:
        The operator of ``n + num_new`` nodes, the new ones last.
    """
    num_new, k = neighbor.shape
    num_old = graph.num_nodes
    own = torch.arange(num_old, num_old + num_new)[:, None]
    scale = ((k + 1) * (graph.degree + 1)).rsqrt()
    value = torch.cat([scale[neighbor], torch.full((num_new, 1), 1 / (k + 1), dtype=torch.float64)], dim=1)
    last = int(graph.rowptr[-1])
    rowptr = last + (k + 1) * torch.arange(1, num_new + 1)
    return Propagation(
        torch.cat([graph.rowptr, rowptr.int()]),
        torch.cat([graph.col, torch.cat([neighbor, own], dim=1).flatten().int()]),
        torch.cat([graph.value, value.flatten().to(graph.dtype)]),
        torch.cat([graph.degree, torch.full((num_new,), float(k), dtype=torch.float64)]),
    )
