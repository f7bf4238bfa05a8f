"""A part of a graph as another kind of graph: the rows of one process, which fetch and sum what the others have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.laplacian import Laplacian, ScaledLaplacian
from graphjoule.graph.nodes import Excerpt
from graphjoule.parallel.group import ALONE, Group


@dataclass(frozen=True, eq=False)
class Halo:
    """The nodes of other processes that a part's rows name, and who sends what to whom.

    Attributes:
        send: rows of this part that others need, those for process 0 first, int64.
        send_counts: how many each process gets.
        receive_counts: how many each process sends.
        is_empty: whether no process needs anything from another, so that there is nothing to call.
    """

    send: Tensor
    send_counts: tuple[int, ...]
    receive_counts: tuple[int, ...]
    is_empty: bool

    @property
    def num_nodes(self) -> int:
        """Number of nodes of other processes."""
        return sum(self.receive_counts)

    def to(self, device: torch.device | str | None) -> Halo:
        """The same on another device."""
        return Halo(self.send.to(device), self.send_counts, self.receive_counts, self.is_empty)


@dataclass(frozen=True, eq=False)
class PartedPropagation(Propagation):
    """The rows of ``P`` that belong to the nodes of one process.

    ``P`` is symmetric, so the gradient of "fetch the neighbours' rows and multiply" is the same operation on the
    gradient: a layer needs no more than `gather_halo`. Rows are the process's nodes by their number in the whole graph;
    columns are these nodes, then those of the halo. Entries of a row stand in the order they have in the whole graph,
    so that sums round alike.

    Attributes:
        column_degrees: weighted degree of the nodes of all columns.
        component: number of the connected component of every row's node, among those of the whole graph.
        num_components: how many connected components the whole graph has.
        entries: which stored entries of ``P`` these are.
        mirror: number of the entry across the diagonal of every stored entry.
        halo: what is fetched and sent.
        nodes: which nodes of the whole graph the rows are.
        group: the processes that have all parts.
    """

    column_degrees: Tensor
    component: Tensor
    num_components: int
    entries: Excerpt
    mirror: Tensor
    halo: Halo
    nodes: Excerpt
    group: Group = ALONE
    has_gpu_kernels = False
    has_known_kernel = False  # not by one process alone

    @property
    def row_ids(self) -> Excerpt:
        """See `Nodes`."""
        return self.nodes

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of columns with the halo."""
        return self.num_nodes, self.num_nodes + self.halo.num_nodes

    @property
    def num_edges(self) -> int:
        """Number of undirected edges of the whole graph, self-loops not counted."""
        return (self.entries.total - self.nodes.total) // 2

    @property
    def column_degree(self) -> Tensor:
        """Weighted degree of the nodes of all columns."""
        return self.column_degrees

    def gather_halo(self, x: Tensor) -> Tensor:
        """The features of the rows' nodes, then those of the halo; all processes must call it together.

        Args:
            x: shape ``[num_nodes, channels]`` or ``[runs, num_nodes, channels]``; all runs travel in one message.
        """
        if self.halo.is_empty:
            return x
        runs = x if x.dim() == 3 else x[None]
        rows = runs[:, self.halo.send].transpose(0, 1).flatten(1)
        halo = self.group.swap_rows(rows, self.halo.send_counts, self.halo.receive_counts)
        halo = halo.view(len(halo), len(runs), x.size(-1)).transpose(0, 1)
        return torch.cat([x, halo if x.dim() == 3 else halo[0]], dim=-2)

    def edge_ids(self) -> tuple[Tensor, Tensor, int]:
        """See `Propagation.edge_ids`; the numbers are those of the whole graph."""
        return self.entries.index, self.mirror, self.entries.total

    @property
    def edge_index(self) -> NoReturn:
        """Refused: an edge may lie between two processes."""
        self.require_whole("`edge_index`")

    def blocks(self, count: int) -> list[tuple[int, int]]:
        """See `Propagation.blocks`; all rows are one run, whose products fetch the halo."""
        return [(0, self.num_nodes)]

    def induced(self, nodes: Tensor) -> NoReturn:
        """Refused: an edge may lie between two processes."""
        self.require_whole("`induced`")

    def require_whole(self, what: str) -> NoReturn:
        """See `Propagation.require_whole`."""
        raise GraphjouleError(
            f"{what} needs the whole graph in one process, but the graph is in {self.group.size} parts; leave one of "
            "the two out."
        )

    def global_sum(self, x: Tensor) -> Tensor:
        """See `Nodes.global_sum`."""
        return self.group.total(x)

    def global_mean(self, x: Tensor, dim: int = 0) -> Tensor:
        """See `Nodes.global_mean`."""
        return self.global_sum(x.sum(dim=dim)) / self.nodes.total

    def global_norm(self, norm: Tensor) -> Tensor:
        """See `Nodes.global_norm`; at zero the gradient is zero, not 0/0."""
        total = self.global_sum(norm.square())
        return torch.where(total == 0, 0, torch.where(total == 0, 1, total).sqrt())

    def global_gram(self, x: Tensor) -> Tensor:
        """See `Nodes.global_gram`; rows of two processes never meet, so it is that of the channels."""
        return self.global_sum(x.mT @ x)

    def batch_norm(self, x: Tensor, layer: nn.BatchNorm1d) -> Tensor:
        """See `Nodes.batch_norm`; statistics, gradients and running statistics are those of the whole graph."""
        mean = self.global_mean(x)
        centred = x - mean
        var = self.global_mean(centred.square())
        assert layer.running_mean is not None
        assert layer.running_var is not None
        assert layer.num_batches_tracked is not None
        assert layer.momentum is not None
        count = self.nodes.total
        with torch.no_grad():  # as torch does: the running variance is the unbiased one
            layer.num_batches_tracked.add_(1)
            layer.running_mean.mul_(1 - layer.momentum).add_(layer.momentum * mean)
            layer.running_var.mul_(1 - layer.momentum).add_(layer.momentum * count / max(1, count - 1) * var)
        return centred * (var + layer.eps).rsqrt() * layer.weight + layer.bias

    @cached_property
    def largest_degree(self) -> float:
        """See `Propagation.largest_degree`; all processes must ask for it together."""
        own = self.degree.max() if self.num_nodes else self.degree.new_zeros(())
        # The bits of numbers that are not negative have the order of the numbers.
        bits = self.group.largest(int(own.double().cpu().view(torch.int64)))
        return float(torch.tensor(bits).view(torch.float64))

    @cached_property
    def laplacian(self) -> PartedLaplacian:
        """The rows of ``D - A``, made at first use."""
        scale = (1 + self.column_degrees).sqrt()
        return PartedLaplacian(
            self.rowptr,
            self.col,
            self._weights(scale),
            scale[: self.num_nodes],
            self.component,
            self.num_components,
            self,
        )


