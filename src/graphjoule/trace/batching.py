"""How a hook inside `torch.vmap` sees all runs at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from graphjoule.graph.csr import is_plain, with_signature


class Watcher(Protocol):
    """What looks at a tensor: at its values, and at its gradient when that comes."""

    def see(self, x: Tensor) -> None:
        """Look at values, with the axes of all vmaps in front; nothing may be kept."""

    def await_gradient(self, x: Tensor, to_front: Callable[[Tensor], Tensor]) -> None:
        """Look at the gradient of `x` later; `to_front` moves the run axis to the front."""


def show(x: Tensor, watcher: Watcher) -> None:
    """Let `watcher` see a tensor as it is outside all `torch.vmap` around this call.

    Inside a vmap a tensor looks like that of one run, and a number computed from it cannot leave. A custom function's
    vmap rule is handed the whole batch; that is the public way out, and all this function is for.
    """
    if is_plain() and not x.requires_grad:
        watcher.see(x)
    else:
        _Show.apply(x, watcher)  # type: ignore[no-untyped-call]


@with_signature
class _Show(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, watcher: Watcher) -> Tensor:
        if x.requires_grad:
            watcher.await_gradient(x, lambda gradient: gradient)
        watcher.see(x.detach())
        return x.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, watcher: Watcher) -> tuple[Tensor, None]:
        axis = in_dims[0]
        if x.requires_grad:
            watcher.await_gradient(x, lambda gradient: gradient.movedim(axis, 0))
        show(x.movedim(axis, 0).detach(), watcher)
        return x.new_empty(0), None
