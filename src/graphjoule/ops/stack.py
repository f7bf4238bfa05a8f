"""What the fused backends of the EGNN stack share: one autograd function over all layers that keeps little memory.

Autograd by itself keeps two or three activations per layer. Here a backend keeps one per layer, or, with checkpoint
segments, one per segment plus one per layer of the segment at hand; dropout masks are hashed again, never stored.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.csr import with_signature
from graphjoule.ops.backend import Backend


@dataclass
class StackBody(ABC):
    """One call of the stack: its settings, and between forward and backward what it remembers of each layer.

    All tensors have the run axis first: ``x0 [runs, n, d]``, ``weights [runs, K, d, d]``, ``shifts [runs, K, d]``,
    ``keys [runs, K, 2]``. A backend for one run at a time may leave it out.
    """

    graph: Propagation
    c_min: float
    beta: float
    p: float
    segment: int | None
    needs_backward: bool
    x0: Tensor = field(init=False)
    weights: Tensor = field(init=False)
    shifts: Tensor | None = field(init=False)
    keys: Tensor | None = field(init=False)
    boundaries: dict[int, Tensor] = field(default_factory=dict)
    remembered: dict[int, Any] = field(default_factory=dict)
    sums: list[Tensor] = field(default_factory=list)

    @property
    def alpha(self) -> float:
        """Strength of the residual connection to the previous layer."""
        return self.c_min - self.beta

    @property
    def num_layers(self) -> int:
        """The depth K."""
        return self.weights.size(-3)

    def bind(self, x0: Tensor, weights: Tensor, shifts: Tensor | None, keys: Tensor | None) -> None:
        """Take the tensors of this call."""
        self.x0, self.weights, self.shifts, self.keys = x0, weights, shifts, keys

    def unbind(self) -> None:
        """Let go of the tensors of this call; autograd keeps what is needed."""
        del self.x0, self.weights, self.shifts, self.keys

    @abstractmethod
    def layer(self, x: Tensor, k: int, *, remember: bool) -> Tensor:
        """Output of layer k; with `remember`, `remembered[k]` is what its backward needs."""

    @abstractmethod
    def layer_backward(self, grad: Tensor, k: int, grad_x0: Tensor) -> Tensor:
        """Gradient of the layer's input; what goes to ``x0`` is added to `grad_x0`. Called from the last layer down."""

    def begin_segment(self, layers: range) -> None:  # noqa: B027 - a backend may have nothing to do
        """Called before the backward of the layers of a segment."""

    def end_segment(self) -> None:  # noqa: B027
        """Called after it."""

    @abstractmethod
    def parameter_grads(self) -> tuple[Tensor, Tensor | None]:
        """Gradients of the weights and the shifts, once all layers are done."""

    def run_forward(self) -> Tensor:
        """All layers. Boundaries are remembered at every segment, layers only in the last one."""
        segment = self.segment or self.num_layers
        last = (self.num_layers - 1) // segment * segment
        x = self.x0
        for k in range(self.num_layers):
            if self.needs_backward and k % segment == 0:
                self.boundaries[k] = x
            x = self.layer(x, k, remember=self.needs_backward and k >= last)
        return x

    def run_backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients of ``x0``, the weights and the shifts, one segment after the other from the last."""
        grad_x0 = torch.zeros_like(self.x0)
        for start in sorted(self.boundaries, reverse=True):
            stop = min(start + (self.segment or self.num_layers), self.num_layers)
            layers = range(start, stop)
            x = self.boundaries.pop(start)
            for k in layers:
                if k not in self.remembered:
                    x = self.layer(x, k, remember=True)
            self.begin_segment(layers)
            for k in reversed(layers):
                grad = self.layer_backward(grad, k, grad_x0)
            self.end_segment()
        return grad_x0.add_(grad), *self.parameter_grads()


class StackCall(Protocol):
    """What autograd asks of a backend: tensors with the run axis first go in, one output and all gradients come out."""

    def bind(self, x0: Tensor, weights: Tensor, shifts: Tensor | None, keys: Tensor | None) -> None:
        """See `StackBody.bind`."""

    def unbind(self) -> None:
        """See `StackBody.unbind`."""

    def run_forward(self) -> Tensor:
        """See `StackBody.run_forward`."""

    def run_backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `StackBody.run_backward`."""


@with_signature
class _Stack(torch.autograd.Function):
    """Autograd and vmap around a `StackCall`."""

    @staticmethod
    def forward(x0: Tensor, weights: Tensor, shifts: Tensor | None, keys: Tensor | None, backend: StackCall) -> Tensor:
        backend.bind(x0, weights, shifts, keys)
        out = backend.run_forward()
        backend.unbind()
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.backend = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ctx.backend.bind(*ctx.saved_tensors)
        grads = ctx.backend.run_backward(grad.contiguous())
        ctx.backend.unbind()
        return *grads, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        """All runs at once: the run axis is moved to the front, where the backends expect it."""
        *tensors, backend = inputs
        moved = [
            None if t is None else _runs_first(t, dim, info.batch_size)
            for t, dim in zip(tensors, in_dims, strict=False)
        ]
        out: Tensor = _Stack.apply(*moved, backend)  # type: ignore[no-untyped-call]
        return out[:, None], 0


def _runs_first(t: Tensor, dim: int | None, runs: int) -> Tensor:
    """``[runs, 1, ...] -> [runs, ...]`` wherever vmap has put the run axis; a shared tensor is repeated."""
    t = t.expand(runs, *t.shape) if dim is None else t.movedim(dim, 0)
    return t.flatten(0, 1).contiguous()


def fused_stack(
    x0: Tensor,
    graph: Propagation,
    weights: Tensor,
    shifts: Tensor | None,
    keys: Tensor | None,
    *,
    backend: Backend,
    c_min: float,
    beta: float,
    p: float,
    segment: int | None,
) -> Tensor:
    """`egnn_stack` by a fused backend, for one run or under vmap for many."""
    # Imported here: the Triton backend only where Triton is, and both build on this file.
    module = importlib.import_module(f"graphjoule.ops.stack_{backend}")
    call: StackCall = module.Stack(graph, c_min, beta, p, segment, needs_backward=torch.is_grad_enabled())
    tensors = [None if t is None else t[None].contiguous() for t in (x0, weights, shifts, keys)]
    out: Tensor = _Stack.apply(*tensors, call)  # type: ignore[no-untyped-call]
    return out[0]
