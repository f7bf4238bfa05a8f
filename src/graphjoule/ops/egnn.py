"""The arithmetic of one EGNN layer."""

from __future__ import annotations

import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.ops.dropout import dropout
from graphjoule.ops.propagate import propagate


def residual_mix(x: Tensor, x0: Tensor, graph: Propagation, c_min: float, beta: float) -> Tensor:
    """``(1 - c_min) P X + alpha X + beta X0`` with ``alpha = c_min - beta``: the lower-bounded residual connection."""
    alpha = c_min - beta
    return (1 - c_min) * propagate(x, graph) + alpha * x + beta * x0


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
