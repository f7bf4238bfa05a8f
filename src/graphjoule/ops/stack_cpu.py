"""The EGNN stack on a CPU: few passes over memory, all of them vectorised by PyTorch, into buffers that are used again.

What makes it fast, measured on 173,000 elements (Cora at width 64) with two threads: the residual mix is one sparse
product with ``S = (1 - c_min) P + alpha I``; dense products are oneDNN's where the CPU has AVX-512, which MKL does
not use on an AMD EPYC (0.12 instead of 0.28 ms on one thread); masks are 32-bit patterns of ones applied with a bitwise
and (10 us) where `torch.where` takes 230 us; dropout hashes 84 us where the serial generator draws for 2 ms, on larger
graphs a block of words at a time that stays in a cache; a layer whose SReLU changes nothing, which one minimum tells (9
us), skips it forward and backward; and fresh memory, whose pages must be mapped first, costs more than the arithmetic
that fills it, so that activations take the memory of the epoch before.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from graphjoule.graph.csr import csr_product
from graphjoule.graph.native import Mask, drop
from graphjoule.graph.nodes import Excerpt
from graphjoule.graph.product import Product
from graphjoule.ops.backend import backend_for
from graphjoule.ops.dropout import dropped_of_65536, hash_halves, keep_scale, words_of_excerpt
from graphjoule.ops.egnn import StackBody
from graphjoule.ops.memory import Memory, current_memory

_FEWEST_PRODUCTS = 2**21  # of a matrix product, for which a call of oneDNN takes less time than one of MKL
_SIGN = torch.tensor(31, dtype=torch.int32)
_WORDS = 2**16  # hash words that are made at once, of a tensor with more than _FEW_WORDS
_FEW_WORDS, _LAYERS_AT_ONCE = 2**18, 4  # the calls cost as much as the arithmetic on a small graph
_DROPPED, _EVEN, _ODD = range(3)  # the buffers of a pass


def is_faster_by_onednn(x: Tensor, weights: Tensor) -> bool:
    """Whether ``X W`` for the `weights` of any layer is oneDNN's: the CPU has AVX-512 and the product is large enough.

    `torch.mm` has MKL's. Gradients of weights stay there: they sum over nodes, which oneDNN does no faster and less
    exactly.
    """
    is_large = x.numel() * weights.size(-1) >= _FEWEST_PRODUCTS and x.dtype == torch.float32
    return is_large and _has_wide_vectors()


@cache
def _has_wide_vectors() -> bool:
    has_operator = hasattr(torch.ops.mkldnn, "_linear_pointwise")  # no public call of it takes a plain tensor
    return has_operator and torch.backends.cpu.get_cpu_capability() == "AVX512"


def multiply_by_onednn(x: Tensor, weight: Tensor) -> Tensor:
    """``X W`` of float32 matrices, as `torch.mm` has it up to rounding."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight.t(), None, "none", [], "")
    return product


