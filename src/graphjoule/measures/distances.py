"""Mean average distance: how much the directions of nodes a few hops apart differ (Chen et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.csr import csr_tensor
from graphjoule.measures.diversity import unit_rows
from graphjoule.measures.energy import graph_of

_EXACT_NODES = 4096  # all pairs of as many nodes take seconds on one core; beyond, sources are sampled
_SAMPLED_SOURCES = 1024  # a standard error of 3 % of the spread between nodes
_SOURCES_AT_ONCE = 256  # bounds the memory of the hops between them and all nodes


class SampledMean(NamedTuple):
    """A mean over nodes, and how well it is known.

    Attributes:
        value: the mean, float64, shape ``[...]``.
        standard_error: one standard deviation of its sampling error, 0 where every node was used, shape ``[...]``.
        num_sources: how many nodes the mean was taken over, drawn without replacement where not all.
    """

    value: Tensor
    standard_error: Tensor
    num_sources: int


def neighbour_mad(x: Tensor, graph: Propagation | Tensor) -> Tensor:
    r"""Mean average cosine distance between neighbours; exact and linear in the number of edges.

    .. math:: \operatorname{mean}_i \operatorname{mean}_{j \sim i} \big( 1 - \cos(x_i, x_j) \big) \in [0, 2]

    Weights of edges do not matter. Zero rows have no direction: pairs with one do not count, nor do nodes without a
    pair. It is 0 when no pair is left.

    Args:
        x: node features, shape ``[..., num_nodes, channels]``.
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.

    Returns:
        Float64 numbers, shape ``[...]``.

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> float(neighbour_mad(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), edge_index))
        1.0
    """
    laplacian = graph_of(x, graph).laplacian
    columns = _columns(x)
    distance, counts = _mean_distances(columns, laplacian.neighbour_sum(columns))
    return _mean(distance, counts)


def mad(
    x: Tensor,
    graph: Propagation | Tensor,
    *,
    least: int = 1,
    most: int | None = None,
    num_sources: int | None = None,
    seed: int = 0,
) -> SampledMean:
    r"""Mean average cosine distance between nodes that are a given number of hops apart (Chen et al. 2020).

    .. math:: \operatorname{mean}_i \operatorname{mean}_{j:\, \text{least} \le h(i, j) \le \text{most}}
        \big( 1 - \cos(x_i, x_j) \big) \in [0, 2]

    Nodes of different components are infinitely many hops apart. All pairs at such hops count; Chen et al. leave out
    those at distance exactly zero, which would hide nodes that have already collapsed onto each other. Zero rows have
    no direction: pairs with one do not count, nor do nodes without a pair. It is 0 when no pair is left.

    Args:
        x: node features, shape ``[..., num_nodes, channels]``.
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.
        least: fewest hops of a pair, at least 1.
        most: most hops of a pair; by default any number.
        num_sources: how many nodes ``i`` to average over; by default all of up to 4,096, and 1,024 of more.
        seed: what the nodes are drawn with, by a generator of its own.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> estimate = mad(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), edge_index, least=2)
        >>> float(estimate.value), float(estimate.standard_error)
        (1.0, 0.0)
    """
    if least < 1 or (most is not None and most < least):
        raise GraphjouleError(f"The hops are {least} to {most}; expected at least 1, and no less at the end.")
    graph = graph_of(x, graph)
    sources = _sources(graph.num_nodes, num_sources, seed)
    (distance, counts), *_ = _distances_by_hops(x, graph, sources, [(least, most)])
    error = _standard_error(_influence(distance, counts), graph.num_nodes)
    return SampledMean(_mean(distance, counts), error, sources.numel())


def mad_gap(
    x: Tensor,
    graph: Propagation | Tensor,
    *,
    near: int = 3,
    far: int = 8,
    num_sources: int | None = None,
    seed: int = 0,
) -> SampledMean:
    r"""MAD of remote nodes less MAD of near ones (Chen et al. 2020): positive where the graph still tells nodes apart.

    .. math:: \text{MADGap} = \text{MAD}_{h \ge \text{far}} - \text{MAD}_{h \le \text{near}} \in [-2, 2]

    Pairs count as in `mad`. Where a part has no pair at all, as the remote one of a small graph often has none, there
    is no gap to speak of: it is NaN.

    Args:
        x: node features, shape ``[..., num_nodes, channels]``.
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.
        near: most hops between near nodes.
        far: fewest hops between remote nodes.
        num_sources: how many nodes to average over; by default all of up to 4,096, and 1,024 of more.
        seed: what the nodes are drawn with, by a generator of its own.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> float(mad_gap(x, edge_index).value)
        1.0
    """
    if near < 1 or far <= near:
        raise GraphjouleError(f"Near is up to {near} hops and far from {far}; expected 1 <= near < far.")
    graph = graph_of(x, graph)
    sources = _sources(graph.num_nodes, num_sources, seed)
    remote, close = _distances_by_hops(x, graph, sources, [(far, None), (1, near)])
    error = _standard_error(_influence(*remote) - _influence(*close), graph.num_nodes)
    has_pairs = (remote[1] > 0).any(dim=-1) & (close[1] > 0).any(dim=-1)
    gap = torch.where(has_pairs, _mean(*remote) - _mean(*close), torch.nan)
    return SampledMean(gap, torch.where(has_pairs, error, torch.nan), sources.numel())


def _columns(x: Tensor) -> Tensor:
    """What sums over pairs need of every node: its centred direction ``v``, ``|v|^2``, and 1 if it has a direction."""
    unit, has_direction = unit_rows(x)
    weight = has_direction.double().unsqueeze(-1)
    centre = unit.sum(dim=-2, keepdim=True) / weight.sum(dim=-2, keepdim=True).clamp(min=1)
    v = (unit - centre) * weight  # 1 - cos is |v_i - v_j|^2 / 2 for any centre; with this one nothing large cancels
    return torch.cat([v, v.square().sum(dim=-1, keepdim=True), weight], dim=-1)


def _mean_distances(own: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of ``1 - cos`` of each source to its partners, and whether it has any, from the partners' summed columns."""
    count = sums[..., -1] * own[..., -1]
    inner = (own[..., :-2] * sums[..., :-2]).sum(dim=-1)
    partners = torch.where(count == 0, 1, count)
    distance = (own[..., -2] / 2 + (sums[..., -2] / 2 - inner) / partners).clamp(min=0)
    counts = (count != 0).double()
    return distance * counts, counts


