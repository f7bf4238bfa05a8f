"""The arithmetic of a wave on a graph: one layer, and all layers in one op whose gradient is the same op again.

Without weights between the layers, the last ``X`` is a polynomial of the symmetric ``P`` times ``X_0``, so the map from
``X_0`` to it is symmetric too: the backward pass is the forward pass of the gradient. Nothing is kept in between, at
any depth.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.csr import each_run, linear_map
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
    x0: Tensor, graph: Propagation, num_layers: int, *, h: float, delta: float, mu: float, speed: Tensor | None = None
) -> Tensor:
    """The last ``X`` of `num_layers` times `wave_layer`, from ``X0`` and `wave_start`.

    Forward and backward need four activations each, whatever the depth. See `wave_layer` for the arguments; `speed`
    gets no gradient.

    Returns:
        Shape ``[num_nodes, channels]``.

    Example:
        >>> pair = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
        >>> wave_stack(torch.tensor([[1.0], [0.0]]), pair, 2, h=1.0, delta=0.0, mu=0.0)
        tensor([[0.2500],
                [0.7500]])
    """
    check_rows(x0, graph)
    backend = backend_for(x0)
    run = _reference if backend == "reference" else _in_place
    if backend == "triton" and graph.has_gpu_kernels:
        run = _triton
    # A step is a tensor where a program is exported, which has it from the graph that goes in.
    settings: dict[str, Any] = {"h": h, "delta": float(delta), "mu": float(mu), "speed": speed}
    return linear_map(x0, partial(run, graph=graph, num_layers=num_layers, **settings))


def _reference(
    x0: Tensor, *, graph: Propagation, num_layers: int, h: float, delta: float, mu: float, speed: Tensor | None
) -> Tensor:
    """Layer by layer as the equation stands, of ``[..., num_nodes, channels]``."""

    def run(x0: Tensor) -> Tensor:
        x, v = x0, wave_start(x0, graph, h=h, delta=delta, speed=speed)
        for _ in range(num_layers):
            x, v = wave_layer(x, v, x0, graph, h=h, delta=delta, mu=mu, speed=speed)
        return x

    return each_run(run, x0)


def _in_place(
    x0: Tensor, *, graph: Propagation, num_layers: int, h: float, delta: float, mu: float, speed: Tensor | None
) -> Tensor:
    """One run after the other, which stays in the cache: a sparse product and passes over ``X`` and ``V``."""
    own = -h if speed is not None else -h * (1 + mu)

    def run(x0: Tensor) -> Tensor:
        x, v = x0.clone(memory_format=torch.contiguous_format), wave_start(x0, graph, h=h, delta=delta, speed=speed)
        for _ in range(num_layers):
            force = plain_product(x, graph, a=h, alpha=own)
            v.mul_(1 - delta)
            if speed is None:
                v.add_(force)
            else:
                v.addcmul_(force, speed).sub_(x, alpha=h * mu)
            if mu:
                v.add_(x0, alpha=h * mu)
            x.add_(v, alpha=h)
        return x

    return each_run(run, x0)


def _triton(
    x0: Tensor, *, graph: Propagation, num_layers: int, h: float, delta: float, mu: float, speed: Tensor | None
) -> Tensor:
    """All runs in one kernel per layer, which makes the product, the velocity and the step."""
    from graphjoule.ops.triton_gather import gather

    start = x0.reshape(-1, *x0.shape[-2:]).contiguous()
    x, v = start, _with_speed(plain_product(start, graph, a=-1.0, alpha=1.0), speed) * (h / (2 - delta))
    for _ in range(num_layers):
        x = gather(
            x, graph.rows, graph.value,
            a=h, alpha=-h, beta=h * mu, x0=start if mu else None, velocity=v, speed=speed, keep=1 - delta, h=h,
        )  # fmt: skip
    return x.view(x0.shape)
