"""A matrix that a model takes for a tensor, while it lies in host memory and is worked on block by block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import Features
from graphjoule.parallel.streaming.rows import Blocks, multiply_rows, read_rows, row_bytes


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
        if func in _REDUCTIONS and _over_rows(args, kwargs):
            return _REDUCTIONS[func](args[0])
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
    body: Callable[..., Tensor] = _OWN_BODY.get(func, func)
    out: Tensor | None = None
    for rows in blocks.of_rows(num_rows, sum(row_bytes(m.source) for m in matrices)):
        here = [read_rows(a.source, rows, blocks.device) if isinstance(a, StreamedMatrix) else a for a in args]
        named = {
            k: read_rows(a.source, rows, blocks.device) if isinstance(a, StreamedMatrix) else a
            for k, a in kwargs.items()
        }
        block = body(*here, **named)
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
        out[rows] = multiply_rows(matrix, rows, source, blocks)
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


def _mean(x: StreamedMatrix) -> Tensor:
    return _sum(x) / x.size(0)


_ABOUT = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "requires_grad", "is_sparse")),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.__len__, Tensor.element_size),
}
"""What a matrix says of itself without being read."""

_PRODUCTS = {torch.mm, Tensor.mm, torch.matmul, Tensor.matmul, Tensor.__matmul__}
_REDUCTIONS: dict[Any, Callable[[StreamedMatrix], Tensor]] = {
    torch.sum: _sum,
    Tensor.sum: _sum,
    torch.mean: _mean,
    Tensor.mean: _mean,
}
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

_OWN_BODY: dict[Any, Callable[..., Tensor]] = {F.linear: _linear}