class Buffered(StackBody):
    """What stacks on a CPU share: one run at a time, and activations in memory that is used again."""

    is_of_one_run = True
    shows_products = True
    num_buffers: int

    def bind(self, x0: Tensor, weights: Tensor, shifts: Tensor | None, keys: Tensor | None) -> None:
        """Buffers are taken for a forward or a backward pass."""
        super().bind(x0, weights, shifts, keys)
        if not hasattr(self, "_memory"):
            self._memory, self._vectors, self._places = current_memory(), {}, {}

    def unbind(self) -> None:
        """Let go of buffers too."""
        super().unbind()
        self._give_back("buffers")

    def run_backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `StackBody.run_backward`; what was kept is free afterwards."""
        grads = super().run_backward(grad)
        self._give_back("kept")
        return grads

    def _is_kept(self, k: int) -> bool:
        """Whether the output of layer k outlives the next layer: it is the last one, or begins a segment."""
        is_boundary = self.needs_backward and (k + 1) % (self.segment or k + 2) == 0
        return is_boundary or k + 1 == self.num_layers

    def _buffer(self, place: int) -> Tensor:
        return self._taken("buffers", self.num_buffers)[place]

    def _kept(self, k: int) -> Tensor:
        """Where the ``M`` of layer k is kept; one segment after the other takes the same place."""
        number = min(self.segment or self.num_layers, self.num_layers)
        return self._taken("kept", number)[k % number]

    def _taken(self, name: str, number: int) -> tuple[Tensor, ...]:
        """So many activations, taken at first use."""
        if name not in self._vectors:
            size = number * self.x0.numel()
            self._vectors[name] = self._memory.take(size)
            self._places[name] = self._vectors[name][:size].view(number, *self.x0.shape).unbind()
        return self._places[name]

    def _give_back(self, name: str) -> None:
        if name in self._vectors:
            self._memory.give_back(self._vectors.pop(name))
            del self._places[name]

    _memory: Memory
    _vectors: dict[str, Tensor]
    _places: dict[str, tuple[Tensor, ...]]


class Stack(Buffered):
    """One run after the other, each through all layers; tensors have no run axis.

    Remembers the mixed input ``M`` of every layer, as the Triton backend does, and where the SReLU was active if it was
    inactive anywhere.
    """

    def layer(self, x: Tensor, k: int, *, remember: bool) -> Tensor:
        """See `StackBody.layer`; the output is a buffer that the layer after the next one writes over."""
        if self._masks is not None:
            x = self._masks.apply(k, x, self._buffer(_DROPPED))
        mixed = self._mix(x)
        if self.show is not None and k > 0:
            self.show(k - 1, x, Product(mixed, self.graph, 1 - self.c_min, self.alpha))
        mixed = torch.add(mixed, self.x0, alpha=self.beta, out=self._kept(k) if remember else mixed)
        out = None if self._is_kept(k) or self._is_wide else self._buffer(_EVEN if k % 2 == 0 else _ODD)
        out = self._times(mixed, self._weight[k], out)
        active = None
        if self.shifts is not None and not float(out.amin()) > self._highest_shift[k]:  # nor where one is NaN
            torch.maximum(out, self.shifts[k], out=out)
            if remember:  # one bit per element, a 32nd of an activation
                active = np.packbits((out > self.shifts[k]).numpy())
        if remember:
            self.remembered[k] = (mixed, active)
        return out

    def layer_backward(self, grad: Tensor, k: int, grad_x0: Tensor) -> Tensor:
        """See `StackBody.layer_backward`."""
        mixed, active = self.remembered.pop(k)
        if active is not None:
            assert self._grad_b is not None
            inner = grad * torch.from_numpy(np.unpackbits(active, count=grad.numel())).view(grad.shape)
            torch.sum(grad - inner, dim=0, out=self._grad_b[k])
            grad = inner
        torch.mm(mixed.t(), grad, out=self._grad_w[k])
        grad_mixed = self._times(grad, self._weight[k].t(), mixed)
        grad_x0.add_(grad_mixed, alpha=self.beta)
        grad_in = self._mix(grad_mixed)
        return grad_in if self._masks is None else self._masks.apply(k, grad_in, grad_in)

    def run_backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `StackBody.run_backward`."""
        self._grad_w = torch.empty_like(self.weights)
        self._grad_b = None if self.shifts is None else torch.zeros_like(self.shifts)
        return super().run_backward(grad)

    def parameter_grads(self) -> tuple[Tensor, Tensor | None]:
        """See `StackBody.parameter_grads`."""
        return self._grad_w, self._grad_b

    def _times(self, x: Tensor, weight: Tensor, out: Tensor | None) -> Tensor:
        """``X W``, in `out` or in memory of its own."""
        return multiply_by_onednn(x, weight) if self._is_wide else torch.mm(x, weight, out=out)

    def _mix(self, x: Tensor) -> Tensor:
        """``S X`` with ``S = (1 - c_min) P + alpha I``, times dropout's scale when there is dropout."""
        scale = 1.0 if self.keys is None else keep_scale(self.p)
        value = self.graph.mixed(scale * (1 - self.c_min), scale * self.alpha)
        return csr_product(self.graph.rowptr, self.graph.col, value, self.graph.gather_halo(x))

    def bind(self, x0: Tensor, weights: Tensor, shifts: Tensor | None, keys: Tensor | None) -> None:
        """Views are made once, not at every layer."""
        super().bind(x0, weights, shifts, keys)
        self._weight = weights.unbind()
        self._is_wide = is_faster_by_onednn(x0, weights)
        self.num_buffers = 1 if self._is_wide else 3
        self._highest_shift: list[float] = [] if shifts is None else shifts.amax(dim=-1).tolist()
        self._masks = None if keys is None else _masks_of(x0, keys, self.p, self.graph.row_ids)

    def unbind(self) -> None:
        """Let go of masks too."""
        super().unbind()
        del self._weight, self._masks

    _weight: tuple[Tensor, ...]
    _is_wide: bool
    _masks: _NativeMasks | _Masks | None
    _grad_w: Tensor
    _grad_b: Tensor | None


