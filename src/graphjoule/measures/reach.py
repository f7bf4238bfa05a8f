"""Reach: how many hops away a node's features still come from, by random cotangents, with the error of the estimate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation, as_propagation
from graphjoule.graph.csr import csr_tensor

# Of the gradients of probes that are computed together: what stays in a CPU's cache (one by one, probes on Cora take
# half the time of eight at once), and enough to keep a GPU busy.
_BYTES_AT_ONCE = {"cpu": 2**22, "cuda": 2**31}
_DEFAULT_PROBES = 128  # a standard error of about 5 % of the mean reach on Cora


@dataclass(frozen=True, eq=False)
class Reach:
    r"""How much a node's features depend on those of nodes a number of hops away.

    .. math:: I_h = \operatorname{mean}_v \sum_{u:\, d(u, v) = h} \sum_{i, j}
        \left| \frac{\partial x_{v i}}{\partial s_{u j}} \right|

    is the influence of hop ``h``, with ``x`` the features that are looked at and ``s`` those they are made from: the
    mean over nodes of what PyG's ``total_influence`` computes for each of some nodes.

    Attributes:
        influence: ``I_0, I_1, ...`` up to the farthest hop with an influence, float64.
        standard_error: one standard deviation of the sampling error of each.
        elsewhere: influence of nodes that no path leads to, as a norm over all nodes has it.
        mean: the mean reach in hops, ``sum_h h I_h / sum_h I_h``; NaN where nothing has an influence.
        mean_error: its standard error.
        num_probes: how many pairs of a node and a channel the means are taken over.
    """

    influence: Tensor
    standard_error: Tensor
    elsewhere: float
    mean: float
    mean_error: float
    num_probes: int

    @property
    def shares(self) -> Tensor:
        """The influence of each hop as a share of that of all hops."""
        return self.influence / self.influence.sum()

    def range(self, share: float = 0.99) -> int:
        """The fewest hops that have this share of the influence; what lies beyond is hardly seen."""
        if not 0 < share <= 1:
            raise GraphjouleError(f"share is {share}; it must be in (0, 1].")
        enough = self.influence.cumsum(0) >= share * self.influence.sum() * (1 - 1e-12)
        return int(enough.int().argmax())

    def depth_in_use(self, num_layers: int) -> float:
        """The share of depth in use: `range` over the number of layers, each of which could go one hop further."""
        return self.range() / num_layers

    def fields(self) -> dict[str, Any]:
        """Everything as a dict that JSON can hold."""
        return {
            "mean": self.mean,
            "mean_error": self.mean_error,
            "range": self.range(),
            "influence": self.influence.tolist(),
            "standard_error": self.standard_error.tolist(),
            "elsewhere": self.elsewhere,
            "num_probes": self.num_probes,
        }

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.mean_error:.1g} hops, 99 % of the influence within {self.range()}"


def jacobian_reach(
    output: Tensor, source: Tensor, graph: Propagation | Tensor, *, num_probes: int = _DEFAULT_PROBES, seed: int = 0
) -> Reach:
    """The reach of features that were computed from others, see `Reach`.

    A probe is a node and a channel, drawn without replacement; its cotangent is 1 there and 0 elsewhere, and one
    backward pass gives its derivatives by all sources. Backward passes of many probes are one, by vmap. The estimate
    is unbiased, and exact where there are as many probes as nodes and channels.

    Args:
        output: node features, shape ``[num_nodes, channels]``, made from `source` with gradients on.
        source: node features that require a gradient, shape ``[num_nodes, channels]``.
        graph: what hops are counted on, a `Propagation` or an ``edge_index`` with both directions of each edge.
        num_probes: how many pairs of a node and a channel to draw.
        seed: what they are drawn with, by a generator of its own.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> graph, x = Propagation.from_edge_index(edge_index), torch.ones(3, 1, requires_grad=True)
        >>> found = jacobian_reach(graph.product(x), x, graph, num_probes=3)
        >>> [round(value, 3) for value in found.influence.tolist()], round(found.mean, 3)
        ([0.444, 0.544], 0.551)
    """
    for name, features in (("output", output), ("source", source)):
        if features.dim() != 2 or not features.is_floating_point():
            raise GraphjouleError(
                f"{name} has shape {list(features.shape)} and dtype {features.dtype}; expected floating-point node "
                "features [num_nodes, channels]."
            )
    graph = as_propagation(graph, output.size(0), like=output).to(output.device)
    if not output.requires_grad:
        raise GraphjouleError("output does not depend on anything that requires a gradient, so it has no reach.")
    if not bool(output.isfinite().all()):
        raise GraphjouleError("output has numbers that are not finite, whose derivatives say nothing.")
    probes = _draw(output.numel(), num_probes, seed).to(output.device)
    size = max(output.size(1), source.size(1)) * output.size(0) * output.element_size()
    at_once = max(1, _BYTES_AT_ONCE[output.device.type] // size)
    node, channel = probes // output.size(1), probes % output.size(1)

    def influences(part: Tensor) -> Tensor:
        cotangents = torch.zeros(len(part), *output.shape, dtype=output.dtype, device=output.device)
        cotangents[torch.arange(len(part), device=output.device), node[part], channel[part]] = 1
        gradient = _backward(output, source, cotangents)
        norms: Tensor = torch.linalg.vector_norm(gradient, ord=1, dim=-1)
        return output.size(1) * norms.double()

    return reach_of_rows(influences, node, graph, at_once, num_all=output.numel())


def reach_of_rows(
    influences: Callable[[Tensor], Tensor], nodes: Tensor, graph: Propagation, at_once: int, *, num_all: int
) -> Reach:
    """The reach from the influence of every node on each of some nodes.

    Args:
        influences: makes ``[len(part), num_nodes]`` numbers, not negative, for the positions `part` of `nodes`.
        nodes: the nodes that are influenced, shape ``[num_probes]``.
        graph: what hops are counted on.
        at_once: how many positions to ask for at once.
        num_all: how many probes there would be if all were drawn.
    """
    tables, elsewhere = [], []
    for part in torch.split(torch.arange(len(nodes), device=graph.device), at_once):
        rows = influences(part)
        hops = hops_from(graph, nodes[part], rows > 0)
        table = rows.new_zeros(len(part), int(hops.max()) + 2)
        table.scatter_add_(1, hops + 1, rows)  # -1, no path, comes first
        elsewhere.append(table[:, 0])
        tables.append(table[:, 1:])
    width = max(table.size(1) for table in tables)
    by_hop = torch.cat([torch.nn.functional.pad(table, (0, width - table.size(1))) for table in tables])
    count = len(by_hop)
    unseen = 1 - count / num_all

    def error(values: Tensor) -> Tensor:
        """Of a mean over probes drawn without replacement: none if all were drawn."""
        squares = (values - values.mean(dim=0)).square().sum(dim=0)
        return (squares / max(1, count * (count - 1)) * unseen).sqrt() if count > 1 else values.mean(0) * torch.nan

    influence, hop = by_hop.mean(dim=0), torch.arange(width, device=by_hop.device)
    total = by_hop.sum(dim=1)
    mean = (influence * hop).sum() / influence.sum()
    drift = ((by_hop * hop).sum(dim=1) - mean * total) / total.mean()  # of the quotient, to first order
    return Reach(
        influence.cpu(),
        error(by_hop).cpu(),
        float(torch.cat(elsewhere).mean()),
        float(mean),
        float(error(drift)),
        count,
    )


def hops_from(graph: Propagation, nodes: Tensor, wanted: Tensor | None = None) -> Tensor:
    """Hops from some nodes to all, -1 where no path leads; where edges have directions, against them.

    A node reads from those whose edges lead to it, so this is how far it looks.

    Args:
        graph: the graph.
        nodes: where to start, shape ``[num_starts]``.
        wanted: which hops matter, bool ``[num_starts, num_nodes]``; the search ends when all of these are known.

    Returns:
        Shape ``[num_starts, num_nodes]``, int64.

    Example:
        >>> path = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 2]]), num_nodes=4, symmetrize=True)
        >>> hops_from(path, torch.tensor([0, 3]))
        tensor([[ 0,  1,  2, -1],
                [-1, -1, -1,  0]])
    """
    graph = graph.transposed
    pattern = csr_tensor(graph.rowptr, graph.col, torch.ones(graph.col.numel(), device=graph.device), graph.shape)
    reached = torch.zeros(graph.num_nodes, len(nodes), device=graph.device)
    reached[nodes, torch.arange(len(nodes), device=graph.device)] = 1
    hops = torch.where(reached > 0, 0, -1)
    for hop in range(1, graph.num_nodes):
        if wanted is not None and not bool((wanted.t() & (hops < 0)).any()):
            break
        reached = (torch.mm(pattern, reached) > 0).float()  # the diagonal is stored: a node once reached stays so
        is_new = (reached > 0) & (hops < 0)
        if not bool(is_new.any()):
            break
        hops[is_new] = hop
    return hops.t()


def _draw(count: int, num_probes: int, seed: int) -> Tensor:
    if num_probes < min(2, count):
        raise GraphjouleError(f"num_probes is {num_probes}; expected at least 2, as one has no standard error.")
    if num_probes >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:num_probes]


def _backward(output: Tensor, source: Tensor, cotangents: Tensor) -> Tensor:
    """The gradients by `source` of many cotangents of `output`; zero where it does not matter."""

    def grad(cotangent: Tensor, *, batched: bool) -> Tensor:
        (found,) = torch.autograd.grad(
            output, source, cotangent, retain_graph=True, allow_unused=True, is_grads_batched=batched
        )
        shape = (len(cotangents), *source.shape) if batched else source.shape
        return source.new_zeros(shape) if found is None else found

    if len(cotangents) == 1:  # the same without the cost of vmap
        return grad(cotangents[0], batched=False)[None]
    try:
        return grad(cotangents, batched=True)
    except RuntimeError:  # an operation that vmap does not know
        return torch.stack([grad(one, batched=False) for one in cotangents])
