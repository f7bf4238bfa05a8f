"""Energies from products that somebody has made anyway: the next layer of a network, for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from graphjoule.graph.laplacian import LEAST_ENERGY, QUICK_NUMEL, RANGE, inner_products
from graphjoule.graph.propagation import Propagation


@dataclass(frozen=True, eq=False)
class Product:
    """``a P X + alpha X`` of some features ``X``, as the float32 arithmetic of a layer has it.

    Attributes:
        value: the product, shape ``[..., num_nodes, channels]``; None where there are `sums`.
        graph: the operator ``P``.
        a: factor of ``P X``.
        alpha: factor of ``X``.
        sums: ``||X||^2`` and ``<X, value>``, where they were made on the way.
    """

    value: Tensor | None
    graph: Propagation
    a: float
    alpha: float
    sums: tuple[float, float] | None = None

    def energies(self, x: Tensor) -> Tensor | None:
        """The Dirichlet energies of ``X``, as `Laplacian.form` has them, for two passes over memory and no product.

        ``E = ||X||^2 - <X, P X>``, rows in float32 and their sums in float64. As in `QuickForm` the roundings of the
        entries are measured by what they make of ``s = sqrt(1 + d)``, whose energy is zero, and taken off; and features
        whose energy is small beside ``||X||^2`` are refused, for more than five digits might cancel. So they might
        where ``a`` is small beside ``alpha``: the less of the product is ``P X``, the more energy there must be.

        Args:
            x: ``X``, shape ``[..., num_nodes, channels]``.

        Returns:
            Float64 numbers, shape ``[...]``, NaN where the features must be measured by `Laplacian.form`; None where
            all must.
        """
        if not self.graph.has_known_kernel or x.dtype != torch.float32 or self.a == 0 or x.numel() < QUICK_NUMEL:
            return None
        if self.sums is not None or (x.device.type == "cpu" and x.dim() == 2):
            size, inner = torch.tensor(self.sums or inner_products(x, self._whole), dtype=torch.float64)
        else:
            size = torch.linalg.vector_norm(x, dim=-1).square_().sum(dim=-1, dtype=torch.float64)
            inner = (x * self._whole).sum(dim=-1).sum(dim=-1, dtype=torch.float64)
        energy = (self._of_kernel() * size - inner) / self.a
        least = LEAST_ENERGY * max(1.0, abs(self.alpha / self.a))
        is_good = (energy >= least * size) & (size > RANGE[0]) & (size < RANGE[1])
        return torch.where(is_good, energy, torch.nan)

    @property
    def _whole(self) -> Tensor:
        assert self.value is not None
        return self.value

    def _of_kernel(self) -> float:
        """The number by which the rounded ``a P + alpha I`` multiplies ``s``: ``a + alpha`` but for the roundings."""
        known = _OF_KERNEL.setdefault(self.graph, {})
        key = self.a, self.alpha
        if key not in known:
            entries = self.graph.mixed(self.a, self.alpha).double()
            scale = self.graph.laplacian.scale
            weighed = scale[self.graph.row()] * scale[self.graph.col.long()] * entries
            known[key] = float(weighed.sum() / scale.square().sum())
        return known[key]


_OF_KERNEL: WeakKeyDictionary[Propagation, dict[tuple[float, float], float]] = WeakKeyDictionary()

Show = Callable[[int, Tensor, Product | None], None]
"""Called by a fused stack with the number of a layer, its output, and what the next layer's product made of it, if that
is at hand. The output is overwritten soon, but not on a GPU."""
