"""The EGNN stack on a CPU that has a C compiler: a layer is one loop, its backward pass are two.

A thread makes a tile of 48 rows from start to end while they are in its cache: sparse product, residual connection,
dense product, SReLU and the dropout of the next layer. That is half of the time of the same in PyTorch's operations
(`graphjoule.ops.stack_cpu`), which read and write each activation from memory six times.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.native import Mask, Matrix, drop, egnn_layer, egnn_layer_backward, gather, has_layers
from graphjoule.graph.product import Product
from graphjoule.ops import stack_cpu
from graphjoule.ops.dropout import dropped_of_65536, keep_scale

_EVEN, _ODD, _GRAD = range(3)  # the buffers of a pass; the dropped input is in that of odd layers


def has_loops(x0: Tensor, graph: Propagation) -> bool:
    """Whether the loops are for features of this shape on this graph, all of it."""
    return graph.row_ids is None and has_layers(x0, graph.rowptr, graph.col)


class Stack(stack_cpu.Buffered):
    """One run after the other, each through all layers; tensors have no run axis.

    Remembers the mixed input ``M`` of every layer, as the Triton backend does, and where the SReLU was active if it was
    inactive anywhere. From the second layer on ``x`` comes dropped.
    """

    num_buffers = 3

    def layer(self, x: Tensor, k: int, *, remember: bool) -> Tensor:
        """See `StackBody.layer`; the output is a buffer that the layer after the next one writes over."""
        if k == 0 and self._masks:
            x = drop(x, self._buffer(_ODD), self._masks[0])
        out = torch.empty_like(x) if self._is_kept(k) else self._buffer(_EVEN if k % 2 == 0 else _ODD)
        mixed = self._kept(k) if remember else None
        active = None
        if remember and self.shifts is not None:  # one bit per element, a 32nd of an activation
            shape = (len(x), x.size(1) // 16)
            active = torch.empty(shape, dtype=torch.int16, device=x.device) if self._active is None else self._active
        shift = None if self.shifts is None else self.shifts[k]
        is_cut, sums = egnn_layer(
            self._matrix, x, self.x0, self.beta, self.weights[k], shift, out,
            mixed=mixed, active=active, mask=self._mask(k + 1), want_sums=self.show is not None and k > 0,
        )  # fmt: skip
        if self.show is not None and k > 0:
            self.show(k - 1, x, Product(None, self.graph, 1 - self.c_min, self.alpha, sums))
        if remember:
            self._active = None if is_cut else active
            self.remembered[k] = (mixed, active if is_cut else None)
        return out

    def layer_backward(self, grad: Tensor, k: int, grad_x0: Tensor) -> Tensor:
        """See `StackBody.layer_backward`."""
        mixed, active = self.remembered.pop(k)
        transposed = self.weights[k].t().contiguous()
        egnn_layer_backward(grad, mixed, transposed, active, self.beta, mixed, grad_x0, self._parameter_grads[k])
        return gather(self._matrix, mixed, self._buffer(_GRAD), self._mask(k))

    def run_backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `StackBody.run_backward`."""
        layers, d = self.num_layers, self.x0.size(-1)
        self._parameter_grads = grad.new_empty(layers, d + 1, d)
        return super().run_backward(grad)

    def parameter_grads(self) -> tuple[Tensor, Tensor | None]:
        """See `StackBody.parameter_grads`: the last row belongs to the shift."""
        d = self.x0.size(-1)
        return self._parameter_grads[:, :d], None if self.shifts is None else self._parameter_grads[:, d]

    def bind(self, x0: Tensor, weights: Tensor, shifts: Tensor | None, keys: Tensor | None) -> None:
        """See `StackBody.bind`."""
        super().bind(x0, weights, shifts, keys)
        scale = 1.0 if keys is None else keep_scale(self.p)
        value = self.graph.mixed(scale * (1 - self.c_min), scale * self.alpha)
        self._matrix = Matrix(self.graph.rowptr, self.graph.col, value)
        dropped = dropped_of_65536(self.p)
        self._masks = [] if keys is None else [Mask.of(key, dropped, x0.numel()) for key in keys.tolist()]
        self._active = None

    def unbind(self) -> None:
        """Let go of matrix and masks too."""
        super().unbind()
        del self._matrix, self._masks, self._active

    def _mask(self, k: int) -> Mask | None:
        """Dropout of a layer's input; none of the last output, which the head drops."""
        return self._masks[k] if k < len(self._masks) else None

    _matrix: Matrix
    _masks: list[Mask]
    _active: Tensor | None
    _parameter_grads: Tensor
