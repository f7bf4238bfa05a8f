"""The arithmetic of EGNN: one layer, and a stack of layers with a plain backend that reads like the equation."""

from __future__ import annotations

import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.csr import is_plain
from graphjoule.ops.backend import backend_for
from graphjoule.ops.dropout import dropout
from graphjoule.ops.propagate import propagate
from graphjoule.ops.stack import fused_stack


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
    """
    backend = backend_for(x0)
    if backend == "cpu" or (backend == "triton" and graph.has_gpu_kernels):
        return fused_stack(
            x0,
            graph,
            weights,
            shifts,
            keys if p else None,
            backend=backend,
            c_min=c_min,
            beta=beta,
            p=p,
            segment=segment,
        )
    x = x0
    for k, weight in enumerate(weights):
        shift = None if shifts is None else shifts[k]
        key = None if keys is None else keys[k]
        x = egnn_layer(x, x0, graph, weight, shift, c_min=c_min, beta=beta, p=p, key=key)
    return x
