"""The EGNN stack on a GPU: two kernels forward and two backward per layer, all runs in each."""

from __future__ import annotations

import torch
from torch import Tensor

from graphjoule.ops.egnn import StackBody
from graphjoule.ops.triton_gather import DROP_INPUT, DROP_OUTPUT, NO_DROP, gather
from graphjoule.ops.triton_layer import WIDTHS, num_stretches, weight_srelu, weight_srelu_backward


class Stack(StackBody):
    """Remembers the mixed input ``M`` of every layer and one bit per element for where the SReLU was active.

    With ``M`` at hand the backward pass needs a single sparse product, like the forward pass.
    """

    _partial: Tensor
    _first: int

    def layer(self, x: Tensor, k: int, *, remember: bool) -> Tensor:
        """See `StackBody.layer`.

        Where a Triton kernel makes the output, it drops it for the next layer too: hashing once per element is cheaper
        than once per neighbour. So from the second layer on ``x`` comes dropped.
        """
        is_dropped = k > 0 and x.size(-1) in WIDTHS
        mixed = gather(
            x, self.graph.rows, self.graph.value,
            a=1 - self.c_min, alpha=self.alpha, beta=self.beta, x0=self.x0,
            drop=NO_DROP if is_dropped else DROP_INPUT, p=self.p, keys=self._key(k),
        )  # fmt: skip
        shift = None if self.shifts is None else self.shifts[:, k]
        weight = self.weights[:, k]
        if x.size(-1) in WIDTHS:
            next_key = self._key(k + 1) if k + 1 < self.weights.size(1) else None
            out, active = weight_srelu(mixed, weight, shift, want_active=remember, p=self.p, keys=next_key)
        else:
            out, active = _wide_forward(mixed, weight, shift, want_active=remember)
        if remember:
            self.remembered[k] = (mixed, active)
        return out

    def begin_segment(self, layers: range) -> None:
        """Make room for the partial sums of all layers, so that adding them up is one launch."""
        runs, n, d = self.x0.shape
        stretches = num_stretches(runs, n) if d in WIDTHS else 1
        self._first = layers.start
        self._partial = self.x0.new_empty(len(layers), runs, stretches, d + 1, d)

    def layer_backward(self, grad: Tensor, k: int, grad_x0: Tensor) -> Tensor:
        """See `StackBody.layer_backward`."""
        mixed, active = self.remembered.pop(k)
        backward = weight_srelu_backward if grad.size(-1) in WIDTHS else _wide_backward
        grad_mixed = backward(grad, mixed, self.weights[:, k], active, self._partial[k - self._first])
        return gather(
            grad_mixed, self.graph.rows, self.graph.value,
            a=1 - self.c_min, alpha=self.alpha, beta=self.beta, add_to=grad_x0,
            drop=DROP_OUTPUT, p=self.p, keys=self._key(k),
        )  # fmt: skip

    def end_segment(self) -> None:
        """Add the partial sums up, in a fixed order."""
        self.sums.insert(0, self._partial.sum(dim=2))
        del self._partial

    def parameter_grads(self) -> tuple[Tensor, Tensor | None]:
        """See `StackBody.parameter_grads`: the last row of each sum belongs to the shift."""
        total = torch.cat(self.sums).transpose(0, 1)
        d = total.size(-1)
        return total[:, :, :d], None if self.shifts is None else total[:, :, d]

    def bind(self, x0: Tensor, weights: Tensor, shifts: Tensor | None, keys: Tensor | None) -> None:
        """Keys are kept layer by layer, each in one piece."""
        super().bind(x0, weights, shifts, None if keys is None else keys.transpose(0, 1).contiguous())

    def _key(self, k: int) -> Tensor | None:
        return None if self.keys is None else self.keys[k]


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
        torch.sum(grad - inner, dim=1, out=sums[:, 0, d])
        grad = inner
    sums[:, 0, :d] = _tall_product(mixed, grad)
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
