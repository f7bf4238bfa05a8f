"""Columns scaled to mean 0 and variance 1, by numbers that are kept for the next matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphjoule.graph.features import Features, SparseFeatures


@dataclass(frozen=True, eq=False)
class Scaling:
    """``(x - mean) / std`` for every column of a dense matrix; sparse features keep their zeros and are left alone.

    Attributes:
        mean: per column, float64; None leaves every matrix as it is.
        std: per column; infinite where the column is constant, which therefore becomes 0.

    >>> Scaling.of(torch.tensor([[1.0, 7.0], [3.0, 7.0]])).apply(torch.tensor([[5.0, 9.0]]))
    tensor([[3., 0.]])
    """

    mean: Tensor | None = None
    std: Tensor | None = None

    @classmethod
    def of(cls, x: Features) -> Scaling:
        """The scaling that gives the columns of `x` mean 0 and variance 1."""
        if isinstance(x, SparseFeatures):
            return cls()
        x = x.double()
        is_constant = x.amax(dim=0) == x.amin(dim=0)  # rounding would leave such a column a little spread
        return cls(x.mean(dim=0), torch.where(is_constant, torch.inf, x.std(dim=0, correction=0)))

    def apply(self, x: Features) -> Features:
        """The scaled matrix, in torch's default dtype."""
        if isinstance(x, SparseFeatures):
            return x
        if self.mean is not None and self.std is not None:
            x = (x.double() - self.mean) / self.std
        return x.to(torch.get_default_dtype())
