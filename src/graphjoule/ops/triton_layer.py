"""Triton kernels for the dense half of an EGNN layer: product with the weight, SReLU, and both backwards."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphjoule.ops.dropout import dropped_of_65536, keep_scale
from graphjoule.ops.triton_gather import kept

# Widths whose weight fits in registers beside its gradient; others use cuBLAS through torch.
WIDTHS = (16, 32, 64)
# Three TF32 products make one float32 product on the tensor cores: relative error near 1e-6, three times the speed.
_PRECISION = "tf32x3"


class Tiling(NamedTuple):
    """How a kernel is cut: rows per tile, warps per program, programs that fill the GPU, tiles in flight."""

    rows: int
    warps: int
    programs: int
    stages: int


# Kept in bfloat16, an activation is a factor as it is, and the weight the sum of two: two products, exact to 16 bits.

# By a sweep on an H200, whose 132 multiprocessors take two programs each. The backward kernel has no room for tiles in
# flight: one stage is 1.5 times as fast as three.
_FORWARD, _BACKWARD = Tiling(64, 4, 264, 3), Tiling(64, 4, 264, 1)


def weight_srelu(
    m: Tensor, weight: Tensor, shift: Tensor | None, *, want_active: bool, p: float = 0.0, keys: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """``dropout(max(b, M W))`` and, packed into bits, where SReLU was not ``b``.

    Args:
        m: contiguous, float32 or bfloat16, shape ``[runs, n, d]``.
        weight: shape ``[runs, d, d]``, any stride between runs.
        shift: shape ``[runs, d]``, or None for the identity.
        want_active: whether a backward pass will need the bits.
        p: dropout probability.
        keys: dropout keys of the *next* layer's input, shape ``[runs, 2]``; None for no dropout.
    """
    runs, n, d = m.shape
    out = torch.empty_like(m)
    word = min(d, 32)
    active = None
    if want_active and shift is not None:
        active = torch.empty(runs, n, d // word, dtype=torch.int32, device=m.device)
    has_drop = keys is not None and p > 0
    steps = _steps(n, runs, _FORWARD)
    _weight_srelu_kernel[(triton.cdiv(n, _FORWARD.rows * steps), runs)](
        m, weight, out if shift is None else shift, out, out if active is None else active, keys if has_drop else out,
        n, steps, weight.stride(0), 0 if shift is None else shift.stride(0),
        (n * d + 1) // 2, dropped_of_65536(p), keep_scale(p) if has_drop else 1.0,
        D=d, ROWS=_FORWARD.rows, WORD=word, HAS_SHIFT=shift is not None, WANT_ACTIVE=active is not None,
        HAS_DROP=has_drop, IS_HALF=m.element_size() == 2, PRECISION=_PRECISION,
        num_warps=_FORWARD.warps, num_stages=_FORWARD.stages,
    )  # fmt: skip
    return out, active


def weight_srelu_backward(grad: Tensor, m: Tensor, weight: Tensor, active: Tensor | None, partial: Tensor) -> Tensor:
    """Gradient of the ``M`` of `weight_srelu`; those of the weight and the shift come as sums over stretches.

    Args:
        grad: gradient of the output, contiguous, shape ``[runs, n, d]``.
        m: as it was in the forward pass.
        weight: as it was in the forward pass.
        active: the bits of the forward pass.
        partial: filled, shape ``[runs, num_stretches(runs, n), d + 1, d]``: ``M^T G``, then the shift's row.
    """
    runs, n, d = m.shape
    grad_m = torch.empty_like(m)
    _weight_srelu_backward_kernel[(partial.size(1), runs)](
        grad, m, weight, grad if active is None else active, grad_m, partial,
        n, _steps(n, runs, _BACKWARD), weight.stride(0), partial.size(1),
        D=d, ROWS=_BACKWARD.rows, WORD=min(d, 32), HAS_SHIFT=active is not None,
        IS_HALF=m.element_size() == 2, PRECISION=_PRECISION, num_warps=_BACKWARD.warps, num_stages=_BACKWARD.stages,
    )  # fmt: skip
    return grad_m


def num_stretches(runs: int, n: int) -> int:
    """Into how many stretches of nodes `weight_srelu_backward` cuts each run."""
    return -(-n // (_BACKWARD.rows * _steps(n, runs, _BACKWARD)))


def _steps(n: int, runs: int, tiling: Tiling) -> int:
    """How many row tiles one program takes, so that all programs together just fill the GPU."""
    tiles = -(-n // tiling.rows)
    return max(1, -(-tiles * runs // tiling.programs))


@triton.jit
def _split(w, IS_HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """A weight as it is; or as the sum of two in bfloat16."""
    rest = w
    if IS_HALF:
        whole = w
        w = whole.to(tl.bfloat16)
        rest = (whole - w.to(tl.float32)).to(tl.bfloat16)
    return w, rest


@triton.jit
def _product(m, w, rest, IS_HALF: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    z = tl.dot(m, w, input_precision=PRECISION)
    if IS_HALF:
        z += tl.dot(m, rest)
    return z


@triton.jit
def _weight_srelu_kernel(  # type: ignore[no-untyped-def]
    m, weight, shift, out, active, keys, n, steps, weight_stride, shift_stride, half, dropped, scale,
    D: tl.constexpr, ROWS: tl.constexpr, WORD: tl.constexpr, HAS_SHIFT: tl.constexpr, WANT_ACTIVE: tl.constexpr,
    HAS_DROP: tl.constexpr, IS_HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, D)
    w, rest = _split(tl.load(weight + run * weight_stride + d[:, None] * D + d[None, :]), IS_HALF)
    if HAS_SHIFT:
        b = tl.load(shift + run * shift_stride + d)[None, :]
    if HAS_DROP:
        key0 = tl.load(keys + 2 * run).to(tl.uint32, bitcast=True)
        key1 = tl.load(keys + 2 * run + 1).to(tl.uint32, bitcast=True)
    for step in range(steps):
        row = (tl.program_id(0) * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < n)[:, None]
        element = row[:, None] * D + d[None, :]
        z = _product(tl.load(m + run * n * D + element, mask=inside, other=0.0), w, rest, IS_HALF, PRECISION)
        if HAS_SHIFT:
            below = z <= b  # false for NaN, which must stay visible
            z = tl.where(below, b, z)
            if WANT_ACTIVE:
                bits = tl.reshape((~below).to(tl.int32), (ROWS, D // WORD, WORD)) << tl.arange(0, WORD)[None, None, :]
                word = tl.arange(0, D // WORD)
                place = run * n * (D // WORD) + row[:, None] * (D // WORD) + word[None, :]
                tl.store(active + place, tl.sum(bits, axis=2), mask=inside)
        if HAS_DROP:
            z = tl.where(kept(element, key0, key1, half, dropped), z * scale, 0.0)
        tl.store(out + run * n * D + element, z, mask=inside)


@triton.jit
def _weight_srelu_backward_kernel(  # type: ignore[no-untyped-def]
    grad, m, weight, active, grad_m, partial, n, steps, weight_stride, stretches,
    D: tl.constexpr, ROWS: tl.constexpr, WORD: tl.constexpr, HAS_SHIFT: tl.constexpr,
    IS_HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    stretch = tl.program_id(0)
    d = tl.arange(0, D)
    w, rest = _split(tl.trans(tl.load(weight + run * weight_stride + d[:, None] * D + d[None, :])), IS_HALF)
    grad_weight = tl.zeros((D, D), dtype=tl.float32)
    grad_shift = tl.zeros((D,), dtype=tl.float32)
    for step in range(steps):
        row = (stretch * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < n)[:, None]
        element = run * n * D + row[:, None] * D + d[None, :]
        g = tl.load(grad + element, mask=inside, other=0.0).to(tl.float32)
        if HAS_SHIFT:
            place = run * n * (D // WORD) + row[:, None] * (D // WORD) + (d // WORD)[None, :]
            on = (tl.load(active + place, mask=inside, other=0) >> (d % WORD)[None, :]) & 1
            grad_shift += tl.sum(tl.where(on == 0, g, 0.0), axis=0)
            g = tl.where(on == 0, 0.0, g)
        m_tile = tl.load(m + element, mask=inside, other=0.0)
        g = g.to(m_tile.dtype)
        tl.store(grad_m + element, _product(g, w, rest, IS_HALF, PRECISION), mask=inside)
        grad_weight += tl.dot(tl.trans(m_tile), g, input_precision=PRECISION)
    base = (run * stretches + stretch) * (D + 1) * D
    tl.store(partial + base + d[:, None] * D + d[None, :], grad_weight)
    tl.store(partial + base + D * D + d, grad_shift)
