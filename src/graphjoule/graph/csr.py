"""Sparse matrices in compressed rows, and linear maps with cheap gradients: what all fast loops share."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

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


def csr_matmul(matrix: Tensor, x: Tensor) -> Tensor:
    """``A X`` for a torch CSR matrix; of half precision computed in float32, for which every device has a kernel."""
    if x.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(matrix.float(), x.float()).to(x.dtype)
    return torch.mm(matrix, x)


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """A block in which `torch.autocast` is off for the device of a tensor.

    Autocast would hand sparse products to kernels that do not exist in half precision, and energies are differences of
    numbers that agree in their first digits.
    """
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


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
        short_start: where each of them starts among the entries, int32: one load less to wait for.
        short_end: and where it ends, int32.
        long: the hubs, int32.
    """

    rowptr: Tensor
    col: Tensor
    short: Tensor
    short_start: Tensor
    short_end: Tensor
    long: Tensor

    @classmethod
    def of(cls, rowptr: Tensor, col: Tensor) -> Rows:
        """Sort the rows by length; this waits for the device, so do it once per matrix."""
        length = rowptr.diff()
        order = torch.argsort(length, descending=True, stable=True).int()
        is_long = length > max(_LONG_ROW, _LONG_ROW_MEANS * col.numel() / max(1, length.numel()))
        num_long = int(is_long.sum())
        short = order[num_long:].contiguous()
        start, end = rowptr[:-1].int()[short], rowptr[1:].int()[short]
        return cls(rowptr, col, short, start, end, order[:num_long].contiguous())

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
    return not torch.is_grad_enabled() and not is_transformed()


def is_transformed() -> bool:
    """Whether a transform of `torch.func`, such as `vmap` or `grad`, is around; yes where torch does not say."""
    are_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return are_transforms_active is None or bool(are_transforms_active())


@contextmanager
def outside_transforms() -> Iterator[None]:
    """A block outside all transforms of `torch.func`: what is kept of a graph is made in one.

    Inside of `torch.func.grad` even a new tensor is a wrapper that is worth nothing afterwards, and none can be a CSR
    matrix. Where torch has no way out, its own error says so.
    """
    functorch = sys.modules.get("torch._functorch.pyfunctorch")
    clear = getattr(functorch, "temporarily_clear_interpreter_stack", None)
    with clear() if clear is not None and is_transformed() else nullcontext():
        yield


def unwrapped(x: Any) -> Any:
    """A tensor as it is outside of `torch.func.grad` and its like; one that differs from run to run stays as it is."""
    functorch = getattr(torch._C, "_functorch", None)
    if not isinstance(x, Tensor) or torch.compiler.is_compiling() or not hasattr(functorch, "is_gradtrackingtensor"):
        return x
    while functorch.is_gradtrackingtensor(x):  # type: ignore[union-attr]
        x = functorch.get_unwrapped(x)  # type: ignore[union-attr]
    return x


def has_derivative(x: Tensor | None) -> bool:
    """Whether a derivative by a tensor is asked for, backward or forward."""
    if x is None or not isinstance(x, Tensor):
        return False
    return (x.requires_grad and torch.is_grad_enabled()) or unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]


if TYPE_CHECKING:
    kept_property = cached_property
else:

    class kept_property(cached_property):  # noqa: N801 - a decorator, like the one that it extends
        """A `cached_property` that is made outside of transforms of `torch.func`."""

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            with outside_transforms():
                return super().__get__(instance, owner)


def linear_map(
    x: Tensor, function: Callable[..., Tensor], *given: Tensor, adjoint: Callable[..., Tensor] | None = None
) -> Tensor:
    """A function that is linear in ``x``, with a gradient of which autograd cannot know that it is cheap.

    It works under `torch.vmap`, where all runs are one call, has derivatives of any order, and keeps the dtype of
    `x` under `torch.autocast`.

    Args:
        x: what the function is linear in.
        function: of `x` and `given`; under vmap all of them get an axis of runs first, one more for every vmap.
        given: tensors that it depends on too; they get no gradient.
        adjoint: what makes the gradient of `x` from that of the result and from `given`, in differentiable operations;
            by default `function`, which is self-adjoint then.

    Example:
        >>> a, x = torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.ones(2, requires_grad=True)
        >>> linear_map(x, lambda x: a @ x, adjoint=lambda grad: a.T @ grad).sum().backward()
        >>> x.grad
        tensor([1., 2.])
    """
    with full_precision(x):
        if is_plain():
            return function(x, *given)
        out: Tensor = _LinearMap.apply(x, function, adjoint, *given)  # type: ignore[no-untyped-call]
        return out


