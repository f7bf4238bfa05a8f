"""Matrices in host memory with one row per node, read a block of rows at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphjoule.graph.csr import csr_product, csr_tensor
from graphjoule.graph.features import Features, SparseFeatures


@dataclass(frozen=True)
class Blocks:
    """How a matrix is gone over: where a block is worked on, and how large it may be.

    Attributes:
        device: where the arithmetic is done.
        num_bytes: about the most that one block takes there; a block has one row at least.
    """

    device: torch.device
    num_bytes: int

    def of_rows(self, num_rows: int, row_bytes: int) -> list[slice]:
        """Blocks of equal numbers of rows."""
        size = max(1, self.num_bytes // max(1, row_bytes))
        return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]

    def of_entries(self, rowptr: Tensor, row_bytes: int) -> list[slice]:
        """Blocks of rows of a CSR matrix, each with so few entries that a row of the other factor for each fits.

        A row that has more entries by itself is a block of its own.
        """
        most, num_rows, blocks, start = max(1, self.num_bytes // max(1, row_bytes)), len(rowptr) - 1, [], 0
        while start < num_rows:
            stop = int(torch.searchsorted(rowptr, int(rowptr[start]) + most, right=True)) - 1
            stop = min(max(stop, start + 1), start + most, num_rows)
            blocks.append(slice(start, stop))
            start = stop
        return blocks


def read_rows(source: Features, rows: slice, device: torch.device) -> Tensor:
    """Some rows on a device; those of sparse features as a torch CSR matrix."""
    if isinstance(source, Tensor):
        return source[rows].to(device)
    first, last = int(source.rowptr[rows.start]), int(source.rowptr[rows.stop])
    rowptr = source.rowptr[rows.start : rows.stop + 1] - first
    pieces = (rowptr, source.col[first:last], source.value[first:last])
    rowptr, col, value = (piece.to(device) for piece in pieces)
    return csr_tensor(rowptr, col, value, (rows.stop - rows.start, source.num_features))


def row_bytes(source: Features) -> int:
    """Bytes of one row, the mean one of sparse features; an entry of these takes a value and a column."""
    if isinstance(source, SparseFeatures):
        return source.value.numel() * (source.value.element_size() + 4) // max(1, source.num_nodes)
    return source[:1].numel() * source.element_size()


def multiply_rows(matrix: Tensor, rows: slice, x: Tensor, blocks: Blocks) -> Tensor:
    """Some rows of ``A X`` for a CSR matrix and a dense matrix in host memory, on the device of the blocks."""
    if blocks.device.type != "cpu":
        return multiply_gathered(matrix, rows, x, blocks)
    rowptr, col, value = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    first, last = int(rowptr[rows.start]), int(rowptr[rows.stop])
    return _product(rowptr[rows.start : rows.stop + 1] - first, col[first:last], value[first:last], x)


def multiply_gathered(matrix: Tensor, rows: slice, x: Tensor, blocks: Blocks) -> Tensor:
    """`multiply_rows` for a device that cannot see host memory.

    It gets the entries of these rows and the rows of ``X`` that they name, in pieces where a row alone names too many.
    """
    rowptr, col, value = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    first, last = int(rowptr[rows.start]), int(rowptr[rows.stop])
    most = max(1, blocks.num_bytes // max(1, row_bytes(x)))
    total = torch.zeros(rows.stop - rows.start, x.size(1), dtype=x.dtype, device=blocks.device)
    for start in range(first, last, most):
        stop = min(start + most, last)
        named, place = torch.unique(col[start:stop], return_inverse=True)
        starts = rowptr[rows.start : rows.stop + 1].clamp(start, stop) - start
        pieces = (starts, place.to(col.dtype), value[start:stop], x[named.long()])
        total += _product(*(piece.to(blocks.device) for piece in pieces))
    return total


def _product(rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor) -> Tensor:
    if x.dtype == torch.float32 and x.device.type == "cpu":
        return csr_product(rowptr, col, value, x)
    return torch.mm(csr_tensor(rowptr, col, value, (len(rowptr) - 1, len(x))), x)
