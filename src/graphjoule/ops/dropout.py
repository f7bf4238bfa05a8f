"""Dropout from a counter-based stream: the mask is a hash of (key, element), so nothing is drawn and nothing is stored.

A key names a stream. The same key gives the same mask on any device, alone or among ten runs, before or after a
restart; two keys give unrelated masks. The global generator of torch is never touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphjoule.graph.csr import linear_map, of_all_runs, with_signature
from graphjoule.graph.native import Mask, drop
from graphjoule.graph.nodes import Excerpt, current_nodes
from graphjoule.ops.backend import backend_for

# Multipliers and shifts of a 32-bit mixing function with low bias; the second multiplier is 0x846CA68B as int32.
_MULTIPLIERS = (0x7FEB352D, -2073254261)
_16, _15, _16_BITS, _17_BITS = torch.tensor([16, 15, 0xFFFF, 0x1FFFF], dtype=torch.int32)
_MULTIPLIER_TENSORS = torch.tensor(_MULTIPLIERS, dtype=torch.int32).unbind()
_GOLDEN = -1640531527  # 2^32 / golden ratio as int32: neighbouring counters end far apart.
_ELEMENTS_AT_ONCE = 2**20  # of the mask of an excerpt, whose element numbers take eight bytes each


def make_key(seed: int | Tensor) -> Tensor:
    """The key of a seed: an int32 tensor of shape ``[2]`` (``[num_runs, 2]`` for a tensor of seeds)."""
    seed = torch.as_tensor(seed, dtype=torch.int64)
    low, high = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    words = torch.stack([low, high], dim=-1)
    return fold_in(torch.where(words >= 2**31, words - 2**32, words).int(), 0)


def fold_in(key: Tensor, data: int | Tensor) -> Tensor:
    """A new key from a key and a number: what a layer, an epoch or a run derives its own stream from.

    Args:
        key: int32, shape ``[..., 2]``.
        data: an integer, or an int32 tensor that broadcasts against ``key[..., 0]``.
    """
    data = torch.as_tensor(data, dtype=torch.int32, device=key.device)
    first = _mix(key[..., 0] + _GOLDEN * data, key[..., 1])
    return torch.stack([first, _mix(first + _GOLDEN, key[..., 0] ^ data)], dim=-1)


def split_key(key: Tensor | None, num: int) -> Sequence[Tensor | None]:
    """`num` keys derived from one, or as many ``None`` from ``None``, which means no dropout."""
    if key is None:
        return [None] * num
    return fold_in(key, torch.arange(num, dtype=torch.int32, device=key.device)).unbind()


def dropout(x: Tensor, p: float, key: Tensor | None, among: Excerpt | None = None) -> Tensor:
    """``x * mask / (1 - p)`` with independent ``mask ~ Bernoulli(1 - p)``; ``x`` itself if `key` is None.

    `p` is rounded to a multiple of 2^-16 and the scale matches the rounded value, so the expectation is exact.

    Args:
        x: any tensor.
        p: probability that an element is set to zero, in [0, 1).
        key: int32 tensor of shape ``[2]`` from `make_key` or `fold_in`.
        among: which rows of a larger tensor these are; they get the mask that they would have there. By default the
            nodes that are computed on, see `graphjoule.graph.nodes`.
    """
    if key is None or p == 0:
        return x
    if among is None:
        among = current_nodes().row_ids
    if backend_for(x) == "triton" and x.numel() and among is None:
        from graphjoule.ops.triton_gather import drop

        fused = of_all_runs(lambda x, keys: drop(x.contiguous(), keys.contiguous(), p), x.dim())
        return linear_map(x, fused, key)
    mask: Tensor = _KeepMask.apply(key, x.shape, p, x.dtype, among)  # type: ignore[no-untyped-call]
    return x * mask


@with_signature
class _KeepMask(torch.autograd.Function):
    """``mask / (1 - p)`` of a key; a Function only because the hash wants to see all runs' keys at once."""

    @staticmethod
    def forward(key: Tensor, shape: Sequence[int], p: float, dtype: torch.dtype, among: Excerpt | None) -> Tensor:
        return keep_mask(key[None], shape, p, dtype, among)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        return None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], key: Tensor, *settings: Any) -> tuple[Tensor, int]:
        return keep_mask(key.movedim(in_dims[0], 0), *settings), 0


