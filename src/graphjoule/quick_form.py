"""The quadratic form of a Laplacian in float32: a third of the time of float64, for large features on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from graphjoule.csr import csr_product, row_starts

if TYPE_CHECKING:
    from graphjoule.laplacian import Laplacian

_SAMPLE: Final = 256  # nodes that tell a mean well enough: they miss of it a 16th of what one node differs from it
_RANGE: Final = (2.0**-80, 2.0**100)  # of ||X||^2: beyond, squares might leave that of float32

# What features must have, as parts of ||X||^2; with less, roundings might show in the sixth digit.
_LEAST_ENERGY, _LEAST_REST = 2.0**-10, 2.0**-12  # once the kernel is taken off; how much it may leave
_ROUGH_ENERGY, _ROUGH_REST = 2.0**-8, 2.0**-5  # to be taken as they are; from what rest on that is worth a try


@dataclass(frozen=True, eq=False)
class _Matrix:
    """``M`` for one scaling of the features.

    Attributes:
        scale: the numbers ``s_i``.
        column: the same in float32, as a column.
        value: the entries of ``M`` in float32.
        largest: ``<X, M X>`` is at most twice this times ``||X||^2``.
        kernels: ``||s||^2`` on each connected component.
        kernel: their sum.
        kernel_error: ``<s, M s> / ||s||^2``, which is zero but for the rounding of the entries.
        sampling: what the nodes of the sample count in a mean of ``x / s``, in float32, as a row.
        sampled_kernel: ``||s||^2`` on the sample.
    """

    scale: Tensor
    column: Tensor
    value: Tensor
    largest: float
    kernels: Tensor
    kernel: float
    kernel_error: float
    sampling: Tensor
    sampled_kernel: float


class QuickForm:
    """``sum a_ij ||x_i / s_i - x_j / s_j||^2`` as ``<X, M X>``, where that keeps six digits.

    ``M`` has ``d_i / s_i^2`` on its diagonal and ``-2 a_ij / (s_i s_j)`` for every edge once. So the form is one
    product, which gathers 60 % of the rows of a layer's, and one inner product. Roundings are 2^-24 of ``||X||^2``, so
    the form may not be much smaller than that. The kernel, multiples of ``s`` on each component, has no energy: where
    it makes out most of the features it is taken off first, for the price of a copy.

    Args:
        laplacian: ``D - A``, on a CPU.
    """

    def __init__(self, laplacian: Laplacian) -> None:
        self._laplacian = laplacian
        (row, col, weight), node = laplacian.edges, torch.arange(laplacian.num_nodes)
        row, col = torch.cat([node, row]), torch.cat([node, col])
        order = torch.argsort(row, stable=True)
        self._row, self._column = row[order], col[order]
        self._rowptr, self._col = row_starts(row, laplacian.num_nodes), col[order].int()
        self._weight = torch.cat([laplacian.degree, -2 * weight])[order]
        self._sample = slice(None, None, max(1, laplacian.num_nodes // _SAMPLE))
        self._own = self._matrix(laplacian.scale)

    def of(self, x: Tensor, scale: Tensor) -> Tensor | None:
        """The form, a float64 number; None where float32 is not good enough.

        Args:
            x: float32 features, shape ``[num_nodes, channels]``.
            scale: the numbers ``s_i`` in float64, shape ``[num_nodes]``.
        """
        matrix = self._own if scale is self._own.scale else self._matrix(scale)
        mean, kernel, is_rough = self._kernel_part(x, matrix)
        if is_rough:
            energy = self._product(x, matrix)
            if energy >= _ROUGH_ENERGY * matrix.largest * _size(x):
                return torch.tensor(energy - matrix.kernel_error * kernel, dtype=torch.float64)
        rest = torch.addcmul(x, matrix.column, mean, value=-1)
        size = _size(rest)
        if size < _LEAST_REST * kernel:
            return None
        energy = self._product(rest, matrix)
        return torch.tensor(energy, dtype=torch.float64) if energy >= _LEAST_ENERGY * matrix.largest * size else None

    def _kernel_part(self, x: Tensor, matrix: _Matrix) -> tuple[Tensor, float, bool]:
        """About the mean of ``x / s`` over each node's component, ``||X||^2`` within the kernel, and if that is little.

        It need not be the mean itself, for whatever is taken off has no energy; the mean takes most. So a sample will
        do where there is one component, and that tells how much the kernel leaves of the features.
        """
        if self._laplacian.num_components > 1:
            means = self._laplacian.means(x, matrix.scale)
            squares = means.square().sum(dim=1)
            return means.float()[self._laplacian.component], float(torch.dot(matrix.kernels, squares)), False
        some = x[self._sample].contiguous()
        mean = torch.mm(matrix.sampling, some)
        square = _size(mean)
        is_rough = matrix.sampled_kernel * square <= (1 - _ROUGH_REST) * _size(some)
        return mean, matrix.kernel * square, is_rough

    def _product(self, x: Tensor, matrix: _Matrix) -> float:
        """``<X, M X>``, rows in float32 and their sum in float64."""
        rows = csr_product(self._rowptr, self._col, matrix.value, x).mul_(x).sum(dim=1)
        return float(rows.sum(dtype=torch.float64))

    def _matrix(self, scale: Tensor) -> _Matrix:
        laplacian, both = self._laplacian, scale[self._row] * scale[self._column]
        value, squares = (self._weight / both).float(), scale.square()
        sampled = laplacian.scale[self._sample].square()
        return _Matrix(
            scale=scale,
            column=scale.float()[:, None],
            value=value,
            largest=float((laplacian.degree / squares).max()),
            kernels=squares.new_zeros(laplacian.num_components).index_add(0, laplacian.component, squares),
            kernel=float(squares.sum()),
            kernel_error=float(torch.dot(value.double(), both) / squares.sum()),
            sampling=(sampled / (sampled.sum() * scale[self._sample])).float()[None],
            sampled_kernel=float(squares[self._sample].sum()),
        )


def _size(x: Tensor) -> float:
    """``||X||^2`` to five digits; NaN, which no comparison holds for, where float32 has no room for the squares."""
    flat = x.view(-1)
    size = float(torch.dot(flat, flat))
    return size if _RANGE[0] < size < _RANGE[1] else float("nan")
