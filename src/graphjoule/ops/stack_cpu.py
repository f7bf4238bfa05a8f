"""The EGNN stack on a CPU: few passes over memory, all of them vectorised by PyTorch, into buffers that are used again.

What makes it fast, measured on 173,000 elements (Cora at width 64) with two threads: the residual mix is one sparse
product with ``S = (1 - c_min) P + alpha I``; masks are 32-bit patterns of ones applied with a bitwise and (10 us) where
`torch.where` takes 230 us; dropout hashes 84 us where the serial generator draws for 2 ms; a layer whose SReLU changes
nothing, which one minimum tells (9 us), skips it forward and backward; and fresh memory, whose pages must be mapped
first, costs more than the arithmetic that fills it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphjoule.graph.csr import csr_product
from graphjoule.graph.nodes import Excerpt
from graphjoule.ops.dropout import dropped_of_65536, hash_halves, keep_scale, words_of_excerpt
from graphjoule.ops.egnn import StackBody

_SIGN = torch.tensor(31, dtype=torch.int32)


class Stack(StackBody):
    """One run after the other, each through all layers; tensors have no run axis.

    Remembers the mixed input ``M`` of every layer, as the Triton backend does, and where the SReLU was active if it was
    inactive anywhere.
    """

    is_of_one_run = True

    def layer(self, x: Tensor, k: int, *, remember: bool) -> Tensor:
        """See `StackBody.layer`; the output is a buffer that the layer after the next one writes over."""
        keep = self._keep(k)
        if keep is not None:
            dropped = self._buffer("dropped")
            torch.bitwise_and(x.view(torch.int32), keep, out=dropped.view(torch.int32))
            x = dropped
        mixed = self._mix(x).add_(self.x0, alpha=self.beta)
        out = torch.mm(mixed, self._weight[k], out=self._buffer("even" if k % 2 == 0 else "odd"))
        active = None
        if self.shifts is not None and float(out.amin()) <= self._highest_shift[k]:
            torch.maximum(out, self.shifts[k], out=out)
            if remember:  # one bit per element, a 32nd of an activation
                active = np.packbits((out > self.shifts[k]).numpy())
        if remember:
            self.remembered[k] = (mixed, active)
        # Whether the output outlives the next layer: it is the last one, or begins a segment.
        is_boundary = self.needs_backward and (k + 1) % (self.segment or k + 2) == 0
        return out.clone() if is_boundary or k + 1 == len(self._weight) else out

    def layer_backward(self, grad: Tensor, k: int, grad_x0: Tensor) -> Tensor:
        """See `StackBody.layer_backward`."""
        mixed, active = self.remembered.pop(k)
        if active is not None:
            assert self._grad_b is not None
            inner = grad * torch.from_numpy(np.unpackbits(active, count=grad.numel())).view(grad.shape)
            torch.sum(grad - inner, dim=0, out=self._grad_b[k])
            grad = inner
        torch.mm(mixed.t(), grad, out=self._grad_w[k])
        grad_mixed = torch.mm(grad, self._weight[k].t(), out=mixed)
        grad_x0.add_(grad_mixed, alpha=self.beta)
        grad_in = self._mix(grad_mixed)
        keep = self._keep(k)
        if keep is not None:
            grad_in.view(torch.int32).bitwise_and_(keep)
        return grad_in

    def run_backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `StackBody.run_backward`."""
        self._grad_w = torch.empty_like(self.weights)
        self._grad_b = None if self.shifts is None else torch.zeros_like(self.shifts)
        return super().run_backward(grad)

    def parameter_grads(self) -> tuple[Tensor, Tensor | None]:
        """See `StackBody.parameter_grads`."""
        return self._grad_w, self._grad_b

    def _buffer(self, name: str) -> Tensor:
        if name not in self._buffers:
            self._buffers[name] = torch.empty_like(self.x0)
        return self._buffers[name]

    def _mix(self, x: Tensor) -> Tensor:
        """``S X`` with ``S = (1 - c_min) P + alpha I``, times dropout's scale when there is dropout."""
        scale = 1.0 if self.keys is None else keep_scale(self.p)
        value = self.graph.mixed(scale * (1 - self.c_min), scale * self.alpha)
        return csr_product(self.graph.rowptr, self.graph.col, value, self.graph.gather_halo(x))

    def _keep(self, k: int) -> Tensor | None:
        """All ones where an element is kept, all zeros where it is dropped, as 32-bit patterns of the shape of x."""
        if self.keys is None:
            return None
        at_once = self._words.layers_at_once
        chunk, place = divmod(k, at_once)
        if self._chunk != chunk:
            self._chunk = chunk
            keys, counter = self.keys[chunk * at_once : (chunk + 1) * at_once], self._words.counter
            if self._bits is None:
                self._bits = counter.new_empty(min(at_once, self.num_layers), 2, len(counter))
            bits = self._words.pick(hash_halves(counter, keys, self._bits[: len(keys)]))
            # dropped - 1 - bits is negative, its sign bit set, exactly where bits >= dropped.
            highest_dropped = torch.tensor(dropped_of_65536(self.p) - 1, dtype=torch.int32)
            patterns = torch.sub(highest_dropped, bits, out=bits).bitwise_right_shift_(_SIGN)
            self._patterns = [layer.view(-1)[: self.x0.numel()].view(self.x0.shape) for layer in patterns]
        return self._patterns[place]

    def bind(self, x0: Tensor, weights: Tensor, shifts: Tensor | None, keys: Tensor | None) -> None:
        """Buffers live as long as a forward or a backward pass; views are made once, not at every layer."""
        super().bind(x0, weights, shifts, keys)
        self._weight = weights.unbind()
        self._highest_shift: list[float] = [] if shifts is None else shifts.amax(dim=-1).tolist()
        self._buffers: dict[str, Tensor] = {}
        if keys is not None:
            self._words = _Words(x0.shape, self.graph.row_ids)

    def unbind(self) -> None:
        """Let go of the buffers too."""
        super().unbind()
        del self._weight, self._buffers
        self._bits, self._chunk, self._patterns = None, None, []

    _weight: tuple[Tensor, ...]
    _words: _Words
    _bits: Tensor | None = None
    _chunk: int | None = None
    _patterns: list[Tensor]
    _grad_w: Tensor
    _grad_b: Tensor | None


class _Words:
    """The hash words that the elements of a tensor take their masks from: all low halves, then all high halves.

    Some rows of a larger tensor have a word for every element.
    """

    def __init__(self, shape: torch.Size, among: Excerpt | None) -> None:
        self._is_high: Tensor | None = None
        if among is None:
            self.layers_at_once = 4  # the calls cost as much as the arithmetic on a small graph
            self.counter = torch.arange((shape.numel() + 1) // 2, dtype=torch.int32)
        else:
            self.layers_at_once = 1  # the larger tensor is large, or nobody would have some rows of it: memory counts
            word, is_high = words_of_excerpt(among, shape[-1])
            self.counter, self._is_high = word.flatten(), is_high.flatten()

    def pick(self, halves: Tensor) -> Tensor:
        """The halves of all elements in their order, some more at the end, from ``[layers, 2, words]``."""
        return halves if self._is_high is None else torch.where(self._is_high, halves[:, 1], halves[:, 0])
