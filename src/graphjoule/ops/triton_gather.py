"""One Triton kernel for every sparse product: a weighted gather of rows, with dropout and residuals fused.

``out[r, i] = a * sum_e value[e] x[r, col[e]] + alpha x[r, i] + beta x0[r, i]`` over the entries ``e`` of row ``i``.
A program makes a few rows of equal length of one run, in step. A hub gets a program to itself that reads many entries
at once, so that no program runs for long. Every sum has a fixed order, so results repeat to the bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphjoule.graph.csr import Rows
from graphjoule.ops.dropout import dropped_of_65536, keep_scale

NO_DROP, DROP_INPUT, DROP_OUTPUT, DROP_VALUE = 0, 1, 2, 3


class Tile(NamedTuple):
    """What a program makes: so many channels of some rows, some entries of each at once; of a hub alone other numbers.

    A hub's chain of loads is the shorter the more entries are read at once, so with fewer channels. With `hint` the
    cache is asked to keep what is gathered and not what passes by; with `unroll` entries are read one after the other.
    """

    channels: int
    rows: int
    entries: int
    warps: int
    hub_channels: int
    hub_entries: int
    hint: bool = False
    unroll: bool = False


# By sweeps on an H200; by bytes of an element. Wide rows are gathered in pieces of 128 bytes: of 169,343 nodes these
# fit into the cache. In float32 an epoch of 32 layers took 85 ms so, and 90 with the hint and the hubs of bfloat16.
# Narrow rows of bfloat16 take up to three times as long with a tile of eight rows by eight entries, and 1.2 times with
# the wide one.
_TILE = {4: Tile(64, 8, 4, 4, 64, 64), 2: Tile(64, 16, 4, 4, 64, 64)}
_WIDE = {4: Tile(32, 8, 8, 2, 32, 64, unroll=True), 2: Tile(64, 8, 8, 2, 16, 128, hint=True, unroll=True)}
_NARROW, _MANY = 4, 2**18  # rows of few channels where runs have many: ten of 100,000 x 16 took 0.39 ms, so 0.10
_BLOCK = 1024


def gather(
    x: Tensor,
    rows: Rows,
    value: Tensor,
    *,
    a: float = 1.0,
    alpha: float = 0.0,
    beta: float = 0.0,
    x0: Tensor | None = None,
    add_to: Tensor | None = None,
    drop: int = NO_DROP,
    p: float = 0.0,
    keys: Tensor | None = None,
    value_id: Tensor | None = None,
    velocity: Tensor | None = None,
    speed: Tensor | None = None,
    keep: float = 1.0,
    h: float = 1.0,
    parts: int = 0,
) -> Tensor:
    """The gather described above; with a `velocity`, a layer of a wave.

    With ``f = speed * (a * sum + alpha x) + beta (x0 - x)`` the velocity becomes ``v = keep v + f``, and
    ``out = x + h v``.

    Args:
        x: what is gathered, contiguous, shape ``[runs, num_cols, channels]``.
        rows: the matrix.
        value: its entries.
        a: factor of the sum.
        alpha: factor of the row's own ``x`` (square matrices).
        beta: factor of `x0`, or of what is added to `add_to`.
        x0: added with factor `beta`, shape ``[runs, num_rows, channels]``.
        add_to: gets ``beta * x`` of the row added in place, the other half of a backward residual.
        drop: what dropout applies to: nothing, the gathered ``x``, the output, or the entries.
        p: dropout probability.
        keys: dropout key of every run, shape ``[runs, 2]``.
        value_id: number of every entry in the dropout stream, by default its position.
        velocity: changed in place, shape ``[runs, num_rows, channels]``; needs an `alpha` and knows no dropout.
        speed: factor of every channel, shape ``[channels]``; 1 by default.
        keep: what a layer leaves of the velocity.
        h: step along the velocity.
        parts: 0 for an output like `x`; else it is the sum of so many bfloat16, ``[runs, parts, num_rows, channels]``.
    """
    runs, num_cols, channels = x.shape
    shape = (runs, parts, rows.num_rows, channels) if parts else (runs, rows.num_rows, channels)
    out = torch.empty(shape, dtype=torch.bfloat16 if parts else x.dtype, device=x.device)
    if keys is None or p == 0:
        drop = NO_DROP
    count = {DROP_VALUE: value.numel(), DROP_OUTPUT: rows.num_rows * channels}.get(drop, num_cols * channels)
    scale = keep_scale(p) if drop != NO_DROP else 1.0
    anything: Any = x
    common = (
        out, x, rows.rowptr, rows.col, value, anything if value_id is None else value_id,
        anything if x0 is None else x0, anything if add_to is None else add_to, anything if keys is None else keys,
        anything if velocity is None else velocity, anything if speed is None else speed,
    )  # fmt: skip
    numbers = (num_cols, rows.num_rows, channels, a, alpha, beta, (count + 1) // 2, dropped_of_65536(p), scale, keep, h)
    tile = (_TILE if channels <= 64 else _WIDE)[x.element_size()]
    width = triton.next_power_of_2(channels)
    block, hub_block = min(tile.channels, width), min(tile.hub_channels, width)
    flags = {
        "DROP": drop, "HAS_X0": x0 is not None, "HAS_ADD": add_to is not None, "HAS_ID": value_id is not None,
        "HAS_ALPHA": alpha != 0.0, "HAS_V": velocity is not None, "HAS_SPEED": speed is not None,
        "PARTS": parts, "UNROLL": tile.unroll, "HINT": tile.hint,
    }  # fmt: skip
    rows_at_once = tile.rows
    if channels < 64 and runs * rows.short.numel() >= _MANY:
        rows_at_once *= min(_NARROW, 64 // block)
    num_short, num_long = rows.short.numel(), rows.long.numel()
    num_hub_programs = num_long * triton.cdiv(channels, hub_block)
    programs = num_hub_programs + triton.cdiv(num_short, rows_at_once) * triton.cdiv(channels, block)
    _gather_kernel[(programs, runs)](
        rows.short, rows.short_start, rows.short_end, rows.long, num_short, num_hub_programs, *common, *numbers,
        **flags,
        BLOCK=block, ROWS=rows_at_once, ENTRIES=tile.entries, HUB_BLOCK=hub_block, HUB_ENTRIES=tile.hub_entries,
        num_warps=tile.warps,
    )  # fmt: skip
    return out


def drop(x: Tensor, keys: Tensor, p: float) -> Tensor:
    """Dropout in one pass: the hash, the comparison and the product in one kernel.

    Args:
        x: contiguous, shape ``[runs, ...]``.
        keys: dropout key of every run, contiguous, shape ``[runs, 2]``.
        p: dropout probability.
    """
    out = torch.empty_like(x)
    count = x[0].numel()
    _dropout_kernel[(triton.cdiv(count, _BLOCK), len(x))](
        x, out, keys, count, (count + 1) // 2, dropped_of_65536(p), keep_scale(p), BLOCK=_BLOCK
    )
    return out


@triton.jit
def _mixed(word, key):  # type: ignore[no-untyped-def]
    """`graphjoule.ops.dropout._mix` on unsigned words."""
    word = word ^ (word >> 16)
    word = (word * 0x7FEB352D) ^ key
    word = word ^ (word >> 15)
    word = word * 0x846CA68B
    return word ^ (word >> 16)


@triton.jit
def kept(index, key0, key1, half, dropped):  # type: ignore[no-untyped-def]
    """Whether the elements at `index` are kept, as `graphjoule.ops.dropout` decides it."""
    is_high = index >= half
    word = _mixed(tl.where(is_high, index - half, index).to(tl.uint32) + key0, key1)
    bits = tl.where(is_high, word >> 16, word & 0xFFFF)
    return bits.to(tl.int32) >= dropped


@triton.jit
def _gather_kernel(  # type: ignore[no-untyped-def]
    short, short_start, short_end, long, num_short, num_hub_programs,
    out, x, rowptr, col, value, value_id, x0, add_to, keys, velocity, speed,
    num_cols, num_rows, channels, a, alpha, beta, half, dropped, scale, keep, h,
    DROP: tl.constexpr, HAS_X0: tl.constexpr, HAS_ADD: tl.constexpr, HAS_ID: tl.constexpr, HAS_ALPHA: tl.constexpr,
    HAS_V: tl.constexpr, HAS_SPEED: tl.constexpr, PARTS: tl.constexpr, UNROLL: tl.constexpr, HINT: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, ENTRIES: tl.constexpr, HUB_BLOCK: tl.constexpr,
    HUB_ENTRIES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < num_hub_programs:  # the longest first, all channels of it: nobody shall wait for a hub at the end
        blocks = tl.cdiv(channels, HUB_BLOCK)
        hub = tl.load(long + program // blocks + tl.arange(0, 1))
        _make_rows(
            hub, hub >= 0, tl.load(rowptr + hub), tl.load(rowptr + hub + 1), program % blocks,
            out, x, col, value, value_id, x0, add_to, keys, velocity, speed,
            num_cols, num_rows, channels, a, alpha, beta, half, dropped, scale, keep, h,
            DROP, HAS_X0, HAS_ADD, HAS_ID, HAS_ALPHA, HAS_V, HAS_SPEED, PARTS, False, HINT, HUB_BLOCK, 1, HUB_ENTRIES,
        )  # fmt: skip
    else:  # some channels of all rows, then the next: what is gathered at a time fits better into the cache
        program -= num_hub_programs
        tiles = tl.cdiv(num_short, ROWS)
        place = program % tiles * ROWS + tl.arange(0, ROWS)
        is_row = place < num_short
        row = tl.load(short + place, mask=is_row, other=0)
        start = tl.load(short_start + place, mask=is_row, other=0)
        end = tl.load(short_end + place, mask=is_row, other=0)
        _make_rows(
            row, is_row, start, end, program // tiles, out, x, col, value, value_id, x0, add_to, keys, velocity, speed,
            num_cols, num_rows, channels, a, alpha, beta, half, dropped, scale, keep, h,
            DROP, HAS_X0, HAS_ADD, HAS_ID, HAS_ALPHA, HAS_V, HAS_SPEED, PARTS, UNROLL, HINT, BLOCK, ROWS, ENTRIES,
        )  # fmt: skip


@triton.jit
def _make_rows(  # type: ignore[no-untyped-def]
    row, is_row, start, end, block, out, x, col, value, value_id, x0, add_to, keys, velocity, speed,
    num_cols, num_rows, channels, a, alpha, beta, half, dropped, scale, keep, h,
    DROP: tl.constexpr, HAS_X0: tl.constexpr, HAS_ADD: tl.constexpr, HAS_ID: tl.constexpr, HAS_ALPHA: tl.constexpr,
    HAS_V: tl.constexpr, HAS_SPEED: tl.constexpr, PARTS: tl.constexpr, UNROLL: tl.constexpr, HINT: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    channel = block * BLOCK + tl.arange(0, BLOCK)
    is_channel = channel < channels
    x += run * num_cols * channels
    if DROP != 0:
        key0 = tl.load(keys + 2 * run).to(tl.uint32, bitcast=True)
        key1 = tl.load(keys + 2 * run + 1).to(tl.uint32, bitcast=True)

    keep_x: tl.constexpr = "evict_last" if HINT else ""
    pass_by: tl.constexpr = "evict_first" if HINT else ""
    inside = is_row[:, None] & is_channel[None, :]
    own_element = row[:, None] * channels + channel[None, :]
    if HAS_ALPHA or HAS_ADD:  # asked for before the sum, so that nobody waits for it after
        own = tl.load(x + own_element, mask=inside, other=0.0).to(tl.float32)
    if HAS_X0:
        origin = tl.load(
            x0 + run * num_rows * channels + own_element, mask=inside, other=0.0, eviction_policy=pass_by
        ).to(tl.float32)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for first in range(0, tl.max(end - start), ENTRIES):
        if UNROLL:
            for step in tl.static_range(ENTRIES):
                entry = start + first + step
                there = entry < end
                source = tl.load(col + entry, mask=there, other=0, eviction_policy=pass_by)
                weight = tl.load(value + entry, mask=there, other=0.0, eviction_policy=pass_by)
                if DROP == 3:
                    number = tl.load(value_id + entry, mask=there, other=0).to(tl.int32) if HAS_ID else entry
                    weight = tl.where(kept(number, key0, key1, half, dropped), weight, 0.0)
                element = source[:, None] * channels + channel[None, :]
                part = tl.load(
                    x + element, mask=there[:, None] & is_channel[None, :], other=0.0, eviction_policy=keep_x
                ).to(tl.float32)
                if DROP == 1:
                    part = tl.where(kept(element, key0, key1, half, dropped), part, 0.0)
                total += weight[:, None] * part
        else:
            entry = start[:, None] + first + tl.arange(0, ENTRIES)[None, :]
            there = entry < end[:, None]
            source = tl.load(col + entry, mask=there, other=0)
            weight = tl.load(value + entry, mask=there, other=0.0)
            if DROP == 3:
                number = tl.load(value_id + entry, mask=there, other=0).to(tl.int32) if HAS_ID else entry
                weight = tl.where(kept(number, key0, key1, half, dropped), weight, 0.0)
            element = source[:, :, None] * channels + channel[None, None, :]
            part = tl.load(
                x + element, mask=there[:, :, None] & is_channel[None, None, :], other=0.0, eviction_policy=keep_x
            ).to(tl.float32)
            if DROP == 1:
                part = tl.where(kept(element, key0, key1, half, dropped), part, 0.0)
            total += tl.sum(weight[:, :, None] * part, axis=1)
    total *= a

    element = own_element
    if HAS_ALPHA or HAS_ADD:
        if HAS_ADD:
            place = add_to + run * num_rows * channels + element
            tl.store(place, tl.load(place, mask=inside, other=0.0) + beta * own, mask=inside)
        if DROP == 1:
            own = tl.where(kept(element, key0, key1, half, dropped), own, 0.0)
        if HAS_ALPHA:
            total += alpha * own
    if DROP == 2:
        total = tl.where(kept(element, key0, key1, half, dropped), total, 0.0)
    total *= scale
    if HAS_SPEED:
        total *= tl.load(speed + channel, mask=is_channel, other=0.0)[None, :]
    if HAS_X0:
        total += beta * origin
        if HAS_V:
            total -= beta * own
    if HAS_V:
        place = velocity + run * num_rows * channels + element
        total += keep * tl.load(place, mask=inside, other=0.0)
        tl.store(place, total, mask=inside)
        total = own + h * total
    if PARTS == 0:
        tl.store(out + run * num_rows * channels + element, total, mask=inside, eviction_policy=pass_by)
    else:
        place = out + run * PARTS * num_rows * channels + element
        hi = total.to(tl.bfloat16)
        tl.store(place, hi, mask=inside, eviction_policy=pass_by)
        if PARTS == 2:
            lo = (total - hi.to(tl.float32)).to(tl.bfloat16)
            tl.store(place + num_rows * channels, lo, mask=inside, eviction_policy=pass_by)


@triton.jit
def _dropout_kernel(x, out, keys, count, half, dropped, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    run = tl.program_id(1).to(tl.int64)
    key0 = tl.load(keys + 2 * run).to(tl.uint32, bitcast=True)
    key1 = tl.load(keys + 2 * run + 1).to(tl.uint32, bitcast=True)
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = element < count
    value = tl.load(x + run * count + element, mask=inside).to(tl.float32)
    value = tl.where(kept(element, key0, key1, half, dropped), value * scale, 0.0)
    tl.store(out + run * count + element, value, mask=inside)
