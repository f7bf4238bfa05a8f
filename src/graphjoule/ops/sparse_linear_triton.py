"""``dropout(X) W`` on a GPU: the gather kernel over the rows of X, and over those of its transpose for the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphjoule.graph.csr import with_signature
from graphjoule.graph.features import SparseFeatures
from graphjoule.ops.triton_gather import DROP_VALUE, gather


def fused_sparse_linear(x: SparseFeatures, weight: Tensor, p: float, key: Tensor | None) -> Tensor:
    """`sparse_linear`, for one run or under vmap for many; every run draws its own mask inside the kernel."""
    keys = None if key is None else key[None]
    out: Tensor = _FusedSparseLinear.apply(weight[None], keys, x, p)  # type: ignore[no-untyped-call]
    return out[0]


@with_signature
class _FusedSparseLinear(torch.autograd.Function):
    """``weight [runs, in, out]``, ``keys [runs, 2]`` -> ``[runs, n, out]``."""

    @staticmethod
    def forward(weight: Tensor, keys: Tensor | None, x: SparseFeatures, p: float) -> Tensor:
        return gather(weight.contiguous(), x.rows, x.value, drop=DROP_VALUE, p=p, keys=keys)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.keys, ctx.x, ctx.p = inputs[1:]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        x: SparseFeatures = ctx.x
        value = x.value[x.to_transposed]
        grad_weight = gather(
            grad.contiguous(), x.t_rows, value, drop=DROP_VALUE, p=ctx.p, keys=ctx.keys, value_id=x.to_transposed
        )
        return grad_weight, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], weight: Tensor, keys: Tensor | None, x: SparseFeatures, p: float
    ) -> tuple[Tensor, int]:
        weight = weight.movedim(in_dims[0], 0).flatten(0, 1)
        keys = None if keys is None else keys.movedim(in_dims[1], 0).flatten(0, 1).contiguous()
        out: Tensor = _FusedSparseLinear.apply(weight, keys, x, p)  # type: ignore[no-untyped-call]
        return out[:, None], 0
