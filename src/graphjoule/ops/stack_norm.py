"""The EGNN stack on a GPU with batch norms, or with wide layers: products on tensor cores, all else in one pass.

Counted in activations ``[n, d]`` that a layer reads or writes, besides what a gather reads again from the cache:
forward 7 (gather 3, product 2, norm with SReLU and dropout 2), backward 11 (sums over nodes 2, products 4 and 2, gather
2, sum over layers 1), evaluation 5. Layer by layer it is 14, 25 and 11.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphjoule.graph.csr import with_signature
from graphjoule.ops.egnn import StackBody, gradients_of_runs, plain_norm_stack
from graphjoule.ops.triton_gather import DROP_INPUT, DROP_OUTPUT, NO_DROP, gather
from graphjoule.ops.triton_norm import (
    add_layers,
    merge_statistics,
    merge_sums,
    norm_srelu,
    norm_srelu_sums,
    num_tiles,
    product,
    product_backward,
    product_srelu,
    split,
    weight_grad,
)


@dataclass
class Stack(StackBody):
    """Remembers of every layer the mixed input ``M``, ``Z = M W`` before the norm, and the norm as it was.

    What goes from layer to layer is the output with the next layer's dropout on it. Activations are kept in
    `activations`, ``M`` as one or two bfloat16, which is what its products need.

    Attributes:
        eps: of all norms.
        gammas: factors of the norms, shape ``[runs, K, d]``; None where nothing is measured and `betas` only added.
        betas: offsets of the norms, shape ``[runs, K, d]``.
        statistics: mean and unbiased variance of every layer, shape ``[K, runs, 2, d]``.
    """

    eps: float = 1e-5
    gammas: Tensor | None = field(init=False)
    betas: Tensor = field(init=False)
    statistics: Tensor = field(init=False)

    def bind_all(
        self,
        x0: Tensor,
        weights: Tensor,
        shifts: Tensor | None,
        gammas: Tensor | None,
        betas: Tensor,
        keys: Tensor | None,
    ) -> None:
        """Take the tensors of this call; keys are kept layer by layer, each in one piece."""
        self.bind(x0, weights, shifts, None if keys is None else keys.transpose(0, 1).contiguous())
        self.gammas, self.betas = gammas, betas
        runs, _, d = x0.shape
        self.statistics = x0.new_empty(self.num_layers, runs, 2, d)
        self._kept_x0 = x0.to(self.activations)
        self._weights = split(weights)
        by_layer, one = betas.transpose(0, 1), torch.ones_like(betas).transpose(0, 1)
        self._known = torch.stack([0 * one, one, by_layer, one], dim=2) if gammas is None else None

    def unbind(self) -> None:
        """Let go of the tensors of this call."""
        super().unbind()
        del self.gammas, self.betas, self._kept_x0, self._weights, self._known

    @property
    def _parts(self) -> int:
        return 2 if self.activations == torch.float32 else 1

    def layer(self, x: Tensor, k: int, *, remember: bool) -> Tensor:
        """See `StackBody.layer`; from the second layer on ``x`` comes dropped."""
        mixed = gather(
            x.to(self.activations), self.graph.rows, self.graph.value,
            a=1 - self.c_min, alpha=self.alpha, beta=self.beta, x0=self._kept_x0,
            drop=NO_DROP if k else DROP_INPUT, p=self.p, keys=self._key(k), parts=self._parts,
        )  # fmt: skip
        runs, n, d = x.shape
        z = self._room(k) if remember else torch.empty(runs, n, d, dtype=self.activations, device=x.device)
        weight, beta, shift = self._weights[:, k], self.betas[:, k], self._shift(k)
        if self._known is None:
            tiles, affine = self.betas.new_empty(runs, num_tiles(n), 2, d), self.betas.new_empty(runs, 4, d)
            product(mixed, weight, z, tiles)
            merge_statistics(tiles, n, self.gammas[:, k], beta, self.eps, self.statistics[k], affine)  # type: ignore[index]
        elif not remember and self._key(k + 1) is None:
            product_srelu(mixed, weight, beta, shift, z)
            return z
        else:
            affine = self._known[k]
            product(mixed, weight, z, None)
        out = torch.empty_like(z) if remember else z
        norm_srelu(z, affine, shift, out, p=self.p, keys=self._key(k + 1))
        if remember:
            self.remembered[k] = (mixed, z, affine)
        return out

    def begin_segment(self, layers: range) -> None:
        """Weights transposed, for all layers at once."""
        runs, _, d = self.x0.shape
        self._first = layers.start
        self._transposed = self._weights.transpose(-1, -2).contiguous()
        if not self.sums:
            self.sums = [
                self.x0.new_empty(runs, self.num_layers, d, d), self.x0.new_empty(self.num_layers, runs, 3, d)
            ]  # fmt: skip

    def layer_backward(self, grad: Tensor, k: int, grad_x0: Tensor) -> Tensor:
        """See `StackBody.layer_backward`."""
        mixed, z, affine = self.remembered.pop(k)
        runs, n, d = z.shape
        shift = self._shift(k)
        drop: dict[str, Any] = {"p": self.p, "keys": self._key(k + 1)}
        grad = grad.to(self.activations)
        pull = affine.new_empty(runs, 2, d)
        merge_sums(norm_srelu_sums(grad, z, affine, shift, **drop), affine, n, self.sums[1][k], pull)
        if self._known is not None:  # mean and variance are no functions of Z
            pull.zero_()
        grad_z, grad_mixed = torch.empty_like(mixed), z  # a program reads its rows of Z before it writes them
        product_backward(grad, z, affine, pull, shift, self._transposed[:, k], grad_z, grad_mixed, **drop)
        torch.sum(weight_grad(mixed, grad_z), dim=1, out=self.sums[0][:, k])
        if k == self._first:  # now the gradients of all M of the segment stand where the Z were
            add_layers(self._before_norm, self.beta, grad_x0)
        return gather(
            grad_mixed, self.graph.rows, self.graph.value, a=1 - self.c_min, alpha=self.alpha,
            drop=NO_DROP if k else DROP_OUTPUT, p=self.p, keys=self._key(k),
        )  # fmt: skip

    def end_segment(self) -> None:
        """Let go of what is needed no more."""
        del self._transposed, self._before_norm

    def parameter_grads(self) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients of the weights, the shifts, the factors and the offsets of the norms."""
        weights, sums = self.sums
        betas, gammas, shifts = sums.transpose(0, 1).unbind(2)
        return weights, None if self.shifts is None else shifts, None if self.gammas is None else gammas, betas

    def _room(self, k: int) -> Tensor:
        """Where the ``Z`` of a layer goes: those of a segment lie in one piece."""
        segment = self.segment or self.num_layers
        if k % segment == 0:
            shape = (min(segment, self.num_layers - k), *self.x0.shape)
            self._before_norm = torch.empty(shape, dtype=self.activations, device=self.x0.device)
        return self._before_norm[k % segment]

    def _shift(self, k: int) -> Tensor | None:
        return None if self.shifts is None else self.shifts[:, k]

    def _key(self, k: int) -> Tensor | None:
        """The key of a layer's input; None for the last output, which the head drops."""
        return None if self.keys is None or k == self.num_layers else self.keys[k]


