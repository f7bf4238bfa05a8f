"""Evaluation of a model on a graph of any size: the model's own forward, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.csr import csr_product, csr_tensor
from graphjoule.graph.features import Features, SparseFeatures
from graphjoule.nn import GraphModel
from graphjoule.ops import use_backend

BLOCK_BYTES = 2**26
"""About what one block takes on the device, and what a step makes of it a few times that."""


@torch.no_grad()
def evaluate_in_blocks(model: GraphModel, x: Features, graph: Propagation, *, block_bytes: int = BLOCK_BYTES) -> Tensor:
    """Class scores of all nodes, as ``model.eval()(x, graph)`` gives them up to rounding, in bounded memory.

    The model's own forward runs once, with matrices that lie in host memory and go through the device a block of rows
    at a time: layer after layer, each exact, since all rows of a layer are there before the next one begins. Host
    memory holds a few activations ``[num_nodes, channels]`` whatever the depth, the device a few blocks and the model.

    Args:
        model: any model of the zoo, on the device that shall do the arithmetic; left in evaluation mode.
        x: features of all nodes, dense or sparse, in host memory.
        graph: the operator, in host memory.
        block_bytes: about what one block of rows takes.

    Returns:
        Shape ``[num_nodes, out_channels]``, in host memory.

    Example:
        >>> from graphjoule import EGNN
        >>> path = Propagation.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 3]]), symmetrize=True)
        >>> model, x = EGNN(5, 8, 3, num_layers=16).eval(), torch.randn(4, 5)
        >>> torch.allclose(evaluate_in_blocks(model, x, path, block_bytes=64), model(x, path), atol=1e-6)
        True
    """
    if block_bytes < 1:
        raise GraphjouleError(f"block_bytes is {block_bytes}; it must be at least 1.")
    blocks = Blocks(next(model.parameters()).device, block_bytes)
    with use_backend("reference"):  # a fused backend wants all rows at once
        scores: Tensor = model.eval()(StreamedMatrix(x.to("cpu"), blocks), graph.to("cpu"))
    if not isinstance(scores, StreamedMatrix) or not isinstance(scores.source, Tensor):
        raise GraphjouleError(f"The scores of the model are {type(scores).__name__}, not one row per node.")
    return scores.source


class StreamedMatrix(Tensor):
    """One row per node in host memory; torch functions of it run block by block and give another one.

    A function that works on every row by itself is called with blocks of rows on the device. A reduction over all rows
    gives an ordinary tensor. A product with a sparse matrix gathers the rows that a block needs. Any other function is
    refused by name: a model that needs it cannot be evaluated in blocks.

    Attributes:
        source: the matrix itself, dense or sparse.
        blocks: how to go over it.
    """

    source: Features
    blocks: Blocks

    @staticmethod
    def __new__(cls, source: Features, blocks: Blocks) -> StreamedMatrix:
        """A tensor without memory of its own that says it is on the device of the blocks."""
        made: StreamedMatrix = Tensor._make_wrapper_subclass(
            cls, source.shape, dtype=source.dtype, device=blocks.device
        )
        made.source, made.blocks = source, blocks
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Do what the table says for `func`."""
        kwargs = kwargs or {}
        if func in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in _PRODUCTS and not isinstance(args[0], StreamedMatrix):
            return _sparse_product(*args, **kwargs)
        if func in _SUMS | _MEANS and _over_rows(args, kwargs):
            return _sum(args[0]) / (args[0].size(0) if func in _MEANS else 1)
        if func in _BY_ROW and _keeps_rows_apart(func, args, kwargs):
            return _by_row(func, args, kwargs)
        raise GraphjouleError(_refusal(func))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Refuse what comes here: it was called below torch's functions, where there is no memory to read."""
        raise GraphjouleError(_refusal(func))


