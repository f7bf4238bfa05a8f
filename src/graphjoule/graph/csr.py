"""Sparse matrices in compressed rows, and cheap calls of autograd functions: what all fast loops share."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

FunctionType = TypeVar("FunctionType", bound=type[torch.autograd.Function])

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


def row_starts(row: Tensor, num_rows: int) -> Tensor:
    """Start of every row among entries with these rows once they are sorted by row; a row may be empty.

    Args:
        row: row of every entry, in any order, shape ``[num_entries]``.
        num_rows: number of rows.

    Returns:
        The `rowptr` of a CSR matrix, int32, shape ``[num_rows + 1]``.

    Example:
        >>> row_starts(torch.tensor([3, 0, 0, 2]), num_rows=4)
        tensor([0, 2, 2, 3, 4], dtype=torch.int32)
    """
    starts = torch.zeros(num_rows + 1, dtype=torch.int32, device=row.device)
    starts[1:] = torch.bincount(row, minlength=num_rows).cumsum(0)
    return starts


def entries_of_rows(rowptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The stored entries of some rows, row after row in the order of `rows`.

    Args:
        rowptr: start of every row, shape ``[num_rows + 1]``.
        rows: which rows, shape ``[num_chosen]``.

    Returns:
        Of every entry the place of its row among `rows`, and the place of the entry in the matrix, both int64.

    Example:
        >>> entries_of_rows(torch.tensor([0, 2, 2, 3, 5]), torch.tensor([3, 1, 0]))
        (tensor([0, 0, 2, 2]), tensor([3, 4, 0, 1]))
    """
    start, end = rowptr[rows].long(), rowptr[rows + 1].long()
    length = end - start
    row = torch.repeat_interleave(torch.arange(rows.numel(), device=rowptr.device), length)
    before = length.cumsum(0) - length
    return row, torch.arange(row.numel(), device=rowptr.device) + (start - before)[row]


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


def with_signature(function: FunctionType) -> FunctionType:
    """An autograd function whose `forward` knows its own signature: a class decorator.

    Torch binds the arguments of every call by that signature, which Python otherwise works out anew each time. This
    saves about 10 of a call's 25 us, and on a small graph a call costs as much as the arithmetic.

    Args:
        function: a class with `forward` and `setup_context`.
    """
    function.forward.__signature__ = inspect.signature(function.forward)  # type: ignore[attr-defined]
    return function


def is_plain() -> bool:
    """Whether an autograd function's `forward` alone will do: no gradient is on record and no `torch.func` at work.

    Where torch does not say whether `vmap` or `grad` is around, the answer is no, which is always right.
    """
    if torch.is_grad_enabled():
        return False
    are_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return are_transforms_active is not None and not are_transforms_active()