def run_stack(body: Stack, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
    """The output, and mean and unbiased variance of every layer ``[runs, K, 2, d]``.

    Args:
        body: one of this call.
        tensors: those of `Stack.bind_all`, contiguous.
    """
    out: tuple[Tensor, Tensor] = _NormStack.apply(*tensors, body)  # type: ignore[no-untyped-call]
    return out


@with_signature
class _NormStack(torch.autograd.Function):
    """Autograd and vmap around a `Stack`."""

    @staticmethod
    def forward(
        x0: Tensor,
        weights: Tensor,
        shifts: Tensor | None,
        gammas: Tensor | None,
        betas: Tensor,
        keys: Tensor | None,
        body: Stack,
    ) -> tuple[Tensor, Tensor]:
        body.bind_all(x0, weights, shifts, gammas, betas, keys)
        out = body.run_forward().to(x0.dtype)
        body.unbind()
        return out, body.statistics.transpose(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.body = inputs
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        body: Stack = ctx.body

        settings: dict[str, Any] = {
            "graph": body.graph,
            "c_min": body.c_min,
            "beta": body.beta,
            "p": body.p,
            "eps": body.eps,
        }

        def plain(*tensors: Any) -> Tensor:
            return plain_norm_stack(*tensors, **settings)[0]

        def fast(grad: Tensor, *tensors: Any) -> tuple[Tensor | None, ...]:
            body.bind_all(*tensors)
            grads = body.run_backward(grad)
            body.unbind()
            return grads

        return *gradients_of_runs(plain, fast, body.graph, grad, *ctx.saved_tensors), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """All runs at once, as in `graphjoule.ops.egnn`."""
        *tensors, body = inputs
        moved = []
        for t, dim in zip(tensors, in_dims, strict=False):
            if t is not None:
                t = t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
                t = t.flatten(0, 1).contiguous()
            moved.append(t)
        out, statistics = (t.view(info.batch_size, -1, *t.shape[1:]) for t in run_stack(body, *moved))
        return (out, statistics), (0, 0)
