"""The rows of ``D - A`` on one process: the same forms, summed over all processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.laplacian import Laplacian, ScaledLaplacian

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

    Means over connected components are sums over processes, and the product fetches the rows of the halo. All is in
    float64. Single edges are not offered: an edge may lie between two processes.

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

    def form(self, x: Tensor, *, normalised: bool = True) -> Tensor:
        """`Laplacian.form` of the whole graph; the gradient is that of the sum over all processes."""
        return self.operator.group.joined(super().form(x, normalised=normalised))

    def _form(self, run: Tensor, scaled: ScaledLaplacian) -> Tensor:
        rest = self._rest(run, scaled)
        return self._total((rest * torch.mm(scaled.matrix, self.operator.reach(rest))).sum()).clamp_(min=0)

    def _product(self, run: Tensor, scaled: ScaledLaplacian) -> Tensor:
        return torch.mm(scaled.matrix, self.operator.reach(self._rest(run, scaled)))

    def _total(self, x: Tensor) -> Tensor:
        return self.operator.group.total(x)

    @property
    def _column_scale(self) -> Tensor:
        return (1 + self.operator.column_degree).sqrt()
