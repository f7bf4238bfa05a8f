"""Sparse matrices in compressed rows: the pieces that graphs and features share."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

# A row is long beyond 32 entries and four times the mean: a hub among short rows would keep a GPU waiting for the one
# program that has it. By a sweep on an H200: 32 is best on Cora (mean 5), 64 on Physics (mean 15).
_LONG_ROW, _LONG_ROW_MEANS = 32, 4
_SUM = 0  # torch.embedding_bag's number for mode="sum"


def csr_tensor(rowptr: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int]) -> Tensor:
    """A torch CSR matrix from its pieces, without torch's notice that CSR is young."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR|invariant)", category=UserWarning)
        return torch.sparse_csr_tensor(rowptr, col, value, size=shape, check_invariants=False)


def csr_product(rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor) -> Tensor:
    """``A X`` for a CSR matrix ``A``, shape ``[num_rows, channels]``; float32 on a CPU.

    A row of ``A`` is a weighted bag of rows of ``X``, which is what `torch.embedding_bag` sums, with kernels generated
    for the width at hand: they take 40 to 50 % of the time of MKL's sparse product (Cora 41 us against 104, Pubmed 0.42
    ms against 1.14, Physics 3.3 ms against 6.2, one thread, 64 channels).

    Args:
        rowptr: start of every row, shape ``[num_rows + 1]``.
        col: column of every entry, of the dtype of `rowptr`.
        value: the entries.
        x: the dense factor, shape ``[num_columns, channels]``.
    """
    summed: Tensor = torch.embedding_bag(
        x.contiguous(), col, rowptr, mode=_SUM, per_sample_weights=value, include_last_offset=True
    )[0]
    return summed


def row_of_entries(rowptr: Tensor) -> Tensor:
    """Row of every stored entry, int64."""
    return torch.repeat_interleave(torch.arange(rowptr.numel() - 1, device=rowptr.device), rowptr.diff())


@dataclass(frozen=True, eq=False)
class Rows:
    """The pattern of a CSR matrix with its rows in an order that keeps parallel work even.

    Attributes:
        rowptr: start of every row.
        col: column of every entry.
        short: most rows, those of equal length together, int32.
        long: the hubs, int32.
    """

    rowptr: Tensor
    col: Tensor
    short: Tensor
    long: Tensor

    @classmethod
    def of(cls, rowptr: Tensor, col: Tensor) -> Rows:
        """Sort the rows by length; this waits for the device, so do it once per matrix."""
        length = rowptr.diff()
        order = torch.argsort(length, descending=True, stable=True).int()
        is_long = length > max(_LONG_ROW, _LONG_ROW_MEANS * col.numel() / max(1, length.numel()))
        num_long = int(is_long.sum())
        return cls(rowptr, col, order[num_long:].contiguous(), order[:num_long].contiguous())

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.rowptr.numel() - 1
