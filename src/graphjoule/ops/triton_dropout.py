"""Dropout in one pass on a GPU: the hash, the comparison and the product in one kernel, and again for the gradient."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphjoule.graph.csr import with_signature
from graphjoule.ops.dropout import dropped_of_65536, keep_scale
from graphjoule.ops.triton_gather import kept

_BLOCK = 1024


def fused_dropout(x: Tensor, p: float, key: Tensor) -> Tensor:
    """`dropout`, for one run or under vmap for many."""
    out: Tensor = _FusedDropout.apply(x[None], key[None], p)  # type: ignore[no-untyped-call]
    return out[0]


@with_signature
class _FusedDropout(torch.autograd.Function):
    """``x [runs, ...]``, ``keys [runs, 2]`` -> dropped ``x``; nothing is kept for the gradient but the keys."""

    @staticmethod
    def forward(x: Tensor, keys: Tensor, p: float) -> Tensor:
        return _drop(x.contiguous(), keys.contiguous(), p)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.keys, ctx.p = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _FusedDropout.apply(grads[0], ctx.keys, ctx.p), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, keys: Tensor, p: float) -> tuple[Tensor, int]:
        runs = info.batch_size
        x = x.expand(runs, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        keys = keys.expand(runs, *keys.shape) if in_dims[1] is None else keys.movedim(in_dims[1], 0)
        out: Tensor = _FusedDropout.apply(x.flatten(0, 1), keys.flatten(0, 1), p)  # type: ignore[no-untyped-call]
        return out[:, None], 0


def _drop(x: Tensor, keys: Tensor, p: float) -> Tensor:
    out = torch.empty_like(x)
    count = x[0].numel()
    _dropout_kernel[(triton.cdiv(count, _BLOCK), len(x))](
        x, out, keys, count, (count + 1) // 2, dropped_of_65536(p), keep_scale(p), BLOCK=_BLOCK
    )
    return out


@triton.jit
def _dropout_kernel(x, out, keys, count, half, dropped, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    run = tl.program_id(1).to(tl.int64)
    key0 = tl.load(keys + 2 * run).to(tl.uint32, bitcast=True)
    key1 = tl.load(keys + 2 * run + 1).to(tl.uint32, bitcast=True)
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = element < count
    value = tl.load(x + run * count + element, mask=inside)
    value = tl.where(kept(element, key0, key1, half, dropped), value * scale, 0.0)
    tl.store(out + run * count + element, value, mask=inside)
