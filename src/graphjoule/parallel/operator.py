"""Some rows of ``P`` on one process, behind the call of the whole: what they lack is fetched from the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.group import ALONE, Group
from graphjoule.graph.part import Excerpt, Part
from graphjoule.parallel.laplacian import PartedLaplacian


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
    gradient: a layer needs no more than `reach`. Rows are the process's nodes by their number in the whole graph; its
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
        processes: who has the others.
    """

    column_degrees: Tensor
    component: Tensor
    num_components: int
    entries: Excerpt
    mirror: Tensor
    halo: Halo
    nodes: Excerpt
    processes: Group = ALONE
    _part: Part = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_part", Part(self.nodes, self.processes))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of columns with the halo."""
        return self.num_nodes, self.num_nodes + self.halo.num_nodes

    @property
    def part(self) -> Part:
        """Which nodes these rows are, and who has the others."""
        return self._part

    @property
    def num_edges(self) -> int:
        """Number of undirected edges of the whole graph, self-loops not counted."""
        return (self.entries.total - self.nodes.total) // 2

    @property
    def column_degree(self) -> Tensor:
        """Weighted degree of the nodes of all columns."""
        return self.column_degrees

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> PartedPropagation:
        """The same rows on another device, or with entries of another dtype; itself where nothing changes."""
        value = self.value.to(device=device, dtype=dtype)
        if value is self.value:
            return self
        names = ("rowptr", "col", "degree", "column_degrees", "component", "entries", "mirror", "halo", "nodes")
        moved = {name: getattr(self, name).to(device) for name in names}
        return PartedPropagation(value=value, num_components=self.num_components, processes=self.processes, **moved)

    def reach(self, x: Tensor) -> Tensor:
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

    def numbering(self) -> tuple[Tensor, Tensor, int]:
        """See `Propagation.numbering`; the numbers are those of the whole graph."""
        return self.entries.index, self.mirror, self.entries.total

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
