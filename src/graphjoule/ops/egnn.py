"""The arithmetic of EGNN: one layer, and a stack of layers with a plain backend that reads like the equation.

The fused backends of the stack share one autograd function over all layers that keeps little memory. Autograd by itself
keeps two or three activations per layer. Here a backend keeps one per layer, or, with checkpoint segments, one per
segment plus one per layer of the segment at hand; dropout masks are hashed again, never stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.csr import gradient_of, is_plain, with_signature
from graphjoule.graph.nodes import computing_on
from graphjoule.graph.product import Show
from graphjoule.ops.backend import backend_for
from graphjoule.ops.dropout import dropout
from graphjoule.ops.propagate import check_rows, propagate


def may_overwrite(x: Tensor, other: Tensor) -> bool:
    """Whether a result of one's own may be written over by what it makes with another tensor.

    It may where no gradient and no transform will ask for it and both are of one dtype. Fresh memory, whose pages must
    be mapped first, costs more than the arithmetic that fills it.
    """
    return type(x) is Tensor and x.dtype == other.dtype and is_plain()


def residual_mix(x: Tensor, x0: Tensor, graph: Propagation, c_min: float, beta: float) -> Tensor:
    """``(1 - c_min) P X + alpha X + beta X0`` with ``alpha = c_min - beta``: the lower-bounded residual connection."""
    mixed = propagate(x, graph, a=1 - c_min, alpha=c_min - beta)
    return mixed.add_(x0, alpha=beta) if may_overwrite(mixed, x0) else torch.add(mixed, x0, alpha=beta)


def srelu(z: Tensor, shift: Tensor) -> Tensor:
    """``max(b, z)`` with one shift ``b`` per channel."""
    return torch.maximum(z, shift)


def egnn_layer(
    x: Tensor,
    x0: Tensor,
    graph: Propagation,
    weight: Tensor,
    shift: Tensor | None,
    *,
    c_min: float,
    beta: float,
    p: float = 0.0,
    key: Tensor | None = None,
) -> Tensor:
    """``srelu([(1 - c_min) P X' + alpha X' + beta X0] W)`` with ``X' = dropout(X)``.

    Args:
        x: output of the previous layer, shape ``[num_nodes, channels]``.
        x0: output of the encoder, not dropped, same shape.
        graph: the operator ``P``.
        weight: ``W``, shape ``[channels, channels]``.
        shift: the shifts ``b``, shape ``[channels]``; None leaves the layer linear.
        c_min: strength of all residual connections together.
        beta: the part of `c_min` that goes to ``X0``.
        p: dropout probability.
        key: dropout key, None for evaluation.
    """
    x = dropout(x, p, key)
    z = residual_mix(x, x0, graph, c_min, beta) @ weight
    return z if shift is None else srelu(z, shift)


def egnn_stack(
    x0: Tensor,
    graph: Propagation,
    weights: Tensor,
    shifts: Tensor | None,
    *,
    c_min: float,
    beta: float,
    p: float = 0.0,
    keys: Tensor | None = None,
    segment: int | None = None,
    show: Show | None = None,
    activations: torch.dtype = torch.float32,
) -> Tensor:
    """All layers of EGNN, ``X_k = egnn_layer(X_{k-1}, X_0, W_k, b_k)``; returns the last ``X_k``.

    Fused backends keep one activation per layer for the backward pass, or with `segment` one per segment and one per
    layer of a single segment, at the price of a second forward pass.

    Args:
        x0: output of the encoder, shape ``[num_nodes, channels]``.
        graph: the operator ``P``.
        weights: shape ``[num_layers, channels, channels]``.
        shifts: shape ``[num_layers, channels]``; None leaves all layers linear.
        c_min: strength of all residual connections together.
        beta: the part of `c_min` that goes to ``X0``.
        p: dropout probability of every layer's input.
        keys: a dropout key per layer, shape ``[num_layers, 2]``; None for evaluation.
        segment: layers per checkpointed segment; None keeps every layer, as the reference backend always does.
        show: called with the number of every layer, its output, and what the next layer's product made of it, if that
            is at hand; without dropout and where `is_plain` says so.
        activations: dtype in which a GPU's kernels keep activations between layers, float32 or bfloat16; sums are
            float32. Other backends keep the dtype of `x0`.
    """
    _check_stack(x0, graph, weights, shifts, keys)
    if x0.size(-1) > 64 and fuses_norms(x0, graph):  # wide layers: norms that do nothing
        nothing = torch.zeros_like(weights[:, 0])
        settings: dict[str, Any] = {"c_min": c_min, "beta": beta, "p": p, "keys": keys, "segment": segment}
        return egnn_norm_stack(
            x0, graph, weights, shifts, None, nothing, show=show, activations=activations, **settings
        )[0]
    backend = backend_for(x0)
    if backend in ("cpu", "native") or (backend == "triton" and graph.has_gpu_kernels):
        kind, needs_backward = _body_of(backend, x0, graph), torch.is_grad_enabled()
        call = _Call(
            partial(kind, graph, c_min, beta, p, segment, needs_backward, show, activations),
            partial(_plain_stack, graph=graph, c_min=c_min, beta=beta, p=p),
        )
        tensors = [None if t is None else t[None].contiguous() for t in (x0, weights, shifts, keys if p else None)]
        out: Tensor = _Stack.apply(*tensors, call)  # type: ignore[no-untyped-call]
        return out[0]
    return _plain_stack(x0, weights, shifts, keys, graph=graph, c_min=c_min, beta=beta, p=p, show=show)


def _plain_stack(
    x0: Tensor,
    weights: Tensor,
    shifts: Tensor | None,
    keys: Tensor | None,
    *,
    graph: Propagation,
    c_min: float,
    beta: float,
    p: float,
    show: Show | None = None,
) -> Tensor:
    """`egnn_stack` layer by layer."""
    x = x0
    for k, weight in enumerate(weights):
        shift = None if shifts is None else shifts[k]
        key = None if keys is None else keys[k]
        x = egnn_layer(x, x0, graph, weight, shift, c_min=c_min, beta=beta, p=p, key=key)
        if show is not None:
            show(k, x, None)
    return x


def _check_stack(
    x0: Tensor,
    graph: Propagation,
    weights: Tensor,
    shifts: Tensor | None,
    keys: Tensor | None,
    **per_channel: Tensor | None,
) -> None:
    """Refuse tensors that do not fit each other: loops of a fused backend would read beyond their ends."""
    check_rows(x0, graph)
    layers, d = weights.size(0), x0.size(-1)
    wanted = {
        "weights": (weights, [layers, d, d], x0.dtype),
        "keys": (keys, [layers, 2], torch.int32),
        **{name: (tensor, [layers, d], x0.dtype) for name, tensor in {"shifts": shifts, **per_channel}.items()},
    }
    for name, (tensor, shape, dtype) in wanted.items():
        if tensor is not None and (list(tensor.shape) != shape or tensor.dtype != dtype or tensor.device != x0.device):
            raise GraphjouleError(
                f"The {name} have the shape {list(tensor.shape)}, {tensor.dtype} on {tensor.device}; {layers} layers "
                f"on features of {d} channels need {shape}, {dtype} on {x0.device}."
            )
    if graph.device != x0.device:
        raise GraphjouleError(f"The graph is on {graph.device} but the features are on {x0.device}; use graph.to(...).")


def _body_of(backend: str, x0: Tensor, graph: Propagation) -> type[StackBody]:
    """The class of a backend for features of a shape; Triton's is imported only where Triton is."""
    if backend != "triton":
        from graphjoule.ops import stack_cpu, stack_native

        is_native = backend == "native" and stack_native.has_loops(x0, graph)
        return stack_native.Stack if is_native else stack_cpu.Stack
    from graphjoule.ops.stack_triton import stack_of

    return stack_of(x0.size(-1))