def keep_mask(keys: Tensor, shape: Sequence[int], p: float, dtype: torch.dtype, among: Excerpt | None = None) -> Tensor:
    """Masks of several keys, shape ``[num_keys, *shape]``.

    Each 32-bit hash serves two elements: its low half the one at its own place, its high half the one half a tensor on.
    """
    if among is None:
        mask = torch.empty(len(keys), *shape, dtype=dtype, device=keys.device)
        if backend_for(mask) == "native":
            for key, of_key in zip(keys.tolist(), mask.fill_(keep_scale(p)), strict=True):
                drop(of_key, of_key, Mask.of(key, dropped_of_65536(p), of_key.numel()))
            return mask
        count = math.prod(shape)
        words = hash_words(keys, (count + 1) // 2)
        bits = torch.cat([words & 0xFFFF, (words >> 16) & 0xFFFF], dim=1)[:, :count]
        keep = (bits >= dropped_of_65536(p)).to(dtype)
        return keep.mul_(keep_scale(p)).view(len(keys), *shape)
    # The rows `among` of the masks of the larger tensor, some rows at a time.
    width = math.prod(shape[1:])
    mask = torch.empty(len(keys), len(among), width, dtype=dtype, device=keys.device)
    rows_at_once = max(1, _ELEMENTS_AT_ONCE // max(1, width))
    for start in range(0, len(among), rows_at_once):
        rows = slice(start, start + rows_at_once)
        word, is_high = words_of_excerpt(Excerpt(among.index[rows], among.total), width)
        words = _mix(word + keys[:, :1, None], keys[:, 1:, None])
        mask[:, rows] = (torch.where(is_high, words >> 16, words) & 0xFFFF) >= dropped_of_65536(p)
    return mask.mul_(keep_scale(p)).view(len(keys), *shape)


def words_of_excerpt(among: Excerpt, width: int) -> tuple[Tensor, Tensor]:
    """Which hash each element of some rows of a larger tensor draws from, and whether from its high half.

    Args:
        among: the rows.
        width: number of elements of a row.

    Returns:
        int32 and bool, both of shape ``[len(among), width]``.
    """
    count = among.total * width
    half = (count + 1) // 2
    dtype = torch.int32 if count < 2**31 else torch.int64  # half the memory, where it will do
    first = (among.index * width).to(dtype)[:, None]
    element = first + torch.arange(width, dtype=dtype, device=first.device)
    is_high = element >= half
    return element.sub_(torch.where(is_high, half, 0).to(dtype)).int(), is_high


def dropped_of_65536(p: float) -> int:
    """How many of the 2^16 values of half a hash mean "dropped"; never all of them, where the scale is infinite."""
    return min(round(p * 2**16), 2**16 - 1)


def keep_scale(p: float) -> float:
    """What kept elements are multiplied with, ``1 / (1 - p)`` for the rounded `p`."""
    return 2**16 / (2**16 - dropped_of_65536(p))


def hash_words(keys: Tensor, num: int) -> Tensor:
    """The first `num` 32-bit words of the streams of several keys, int32, shape ``[num_keys, num]``."""
    counter = torch.arange(num, dtype=torch.int32, device=keys.device)
    return _mix(counter + keys[:, :1], keys[:, 1:])


def _mix(word: Tensor, key: Tensor) -> Tensor:
    """Hash 32-bit words under a 32-bit key. int32 shifts copy the sign bit, hence the masks."""
    word = word ^ ((word >> 16) & 0xFFFF)
    word = word * _MULTIPLIERS[0] ^ key
    word = word ^ ((word >> 15) & 0x1FFFF)
    word = word * _MULTIPLIERS[1]
    return word ^ ((word >> 16) & 0xFFFF)


def hash_halves(counter: Tensor, keys: Tensor, out: Tensor) -> Tensor:
    """Low and high halves of the words of several streams on a CPU: `hash_words` in few passes and no fresh memory.

    The high half of a word is the last shift of `_mix`, so it costs nothing extra. Constants are tensors because torch
    wraps and converts a Python number at every call, which takes as long as the operation itself.

    Args:
        counter: int32, ``0, 1, 2, ...``.
        keys: int32, shape ``[num_keys, 2]``.
        out: int32, filled, shape ``[num_keys, 2, len(counter)]``.
    """
    low, high = out.unbind(1)
    torch.add(counter, keys[:, :1], out=low)
    torch.bitwise_right_shift(low, _16, out=high)
    low.bitwise_xor_(high.bitwise_and_(_16_BITS)).mul_(_MULTIPLIER_TENSORS[0]).bitwise_xor_(keys[:, 1:])
    torch.bitwise_right_shift(low, _15, out=high)
    low.bitwise_xor_(high.bitwise_and_(_17_BITS)).mul_(_MULTIPLIER_TENSORS[1])
    torch.bitwise_right_shift(low, _16, out=high)
    low.bitwise_xor_(high.bitwise_and_(_16_BITS)).bitwise_and_(_16_BITS)
    return out
