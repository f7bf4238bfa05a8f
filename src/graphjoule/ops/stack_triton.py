"""The EGNN stack on a GPU: two kernels forward and two backward per layer, all runs in each."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphjoule.ops.egnn import StackBody
from graphjoule.ops.triton_gather import DROP_INPUT, DROP_OUTPUT, NO_DROP, gather
from graphjoule.ops.triton_layer import WIDTHS, num_stretches, weight_srelu, weight_srelu_backward


def stack_of(channels: int) -> type[StackBody]:
    """The stack for layers of a width."""
    return Stack if channels in WIDTHS else AnyWidth


@dataclass
class _Stack(StackBody):
    """What stacks on a GPU share: keys layer by layer, each in one piece, and sums with the shift's in a last row."""

    def bind(self, x0: Tensor, weights: Tensor, shifts: Tensor | None, keys: Tensor | None) -> None:
        """See `StackBody.bind`."""
        super().bind(x0, weights, shifts, None if keys is None else keys.transpose(0, 1).contiguous())

    def parameter_grads(self) -> tuple[Tensor, Tensor | None]:
        """See `StackBody.parameter_grads`: the last row belongs to the shift."""
        total = torch.cat(self.sums).transpose(0, 1)
        d = total.size(-1)
        return total[:, :, :d], None if self.shifts is None else total[:, :, d]

    def _key(self, k: int) -> Tensor | None:
        """The key of a layer's input; None for the last output, which the head drops."""
        return None if self.keys is None or k == self.num_layers else self.keys[k]

    def _shift(self, k: int) -> Tensor | None:
        return None if self.shifts is None else self.shifts[:, k]


