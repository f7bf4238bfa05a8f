"""The arithmetic of a wave on a graph: one layer, and all layers in one op whose gradient is the same op again.

Without weights between the layers, the last ``X`` is a polynomial of the symmetric ``P`` times ``X_0``, so the map from
``X_0`` to it is symmetric too: the backward pass is the forward pass of the gradient. Nothing is kept in between, at
any depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.csr import csr_product, each_run, linear_map
from graphjoule.graph.product import Product, Show
from graphjoule.ops.backend import backend_for
from graphjoule.ops.propagate import check_rows, plain_product, propagate


def wave_start(x0: Tensor, graph: Propagation, *, h: float, delta: float, speed: Tensor | None = None) -> Tensor:
    """The velocity before the first layer, ``V_0 = h / (2 - delta) (I - P) X0 C``; see `wave_layer` for the arguments.

    It is the one that gives a wave the least energy, and makes the first layer half a kick. From it no mode ever
    exceeds its start; from ``V_0 = 0`` short waves would grow by up to ``1 / sqrt(1 - step^2)``.
    """
    return _with_speed(propagate(x0, graph, a=-1.0, alpha=1.0), speed) * (h / (2 - delta))


def _with_speed(x: Tensor, speed: Tensor | None) -> Tensor:
    return x if speed is None else x * speed


def wave_layer(
    x: Tensor,
    v: Tensor,
    x0: Tensor,
    graph: Propagation,
    *,
    h: float,
    delta: float,
    mu: float,
    speed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``V <- (1 - delta) V - h ((I - P) X C + mu (X - X0))``, then ``X <- X + h V``; returns both.

    Args:
        x: ``X`` of the previous layer, shape ``[num_nodes, channels]``.
        v: its velocity, the same shape.
        x0: what the wave began with, the same shape.
        graph: the operator ``P``.
        h: the step.
        delta: damping, the share of the velocity that a layer takes away.
        mu: restoring force towards `x0`.
        speed: the diagonal of ``C``, one number in [0, 1] per channel; 1 by default.
    """
    pull = _with_speed(propagate(x, graph, a=-1.0, alpha=1.0), speed)
    v = (1 - delta) * v - h * (pull + mu * (x - x0))
    return x + h * v, v


def wave_stack(
    x0: Tensor,
    graph: Propagation,
    num_layers: int,
    *,
    h: float,
    delta: float,
    mu: float,
    speed: Tensor | None = None,
    show: Show | None = None,
) -> Tensor:
    """The last ``X`` of `num_layers` times `wave_layer`, from ``X0`` and `wave_start`.

    Forward and backward need four activations each, whatever the depth. See `wave_layer` for the arguments; `speed`
    gets no gradient. See `egnn_stack` for `show`.

    Returns:
        Shape ``[num_nodes, channels]``.

    Example:
        >>> pair = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
        >>> wave_stack(torch.tensor([[1.0], [0.0]]), pair, 2, h=1.0, delta=0.0, mu=0.0)
        tensor([[0.2500],
                [0.7500]])
    """
    check_rows(x0, graph)
    if graph.is_directed:  # its gradient would need P^T, and no step is stable
        raise GraphjouleError("A wave needs edges that count in both directions, and in this graph they keep theirs.")
    if x0.dtype in (torch.bfloat16, torch.float16):
        settings: dict[str, Any] = {"h": h, "delta": delta, "mu": mu, "speed": None if speed is None else speed.float()}
        return wave_stack(x0.float(), in_float32(graph), num_layers, **settings, show=show).to(x0.dtype)
    backend = backend_for(x0)
    run = _reference if backend == "reference" else _in_place
    if backend == "triton" and graph.has_gpu_kernels:
        run = _triton
    return linear_map(x0, partial(run, wave=_Wave(graph, num_layers, h, float(delta), float(mu), speed, show)))


class _Wave(NamedTuple):
    """The arguments of `wave_stack` beside ``X0``."""

    graph: Propagation
    num_layers: int
    h: Any  # a tensor where a program is exported, which has it from the graph that goes in
    delta: float
    mu: float
    speed: Tensor | None
    show: Show | None

    def spans(self, x0: Tensor) -> list[range]:
        """The layers, cut where `_held` is called."""
        size = HELD_LAYERS if is_free(x0, self.graph, self.mu) else max(1, self.num_layers)
        return [range(k, min(k + size, self.num_layers)) for k in range(0, self.num_layers, size)]


HELD_LAYERS, _FORCE = 64, 1e-3  # a restoring force of this size holds as well: roundings do 1e-7 / mu at the most


def is_free(x0: Tensor, graph: Propagation, mu: float) -> bool:
    """Whether no force holds a wave, so that `held` must, and can.

    It cannot where rows are in several places: in other processes, or in host memory from where they come in blocks
    (`graphjoule.parallel.evaluate_in_blocks`).
    """
    return mu < _FORCE and graph.has_known_kernel and type(x0) is Tensor


def held(x: Tensor, graph: Propagation, x0: Tensor | None = None) -> Tensor:
    """What `_held` makes of ``X``, or without `x0` of ``V``, with its gradient; for layers called one by one."""
    rest = x if x0 is None else x - x0
    rest = linear_map(rest, lambda runs: _held(runs.reshape(-1, *runs.shape[-2:]), graph).view(runs.shape))
    return rest if x0 is None else rest + x0


