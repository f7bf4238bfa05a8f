"""Measures of how different the nodes of a graph still are: pure, differentiable functions of node features."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation, as_propagation

_EDGES_AT_ONCE = 2**16  # bounds the memory of the gathered differences; smaller only costs calls


def dirichlet_energy(x: Tensor, graph: Propagation | Tensor) -> Tensor:
    r"""Dirichlet energy of node features, Definition 1 of the paper.

    .. math::
        E(X) = \operatorname{tr}(X^\top (I - P) X)
             = \tfrac12 \sum_{ij} a_{ij} \Big\| \tfrac{x_i}{\sqrt{1 + d_i}} - \tfrac{x_j}{\sqrt{1 + d_j}} \Big\|^2

    Summed over edges in float64, so it is never negative and does not cancel when the features are almost smooth. It is
    zero when features are proportional to ``sqrt(1 + d)`` on each connected component, and at most twice ``||X||^2``.

    Args:
        x: node features, shape ``[num_nodes, channels]``.
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.

    Returns:
        A float64 scalar.

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> energy = dirichlet_energy(torch.tensor([[1.0], [-1.0]]), edge_index)
        >>> round(float(energy), 9)
        2.0
    """
    if x.dim() != 2:
        raise GraphjouleError(f"The features have shape {list(x.shape)}; expected [num_nodes, channels].")
    x = x.double()
    graph = as_propagation(graph, x.size(0), like=x)
    y = x / (1 + graph.degree).sqrt()[:, None]
    energy = torch.zeros((), dtype=torch.float64, device=x.device)
    for row, col, weight in _edges(graph):
        energy = energy + weight @ (y[row] - y[col]).square().sum(dim=1)
    return energy


def _edges(graph: Propagation) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Every undirected edge once, a piece at a time: its two ends and its weight ``a_ij``."""
    row, col = graph.row(), graph.col.long()
    upper = row < col
    row, col, value = row[upper], col[upper], graph.value[upper].double()
    scale = (1 + graph.degree).sqrt()
    weight = value * (scale[row] * scale[col])
    pieces = (torch.split(t, _EDGES_AT_ONCE) for t in (row, col, weight))
    yield from zip(*pieces, strict=True)
