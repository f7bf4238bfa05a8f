"""EGNN's stack as one kernel that stays on the GPU for all layers: every layer is a gather, a product and a barrier.

On a small graph the kernels of a layer mostly wait for each other. Here as many programs as the GPU holds at once keep
their rows from layer to layer, and what a kernel's end did, a counter does: nobody begins a layer before all have
written the one before. A row's entries are cut into slots of at most a few, and slots are packed into tiles, so that a
hub takes as long as any other row.

The backward pass has the same shape. What it leaves out, ``M^T G`` of all layers, is one kernel of its own afterwards.

`tools.persistent` measures it against the kernels of the package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphjoule.graph.csr import Rows
from graphjoule.ops.dropout import dropped_of_65536, keep_scale
from graphjoule.ops.stack_triton import Stack
from graphjoule.ops.triton_gather import DROP_OUTPUT, drop, gather, kept

PRECISION = "tf32x3"
_SUM_ROWS = 32
_REGISTERS, _LANES = 65_536, 32  # of a multiprocessor and of a warp


@dataclass
class Plan:
    """How the kernels are cut: slots of a tile, entries that a slot should have at most, programs of a multiprocessor.

    Attributes:
        slots: rows or pieces of rows that one tile makes.
        entries: of a slot that are read at once.
        programs: that share a multiprocessor.
        warps: of a program.
        stretches: programs that share the sum of a layer's weight gradient.
    """

    slots: int = 16
    entries: int = 8
    programs: int = 2
    warps: int = 4
    stretches: int = 4


@dataclass
class Slots:
    """The rows of a matrix in slots, a tile of slots after the other, the longest first.

    Attributes:
        row: of every slot, -1 for an empty one.
        start: of its entries.
        end: likewise.
        is_first: 1 where a slot is the first of its row: it gets the row's sum.
        is_cut: 1 for tiles in which a row has more than one slot.
    """

    row: Tensor
    start: Tensor
    end: Tensor
    is_first: Tensor
    is_cut: Tensor

    @classmethod
    def of(cls, rows: Rows, plan: Plan) -> Slots:
        """Cut and pack; a row that is longer than a tile's slots gets a whole tile and longer slots."""
        starts = rows.rowptr.tolist()
        length = rows.rowptr.diff().cpu()
        order = torch.argsort(length, descending=True, stable=True).tolist()
        packed: list[tuple[int, int, int, int]] = []
        empty = (-1, 0, 0, 1)
        for row in order:
            begin, stop = starts[row], starts[row + 1]
            pieces = min(plan.slots, max(1, -(-(stop - begin) // plan.entries)))
            if len(packed) % plan.slots + pieces > plan.slots:
                packed += [empty] * (-len(packed) % plan.slots)
            step = -(-(stop - begin) // pieces)
            for piece in range(pieces):
                first = min(begin + piece * step, stop)
                packed.append((row, first, min(first + step, stop), int(piece == 0)))
        packed += [empty] * (-len(packed) % plan.slots)
        table = torch.tensor(packed, dtype=torch.int32).T.contiguous()
        is_cut = (table[3].view(-1, plan.slots) == 0).any(1).int()
        return cls(*(t.contiguous().to(rows.col.device) for t in (*table, is_cut)))


_slots: WeakKeyDictionary[Rows, dict[tuple[int, int], Slots]] = WeakKeyDictionary()


def slots_of(rows: Rows, plan: Plan) -> Slots:
    """The slots of a matrix, made once."""
    of_rows = _slots.setdefault(rows, {})
    key = (plan.slots, plan.entries)
    if key not in of_rows:
        of_rows[key] = Slots.of(rows, plan)
    return of_rows[key]


@dataclass
class PersistentStack(Stack):
    """The stack in one kernel forward and three backward; what it cannot do, it leaves to `Stack`."""

    plan: Plan = field(default_factory=Plan)

    @property
    def _is_for_us(self) -> bool:
        whole = self.segment is None or self.segment >= self.num_layers
        fits = len(self.x0) <= num_multiprocessors(self.x0.device) * self.plan.programs
        return whole and fits and self.show is None and self.activations == torch.float32

    def run_forward(self) -> Tensor:
        """See `StackBody.run_forward`."""
        if not self._is_for_us:
            return super().run_forward()
        (runs, n, d), layers = self.x0.shape, self.num_layers
        has_drop = self.keys is not None and self.p > 0
        word = min(d, 32)
        wants_active = self.needs_backward and self.shifts is not None
        mixed = self.x0.new_empty(layers if self.needs_backward else 0, runs, n, d)
        active = self.x0.new_empty(layers if wants_active else 0, runs, n, d // word, dtype=torch.int32)
        first = drop(self.x0, self.keys[0], self.p) if has_drop else self.x0  # type: ignore[index]
        between = self.x0.new_empty(2, runs, n, d)
        anything = self.x0
        self._launch(
            _forward_kernel, layers, first, self.x0, self.weights, anything if self.shifts is None else self.shifts,
            self.keys if has_drop else anything, mixed, active, between,
            HAS_SHIFT=self.shifts is not None, HAS_DROP=has_drop, REMEMBER=self.needs_backward,
            WANT_ACTIVE=wants_active, WORD=word,
        )  # fmt: skip
        if self.needs_backward:
            self.boundaries[0] = self.x0
            self.remembered[0] = (mixed, active if wants_active else None)
        return between[layers % 2]

    def run_backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `StackBody.run_backward`."""
        if not self._is_for_us:
            return super().run_backward(grad)
        self.ensure_forward()
        self.boundaries.clear()
        mixed, active = self.remembered.pop(0)
        (runs, n, d), layers = self.x0.shape, self.num_layers
        has_drop = self.keys is not None and self.p > 0
        word = min(d, 32)
        grads = self.x0.new_empty(layers, runs, n, d)
        grads[-1] = grad
        between = self.x0.new_empty(2, runs, n, d)
        grad_x0 = torch.zeros_like(self.x0)
        anything = self.x0
        self._launch(
            _backward_kernel, layers, grads, self.weights, anything if active is None else active,
            self.keys if has_drop else anything, between, grad_x0,
            HAS_SHIFT=active is not None, HAS_DROP=has_drop, WORD=word,
        )  # fmt: skip
        rest = gather(
            between[0], self.graph.rows, self.graph.value, a=1 - self.c_min, alpha=self.alpha, beta=self.beta,
            add_to=grad_x0, drop=DROP_OUTPUT, p=self.p, keys=self._key(0),
        )  # fmt: skip
        stretches = self.plan.stretches
        partial = self.x0.new_empty(layers, runs, stretches, d + 1, d)
        _weight_grad_kernel[(stretches, layers * runs)](
            grads, mixed, grads if active is None else active, partial, n, -(-n // (_SUM_ROWS * stretches)),
            D=d, ROWS=_SUM_ROWS, WORD=word, HAS_SHIFT=active is not None, PRECISION=PRECISION, num_warps=4,
        )  # fmt: skip
        self.sums = [partial.sum(dim=2)]
        return grad_x0.add_(rest), *self.parameter_grads()

    def _launch(self, kernel: Any, layers: int, *tensors: Tensor, **flags: Any) -> None:
        """All layers in one launch; in Triton's interpreter, where programs take turns, a launch for each."""
        runs, n, d = self.x0.shape
        plan = self.plan
        slots = slots_of(self.graph.rows, plan)
        tiles = slots.is_cut.numel()
        is_gpu = self.x0.is_cuda
        counters = torch.zeros(runs, dtype=torch.int32, device=self.x0.device)
        room = num_multiprocessors(self.x0.device) * plan.programs
        programs = max(1, min(tiles, room // runs))
        options = {}
        if is_gpu:  # all programs must fit at once, or they would wait for one that never begins
            registers = _REGISTERS // (plan.programs * plan.warps * _LANES) // 8 * 8
            options = {"launch_cooperative_grid": True, "maxnreg": min(255, registers)}
        for step in range(1 if is_gpu else layers):
            begin, end = (0, layers) if is_gpu else (step, step + 1)
            kernel[(programs, runs)](
                slots.row, slots.start, slots.end, slots.is_first, slots.is_cut, tiles, self.graph.rows.col,
                self.graph.value, *tensors, counters, begin, end, layers, runs, n,
                1 - self.c_min, self.alpha, self.beta, (n * d + 1) // 2, dropped_of_65536(self.p),
                keep_scale(self.p) if flags["HAS_DROP"] else 1.0,
                D=d, SLOTS=plan.slots, ENTRIES=plan.entries, PRECISION=PRECISION, **flags,
                num_warps=plan.warps, **options,
            )  # fmt: skip


def num_multiprocessors(device: torch.device) -> int:
    """Of a GPU; the interpreter pretends to have four."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@triton.jit
def _wait_for_all(counter, target):  # type: ignore[no-untyped-def]
    """What all programs of a run have written before, each of them sees after."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")
    seen = tl.atomic_add(counter, 0, sem="acquire")
    while seen < target:
        seen = tl.atomic_add(counter, 0, sem="acquire")
    tl.debug_barrier()


@triton.jit
def _sums(  # type: ignore[no-untyped-def]
    x, col, value, row, start, end, is_first, is_cut, D: tl.constexpr, SLOTS: tl.constexpr, ENTRIES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """``sum_e value[e] x[col[e]]`` of a tile; of a row in pieces its first slot gets all."""
    channel = tl.arange(0, D)
    total = tl.zeros((SLOTS, D), dtype=tl.float32)
    for first in range(0, tl.max(end - start), ENTRIES):
        entry = start[:, None] + first + tl.arange(0, ENTRIES)[None, :]
        there = entry < end[:, None]
        source = tl.load(col + entry, mask=there, other=0)
        weight = tl.load(value + entry, mask=there, other=0.0)
        part = tl.load(  # past the first cache, which knows nothing of what others have written
            x + source[:, :, None] * D + channel[None, None, :], mask=there[:, :, None], other=0.0, cache_modifier=".cg"
        )
        total += tl.sum(weight[:, :, None] * part, axis=1)
    if is_cut:
        same = (row[:, None] == row[None, :]) & (is_first[:, None] != 0)
        total = tl.dot(same.to(tl.float32), total, input_precision=PRECISION)
    return total


@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    slot_row, slot_start, slot_end, slot_is_first, tile_is_cut, tiles, col, value,
    first_x, x0, weights, shifts, keys, mixed, active, between,
    counters, begin, stop, layers, runs, n, a, alpha, beta, half, dropped, scale,
    D: tl.constexpr, SLOTS: tl.constexpr, ENTRIES: tl.constexpr, PRECISION: tl.constexpr, WORD: tl.constexpr,
    HAS_SHIFT: tl.constexpr, HAS_DROP: tl.constexpr, REMEMBER: tl.constexpr, WANT_ACTIVE: tl.constexpr,
):  # fmt: skip
    programs = tl.num_programs(0)
    run = tl.program_id(1).to(tl.int64)
    size = runs.to(tl.int64) * n * D
    d = tl.arange(0, D)
    weight = weights + run * layers * D * D + d[:, None] * D + d[None, :]
    w = tl.load(weight + begin * D * D)
    for k in range(begin, stop):
        x = between + (k % 2) * size + run * n * D
        if k == 0:
            x = first_x + run * n * D
        out = between + ((k + 1) % 2) * size + run * n * D
        if HAS_SHIFT:
            b = tl.load(shifts + (run * layers + k) * D + d)[None, :]
        if HAS_DROP:
            next_key = keys + (tl.minimum(k + 1, layers - 1) * runs + run) * 2
            key0 = tl.load(next_key).to(tl.uint32, bitcast=True)
            key1 = tl.load(next_key + 1).to(tl.uint32, bitcast=True)
        for tile in range(tl.program_id(0), tiles, programs):
            slot = tile * SLOTS + tl.arange(0, SLOTS)
            row = tl.load(slot_row + slot)
            is_first = tl.load(slot_is_first + slot)
            inside = ((row >= 0) & (is_first != 0))[:, None]
            element = tl.maximum(row, 0)[:, None] * D + d[None, :]
            own = tl.load(x + element, mask=inside, other=0.0, cache_modifier=".cg")
            origin = tl.load(x0 + run * n * D + element, mask=inside, other=0.0)
            total = _sums(
                x, col, value, row, tl.load(slot_start + slot), tl.load(slot_end + slot), is_first,
                tl.load(tile_is_cut + tile) != 0, D, SLOTS, ENTRIES, PRECISION,
            )  # fmt: skip
            total = a * total + alpha * own + beta * origin
            if REMEMBER:
                tl.store(mixed + k * size + run * n * D + element, total, mask=inside)
            z = tl.dot(total, w, input_precision=PRECISION)
            if HAS_SHIFT:
                below = z <= b  # false for NaN, which must stay visible
                z = tl.where(below, b, z)
                if WANT_ACTIVE:
                    bits = tl.reshape((~below).to(tl.int32), (SLOTS, D // WORD, WORD))
                    bits = bits << tl.arange(0, WORD)[None, None, :]
                    word = tl.arange(0, D // WORD)
                    place = (k * runs + run) * n * (D // WORD) + tl.maximum(row, 0)[:, None] * (D // WORD)
                    tl.store(active + place + word[None, :], tl.sum(bits, axis=2), mask=inside)
            if HAS_DROP:
                z = tl.where(kept(element, key0, key1, half, dropped) | (k + 1 == layers), z, 0.0)
                z *= tl.where(k + 1 == layers, 1.0, scale)
            tl.store(out + element, z, mask=inside)
        w = tl.load(weight + tl.minimum(k + 1, layers - 1) * D * D)  # on its way while others are waited for
        if k + 1 < stop:
            _wait_for_all(counters + run, (k + 1 - begin) * programs)


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    slot_row, slot_start, slot_end, slot_is_first, tile_is_cut, tiles, col, value,
    grads, weights, active, keys, between, grad_x0,
    counters, begin, stop, layers, runs, n, a, alpha, beta, half, dropped, scale,
    D: tl.constexpr, SLOTS: tl.constexpr, ENTRIES: tl.constexpr, PRECISION: tl.constexpr, WORD: tl.constexpr,
    HAS_SHIFT: tl.constexpr, HAS_DROP: tl.constexpr,
):  # fmt: skip
    programs = tl.num_programs(0)
    run = tl.program_id(1).to(tl.int64)
    size = runs.to(tl.int64) * n * D
    d = tl.arange(0, D)
    weight = weights + run * layers * D * D + d[None, :] * D + d[:, None]
    w = tl.load(weight + (layers - 1 - begin) * D * D)
    for step in range(begin, stop):
        k = layers - 1 - step  # the layer whose output's gradient is at hand, once that of layer k + 1's input is
        y = between + ((k + 1) % 2) * size + run * n * D
        out = between + (k % 2) * size + run * n * D
        if HAS_DROP:
            key = keys + (tl.minimum(k + 1, layers - 1) * runs + run) * 2
            key0 = tl.load(key).to(tl.uint32, bitcast=True)
            key1 = tl.load(key + 1).to(tl.uint32, bitcast=True)
        for tile in range(tl.program_id(0), tiles, programs):
            slot = tile * SLOTS + tl.arange(0, SLOTS)
            row = tl.load(slot_row + slot)
            is_first = tl.load(slot_is_first + slot)
            inside = ((row >= 0) & (is_first != 0))[:, None]
            element = tl.maximum(row, 0)[:, None] * D + d[None, :]
            place = grads + k * size + run * n * D + element
            if step == 0:
                g = tl.load(place, mask=inside, other=0.0)
            else:
                own = tl.load(y + element, mask=inside, other=0.0, cache_modifier=".cg")
                to_x0 = grad_x0 + run * n * D + element
                before = tl.load(to_x0, mask=inside, other=0.0)
                g = _sums(
                    y, col, value, row, tl.load(slot_start + slot), tl.load(slot_end + slot), is_first,
                    tl.load(tile_is_cut + tile) != 0, D, SLOTS, ENTRIES, PRECISION,
                )  # fmt: skip
                tl.store(to_x0, before + beta * own, mask=inside)
                g = a * g + alpha * own
                if HAS_DROP:
                    g = tl.where(kept(element, key0, key1, half, dropped), g, 0.0) * scale
                tl.store(place, g, mask=inside)
            if HAS_SHIFT:
                words = (k * runs + run) * n * (D // WORD) + tl.maximum(row, 0)[:, None] * (D // WORD)
                on = tl.load(active + words + (d // WORD)[None, :], mask=inside, other=0) >> (d % WORD)[None, :]
                g = tl.where((on & 1) == 0, 0.0, g)
            tl.store(out + element, tl.dot(g, w, input_precision=PRECISION), mask=inside)
        w = tl.load(weight + tl.maximum(k - 1, 0) * D * D)
        if step + 1 < stop:
            _wait_for_all(counters + run, (step + 1 - begin) * programs)


@triton.jit
def _weight_grad_kernel(  # type: ignore[no-untyped-def]
    grads, mixed, active, partial, n, steps,
    D: tl.constexpr, ROWS: tl.constexpr, WORD: tl.constexpr, HAS_SHIFT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    layer = tl.program_id(1).to(tl.int64)  # of a run: their sums lie beside each other
    d = tl.arange(0, D)
    grad_weight = tl.zeros((D, D), dtype=tl.float32)
    grad_shift = tl.zeros((D,), dtype=tl.float32)
    for step in range(steps):
        row = (tl.program_id(0) * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < n)[:, None]
        element = layer * n * D + row[:, None] * D + d[None, :]
        g = tl.load(grads + element, mask=inside, other=0.0)
        if HAS_SHIFT:
            words = layer * n * (D // WORD) + row[:, None] * (D // WORD) + (d // WORD)[None, :]
            on = (tl.load(active + words, mask=inside, other=0) >> (d % WORD)[None, :]) & 1
            grad_shift += tl.sum(tl.where(on == 0, g, 0.0), axis=0)
            g = tl.where(on == 0, 0.0, g)
        m = tl.load(mixed + element, mask=inside, other=0.0)
        grad_weight += tl.dot(tl.trans(m), g, input_precision=PRECISION)
    base = (layer * tl.num_programs(0) + tl.program_id(0)) * (D + 1) * D
    tl.store(partial + base + d[:, None] * D + d[None, :], grad_weight)
    tl.store(partial + base + D * D + d, grad_shift)