@with_signature
class _LinearMap(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, function: Callable[..., Tensor], adjoint: Any, *given: Tensor) -> Tensor:
        return function(x, *given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.function, ctx.adjoint, *given = inputs
        ctx.dtype = x.dtype
        ctx.save_for_backward(*given)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        given = ctx.saved_tensors
        grad = ctx.adjoint(grads[0], *given) if ctx.adjoint else linear_map(grads[0], ctx.function, *given)
        return grad.to(ctx.dtype), None, None, *[None] * len(given)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, *more: Any) -> tuple[Tensor, int]:
        function, adjoint, *given = more
        dims = (in_dims[0], *in_dims[3:])
        x, *given = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((x, *given), dims, strict=True)
        )
        return linear_map(x, function, *given, adjoint=adjoint), 0


def gradient_of(
    function: Callable[..., Tensor],
    fast: Callable[..., tuple[Tensor, ...]],
    grad: Tensor,
    tensors: Sequence[Tensor],
    given: Sequence[Tensor] = (),
) -> tuple[Tensor, ...]:
    """Gradients of a function's tensors, made by something faster that autograd cannot look into.

    For the `backward` of an autograd function. Where a derivative of the gradient is asked for, or a transform of
    `torch.func` is at work, `function` gives it, of any order.

    Args:
        function: of `tensors` and `given`, in differentiable operations.
        fast: of `grad`, `tensors` and `given`, returns the gradient of each of `tensors`.
        grad: gradient of the function's result.
        tensors: what it depends on.
        given: what else it takes, which has no gradient.
    """
    if is_plain():
        return fast(grad, *tensors, *given)
    grads: tuple[Tensor, ...] = _Gradient.apply(function, fast, len(tensors), grad, *tensors, *given)  # type: ignore[no-untyped-call]
    return grads


@with_signature
class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        function: Callable[..., Tensor], fast: Callable[..., tuple[Tensor, ...]], count: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        return fast(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.function, _, ctx.count, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors, given = ctx.saved_tensors[: ctx.count + 1], ctx.saved_tensors[ctx.count + 1 :]
        pull = torch.func.vjp(lambda *tensors: _pulled_back(ctx.function, *tensors, given=given), *tensors)[1]
        return None, None, None, *pull(grads), *[None] * len(given)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], function: Callable[..., Tensor], fast: Any, count: int, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        def of_one(*tensors: Tensor) -> tuple[Tensor, ...]:
            return _pulled_back(function, *tensors[: count + 1], given=tensors[count + 1 :])

        grads = torch.vmap(of_one, in_dims=in_dims[3:])(*tensors)
        return grads, (0,) * len(grads)


def _pulled_back(
    function: Callable[..., Tensor], grad: Tensor, *tensors: Tensor, given: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The gradients of a function's tensors, in differentiable operations."""
    found: tuple[Tensor, ...] = torch.func.vjp(lambda *tensors: function(*tensors, *given), *tensors)[1](grad)
    return found


def of_all_runs(function: Callable[..., Tensor], dim: int) -> Callable[..., Tensor]:
    """A function for `linear_map` from one of ``x [runs, ...]`` and vectors ``[runs, n]``, all with one axis of runs.

    Args:
        function: returns ``[runs, ...]``.
        dim: number of axes that `x` has of one run.
    """

    def call(x: Tensor, *given: Tensor) -> Tensor:
        runs = x.shape[: x.dim() - dim]
        count = math.prod(runs)
        vectors = (t.reshape(count, t.size(-1)) for t in given)
        out = function(x.reshape(count, *x.shape[len(runs) :]), *vectors)
        return out.reshape(*runs, *out.shape[1:])

    return call


def each_run(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of one matrix applied to all matrices of ``[..., num_nodes, channels]``."""
    return function(x) if x.dim() == 2 else torch.stack([each_run(function, run) for run in x])
