"""The Dirichlet energy of a graph in parts: by the classes of its edges, by its connected components."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.measures.energy import graph_of


class ClassEnergies(NamedTuple):
    """The Dirichlet energy, split by the classes of the two ends of each edge; the parts add up to the whole.

    Attributes:
        within: of edges whose ends share a class.
        between: of edges whose ends have two classes.
        unlabelled: of edges with an end that has no class.
    """

    within: Tensor
    between: Tensor
    unlabelled: Tensor


def class_energies(
    x: Tensor, graph: Propagation | Tensor, labels: Tensor, *, edge_weight: Tensor | None = None
) -> ClassEnergies:
    r"""Dirichlet energy within and between classes: to lose the first helps a classifier, to lose the second ends it.

    .. math:: \sum_{\text{edges } ij \text{ of the part}} a_{ij}
        \Big\| \tfrac{x_i}{\sqrt{1 + d_i}} - \tfrac{x_j}{\sqrt{1 + d_j}} \Big\|^2

    Args:
        x: node features, shape ``[..., num_nodes, channels]``.
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.
        labels: class of every node, an integer tensor of shape ``[num_nodes]``; negative where there is none.
        edge_weight: weight of every edge of an ``edge_index``; a `Propagation` has its own.

    Returns:
        Three float64 tensors of shape ``[...]``.

    Example:
        >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> parts = class_energies(torch.ones(3, 1), path, torch.tensor([0, 0, 1]))
        >>> parts.within == parts.between, float(parts.unlabelled)
        (tensor(True), 0.0)
    """
    graph = graph_of(x, graph, edge_weight)
    if labels.shape != (graph.num_nodes,) or labels.is_floating_point() or labels.is_complex():
        raise GraphjouleError(
            f"The labels have shape {list(labels.shape)} and dtype {labels.dtype}; "
            f"expected one integer for each of the {graph.num_nodes} nodes."
        )
    row, col, _ = graph.laplacian.edges
    first, second = labels[row], labels[col]
    part = torch.where((first < 0) | (second < 0), 2, (first != second).long())
    return ClassEnergies(*_grouped_energy(x, graph, part, 3).unbind(-1))


def component_energies(x: Tensor, graph: Propagation | Tensor, *, edge_weight: Tensor | None = None) -> Tensor:
    """Dirichlet energy of each connected component; together they are the energy of the graph.

    Args:
        x: node features, shape ``[..., num_nodes, channels]``.
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.
        edge_weight: weight of every edge of an ``edge_index``; a `Propagation` has its own.

    Returns:
        Float64 numbers, shape ``[..., num_components]``, ordered by the first node of each component; a node's own is
        ``graph.laplacian.component``.

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> energies = component_energies(torch.tensor([[1.0], [-1.0], [7.0]]), edge_index)
        >>> [round(float(energy), 9) for energy in energies]
        [2.0, 0.0]
    """
    graph = graph_of(x, graph, edge_weight)
    laplacian = graph.laplacian
    return _grouped_energy(x, graph, laplacian.component[laplacian.edges[0]], laplacian.num_components)


def _grouped_energy(x: Tensor, graph: Propagation, group: Tensor, num_groups: int) -> Tensor:
    """Dirichlet energy of groups of edges, each edge by itself: nothing can cancel between groups."""
    y = x.double() / graph.laplacian.scale[:, None]
    weight = graph.laplacian.edges[2]
    energy = torch.zeros(*x.shape[:-2], num_groups, dtype=torch.float64, device=x.device)
    for piece, distance in graph.laplacian.distances(y):
        energy = energy.index_add(-1, group[piece], weight[piece] * distance)
    return energy