def _held(x: Tensor, graph: Propagation, x0: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Features whose part in the kernel of ``I - P``, multiples of ``sqrt(1 + d)`` on a component, is that of ``X0``.

    There nothing pulls: this part of ``X`` does not move, and that of ``V`` is 0. But entries of ``P`` that are rounded
    to float32 have eigenvalues of up to ``1 + 1e-7``, and without a restoring force what is there grows by
    ``exp(3e-4 k)`` in k layers, 30 times in 10,000. Within `HELD_LAYERS` it grows by 2e-4 at the most.
    """
    kernel = graph.laplacian.scaled().kernel(x.dtype)
    return kernel.take_off(x, kernel.means(x if x0 is None else x - x0), out=out)


def in_float32(graph: Propagation) -> Propagation:
    """The graph in float32, with a diagonal that gives ``P sqrt(1 + d) = sqrt(1 + d)`` for entries of half precision.

    Their roundings lift eigenvalues of ``P`` to 1.004, where waves double every 20 layers.
    """
    whole = graph.to(dtype=torch.float32)
    if not graph.has_known_kernel:
        return whole
    scale, row, col = (1 + whole.degree).sqrt(), whole.row(), whole.col.long()
    off = torch.where(row == col, 0.0, whole.value.double()) * scale[col]
    value = whole.value.clone()
    value[whole.diagonal] = (1 - scale.new_zeros(len(scale)).index_add(0, row, off) / scale).float()
    return replace(whole, value=value)


def _reference(x0: Tensor, wave: _Wave) -> Tensor:
    """Layer by layer as the equation stands, of ``[..., num_nodes, channels]``."""
    graph, _, h, delta, mu, speed, show = wave

    def run(x0: Tensor) -> Tensor:
        x, v = x0, wave_start(x0, graph, h=h, delta=delta, speed=speed)
        for layers in wave.spans(x0):
            if layers[0]:
                x, v = _held(x, graph, x0), _held(v, graph)
            for k in layers:
                x, v = wave_layer(x, v, x0, graph, h=h, delta=delta, mu=mu, speed=speed)
                if show is not None:
                    show(k, x, None)
        return x

    return each_run(run, x0)


def _in_place(x0: Tensor, wave: _Wave) -> Tensor:
    """One run after the other, and of many small graphs some after others, which stay in the cache."""
    graph, h = wave.graph, wave.h
    own = -h if wave.speed is not None else -h * (1 + wave.mu)

    def run(x0: Tensor) -> Tensor:
        x = x0.clone(memory_format=torch.contiguous_format)
        v = wave_start(x0, graph, h=h, delta=wave.delta, speed=wave.speed)
        blocks = graph.blocks(x.numel() * x.element_size() // _BLOCK_BYTES if wave.show is None else 1)
        for layers in wave.spans(x0):
            if layers[0]:
                _held(x, graph, x0, out=x)
                _held(v, graph, out=v)
            if len(blocks) == 1:
                _run_in_place(x, v, x0, wave, layers, lambda x: plain_product(x, graph, a=h, alpha=own))
                continue
            value = graph.mixed(h, own)
            for start, end in blocks:
                first, last = graph.rowptr[start], graph.rowptr[end]
                rows = graph.rowptr[start : end + 1] - first, graph.col[first:last] - start, value[first:last]
                nodes = slice(start, end)
                _run_in_place(x[nodes], v[nodes], x0[nodes], wave, layers, partial(csr_product, *rows))
        return x

    return each_run(run, x0)


# What of X is worked on at once: with V and the product it fits into the second cache of a core. 600 graphs, 42,000
# nodes and 64 channels in all, take half the time of one block.
_BLOCK_BYTES = 2**19


def _run_in_place(
    x: Tensor, v: Tensor, x0: Tensor, wave: _Wave, layers: range, product: Callable[[Tensor], Tensor]
) -> None:
    """Some layers: a sparse product and passes over ``X`` and ``V``, of which each takes its time."""
    h, delta, mu, speed, show = wave.h, wave.delta, wave.mu, wave.speed, wave.show
    for k in layers:
        force = product(x)
        if show is not None and k > 0:
            show(k - 1, x, Product(force, wave.graph, h, -h if speed is not None else -h * (1 + mu)))
        if delta:
            v.mul_(1 - delta)
        v.add_(force) if speed is None else v.addcmul_(force, speed)
        if mu and speed is not None:
            v.sub_(x, alpha=h * mu)
        if mu:
            v.add_(x0, alpha=h * mu)
        x.add_(v, alpha=h)
    if show is not None and layers[-1] == wave.num_layers - 1:
        show(wave.num_layers - 1, x, None)


def _triton(x0: Tensor, wave: _Wave) -> Tensor:
    """All runs in one kernel per layer, which makes the product, the velocity and the step."""
    from graphjoule.ops.triton_gather import gather

    graph, _, h, delta, mu, speed, show = wave
    start = x0.reshape(-1, *x0.shape[-2:]).contiguous()
    x, v = start, _with_speed(plain_product(start, graph, a=-1.0, alpha=1.0), speed) * (h / (2 - delta))
    for layers in wave.spans(x0):
        if layers[0]:
            x, v = _held(x, graph, start), _held(v, graph)
        for k in layers:
            x = gather(
                x, graph.rows, graph.value,
                a=h, alpha=-h, beta=h * mu, x0=start if mu else None, velocity=v, speed=speed, keep=1 - delta, h=h,
            )  # fmt: skip
            if show is not None:
                show(k, x[0], None)
    return x.view(x0.shape)
