"""Self-adjoint maps of node features and their quadratic forms, with the gradients that autograd cannot know are cheap.

Both take features of any number of runs, ``[..., num_nodes, channels]``, work under `torch.vmap`, and have second
derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphjoule.graph.autograd_calls import is_plain, with_signature

OfOneRun = Callable[[Tensor], Tensor]
"""A function of the features of one run, shape ``[num_nodes, channels]``."""


def self_adjoint(x: Tensor, function: OfOneRun) -> Tensor:
    """A self-adjoint linear map of every run's features; its gradient is the same map.

    Args:
        x: node features of any dtype, shape ``[..., num_nodes, channels]``.
        function: the map; the dtype of what it gives is that of the result, the gradient has that of `x`.

    Returns:
        The shape of `x`.

    Example:
        >>> x = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> self_adjoint(x, lambda run: run.flip(0)).detach()
        tensor([[2.],
                [1.]])
    """
    if is_plain():
        return _each_run(function, x)
    out: Tensor = _SelfAdjoint.apply(x, function)  # type: ignore[no-untyped-call]
    return out


def quadratic_form(x: Tensor, form: OfOneRun, product: OfOneRun) -> Tensor:
    """``<X, M X>`` of every run's features for a self-adjoint map M; its gradient is ``2 M X``.

    Args:
        x: node features of any dtype, shape ``[..., num_nodes, channels]``.
        form: ``<X, M X>``, computed as well as it can be: a number.
        product: ``M X``.

    Returns:
        Shape ``[...]``.

    Example:
        >>> x = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> energy = quadratic_form(x, lambda run: 3 * run.square().sum(), lambda run: 3 * run)
        >>> torch.autograd.grad(energy, x)[0]
        tensor([[ 6.],
                [12.]])
    """
    if is_plain():
        return _each_run(form, x)
    out: Tensor = _QuadraticForm.apply(x, form, product)  # type: ignore[no-untyped-call]
    return out


def _each_run(function: OfOneRun, x: Tensor) -> Tensor:
    """Apply a function of one matrix to all matrices of ``[..., num_nodes, channels]``."""
    if x.dim() == 2:
        return function(x)
    return torch.stack([_each_run(function, run) for run in x])


@with_signature
class _SelfAdjoint(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, function: OfOneRun) -> Tensor:
        return _each_run(function, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, OfOneRun], output: Tensor) -> None:
        ctx.dtype, ctx.function = inputs[0].dtype, inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return self_adjoint(grads[0], ctx.function).to(ctx.dtype), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, function: OfOneRun) -> tuple[Tensor, int]:
        return self_adjoint(x.movedim(in_dims[0], 0), function), 0


@with_signature
class _QuadraticForm(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, form: OfOneRun, product: OfOneRun) -> Tensor:
        return _each_run(form, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, OfOneRun, OfOneRun], output: Tensor) -> None:
        x, _, ctx.product = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return (2 * grads[0][..., None, None] * self_adjoint(x, ctx.product)).to(x.dtype), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None, None], x: Tensor, form: OfOneRun, product: OfOneRun
    ) -> tuple[Tensor, int]:
        return quadratic_form(x.movedim(in_dims[0], 0), form, product), 0