def _refusal(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", str(func))
    return f"This model cannot be evaluated in blocks of rows: it calls {name}, which is not known to work by rows."


def _by_row(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> StreamedMatrix:
    """`func` of every block of rows; other tensors are the same for all rows and must already be on the device."""
    matrices = [a for a in (*args, *kwargs.values()) if isinstance(a, StreamedMatrix)]
    blocks, num_rows = matrices[0].blocks, matrices[0].size(0)
    function = _linear if func is F.linear else func
    out: Tensor | None = None
    for rows in blocks.of_rows(num_rows, sum(row_bytes(m.source) for m in matrices)):
        here = [
            read_rows(a.source, rows, blocks.device) if isinstance(a, StreamedMatrix) else a
            for a in (*args, *kwargs.values())
        ]
        block: Tensor = function(*here[: len(args)], **dict(zip(kwargs, here[len(args) :], strict=True)))
        if block.shape[:1] != (rows.stop - rows.start,):
            raise GraphjouleError(_refusal(func))
        out = torch.empty((num_rows, *block.shape[1:]), dtype=block.dtype) if out is None else out
        out[rows] = block
    assert out is not None  # a graph has one node at least
    return StreamedMatrix(out, blocks)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``X W^T + b``, of sparse rows too."""
    if x.layout != torch.sparse_csr:
        return F.linear(x, weight, bias)
    product = torch.mm(x, weight.t())
    return product if bias is None else product + bias


def _sparse_product(matrix: Tensor, x: StreamedMatrix) -> StreamedMatrix:
    """``A X`` for a CSR matrix ``A`` in host memory."""
    blocks, source = x.blocks, x.source
    if matrix.layout != torch.sparse_csr or not isinstance(source, Tensor):
        raise GraphjouleError("This model cannot be evaluated in blocks of rows: it multiplies by a dense matrix.")
    out = torch.empty(matrix.size(0), source.size(1), dtype=source.dtype)
    for rows in blocks.of_entries(matrix.crow_indices(), row_bytes(source)):
        out[rows] = multiply_rows(matrix, rows, source, blocks, gather=blocks.device.type != "cpu")
    return StreamedMatrix(out, blocks)


def _over_rows(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a reduction is over the rows: over dimension 0, or over all of a vector."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    is_plain = not kwargs.keys() - {"dim"} and len(args) <= 2
    return is_plain and (dim in (0, (0,), [0]) or (dim is None and args[0].dim() == 1))


def _keeps_rows_apart(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call does to a row nothing that depends on the others."""
    if func in _ALONG_ROW:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        return args[0].dim() == 2 and dim in (1, -1, (1,), (-1,), [1], [-1])
    if func in _PRODUCTS or func is F.linear:  # the second factor is the same for all rows
        return not any(isinstance(a, StreamedMatrix) for a in (*args[1:], *kwargs.values()))
    if func is F.batch_norm:  # in training its mean is over the rows
        return len(args) <= 5 and not kwargs.get("training", False)
    return True


def _sum(x: StreamedMatrix) -> Tensor:
    """Sum over the rows, added up in float64: a sum of block sums in float32 would depend on the blocks."""
    blocks, total = x.blocks, torch.zeros(x.shape[1:], dtype=torch.float64, device=x.blocks.device)
    for rows in blocks.of_rows(x.size(0), row_bytes(x.source)):
        total += read_rows(x.source, rows, blocks.device).sum(dim=0, dtype=torch.float64)
    return total.to(x.dtype)


_ABOUT = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "requires_grad", "is_sparse")),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.__len__, Tensor.element_size),
}
"""What a matrix says of itself without being read."""

_PRODUCTS = {torch.mm, Tensor.mm, torch.matmul, Tensor.matmul, Tensor.__matmul__}
_SUMS, _MEANS = {torch.sum, Tensor.sum}, {torch.mean, Tensor.mean}
_ARITHMETIC = ("add", "sub", "mul", "div", "maximum", "minimum", "matmul", "mm")
_OPERATORS = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "matmul", "neg")
_EACH_ELEMENT = ("relu", "square", "sqrt", "rsqrt", "exp", "log", "abs", "neg", "tanh", "sigmoid", "clamp")
_ALONG_ROW = {
    *(getattr(owner, name) for owner in (torch, Tensor) for name in ("sum", "mean", "softmax", "log_softmax")),
    *(torch.argmax, Tensor.argmax, torch.amax, Tensor.amax, F.softmax, F.log_softmax),
}
_BY_ROW = {
    *_ALONG_ROW,
    *(getattr(owner, name) for owner in (torch, Tensor) for name in (*_ARITHMETIC, *_EACH_ELEMENT)),
    *(getattr(Tensor, f"__{name}__") for name in _OPERATORS),
    *(F.linear, F.relu, F.elu, F.leaky_relu, F.gelu, F.silu, F.batch_norm, F.layer_norm),
    *(Tensor.contiguous, Tensor.double, Tensor.float),
}
"""What can be done to every row by itself, if the call is one that `_keeps_rows_apart`."""


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


def multiply_rows(matrix: Tensor, rows: slice, x: Tensor, blocks: Blocks, *, gather: bool) -> Tensor:
    """Some rows of ``A X`` for a CSR matrix and a dense matrix in host memory, on the device of the blocks.

    Args:
        matrix: ``A``.
        rows: which rows.
        x: the dense matrix.
        blocks: the device, and how much it takes at once.
        gather: whether the device gets the rows of ``X`` that the entries name, in pieces where a row alone names too
            many; one that sees host memory need not.
    """
    rowptr, col, value = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    first, last = int(rowptr[rows.start]), int(rowptr[rows.stop])
    if not gather:
        return _product(rowptr[rows.start : rows.stop + 1] - first, col[first:last], value[first:last], x)
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
