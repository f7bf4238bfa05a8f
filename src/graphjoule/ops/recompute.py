"""Memory for time: a part of a network of which only the inputs are kept, and which the backward pass computes again.

`torch.utils.checkpoint` does so too, but not under `torch.vmap`, which carries all runs of a training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphjoule.graph.csr import is_plain, with_signature

Part = Callable[..., tuple[Tensor, ...]]
"""A function of tensors to tensors, with nothing random in it and no other tensor that has a gradient."""


def recompute(part: Part, *tensors: Tensor) -> tuple[Tensor, ...]:
    """``part(*tensors)``, of which autograd keeps the tensors alone; values and gradients are the same to the bit.

    Args:
        part: called once, and once more by the backward pass; under `torch.vmap`, of one run.
        tensors: all that it depends on.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> (y,) = recompute(lambda x: (x.square().square().sqrt(),), x)
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([2., 4.]),)
    """
    if is_plain():
        return part(*tensors)
    out: tuple[Tensor, ...] = _Recompute.apply(part, *tensors)  # type: ignore[no-untyped-call]
    return out


@with_signature
class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(part: Part, *tensors: Tensor) -> tuple[Tensor, ...]:
        return part(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.part, *tensors = inputs
        ctx.is_number = [out.is_floating_point() for out in output]  # not the counter of a batch norm
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        saved = ctx.saved_tensors
        leaves = [t for t, w in zip(saved, wanted, strict=True) if w]

        def again(*leaves: Tensor) -> tuple[Tensor, ...]:
            rest = iter(leaves)
            outputs = ctx.part(*[next(rest) if w else t for t, w in zip(saved, wanted, strict=True)])
            return tuple(out for out, is_number in zip(outputs, ctx.is_number, strict=True) if is_number)

        grads = tuple(grad for grad, is_number in zip(grads, ctx.is_number, strict=True) if is_number)
        if not is_plain():  # a transform is around, or a derivative of the gradient is asked for
            found = iter(torch.func.vjp(again, *leaves)[1](grads))
        else:
            with torch.enable_grad():
                leaves = [leaf.detach().requires_grad_() for leaf in leaves]
                outputs = again(*leaves)
                ends = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if out.requires_grad]
                outs, ins = [out for out, _ in ends], [grad for _, grad in ends]
                found = iter(torch.autograd.grad(outs, leaves, ins, allow_unused=True))
        return None, *[next(found) if w else None for w in wanted]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], part: Part, *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        """The part of all runs: outside the vmap, where autograd is, a part with a vmap inside."""
        all_runs = torch.vmap(part, in_dims=in_dims[1:])
        outputs: tuple[Tensor, ...] = _Recompute.apply(all_runs, *tensors)  # type: ignore[no-untyped-call]
        return outputs, (0,) * len(outputs)
