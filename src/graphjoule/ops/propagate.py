"""The product every layer makes: ``P X``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation


def propagate(x: Tensor, graph: Propagation) -> Tensor:
    """``P X``: every node takes the normalised sum of its neighbours and itself.

    Args:
        x: node features, shape ``[num_nodes, channels]``; under `torch.vmap` all runs share one product.
        graph: the operator ``P``.
    """
    if x.dtype != graph.dtype or x.size(0) != graph.num_nodes:
        raise GraphjouleError(
            f"Cannot propagate features of shape {list(x.shape)}, {x.dtype} over a graph of {graph.num_nodes} nodes, "
            f"{graph.dtype}; use graph.to(dtype=...) to match them."
        )
    out: Tensor = _Propagate.apply(x, graph)  # type: ignore[no-untyped-call]
    return out


class _Propagate(torch.autograd.Function):
    """``P X``, whose gradient is ``P G`` because ``P`` is symmetric."""

    @staticmethod
    def forward(x: Tensor, graph: Propagation) -> Tensor:
        return torch.mm(graph.matrix, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Propagation], output: Tensor) -> None:
        ctx.graph = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Propagate.apply(grads[0], ctx.graph), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, graph: Propagation) -> tuple[Tensor, int]:
        """Fold the run axis into the channels: ``[n, runs, d] -> [n, runs * d]``, one product for all runs."""
        x = x.movedim(in_dims[0], 1)
        out: Tensor = _Propagate.apply(x.flatten(1), graph)  # type: ignore[no-untyped-call]
        return out.view(x.shape), 1
