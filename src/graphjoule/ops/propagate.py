"""The product every layer makes: ``P X``, and with a residual connection ``a P X + alpha X``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.csr import csr_product, is_plain, with_signature
from graphjoule.ops.backend import backend_for


def propagate(x: Tensor, graph: Propagation, a: float = 1.0, alpha: float = 0.0) -> Tensor:
    """``a P X + alpha X``: a node takes the normalised sum of its neighbours and itself, and keeps a part of itself.

    Args:
        x: node features, shape ``[num_nodes, channels]``; under `torch.vmap` all runs share one product.
        graph: the operator ``P``.
        a: factor of the product.
        alpha: factor of the features themselves.
    """
    if x.dim() != 2 or x.dtype != graph.dtype or x.size(0) != graph.num_nodes:
        raise GraphjouleError(
            f"Cannot propagate features of shape {list(x.shape)}, {x.dtype} over a graph of {graph.num_nodes} nodes, "
            f"{graph.dtype}; use graph.to(dtype=...) to match them."
        )
    if is_plain():
        return plain_product(x, graph, a, alpha)
    out: Tensor = _Propagate.apply(x, graph, a, alpha)  # type: ignore[no-untyped-call]
    return out


def plain_product(x: Tensor, graph: Propagation, a: float = 1.0, alpha: float = 0.0) -> Tensor:
    """What `propagate` computes, of one run ``[n, d]`` or of many ``[runs, n, d]``, for those who have the gradient."""
    backend = backend_for(x)
    if backend == "triton" and graph.has_gpu_kernels:
        from graphjoule.ops.triton_gather import gather

        runs = x if x.dim() == 3 else x[None]
        return gather(runs.contiguous(), graph.rows, graph.value, a=a, alpha=alpha).view(x.shape)
    reached = graph.gather_halo(x)
    if backend == "cpu":
        value = graph.value if (a, alpha) == (1.0, 0.0) else graph.mixed(a, alpha)
        return _each_run(reached, lambda run: csr_product(graph.rowptr, graph.col, value, run))
    product = _each_run(reached, graph.product)
    return product if (a, alpha) == (1.0, 0.0) else a * product + alpha * x


@with_signature
class _Propagate(torch.autograd.Function):
    """The product; it is its own gradient, as ``P`` is symmetric."""

    @staticmethod
    def forward(x: Tensor, graph: Propagation, a: float, alpha: float) -> Tensor:
        return plain_product(x, graph, a, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.graph, ctx.a, ctx.alpha = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _Propagate.apply(grads[0], ctx.graph, ctx.a, ctx.alpha), None, None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None, None, None], x: Tensor, graph: Propagation, a: float, alpha: float
    ) -> tuple[Tensor, int]:
        """All runs in one call."""
        return _Propagate.apply(x.movedim(in_dims[0], 0), graph, a, alpha), 0  # type: ignore[no-untyped-call]


def _each_run(x: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.stack([product(run) for run in x]) if x.dim() == 3 else product(x)
