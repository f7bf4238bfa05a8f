"""Triton kernels for the dense half of a layer with batch norm: product, statistics, norm, SReLU, and their backwards.

Factors of products are kept as bfloat16. Two of them make a float32 number to 16 bits, ``x = hi + lo``, and three
products on the tensor cores a product of such numbers, ``hi W_hi + lo W_hi + hi W_lo``: relative error near 3e-6, at a
third of the time of float32 products outside of the tensor cores. One alone is what `activations="bfloat16"` keeps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphjoule.ops.dropout import dropped_of_65536, keep_scale
from graphjoule.ops.triton_gather import kept

WIDTHS = (16, 32, 64, 128, 256)  # a tile has all channels of its rows


class Tiling(NamedTuple):
    """How a kernel is cut: rows per tile, columns (for `weight_grad` rows) per step, warps, tiles in flight."""

    rows: int
    step: int
    warps: int
    stages: int


# By a sweep on an H200, which has 132 multiprocessors.
_PRODUCT, _BACKWARD, _WEIGHT = Tiling(128, 32, 8, 4), Tiling(128, 32, 8, 3), Tiling(128, 32, 8, 4)
_POINTWISE = Tiling(8, 0, 4, 1)
_REDUCING_PROGRAMS, _STRETCHES = 528, 66
_ELEMENTS = 2048
_MERGED, _MERGED_CHANNELS = 512, 8  # partial sums that a program reads at once, to wait for memory few times


def split(weights: Tensor) -> Tensor:
    """``[..., d, d]`` as two bfloat16 numbers each, shape ``[..., 2, d, d]``."""
    hi = weights.bfloat16()
    return torch.stack([hi, (weights - hi.float()).bfloat16()], dim=-3)


def product(m: Tensor, weight: Tensor, out: Tensor, statistics: Tensor | None) -> None:
    """``M W``, and of every tile of rows the mean and the sum of squared distances from it.

    Args:
        m: bfloat16, shape ``[runs, parts, n, d]``.
        weight: from `split`, shape ``[runs, 2, d, d]``, any stride between runs.
        out: filled, shape ``[runs, n, d]``.
        statistics: filled, shape ``[runs, num_tiles(n), 2, d]``; None if not wanted.
    """
    runs, parts, n, d = m.shape
    _product_kernel[(num_tiles(n), runs)](
        m, weight, out, out, out, out if statistics is None else statistics, n, weight.stride(0), 0, 0,
        D=d, ROWS=_PRODUCT.rows, STEP=min(d, _PRODUCT.step), PARTS=parts, HAS_STATISTICS=statistics is not None,
        HAS_OFFSET=False, HAS_SHIFT=False, num_warps=_PRODUCT.warps, num_stages=_PRODUCT.stages,
    )  # fmt: skip


def product_srelu(m: Tensor, weight: Tensor, offset: Tensor, shift: Tensor | None, out: Tensor) -> None:
    """``max(b, M W + t)``: a layer whose batch norm is known beforehand.

    Args:
        m: as in `product`.
        weight: as in `product`.
        offset: ``t``, shape ``[runs, d]``, any stride between runs.
        shift: ``b``, likewise; None for the identity.
        out: filled, shape ``[runs, n, d]``.
    """
    runs, parts, n, d = m.shape
    _product_kernel[(num_tiles(n), runs)](
        m, weight, out, offset, out if shift is None else shift, out,
        n, weight.stride(0), offset.stride(0), 0 if shift is None else shift.stride(0),
        D=d, ROWS=_PRODUCT.rows, STEP=min(d, _PRODUCT.step), PARTS=parts, HAS_STATISTICS=False,
        HAS_OFFSET=True, HAS_SHIFT=shift is not None, num_warps=_PRODUCT.warps, num_stages=_PRODUCT.stages,
    )  # fmt: skip


def num_tiles(n: int) -> int:
    """How many tiles of rows `product` makes."""
    return -(-n // _PRODUCT.rows)


def merge_statistics(
    statistics: Tensor, n: int, gamma: Tensor, beta: Tensor, eps: float, out: Tensor, affine: Tensor
) -> None:
    """Mean and unbiased variance of all rows, and what a norm makes of them.

    Args:
        statistics: of `product`.
        n: number of rows.
        gamma: shape ``[runs, d]``, any stride between runs.
        beta: likewise.
        eps: added to the variance.
        out: filled with mean and unbiased variance, shape ``[runs, 2, d]``, any stride between runs.
        affine: filled with mean, ``gamma / sqrt(var + eps)``, ``beta`` and ``1 / sqrt(var + eps)``, ``[runs, 4, d]``.
    """
    runs, tiles, _, d = statistics.shape
    block = min(d, _MERGED_CHANNELS)
    _merge_statistics_kernel[(d // block, runs)](
        statistics, gamma, beta, out, affine, n, tiles, gamma.stride(0), beta.stride(0), out.stride(0), eps,
        D=d, BLOCK=block, TILES=_MERGED, ROWS=_PRODUCT.rows, num_warps=8,
    )  # fmt: skip


def norm_srelu(
    z: Tensor, affine: Tensor, shift: Tensor | None, out: Tensor, *, p: float = 0.0, keys: Tensor | None = None
) -> None:
    """``dropout(max(b, norm(Z)))`` in one pass.

    Args:
        z: shape ``[runs, n, d]``.
        affine: of `merge_statistics`.
        shift: shape ``[runs, d]``, any stride between runs; None for the identity.
        out: filled, shape ``[runs, n, d]``.
        p: dropout probability.
        keys: dropout keys of the *next* layer's input, shape ``[runs, 2]``; None for no dropout.
    """
    runs, n, d = z.shape
    has_drop = keys is not None and p > 0
    rows = _POINTWISE.rows * 256 // d
    _norm_srelu_kernel[(triton.cdiv(n, rows), runs)](
        z, affine, affine if shift is None else shift, out, keys if has_drop else out,
        n, 0 if shift is None else shift.stride(0), (n * d + 1) // 2, dropped_of_65536(p), keep_scale(p),
        D=d, ROWS=rows, HAS_SHIFT=shift is not None, HAS_DROP=has_drop, num_warps=_POINTWISE.warps,
    )  # fmt: skip


def norm_srelu_sums(
    grad: Tensor, z: Tensor, affine: Tensor, shift: Tensor | None, *, p: float = 0.0, keys: Tensor | None = None
) -> Tensor:
    """Partial sums of the gradients of ``beta``, ``gamma`` and ``b``, shape ``[runs, programs, 3, d]``.

    Args:
        grad: gradient of the output of `norm_srelu`, shape ``[runs, n, d]``.
        z: as it was there, like all that follow.
        affine: likewise.
        shift: likewise.
        p: likewise.
        keys: likewise.
    """
    runs, n, d = z.shape
    has_drop = keys is not None and p > 0
    rows = _POINTWISE.rows * 256 // d
    steps = max(1, -(-triton.cdiv(n, rows) * runs // _REDUCING_PROGRAMS))
    programs = triton.cdiv(n, rows * steps)
    sums = affine.new_empty(runs, programs, 3, d)
    _norm_srelu_sums_kernel[(programs, runs)](
        grad, z, affine, affine if shift is None else shift, keys if has_drop else affine, sums,
        n, steps, 0 if shift is None else shift.stride(0), (n * d + 1) // 2, dropped_of_65536(p), keep_scale(p),
        D=d, ROWS=rows, HAS_SHIFT=shift is not None, HAS_DROP=has_drop, num_warps=_POINTWISE.warps,
    )  # fmt: skip
    return sums


def merge_sums(sums: Tensor, affine: Tensor, n: int, out: Tensor, pull: Tensor) -> None:
    """The gradients of ``beta``, ``gamma`` and ``b``, and how they pull at every row.

    Args:
        sums: of `norm_srelu_sums`.
        affine: of `merge_statistics`.
        n: number of rows.
        out: filled with the three, shape ``[runs, 3, d]``, any stride between runs.
        pull: filled, shape ``[runs, 2, d]``: with ``gy`` the gradient of the norm's output that of ``z`` is
            ``s gy + pull_0 + pull_1 (z - mean)``.
    """
    runs, programs, _, d = sums.shape
    block = min(d, _MERGED_CHANNELS)
    _merge_sums_kernel[(d // block, runs)](
        sums, affine, out, pull, n, programs, out.stride(0), D=d, BLOCK=block, TILES=_MERGED, num_warps=8
    )


def product_backward(
    grad: Tensor, z: Tensor, affine: Tensor, pull: Tensor, shift: Tensor | None, weight: Tensor, grad_z: Tensor,
    out: Tensor, *, p: float = 0.0, keys: Tensor | None = None,
) -> None:  # fmt: skip
    """Gradients of ``Z`` and of ``M`` from that of the output of `norm_srelu`.

    Args:
        grad: gradient of the output, shape ``[runs, n, d]``.
        z: as it was in the forward pass.
        affine: of `merge_statistics`.
        pull: of `merge_sums`.
        shift: as it was in the forward pass.
        weight: from `split`, transposed: ``[runs, 2, d, d]``, any stride between runs.
        grad_z: filled, bfloat16, shape ``[runs, parts, n, d]``.
        out: filled with the gradient of ``M``, shape ``[runs, n, d]``; may be `z`.
        p: as it was in the forward pass.
        keys: likewise.
    """
    runs, parts, n, d = grad_z.shape
    has_drop = keys is not None and p > 0
    _product_backward_kernel[(triton.cdiv(n, _BACKWARD.rows), runs)](
        grad, z, affine, pull, affine if shift is None else shift, weight, grad_z, out, keys if has_drop else affine,
        n, weight.stride(0), 0 if shift is None else shift.stride(0),
        (n * d + 1) // 2, dropped_of_65536(p), keep_scale(p),
        D=d, ROWS=_BACKWARD.rows, STEP=min(d, _BACKWARD.step), PARTS=parts, HAS_SHIFT=shift is not None,
        HAS_DROP=has_drop, num_warps=_BACKWARD.warps, num_stages=_BACKWARD.stages,
    )  # fmt: skip


def weight_grad(m: Tensor, grad_z: Tensor) -> Tensor:
    """``M^T G`` as a sum over stretches of rows, shape ``[runs, stretches, d, d]``.

    Args:
        m: bfloat16, shape ``[runs, parts, n, d]``.
        grad_z: likewise.
    """
    runs, parts, n, d = m.shape
    rows = min(d, _WEIGHT.rows)
    steps = max(1, -(-triton.cdiv(n, _WEIGHT.step) * runs // _STRETCHES))
    stretches = triton.cdiv(n, _WEIGHT.step * steps)
    partial = torch.empty(runs, stretches, d, d, device=m.device)
    _weight_grad_kernel[(d // rows, stretches, runs)](
        m, grad_z, partial, n, steps, stretches,
        D=d, ROWS=rows, STEP=_WEIGHT.step, PARTS=parts, num_warps=_WEIGHT.warps, num_stages=_WEIGHT.stages,
    )  # fmt: skip
    return partial


def add_layers(layers: Tensor, factor: float, out: Tensor) -> None:
    """``out += factor * sum_k layers[k]``, one pass over all layers.

    Args:
        layers: contiguous, shape ``[K, ...]``.
        factor: of the sum.
        out: float32, contiguous, shape ``[...]``.
    """
    count = out.numel()
    _add_layers_kernel[(triton.cdiv(count, _ELEMENTS),)](layers, out, factor, count, len(layers), BLOCK=_ELEMENTS)


@triton.jit
def _add_layers_kernel(layers, out, factor, count, num_layers, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < count
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(num_layers):
        total += tl.load(layers + element, mask=inside, other=0.0).to(tl.float32)
        layers += count
    tl.store(out + element, tl.load(out + element, mask=inside) + factor * total, mask=inside)


@triton.jit
def _product_kernel(  # type: ignore[no-untyped-def]
    m, weight, out, offset, shift, statistics, n, weight_stride, offset_stride, shift_stride,
    D: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr, HAS_STATISTICS: tl.constexpr,
    HAS_OFFSET: tl.constexpr, HAS_SHIFT: tl.constexpr,
):  # fmt: skip
    tile, run = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = tile * ROWS + tl.arange(0, ROWS)
    inside = (row < n)[:, None]
    d = tl.arange(0, D)
    z = tl.zeros((ROWS, D), dtype=tl.float32)
    for first in range(0, D, STEP):
        k = first + tl.arange(0, STEP)
        place = weight + run * weight_stride + k[:, None] * D + d[None, :]
        w_hi, w_lo = tl.load(place), tl.load(place + D * D)
        place = m + run * PARTS * n * D + row[:, None] * D + k[None, :]
        hi = tl.load(place, mask=inside, other=0.0)
        if PARTS == 2:
            z = tl.dot(tl.load(place + n * D, mask=inside, other=0.0), w_hi, z)
        z = tl.dot(hi, w_lo, z)
        z = tl.dot(hi, w_hi, z)
    if HAS_STATISTICS:
        mean = tl.sum(z, axis=0) / tl.minimum(n - tile * ROWS, ROWS)
        distance = tl.where(inside, z - mean[None, :], 0.0)
        place = statistics + (run * tl.num_programs(0) + tile) * 2 * D + d
        tl.store(place, mean)
        tl.store(place + D, tl.sum(distance * distance, axis=0))
    if HAS_OFFSET:
        z += tl.load(offset + run * offset_stride + d)[None, :]
    if HAS_SHIFT:
        b = tl.load(shift + run * shift_stride + d)[None, :]
        z = tl.where(z <= b, b, z)  # false for NaN, which must stay visible
    tl.store(out + run * n * D + row[:, None] * D + d[None, :], z, mask=inside)


@triton.jit
def _merge_statistics_kernel(  # type: ignore[no-untyped-def]
    statistics, gamma, beta, out, affine, n, tiles, gamma_stride, beta_stride, out_stride, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    base = statistics + run * tiles * 2 * D + d[None, :]
    total = tl.zeros((TILES, BLOCK), dtype=tl.float32)
    for first in range(0, tiles, TILES):
        tile = (first + tl.arange(0, TILES))[:, None]
        count = tl.maximum(tl.minimum(n - tile * ROWS, ROWS), 0)
        total += count * tl.load(base + tile * 2 * D, mask=tile < tiles, other=0.0)
    mean = tl.sum(total, axis=0) / n
    total = tl.zeros((TILES, BLOCK), dtype=tl.float32)
    for first in range(0, tiles, TILES):
        tile = (first + tl.arange(0, TILES))[:, None]
        count = tl.maximum(tl.minimum(n - tile * ROWS, ROWS), 0)
        distance = tl.load(base + tile * 2 * D, mask=tile < tiles, other=0.0) - mean[None, :]
        total += count * distance * distance + tl.load(base + tile * 2 * D + D, mask=tile < tiles, other=0.0)
    squares = tl.sum(total, axis=0)
    inverse = 1.0 / tl.sqrt(squares / n + eps)
    tl.store(out + run * out_stride + d, mean)
    tl.store(out + run * out_stride + D + d, squares / (n - 1))
    place = affine + run * 4 * D + d
    tl.store(place, mean)
    tl.store(place + D, inverse * tl.load(gamma + run * gamma_stride + d))
    tl.store(place + 2 * D, tl.load(beta + run * beta_stride + d))
    tl.store(place + 3 * D, inverse)


@triton.jit
def _norm_srelu_kernel(  # type: ignore[no-untyped-def]
    z, affine, shift, out, keys, n, shift_stride, half, dropped, scale,
    D: tl.constexpr, ROWS: tl.constexpr, HAS_SHIFT: tl.constexpr, HAS_DROP: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, D)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (row < n)[:, None]
    element = row[:, None] * D + d[None, :]
    place = affine + run * 4 * D + d
    mean, s, beta = tl.load(place), tl.load(place + D), tl.load(place + 2 * D)
    y = tl.load(z + run * n * D + element, mask=inside, other=0.0).to(tl.float32)
    y = (y - mean[None, :]) * s[None, :] + beta[None, :]
    if HAS_SHIFT:
        b = tl.load(shift + run * shift_stride + d)[None, :]
        y = tl.where(y <= b, b, y)
    if HAS_DROP:
        key0 = tl.load(keys + 2 * run).to(tl.uint32, bitcast=True)
        key1 = tl.load(keys + 2 * run + 1).to(tl.uint32, bitcast=True)
        y = tl.where(kept(element, key0, key1, half, dropped), y * scale, 0.0)
    tl.store(out + run * n * D + element, y, mask=inside)


@triton.jit
def _norm_srelu_sums_kernel(  # type: ignore[no-untyped-def]
    grad, z, affine, shift, keys, sums, n, steps, shift_stride, half, dropped, scale,
    D: tl.constexpr, ROWS: tl.constexpr, HAS_SHIFT: tl.constexpr, HAS_DROP: tl.constexpr,
):  # fmt: skip
    program, run = tl.program_id(0), tl.program_id(1).to(tl.int64)
    d = tl.arange(0, D)
    place = affine + run * 4 * D + d
    mean, s, beta, inverse = (
        tl.load(place)[None, :], tl.load(place + D)[None, :], tl.load(place + 2 * D)[None, :], tl.load(place + 3 * D)
    )  # fmt: skip
    if HAS_SHIFT:
        b = tl.load(shift + run * shift_stride + d)[None, :]
    if HAS_DROP:
        key0 = tl.load(keys + 2 * run).to(tl.uint32, bitcast=True)
        key1 = tl.load(keys + 2 * run + 1).to(tl.uint32, bitcast=True)
    of_beta = tl.zeros((ROWS, D), dtype=tl.float32)
    of_gamma = tl.zeros((ROWS, D), dtype=tl.float32)
    of_shift = tl.zeros((ROWS, D), dtype=tl.float32)
    for step in range(steps):
        row = (program * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < n)[:, None]
        element = row[:, None] * D + d[None, :]
        g = tl.load(grad + run * n * D + element, mask=inside, other=0.0).to(tl.float32)
        centred = tl.load(z + run * n * D + element, mask=inside, other=0.0).to(tl.float32) - mean
        if HAS_DROP:
            g = tl.where(kept(element, key0, key1, half, dropped), g * scale, 0.0)
        if HAS_SHIFT:
            below = centred * s + beta <= b
            of_shift += tl.where(below, g, 0.0)
            g = tl.where(below, 0.0, g)
        of_beta += g
        of_gamma += g * centred
    place = sums + (run * tl.num_programs(0) + program) * 3 * D + d
    tl.store(place, tl.sum(of_beta, axis=0))
    tl.store(place + D, tl.sum(of_gamma, axis=0) * inverse)
    tl.store(place + 2 * D, tl.sum(of_shift, axis=0))


@triton.jit
def _merge_sums_kernel(  # type: ignore[no-untyped-def]
    sums, affine, out, pull, n, programs, out_stride, D: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr
):
    run = tl.program_id(1).to(tl.int64)
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of_beta = tl.zeros((TILES, BLOCK), dtype=tl.float32)
    of_gamma = tl.zeros((TILES, BLOCK), dtype=tl.float32)
    of_shift = tl.zeros((TILES, BLOCK), dtype=tl.float32)
    for first in range(0, programs, TILES):
        program = (first + tl.arange(0, TILES))[:, None]
        place = sums + (run * programs + program) * 3 * D + d[None, :]
        of_beta += tl.load(place, mask=program < programs, other=0.0)
        of_gamma += tl.load(place + D, mask=program < programs, other=0.0)
        of_shift += tl.load(place + 2 * D, mask=program < programs, other=0.0)
    to_beta, to_gamma = tl.sum(of_beta, axis=0), tl.sum(of_gamma, axis=0)
    place = out + run * out_stride + d
    tl.store(place, to_beta)
    tl.store(place + D, to_gamma)
    tl.store(place + 2 * D, tl.sum(of_shift, axis=0))
    s, inverse = tl.load(affine + run * 4 * D + D + d), tl.load(affine + run * 4 * D + 3 * D + d)
    tl.store(pull + run * 2 * D + d, -s * to_beta / n)
    tl.store(pull + run * 2 * D + D + d, -s * inverse * to_gamma / n)


@triton.jit
def _product_backward_kernel(  # type: ignore[no-untyped-def]
    grad, z, affine, pull, shift, weight, grad_z, out, keys, n, weight_stride, shift_stride, half, dropped, scale,
    D: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr, HAS_SHIFT: tl.constexpr,
    HAS_DROP: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (row < n)[:, None]
    d = tl.arange(0, D)
    if HAS_DROP:
        key0 = tl.load(keys + 2 * run).to(tl.uint32, bitcast=True)
        key1 = tl.load(keys + 2 * run + 1).to(tl.uint32, bitcast=True)
    grad_m = tl.zeros((ROWS, D), dtype=tl.float32)
    for first in range(0, D, STEP):
        k = first + tl.arange(0, STEP)
        place = affine + run * 4 * D + k
        mean, s, beta = tl.load(place)[None, :], tl.load(place + D)[None, :], tl.load(place + 2 * D)[None, :]
        pull_0, pull_1 = tl.load(pull + run * 2 * D + k)[None, :], tl.load(pull + run * 2 * D + D + k)[None, :]
        element = row[:, None] * D + k[None, :]
        g = tl.load(grad + run * n * D + element, mask=inside, other=0.0).to(tl.float32)
        centred = tl.load(z + run * n * D + element, mask=inside, other=0.0).to(tl.float32) - mean
        if HAS_DROP:
            g = tl.where(kept(element, key0, key1, half, dropped), g * scale, 0.0)
        if HAS_SHIFT:
            b = tl.load(shift + run * shift_stride + k)[None, :]
            g = tl.where(centred * s + beta <= b, 0.0, g)
        g = s * g + pull_0 + pull_1 * centred
        place = weight + run * weight_stride + k[:, None] * D + d[None, :]
        w_hi, w_lo = tl.load(place), tl.load(place + D * D)
        hi = g.to(tl.bfloat16)
        place = grad_z + run * PARTS * n * D + element
        tl.store(place, hi, mask=inside)
        if PARTS == 2:
            lo = (g - hi.to(tl.float32)).to(tl.bfloat16)
            tl.store(place + n * D, lo, mask=inside)
            grad_m = tl.dot(lo, w_hi, grad_m)
        grad_m = tl.dot(hi, w_lo, grad_m)
        grad_m = tl.dot(hi, w_hi, grad_m)
    tl.debug_barrier()  # `out` may be `z`
    tl.store(out + run * n * D + row[:, None] * D + d[None, :], grad_m, mask=inside)


@triton.jit
def _weight_grad_kernel(  # type: ignore[no-untyped-def]
    m, grad_z, partial, n, steps, stretches,
    D: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    stretch, run = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    total = tl.zeros((ROWS, D), dtype=tl.float32)
    for step in range(steps):
        row = (stretch * steps + step) * STEP + tl.arange(0, STEP)
        inside = (row < n)[:, None]
        of_m = m + run * PARTS * n * D + row[:, None] * D + i[None, :]
        of_g = grad_z + run * PARTS * n * D + row[:, None] * D + j[None, :]
        m_hi = tl.trans(tl.load(of_m, mask=inside, other=0.0))
        g_hi = tl.load(of_g, mask=inside, other=0.0)
        if PARTS == 2:
            total = tl.dot(tl.trans(tl.load(of_m + n * D, mask=inside, other=0.0)), g_hi, total)
            total = tl.dot(m_hi, tl.load(of_g + n * D, mask=inside, other=0.0), total)
        total = tl.dot(m_hi, g_hi, total)
    place = partial + (run * stretches + stretch) * D * D + i[:, None] * D + j[None, :]
    tl.store(place, total)
