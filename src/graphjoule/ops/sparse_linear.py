"""The first product of a network on sparse input features: ``X W``, with dropout on the stored values only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.csr import csr_product, csr_tensor, with_signature
from graphjoule.graph.features import SparseFeatures
from graphjoule.ops.backend import backend_for
from graphjoule.ops.dropout import dropout


def sparse_linear(x: SparseFeatures, weight: Tensor, p: float = 0.0, key: Tensor | None = None) -> Tensor:
    """``dropout(X) W`` without a dense ``X``. Zeros stay zero under dropout, so only stored values draw a mask.

    Args:
        x: the features, shape ``[num_nodes, in_channels]``; they are data and get no gradient.
        weight: shape ``[in_channels, out_channels]``.
        p: dropout probability.
        key: dropout key, None for evaluation.
    """
    if weight.dtype != x.dtype or weight.size(0) != x.num_features:
        raise GraphjouleError(
            f"Cannot multiply sparse features of shape {list(x.shape)}, {x.dtype} by a weight of shape "
            f"{list(weight.shape)}, {weight.dtype}; use x.to(dtype=...) to match them."
        )
    if backend_for(weight) == "triton" and x.among is None:
        from graphjoule.ops.sparse_linear_triton import fused_sparse_linear

        return fused_sparse_linear(x, weight, p, key)
    out: Tensor = _SparseLinear.apply(dropout(x.value, p, key, x.among), weight, x)  # type: ignore[no-untyped-call]
    return out


@with_signature
class _SparseLinear(torch.autograd.Function):
    """``X(value) W``; the gradient of W is ``X(value)^T G``, a CSR product over the transposed pattern."""

    @staticmethod
    def forward(value: Tensor, weight: Tensor, x: SparseFeatures) -> Tensor:
        return _product(x.rowptr, x.col, value, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, SparseFeatures], output: Tensor) -> None:
        ctx.x = inputs[2]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        (value,) = ctx.saved_tensors
        return None, _TransposedProduct.apply(value, grads[0], ctx.x), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], value: Tensor, weight: Tensor, x: SparseFeatures
    ) -> tuple[Tensor, int]:
        return _per_run(_SparseLinear, in_dims, value, weight, x)


@with_signature
class _TransposedProduct(torch.autograd.Function):
    """``X(value)^T G``."""

    @staticmethod
    def forward(value: Tensor, grad: Tensor, x: SparseFeatures) -> Tensor:
        return _product(x.t_rowptr, x.t_col, value[x.to_transposed], grad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.x = inputs[2]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        (value,) = ctx.saved_tensors
        return None, _SparseLinear.apply(value, grads[0], ctx.x), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], value: Tensor, grad: Tensor, x: SparseFeatures) -> tuple[Tensor, int]:
        return _per_run(_TransposedProduct, in_dims, value, grad, x)


def _product(rowptr: Tensor, col: Tensor, value: Tensor, dense: Tensor) -> Tensor:
    """``A D`` for the CSR matrix ``A`` of these pieces."""
    if backend_for(dense) == "cpu":
        return csr_product(rowptr, col, value, dense)
    return torch.mm(csr_tensor(rowptr, col, value, (len(rowptr) - 1, len(dense))), dense)


def _per_run(op: Any, in_dims: tuple[Any, ...], value: Tensor, dense: Tensor, x: SparseFeatures) -> tuple[Tensor, int]:
    """One product for all runs where they share the values (evaluation), else one per run (each has its own mask)."""
    value_dim, dense_dim = in_dims[:2]
    if value_dim is None:
        dense = dense.movedim(dense_dim, 1)
        out: Tensor = op.apply(value, dense.flatten(1), x)
        return out.view(len(out), *dense.shape[1:]), 1
    values = value.movedim(value_dim, 0)
    denses = [dense] * len(values) if dense_dim is None else dense.movedim(dense_dim, 0)
    return torch.stack([op.apply(v, d, x) for v, d in zip(values, denses, strict=True)]), 0