_NO_EDGES = (
    "This measure looks at single edges, which may lie between two processes; on a graph in parts choose from energy, "
    "norm, rayleigh, kernel_distance, effective_rank, stable_rank, pair_cosine, correlation, combinatorial_energy and "
    "random_walk_energy, or measure in one process."
)


@dataclass(frozen=True, eq=False)
class PartedLaplacian(Laplacian):
    """Some rows of ``D - A``; every process gets the form of the whole graph.

    Means over connected components are sums over processes, and the product fetches the rows of the halo. All is in
    float64. Single edges are not offered: an edge may lie between two processes.

    Attributes:
        operator: the rows of ``P`` on the same process.
    """

    operator: PartedPropagation

    @property
    def edges(self) -> NoReturn:
        """Refused: an edge may lie between two processes."""
        raise GraphjouleError(_NO_EDGES)

    def neighbour_sum(self, y: Tensor) -> NoReturn:
        """Refused: an edge may lie between two processes."""
        raise GraphjouleError(_NO_EDGES)

    def form(self, x: Tensor, *, normalised: bool = True) -> Tensor:
        """`Laplacian.form` of the whole graph; the gradient is that of the sum over all processes."""
        return self.operator.group.joined(super().form(x, normalised=normalised))

    def _form(self, run: Tensor, scaled: ScaledLaplacian) -> Tensor:
        rest = self._rest(run, scaled)
        return self._total((rest * torch.mm(scaled.matrix, self.operator.gather_halo(rest))).sum()).clamp_(min=0)

    def _product(self, run: Tensor, scaled: ScaledLaplacian) -> Tensor:
        return torch.mm(scaled.matrix, self.operator.gather_halo(self._rest(run, scaled)))

    def _total(self, x: Tensor) -> Tensor:
        return self.operator.global_sum(x)

    @property
    def _column_scale(self) -> Tensor:
        return (1 + self.operator.column_degree).sqrt()