def _masks_of(x0: Tensor, keys: Tensor, p: float, among: Excerpt | None) -> _NativeMasks | _Masks:
    """The dropout masks of all layers: a key each, shape ``[num_layers, 2]``."""
    if among is None and backend_for(x0) == "native":
        return _NativeMasks(keys, p, x0.numel())
    return _Masks(keys, x0.shape, p, among)


class _NativeMasks:
    """Hashed and applied in one loop, with nothing to remember."""

    def __init__(self, keys: Tensor, p: float, count: int) -> None:
        self.of_layer = [Mask.of(key, dropped_of_65536(p), count) for key in keys.tolist()]

    def apply(self, k: int, x: Tensor, out: Tensor) -> Tensor:
        """See `_Masks.apply`."""
        return drop(x, out, self.of_layer[k])


class _Masks:
    """The same where there is no C compiler, and of some rows of a larger tensor.

    They are 32-bit patterns: all ones where an element is kept, zeros where dropped. A hash word serves two elements,
    see `keep_mask`: its low half one in the first half of the tensor, its high half one in the second. Some rows of a
    larger tensor have a word for every element.
    """

    def __init__(self, keys: Tensor, shape: torch.Size, p: float, among: Excerpt | None) -> None:
        self._keys, self._shape = keys, shape
        self._is_high: Tensor | None = None
        # dropped - 1 - bits is negative, its sign bit set, exactly where bits >= dropped.
        self._highest_dropped = torch.tensor(dropped_of_65536(p) - 1, dtype=torch.int32)
        self._num_words = (shape.numel() + 1) // 2
        if among is not None:
            word, is_high = words_of_excerpt(among, shape[-1])
            self._num_words, self._counter, self._is_high = shape.numel(), word.flatten(), is_high.flatten()
        self._words = self._num_words if self._num_words <= _FEW_WORDS else _WORDS
        at_once = 1
        if among is None:
            at_once = min(_LAYERS_AT_ONCE if self._num_words <= _FEW_WORDS else 1, len(keys))
            self._counter = torch.arange(self._words, dtype=torch.int32)
        self._bits = self._counter.new_empty(at_once, 2, self._words)
        self._first = -1
        self._patterns: list[Tensor] = []

    def apply(self, k: int, x: Tensor, out: Tensor) -> Tensor:
        """Write `x`, dropped as the input of layer k, to `out`, which may be `x` itself; both are contiguous."""
        if self._words == self._num_words:
            torch.bitwise_and(x.view(torch.int32), self._whole(k), out=out.view(torch.int32))
            return out
        source, target = x.view(torch.int32).view(-1), out.view(torch.int32).view(-1)
        for start in range(0, self._num_words, self._words):
            stop = min(start + self._words, self._num_words)
            low, high = self._made(self._keys[k : k + 1], start, stop)[0].unbind()
            torch.bitwise_and(source[start:stop], low, out=target[start:stop])
            if self._is_high is None:
                place = slice(self._num_words + start, min(self._num_words + stop, len(source)))
                torch.bitwise_and(source[place], high[: place.stop - place.start], out=target[place])
        return out

    def _whole(self, k: int) -> Tensor:
        """The pattern of layer k; those of the next layers are made with it."""
        at_once = len(self._bits)
        if self._first != k - k % at_once:
            self._first = k - k % at_once
            made = self._made(self._keys[self._first : self._first + at_once], 0, self._num_words)
            self._patterns = [layer.view(-1)[: self._shape.numel()].view(self._shape) for layer in made]
        return self._patterns[k - self._first]

    def _made(self, keys: Tensor, start: int, stop: int) -> Tensor:
        """The patterns of some words under some keys, low and high halves, shape ``[num_keys, 2, stop - start]``."""
        bits = self._bits[: len(keys), :, : stop - start]
        if self._is_high is None:
            keys = keys if start == 0 else keys + torch.tensor([start, 0], dtype=torch.int32)
            hash_halves(self._counter[: stop - start], keys, bits)
        else:
            hash_halves(self._counter[start:stop], keys, bits)
            bits[:, 0] = torch.where(self._is_high[start:stop], bits[:, 1], bits[:, 0])
        return torch.sub(self._highest_dropped, bits, out=bits).bitwise_right_shift_(_SIGN)