def _mean(distance: Tensor, counts: Tensor) -> Tensor:
    return distance.sum(dim=-1) / counts.sum(dim=-1).clamp(min=1)


def _influence(distance: Tensor, counts: Tensor) -> Tensor:
    """How much each source moves the mean, to first order: its deviation, over the share of sources that count."""
    share = counts.sum(dim=-1, keepdim=True).clamp(min=1) / counts.size(-1)
    return counts * (distance - _mean(distance, counts).unsqueeze(-1)) / share


def _standard_error(influence: Tensor, num_nodes: int) -> Tensor:
    """Of a mean over sources drawn without replacement: none if all were drawn."""
    count = influence.size(-1)
    unseen = 1 - count / num_nodes
    variance = influence.detach().square().sum(dim=-1) / max(1, count * (count - 1))
    return (variance * unseen).sqrt()


def _sources(num_nodes: int, num_sources: int | None, seed: int) -> Tensor:
    if num_sources is None:
        num_sources = num_nodes if num_nodes <= _EXACT_NODES else _SAMPLED_SOURCES
    if num_sources < min(2, num_nodes):
        raise GraphjouleError(f"num_sources is {num_sources}; expected at least 2, as one has no standard error.")
    if num_sources >= num_nodes:
        return torch.arange(num_nodes)
    return torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))[:num_sources].sort().values


def _distances_by_hops(
    x: Tensor, graph: Propagation, sources: Tensor, ranges: Sequence[tuple[int, int | None]]
) -> list[tuple[Tensor, Tensor]]:
    """For each range of hops, the mean distance of every source to the nodes in it, and whether there are any."""
    columns = _columns(x)
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in ranges]
    orders = sorted({order for least, most in ranges for order in (least - 1, most) if order is not None})
    ones = torch.ones(graph.col.numel(), device=graph.device)
    pattern = csr_tensor(graph.rowptr, graph.col, ones, (graph.num_nodes, graph.num_nodes))
    for block in torch.split(sources.to(graph.device), _SOURCES_AT_ONCE):
        reached = torch.zeros(graph.num_nodes, block.numel(), device=graph.device)
        reached[block, torch.arange(block.numel(), device=graph.device)] = 1
        within = {}  # by hops, which nodes lie within them of each source, as [sources, num_nodes]
        for before, order in pairwise([0, *orders]):
            for _ in range(order - before):  # the diagonal is stored, so a node once reached stays reached
                reached = (torch.mm(pattern, reached) > 0).float()
            within[order] = reached.t() > 0
        for (least, most), into in zip(ranges, found, strict=True):
            beyond = ~within[least - 1]
            partners = beyond if most is None else beyond & within[most]
            into.append(_mean_distances(columns[..., block, :], partners.double() @ columns))
    return [(torch.cat([d for d, _ in into], dim=-1), torch.cat([c for _, c in into], dim=-1)) for into in found]