def fuses_norms(x0: Tensor, graph: Propagation) -> bool:
    """Whether `egnn_norm_stack` has kernels for features of this shape on this device."""
    if backend_for(x0) != "triton" or not graph.has_gpu_kernels or not has_large_tiles(x0.device):
        return False
    n, d = x0.shape[-2:]
    return d in (16, 32, 64, 128, 256) and n > 1 and n * d < 2**31


def has_large_tiles(device: torch.device) -> bool:
    """Whether 227 KiB of shared memory are there for a block, which tiles of 128 rows and 256 channels need.

    Hopper and the large Blackwell have them, other GPUs 100 to 164 KiB.
    """
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] in (9, 10)


def egnn_norm_stack(
    x0: Tensor,
    graph: Propagation,
    weights: Tensor,
    shifts: Tensor | None,
    gammas: Tensor | None,
    betas: Tensor,
    *,
    c_min: float,
    beta: float,
    p: float = 0.0,
    keys: Tensor | None = None,
    segment: int | None = None,
    show: Show | None = None,
    eps: float = 1e-5,
    activations: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """`egnn_stack` with a batch norm before every SReLU.

    Args:
        x0: as in `egnn_stack`, like all that is not said here.
        graph: likewise.
        weights: likewise.
        shifts: likewise.
        gammas: factors of the norms, shape ``[num_layers, channels]``; None where means and variances are known
            beforehand and part of `weights` and `betas`, as in evaluation.
        betas: offsets of the norms, shape ``[num_layers, channels]``.
        c_min: as in `egnn_stack`.
        beta: likewise.
        p: likewise.
        keys: likewise.
        segment: likewise.
        show: likewise.
        eps: added to every variance.
        activations: as in `egnn_stack`.

    Returns:
        The output of the last layer; and mean and unbiased variance of every layer's product, shape
        ``[num_layers, 2, channels]``, of no meaning without `gammas`.
    """
    _check_stack(x0, graph, weights, shifts, keys, gammas=gammas, betas=betas)
    if fuses_norms(x0, graph):
        from graphjoule.ops.stack_norm import Stack, run_stack

        needs_backward = torch.is_grad_enabled()
        body = Stack(graph, c_min, beta, p, segment, needs_backward, show, activations, eps=eps)
        tensors = (x0, weights, shifts, gammas, betas, keys if p else None)
        out, statistics = run_stack(body, *[None if t is None else t[None].contiguous() for t in tensors])
        return out[0], statistics[0]
    settings: dict[str, Any] = {"graph": graph, "c_min": c_min, "beta": beta, "p": p, "eps": eps}
    return plain_norm_stack(x0, weights, shifts, gammas, betas, keys, show=show, **settings)


def plain_norm_stack(
    x0: Tensor,
    weights: Tensor,
    shifts: Tensor | None,
    gammas: Tensor | None,
    betas: Tensor,
    keys: Tensor | None,
    *,
    graph: Propagation,
    c_min: float,
    beta: float,
    p: float,
    eps: float,
    show: Show | None = None,
) -> tuple[Tensor, Tensor]:
    """`egnn_norm_stack` layer by layer."""
    x, of_layers = x0, []
    for k, weight in enumerate(weights):
        z = residual_mix(dropout(x, p, None if keys is None else keys[k]), x0, graph, c_min, beta) @ weight
        variance, mean = torch.var_mean(z, dim=0, correction=0)
        of_layers.append(torch.stack([mean, variance * len(z) / (len(z) - 1)]))
        z = z if gammas is None else (z - mean) * (variance + eps).rsqrt() * gammas[k]
        x = z + betas[k] if shifts is None else srelu(z + betas[k], shifts[k])
        if show is not None:
            show(k, x, None)
    return x, torch.stack(of_layers).detach()


@dataclass
class StackBody(ABC):
    """One call of the stack: its settings, and between forward and backward what it remembers of each layer.

    All tensors have the run axis first: ``x0 [runs, n, d]``, ``weights [runs, K, d, d]``, ``shifts [runs, K, d]``,
    ``keys [runs, K, 2]``. A backend for one run at a time has it without.
    """

    is_of_one_run: ClassVar[bool] = False
    shows_products: ClassVar[bool] = False

    graph: Propagation
    c_min: float
    beta: float
    p: float
    segment: int | None
    needs_backward: bool
    show: Show | None
    activations: torch.dtype = torch.float32
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
        """Output of layer k; with `remember`, `remembered[k]` is what its backward needs.

        It may show the output of the layer before, which it has the product of; else `run_forward` does.
        """

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
            if self.show is not None and (k + 1 == self.num_layers or not self.shows_products):
                self.show(k, x if self.is_of_one_run else x[0], None)
        return x

    def ensure_forward(self) -> None:
        """Make the forward pass again if an earlier backward pass has written over the activations."""
        if not self.boundaries:
            show, self.show = self.show, None
            self.run_forward()
            self.show = show

    def run_backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients of ``x0``, the weights and the shifts, one segment after the other from the last."""
        self.ensure_forward()
        self.sums = []
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


class _Call:
    """One call of the stack: a body for all runs together, or one for each, so that its activation stays in the cache.

    Args:
        new_body: makes a body.
        plain: the stack of one run in differentiable operations, see `_plain_stack`.
    """

    def __init__(self, new_body: Callable[[], StackBody], plain: Callable[..., Tensor]) -> None:
        self._new_body, self._bodies, self._plain = new_body, [new_body()], plain

    def run(
        self, function: Callable[..., tuple[Tensor | None, ...]], tensors: tuple[Tensor | None, ...], *more: Tensor
    ) -> list[Tensor | None]:
        """What a function of a body and of `more` returns, run axis first; meanwhile bodies have the tensors."""
        inputs: list[Any] = [(*tensors, *more)]
        if self._bodies[0].is_of_one_run:
            runs = len(tensors[0])  # type: ignore[arg-type]
            inputs = list(zip(*([None] * runs if t is None else t for t in inputs[0]), strict=True))
            self._bodies += [self._new_body() for _ in range(runs - len(self._bodies))]
        results = []
        for body, (x0, weights, shifts, keys, *rest) in zip(self._bodies, inputs, strict=True):
            body.bind(x0, weights, shifts, keys)
            results.append(function(body, *rest))
            body.unbind()
        if not self._bodies[0].is_of_one_run:
            return list(results[0])
        return [None if of_runs[0] is None else _joined(of_runs) for of_runs in zip(*results, strict=True)]

    def gradients(self, grad: Tensor, *tensors: Tensor | None) -> list[Tensor | None]:
        """Gradients of ``x0``, the weights and the shifts, from these and the keys."""

        def fast(grad: Tensor, *tensors: Tensor | None) -> list[Tensor | None]:
            return self.run(lambda body, grad: body.run_backward(grad), tensors, grad)

        return gradients_of_runs(self._plain, fast, self._bodies[0].graph, grad, *tensors)


def gradients_of_runs(
    plain: Callable[..., Tensor],
    fast: Callable[..., Sequence[Tensor | None]],
    graph: Propagation,
    grad: Tensor,
    *tensors: Tensor | None,
) -> list[Tensor | None]:
    """`gradient_of` for stacks of runs.

    Args:
        plain: the stack of one run, of `tensors` without their axis of runs, in differentiable operations.
        fast: of `grad` and `tensors`, returns the gradient of each of them but the keys.
        graph: the operator.
        grad: gradient of the outputs, run axis first.
        tensors: with it too, the keys last; None for what there is not.
    """
    there = [t is not None for t in tensors]
    is_keyed = there[-1]

    def whole(given: Sequence[Tensor]) -> list[Tensor | None]:
        rest = iter(given)
        return [next(rest) if is_there else None for is_there in there]

    def of_all(*given: Tensor) -> Tensor:
        runs = zip(*([None] * len(grad) if t is None else t for t in whole(given)), strict=True)
        with computing_on(graph):
            return torch.stack([plain(*run) for run in runs])

    def faster(grad: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        return tuple(t for t in fast(grad.contiguous(), *whole(given)) if t is not None)

    present = [t for t in tensors if t is not None]
    with_gradient, keys = (present[:-1], present[-1:]) if is_keyed else (present, [])
    return whole([*gradient_of(of_all, faster, grad, with_gradient, keys), *keys])[:-1]


def _joined(of_runs: Any) -> Tensor:
    """``[runs, ...]``, without a copy where there is one run."""
    return of_runs[0][None] if len(of_runs) == 1 else torch.stack(of_runs)


@with_signature
class _Stack(torch.autograd.Function):
    """Autograd and vmap around a `_Call`."""

    @staticmethod
    def forward(x0: Tensor, weights: Tensor, shifts: Tensor | None, keys: Tensor | None, call: _Call) -> Tensor:
        (out,) = call.run(lambda body: (body.run_forward(),), (x0, weights, shifts, keys))
        assert out is not None
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.call = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.call.gradients(grad, *ctx.saved_tensors), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        """All runs at once: the run axis is moved to the front, where the backends expect it."""
        *tensors, call = inputs
        moved = []
        for t, dim in zip(
            tensors, in_dims, strict=False
        ):  # ``[runs, 1, ...] -> [runs, ...]``; shared ones are repeated
            if t is not None:
                t = t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
                t = t.flatten(0, 1).contiguous()
            moved.append(t)
        out: Tensor = _Stack.apply(*moved, call)  # type: ignore[no-untyped-call]
        return out.view(info.batch_size, -1, *out.shape[1:]), 0
