"""The rows of ``D - A`` on one process: the same forms, summed over all processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.csr import csr_tensor, row_of_entries
from graphjoule.graph.laplacian import Laplacian

if TYPE_CHECKING:
    from graphjoule.parallel.operator import PartedPropagation


_NO_EDGES = (
    "This measure looks at single edges, which may lie between two processes; on a graph in parts choose from energy, "
    "norm, rayleigh, kernel_distance, effective_rank, stable_rank, pair_cosine, correlation, combinatorial_energy and "
    "random_walk_energy, or measure in one process."
)


@dataclass(frozen=True, eq=False)
class PartedLaplacian(Laplacian):
    """Some rows of ``D - A``; every process gets the form of the whole graph.

    Means over connected components are sums over processes, and the product with ``D - A`` fetches the centred rows of
    the halo. All is in float64. Single edges are not offered: an edge may lie between two processes.

    Attributes:
        operator: the rows of ``P`` on the same process.
    """

    operator: PartedPropagation

    @property
    def edges(self) -> NoReturn:
        """Not to be had in parts."""
        raise GraphjouleError(_NO_EDGES)

    def neighbour_sum(self, y: Tensor) -> NoReturn:
        """Not to be had in parts."""
        raise GraphjouleError(_NO_EDGES)

    def form(self, x: Tensor, scale: Tensor) -> Tensor:
        """``sum a_ij ||x_i / scale_i - x_j / scale_j||^2`` over all undirected edges of the whole graph.

        See `Laplacian.form`; the gradient is that of the sum of what all processes make of the number.
        """
        return self.operator.group.joined(super().form(x, scale))

    def _form(self, run: Tensor, scale: Tensor) -> Tensor:
        y = self._centred(run, scale)
        own = (y * torch.mm(self._matrix, self.operator.reach(y))).sum()
        return self.operator.group.total(own).clamp_(min=0)

    def _product(self, run: Tensor, scale: Tensor) -> Tensor:
        return torch.mm(self._matrix, self.operator.reach(self._centred(run, scale))).div_(scale[:, None])

    def means(self, run: Tensor, scale: Tensor) -> Tensor:
        """Mean of ``x / scale`` over each component of the whole graph, shape ``[num_components, channels]``."""
        return self.operator.group.total(torch.mm(self._pool, run.double() / scale[:, None]))

    @cached_property
    def _share(self) -> Tensor:
        """What part of the squared kernel vector of its component each node has; components cross processes."""
        squares = self.scale.square()
        own = squares.new_zeros(self.num_components).index_add(0, self.component, squares)
        return squares / self.operator.group.total(own)[self.component]

    @cached_property
    def _matrix(self) -> Tensor:
        """The rows of ``D - A`` as a torch CSR matrix."""
        row = row_of_entries(self.rowptr)
        value = torch.where(row == self.col, self.degree[row], -self.weight)
        return csr_tensor(self.rowptr, self.col, value, self.operator.shape)
