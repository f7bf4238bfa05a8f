"""The quadratic form of a Laplacian in float32: much less time than in float64, for large features on a CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from graphjoule.graph.csr import csr_product, row_of_entries, row_starts

_SAMPLE: Final = 256  # nodes that tell a mean well enough: they miss of it a 16th of what one node differs from it
_RANGE: Final = (2.0**-80, 2.0**100)  # of ||X||^2: beyond, squares might leave that of float32

# What features must have, as parts of ||X||^2. Errors are below 1e-6 then, and below 1e-5 where features are built to
# make all roundings agree; with less they would be larger.
_LEAST_ENERGY: Final = 2.0**-8
_LEAST_REST: Final = 2.0**-12  # what the kernel leaves, where it is taken off
_ROUGH_REST: Final = 2.0**-5  # what it leaves where it is worth a try to take the features as they are


@dataclass(frozen=True, eq=False)
class _Matrix:
    """``M / largest`` for one scaling of the features.

    Attributes:
        scale: the numbers ``s_i``.
        column: the same in float32, as a column.
        largest: the largest ``d_i / s_i^2``; ``<X, M X>`` is at most twice this times ``||X||^2``.
        value: the entries in float32.
        error: ``<s, M s> / ||s||^2 / largest``, which is zero but for the rounding of the entries.
        kernels: ``||s||^2`` on each connected component.
        sampling: what the nodes of the sample count in a mean of ``x / s``, in float32, as a row.
        sampled_kernel: ``||s||^2`` on the sample.
    """

    scale: Tensor
    column: Tensor
    largest: float
    value: Tensor
    error: float
    kernels: Tensor
    sampling: Tensor
    sampled_kernel: float


class QuickForm:
    """``sum a_ij ||x_i / s_i - x_j / s_j||^2`` as ``<X, M X>``, where that keeps six digits, or five at the least.

    ``M`` has ``d_i / s_i^2`` on its diagonal and ``-2 a_ij / (s_i s_j)`` for every edge once. So the form is one
    product, which gathers 60 % of the rows of a layer's, and one inner product. Roundings are 2^-24 of ``||X||^2``, so
    the form may not be much smaller than that. Those of the entries add up where all nodes have as many neighbours;
    what they make of ``s``, whose form is zero, tells how much they add to smooth features, and is taken off. The
    kernel, multiples of ``s`` on each component, is taken off first where it makes out most of the features, for the
    price of a copy.

    Args:
        edges: both ends and the weight of every edge, once.
        degree: sum of the weights of every node.
        scale: the kernel of ``I - P``, which most forms have as ``s``.
        component: number of the connected component of every node.
        num_components: how many there are.
    """

    def __init__(
        self,
        edges: tuple[Tensor, Tensor, Tensor],
        degree: Tensor,
        scale: Tensor,
        component: Tensor,
        num_components: int,
    ) -> None:
        (row, col, weight), node = edges, torch.arange(len(degree), device=degree.device)
        row, col = torch.cat([node, row]), torch.cat([node, col])
        order = torch.argsort(row, stable=True)
        self._rowptr, self._col = row_starts(row, len(degree)), col[order].int()
        self._weight = torch.cat([degree, -2 * weight])[order]
        self._degree, self._scale = degree, scale
        self._component, self._num_components = component, num_components
        chosen = torch.randperm(len(degree), generator=torch.Generator().manual_seed(0))[:_SAMPLE]
        self._sample = chosen.sort().values
        self._own = self._latest = self._matrix(scale)

    def of(self, x: Tensor, scale: Tensor, means: Tensor | None = None) -> Tensor | None:
        """The form, a float64 number; None where float32 is not good enough.

        Args:
            x: float32 features, shape ``[num_nodes, channels]``.
            scale: the numbers ``s_i`` in float64, shape ``[num_nodes]``.
            means: of ``x / s`` over each component, where there are several, shape ``[num_components, channels]``.
        """
        x, matrix = x.contiguous(), self._matrix_of(scale)
        mean, kernel, is_rough = self._kernel_part(x, matrix, means)
        energy = self._within(x, matrix) if is_rough else None
        if energy is None:
            rest = torch.addcmul(x, matrix.column, mean, value=-1)
            energy = self._within(rest, matrix, least=_LEAST_REST * kernel)
        return None if energy is None else torch.tensor(energy * matrix.largest, dtype=torch.float64)

    def _within(self, x: Tensor, matrix: _Matrix, least: float = 0.0) -> float | None:
        """``<X, M X>``, rows in float32 and their sum in float64; None where it or ``||X||^2`` is too small."""
        size = _size(x)
        if not (_RANGE[0] < size < _RANGE[1] and size >= least):
            return None
        rows = csr_product(self._rowptr, self._col, matrix.value, x).mul_(x).sum(dim=1)
        energy = float(rows.sum(dtype=torch.float64)) - matrix.error * size
        return energy if energy >= _LEAST_ENERGY * size else None

    def _kernel_part(self, x: Tensor, matrix: _Matrix, means: Tensor | None) -> tuple[Tensor, float, bool]:
        """About the mean of ``x / s`` over each node's component, ``||X||^2`` within the kernel, and if that is little.

        It need not be the mean itself, for whatever is taken off has no energy; the mean takes most. So a sample will
        do where there is one component, and that tells how much the kernel leaves of the features.
        """
        if means is not None:
            kernel = torch.dot(matrix.kernels, means.square().sum(dim=1))
            return means.float()[self._component], float(kernel), False
        some = x.index_select(0, self._sample)
        mean = torch.mm(matrix.sampling, some)
        square = _size(mean)
        is_rough = matrix.sampled_kernel * square <= (1 - _ROUGH_REST) * _size(some)
        return mean, float(matrix.kernels) * square, is_rough

    def _matrix_of(self, scale: Tensor) -> _Matrix:
        """That of the kernel's scale and of one more are kept."""
        for known in (self._own, self._latest):
            if known.scale is scale or known.scale.equal(scale):
                return known
        self._latest = self._matrix(scale)
        return self._latest

    def _matrix(self, scale: Tensor) -> _Matrix:
        both = scale[row_of_entries(self._rowptr)] * scale[self._col.long()]
        squares, sampled = scale.square(), self._scale[self._sample].square()
        largest = float((self._degree / squares).max()) or 1.0  # without edges all entries are zero
        value = (self._weight / both / largest).float()
        return _Matrix(
            scale=scale,
            column=scale.float()[:, None],
            largest=largest,
            value=value,
            error=float(torch.dot(value.double(), both) / squares.sum()),
            kernels=squares.new_zeros(self._num_components).index_add(0, self._component, squares),
            sampling=(sampled / (sampled.sum() * scale[self._sample])).float()[None],
            sampled_kernel=float(squares[self._sample].sum()),
        )


def _size(x: Tensor) -> float:
    """``||X||^2`` to five digits; infinite or zero where float32 has no room for it."""
    flat = x.view(-1)
    size = float(torch.dot(flat, flat))
    return math.inf if math.isnan(size) else size
