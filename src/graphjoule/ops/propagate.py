"""The product every layer makes: ``P X``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.ops.body import body_for
from graphjoule.ops.csr_product_cpu import csr_product


def propagate(x: Tensor, graph: Propagation) -> Tensor:
    """``P X``: every node takes the normalised sum of its neighbours and itself.

    Args:
        x: node features, shape ``[num_nodes, channels]``; under `torch.vmap` all runs share one product.
        graph: the operator ``P``.
    """
    if x.dim() != 2 or x.dtype != graph.dtype or x.size(0) != graph.num_nodes:
        raise GraphjouleError(
            f"Cannot propagate features of shape {list(x.shape)}, {x.dtype} over a graph of {graph.num_nodes} nodes, "
            f"{graph.dtype}; use graph.to(dtype=...) to match them."
        )
    out: Tensor = _Propagate.apply(x, graph)  # type: ignore[no-untyped-call]
    return out


class _Propagate(torch.autograd.Function):
    """``P X`` of one run ``[n, d]`` or of many ``[runs, n, d]``; its gradient is ``P G`` because ``P`` is symmetric."""

    @staticmethod
    def forward(x: Tensor, graph: Propagation) -> Tensor:
        if body_for(x) == "triton":
            from graphjoule.ops.triton_gather import gather

            runs = x if x.dim() == 3 else x[None]
            return gather(runs.contiguous(), graph.rows, graph.value).view(x.shape)
        if x.dim() == 3:
            return torch.stack([_product(run, graph) for run in x])
        return _product(x, graph)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Propagation], output: Tensor) -> None:
        ctx.graph = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Propagate.apply(grads[0], ctx.graph), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, graph: Propagation) -> tuple[Tensor, int]:
        """All runs in one call."""
        return _Propagate.apply(x.movedim(in_dims[0], 0), graph), 0  # type: ignore[no-untyped-call]


def _product(x: Tensor, graph: Propagation) -> Tensor:
    if body_for(x) == "cpu":
        return csr_product(graph.rowptr, graph.col, graph.value, x)
    return torch.mm(graph.matrix, x)
