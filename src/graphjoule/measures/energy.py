"""Energies of node features: how much neighbours in a graph still differ, in all or by class and component."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation


def dirichlet_energy(x: Tensor, graph: Propagation | Tensor, *, edge_weight: Tensor | None = None) -> Tensor:
    r"""Dirichlet energy of node features, Definition 1 of the paper.

    .. math::
        E(X) = \operatorname{tr}(X^\top (I - P) X)
             = \tfrac12 \sum_{ij} a_{ij} \Big\| \tfrac{x_i}{\sqrt{1 + d_i}} - \tfrac{x_j}{\sqrt{1 + d_j}} \Big\|^2

    Computed in float64 at about the cost of one propagation; of large float32 features on a CPU, products are taken in
    float32 where that keeps six digits, or five at the least. It is never negative and does not cancel when the
    features are almost smooth. It is zero when features are proportional to ``sqrt(1 + d)`` on each connected
    component, and less than twice ``||X||^2`` unless ``X = 0``.

    Args:
        x: node features, shape ``[..., num_nodes, channels]``; leading axes are runs, each measured by itself.
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.
        edge_weight: weight of every edge of an ``edge_index``; a `Propagation` has its own.

    Returns:
        Float64 numbers, shape ``[...]``.

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> energy = dirichlet_energy(torch.tensor([[1.0], [-1.0]]), edge_index)
        >>> round(float(energy), 9)
        2.0
    """
    return graph_of(x, graph, edge_weight).laplacian.form(x)


def combinatorial_energy(x: Tensor, graph: Propagation | Tensor, *, edge_weight: Tensor | None = None) -> Tensor:
    r"""Energy of node features without any normalisation by degree.

    .. math:: \operatorname{tr}(X^\top (D - A) X) = \tfrac12 \sum_{ij} a_{ij} \| x_i - x_j \|^2

    Zero when features are constant on each connected component; hubs weigh as much as their edges. Times two and over
    the number of nodes it is the Dirichlet energy of the survey of Rusch, Bronstein and Mishra (2023).

    Arguments and result are those of `dirichlet_energy`.

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> float(combinatorial_energy(torch.tensor([[1.0], [-1.0]]), edge_index))
        4.0
    """
    return graph_of(x, graph, edge_weight).laplacian.form(x, normalised=False)


def random_walk_energy(x: Tensor, graph: Propagation | Tensor, *, edge_weight: Tensor | None = None) -> Tensor:
    r"""Dirichlet form of the random walk ``D~^-1 (A + I)``: half the mean squared change over one of its steps.

    .. math::
        \tfrac12 \sum_{ij} \pi_i \, p_{ij} \| x_i - x_j \|^2
        = \frac{\operatorname{tr}(X^\top (D - A) X)}{\sum_i (1 + d_i)},
        \qquad \pi_i = \frac{1 + d_i}{\sum_k (1 + d_k)}

    It is a mean and not a sum, so graphs of different size compare. Zero when features are constant on each connected
    component, and less than twice the variance of the features weighted by ``pi`` (Levin and Peres, *Markov Chains and
    Mixing Times*, 2017, chapter 13). An isolated node stays where it is: it changes nothing, but counts in the mean.

    Arguments and result are those of `dirichlet_energy`.

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> float(random_walk_energy(torch.tensor([[1.0], [-1.0]]), edge_index))
        1.0
    """
    graph = graph_of(x, graph, edge_weight)
    return combinatorial_energy(x, graph) / graph.global_sum((1 + graph.degree).sum())


def higher_energy(x: Tensor, graph: Propagation | Tensor, order: int = 2) -> Tensor:
    r"""Energy of a higher order: high frequencies weigh more, and low ones, the last to fade, less.

    .. math:: \operatorname{tr}(X^\top (I - P)^k X) = \sum_i \lambda_i^k \| u_i^\top X \|^2 \in [0, 2^k \|X\|^2)

    for the eigenvalues and eigenvectors of ``I - P``. Order 1 is `dirichlet_energy`, order 2 is ``||(I - P) X||^2``, by
    how much one propagation changes the features (Zhou and Schoelkopf 2005, iterated Laplacians). It costs `order`
    products.

    Args:
        x: node features, shape ``[..., num_nodes, channels]``.
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.
        order: ``k``, at least 1.

    Returns:
        Float64 numbers, shape ``[...]``.

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> x = torch.tensor([[3.0], [1.0]])
        >>> [round(float(higher_energy(x, edge_index, order)), 9) for order in (1, 2, 3)]
        [2.0, 2.0, 2.0]
    """
    if order < 1:
        raise GraphjouleError(f"order is {order}; it must be at least 1.")
    graph = graph_of(x, graph)
    for _ in range(order // 2):
        x = graph.laplacian.product(x)
    return graph.laplacian.form(x) if order % 2 else graph.global_sum(x.double().square().sum(dim=(-2, -1)))


def rayleigh_quotient(x: Tensor, graph: Propagation | Tensor, *, edge_weight: Tensor | None = None) -> Tensor:
    r"""Energy of node features relative to their size: the mean eigenvalue of ``I - P`` that they are made of.

    .. math:: \frac{E(X)}{\|X\|^2} \in [0, 2)

    Multiplying the features by a number changes nothing. It is 0 for ``X = 0``, with a gradient of zero.

    Arguments and result are those of `dirichlet_energy`.

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> round(float(rayleigh_quotient(torch.tensor([[1.0], [-1.0]]), edge_index)), 9)
        1.0
    """
    graph = graph_of(x, graph, edge_weight)
    return ratio(dirichlet_energy(x, graph), frobenius_norm(x, graph).square())


def kernel_distance(
    x: Tensor, graph: Propagation | Tensor, *, edge_weight: Tensor | None = None, relative: bool = False
) -> Tensor:
    r"""Distance of node features to the kernel of ``I - P``, where endless propagation takes them.

    .. math:: \min_C \| X - \Pi C \| = \| X - \Pi \Pi^\top X \|

    Column ``c`` of ``Pi`` is ``sqrt(1 + d)`` on connected component ``c``, zero elsewhere, of length one.

    Args:
        x: node features, shape ``[..., num_nodes, channels]``.
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.
        edge_weight: weight of every edge of an ``edge_index``; a `Propagation` has its own.
        relative: divide by ``||X||``, so that it is from 0 to 1, and 0 for ``X = 0``.

    Returns:
        Float64 numbers, shape ``[...]``.

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> round(float(kernel_distance(torch.tensor([[5.0], [1.0]]), edge_index)) ** 2, 9)
        8.0
    """
    graph = graph_of(x, graph, edge_weight)
    rest = graph.laplacian.without_kernel(x)
    distance = frobenius_norm(rest, graph)
    return ratio(distance, frobenius_norm(x, graph)) if relative else distance


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

    Arguments are those of `dirichlet_energy`.

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


def frobenius_norm(x: Tensor, graph: Propagation) -> Tensor:
    """``||X||`` over all nodes of a graph, in float64, shape ``[...]``.

    Example:
        >>> graph = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
        >>> float(frobenius_norm(torch.tensor([[3.0], [4.0]]), graph))
        5.0
    """
    return graph.global_norm(torch.linalg.vector_norm(x.double(), dim=(-2, -1)))


def graph_of(x: Tensor, graph: Propagation | Tensor, edge_weight: Tensor | None = None) -> Propagation:
    """The operator that features are measured on, from the arguments of `dirichlet_energy`, checked against them.

    A plain ``edge_index`` is normalised anew at every call; build a `Propagation` once where speed matters.
    """
    if not isinstance(x, Tensor):
        raise GraphjouleError(
            f"The features are of type {type(x).__name__}; expected a tensor [..., num_nodes, channels], such as "
            "torch.as_tensor(x) makes of an array."
        )
    if x.is_complex() or x.layout != torch.strided:
        kind = f"{x.dtype}" if x.is_complex() else f"layout {x.layout}"
        raise GraphjouleError(f"The features are of {kind}; expected a dense tensor of real numbers.")
    if not isinstance(graph, Tensor | Propagation):
        raise GraphjouleError(
            f"The graph is of type {type(graph).__name__}; expected a Propagation, or an edge_index as a tensor."
        )
    if x.dim() < 2 or 0 in x.shape[:-2]:
        raise GraphjouleError(f"The features have shape {list(x.shape)}; expected [..., num_nodes, channels].")
    if isinstance(graph, Tensor):
        # Weights of full precision: the energy of an edge list is that of Definition 1, not of P in float32.
        graph = Propagation.from_edge_index(graph, edge_weight, x.size(-2), dtype=torch.float64).to(x.device)
    elif edge_weight is not None:
        raise GraphjouleError("edge_weight was given beside a Propagation, which has its own weights; leave it out.")
    if graph.num_nodes != x.size(-2):
        raise GraphjouleError(f"The graph has {graph.num_nodes} nodes but the features have {x.size(-2)} rows.")
    if graph.device != x.device:
        raise GraphjouleError(f"The graph is on {graph.device} but the features are on {x.device}; use graph.to(...).")
    return graph.undirected


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """``part / whole``, and 0 with a gradient of zero where the whole is 0."""
    empty = whole == 0
    return torch.where(empty, 0, part / torch.where(empty, 1, whole))
