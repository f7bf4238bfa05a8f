"""The product every layer makes: ``P X``, and with a residual connection ``a P X + alpha X``."""

from __future__ import annotations

from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.csr import csr_product, each_run, linear_map
from graphjoule.ops.backend import backend_for


def propagate(x: Tensor, graph: Propagation, a: float = 1.0, alpha: float = 0.0) -> Tensor:
    """``a P X + alpha X``: a node takes the normalised sum of its neighbours and itself, and keeps a part of itself.

    Args:
        x: node features, shape ``[num_nodes, channels]``; under `torch.vmap` all runs share one product.
        graph: the operator ``P``.
        a: factor of the product.
        alpha: factor of the features themselves.
    """
    check_rows(x, graph)
    return _product(x, graph, a, alpha)


def _product(x: Tensor, graph: Propagation, a: float, alpha: float) -> Tensor:
    """`plain_product` with its gradient: the same product, or that with ``P^T`` where edges keep their direction."""
    back = graph.transposed
    adjoint = None if back is graph else lambda grad: _product(grad, back, a, alpha)
    return linear_map(x, lambda x: plain_product(x, graph, a, alpha), adjoint=adjoint)


def check_rows(x: Tensor, graph: Propagation) -> None:
    """Refuse features that are not one row per node, or of another dtype than the graph."""
    if x.dim() != 2 or x.dtype != graph.dtype or x.size(0) != graph.num_nodes:
        raise GraphjouleError(
            f"Cannot propagate features of shape {list(x.shape)}, {x.dtype} over a graph of {graph.num_nodes} nodes, "
            f"{graph.dtype}; use graph.to(dtype=...) to match them."
        )


def plain_product(x: Tensor, graph: Propagation, a: float = 1.0, alpha: float = 0.0) -> Tensor:
    """What `propagate` computes, of one run ``[n, d]`` or of many ``[runs, n, d]``, for those who have the gradient."""
    backend = backend_for(x)
    if backend == "triton" and graph.has_gpu_kernels:
        from graphjoule.ops.triton_gather import gather

        runs = x if x.dim() == 3 else x[None]
        return gather(runs.contiguous(), graph.rows, graph.value, a=a, alpha=alpha).view(x.shape)
    reached = graph.gather_halo(x)
    if backend in ("cpu", "native"):
        value = graph.value if (a, alpha) == (1.0, 0.0) else graph.mixed(a, alpha)
        return each_run(lambda run: csr_product(graph.rowptr, graph.col, value, run), reached)
    product = each_run(graph.product, reached)
    return product if (a, alpha) == (1.0, 0.0) else a * product + alpha * x