@dataclass
class Stack(_Stack):
    """Remembers the mixed input ``M`` of every layer and one bit per element for where the SReLU was active.

    With ``M`` at hand the backward pass needs a single sparse product, like the forward pass. What goes from layer to
    layer is the output with the next layer's dropout on it: hashing once per element is cheaper than once per
    neighbour. One kernel for a whole half of a layer, the gather and its product, was tried: it took 1.4 times as
    long on Pubmed, because programs that hold a weight are too few to wait for a gather. Activations and their
    gradients are kept in `activations`, sums in float32.
    """

    _partial: Tensor = field(init=False)
    _first: int = field(init=False)

    def bind(self, x0: Tensor, weights: Tensor, shifts: Tensor | None, keys: Tensor | None) -> None:
        """See `StackBody.bind`."""
        super().bind(x0, weights, shifts, keys)
        self._kept_x0 = x0.to(self.activations)

    def unbind(self) -> None:
        """See `StackBody.unbind`."""
        super().unbind()
        del self._kept_x0

    def run_forward(self) -> Tensor:
        """See `StackBody.run_forward`."""
        return super().run_forward().to(self.x0.dtype)

    def run_backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `StackBody.run_backward`."""
        return super().run_backward(grad.to(self.activations))

    def layer(self, x: Tensor, k: int, *, remember: bool) -> Tensor:
        """See `StackBody.layer`; from the second layer on ``x`` comes dropped."""
        mixed = gather(
            x.to(self.activations), self.graph.rows, self.graph.value,
            a=1 - self.c_min, alpha=self.alpha, beta=self.beta, x0=self._kept_x0,
            drop=NO_DROP if k else DROP_INPUT, p=self.p, keys=self._key(k),
        )  # fmt: skip
        out, active = weight_srelu(
            mixed, self.weights[:, k], self._shift(k), want_active=remember, p=self.p, keys=self._key(k + 1)
        )
        if remember:
            self.remembered[k] = (mixed, active)
        return out

    def begin_segment(self, layers: range) -> None:
        """Make room for the partial sums of all layers, so that adding them up is one launch."""
        runs, n, d = self.x0.shape
        self._first = layers.start
        self._partial = self.x0.new_empty(len(layers), runs, num_stretches(runs, n), d + 1, d)

    def layer_backward(self, grad: Tensor, k: int, grad_x0: Tensor) -> Tensor:
        """See `StackBody.layer_backward`."""
        mixed, active = self.remembered.pop(k)
        grad_mixed = weight_srelu_backward(grad, mixed, self.weights[:, k], active, self._partial[k - self._first])
        return gather(
            grad_mixed, self.graph.rows, self.graph.value,
            a=1 - self.c_min, alpha=self.alpha, beta=self.beta, add_to=grad_x0,
            drop=DROP_OUTPUT, p=self.p, keys=self._key(k),
        )  # fmt: skip

    def end_segment(self) -> None:
        """Add the partial sums up, in a fixed order."""
        self.sums.insert(0, self._partial.sum(dim=2))
        del self._partial


@dataclass
class AnyWidth(_Stack):
    """The same for widths whose weights do not fit into registers: a gather, and a product of cuBLAS.

    It remembers ``M`` and where the SReLU was active.
    """

    def layer(self, x: Tensor, k: int, *, remember: bool) -> Tensor:
        """See `StackBody.layer`."""
        mixed = gather(
            x, self.graph.rows, self.graph.value, a=1 - self.c_min, alpha=self.alpha, beta=self.beta, x0=self.x0,
            drop=DROP_INPUT, p=self.p, keys=self._key(k),
        )  # fmt: skip
        out, active = _wide_forward(mixed, self.weights[:, k], self._shift(k), want_active=remember)
        if remember:
            self.remembered[k] = (mixed, active)
        return out

    def begin_segment(self, layers: range) -> None:
        """Make room for the gradients of all layers."""
        runs, _, d = self.x0.shape
        self._first = layers.start
        self.sums.insert(0, self.x0.new_empty(len(layers), runs, d + 1, d))

    def layer_backward(self, grad: Tensor, k: int, grad_x0: Tensor) -> Tensor:
        """See `StackBody.layer_backward`."""
        mixed, active = self.remembered.pop(k)
        grad_mixed = _wide_backward(grad, mixed, self.weights[:, k], active, self.sums[0][k - self._first])
        return gather(
            grad_mixed, self.graph.rows, self.graph.value, a=1 - self.c_min, alpha=self.alpha, beta=self.beta,
            add_to=grad_x0, drop=DROP_OUTPUT, p=self.p, keys=self._key(k),
        )  # fmt: skip


def _wide_forward(
    mixed: Tensor, weight: Tensor, shift: Tensor | None, *, want_active: bool
) -> tuple[Tensor, Tensor | None]:
    """``max(b, M W)`` and where it is not ``b``, for widths beyond the kernel's."""
    out = torch.bmm(mixed, weight)
    if shift is None:
        return out, None
    torch.maximum(out, shift[:, None], out=out)
    return out, out > shift[:, None] if want_active else None


def _wide_backward(grad: Tensor, mixed: Tensor, weight: Tensor, active: Tensor | None, sums: Tensor) -> Tensor:
    """Gradient of the ``M`` of `_wide_forward`; those of the weight and the shift go to `sums`."""
    d = grad.size(-1)
    if active is not None:
        inner = grad * active
        torch.sum(grad - inner, dim=1, out=sums[:, d])
        grad = inner
    sums[:, :d] = _tall_product(mixed, grad)
    return torch.bmm(grad, weight.transpose(1, 2))


def _tall_product(a: Tensor, b: Tensor, rows: int = 4096) -> Tensor:
    """``A^T B`` of tall matrices, shape ``[runs, d, d]``, summed over stretches of rows.

    cuBLAS does not split the long sum of a batched product by itself: one product per stretch keeps the GPU busy.
    """
    runs, n = a.shape[:2]
    whole = n // rows * rows
    a_stretches, b_stretches = (t[:, :whole].reshape(-1, rows, t.size(2)) for t in (a, b))
    partial = torch.bmm(a_stretches.transpose(1, 2), b_stretches)
    total = partial.view(runs, -1, *partial.shape[1:]).sum(dim=1)
    return total + torch.bmm(a[:, whole:].transpose(1, 2), b[:, whole:])
