"""Many runs along one axis: all parameters of a run in one row, functions of a run called for all, Adam on the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_ALIGN = 16  # elements; every parameter starts on a 64-byte boundary, which matrix kernels like
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8


def each_run(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function` of every run, by vmap over the leading axis; a single run is called as it is, which costs less."""
    if len(next(a for a in arguments if isinstance(a, Tensor))) > 1:
        return torch.vmap(function)(*arguments)
    return nested(lambda t: t[None], function(*(nested(lambda t: t[0], a) for a in arguments)))


def nested(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A function of every tensor in nested tuples and dicts."""
    if isinstance(value, dict):
        return {name: nested(function, one) for name, one in value.items()}
    return tuple(nested(function, one) for one in value) if isinstance(value, tuple) else function(value)


@dataclass(frozen=True)
class Layout:
    """Where each parameter of a model stands in the flat vector of length `size`."""

    shapes: dict[str, torch.Size]
    offsets: dict[str, int]
    size: int

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of a model's parameters, in the order of ``named_parameters()``."""
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        offsets, size = {}, 0
        for name, shape in shapes.items():
            offsets[name] = size
            size += -(-shape.numel() // _ALIGN) * _ALIGN
        return cls(shapes, offsets, size)

    def flatten(self, values: Mapping[str, Tensor]) -> Tensor:
        """One vector from named tensors; the gaps between them are zero."""
        like = next(iter(values.values()))
        flat = torch.zeros(self.size, dtype=like.dtype, device=like.device)
        for name, start in self.offsets.items():
            flat[start : start + self.shapes[name].numel()] = values[name].detach().flatten()
        return flat

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Named views into one vector; differentiable, and its gradient is one concatenation."""
        ends = [*list(self.offsets.values())[1:], self.size]
        pieces = torch.split(flat, [end - start for start, end in zip(self.offsets.values(), ends, strict=True)])
        return {
            name: (piece if len(piece) == shape.numel() else piece[: shape.numel()]).view(shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def spread(self, value_of: Mapping[str, float]) -> Tensor:
        """A vector that repeats one number over each parameter: a setting per parameter, such as weight decay."""
        flat = torch.zeros(self.size)
        for name, start in self.offsets.items():
            flat[start : start + self.shapes[name].numel()] = value_of[name]
        return flat


@torch.no_grad()
def adam_step(
    parameters: Tensor,
    gradient: Tensor,
    moment1: Tensor,
    moment2: Tensor,
    step: Tensor,
    lr: Tensor,
    weight_decay: Tensor,
    active: Tensor,
) -> None:
    """One step in place for every active run, with L2 decay as in `torch.optim.Adam`; an inactive run does not change.

    Plain tensor operations instead of an optimiser object: the whole state is two matrices, which checkpoints, drops
    and resumes like the parameters themselves, and the step can be captured in a CUDA graph.

    Args:
        parameters: shape ``[runs, size]``.
        gradient: shape ``[runs, size]``; not finite in a run that has failed.
        moment1: running mean of the gradient.
        moment2: running mean of its square.
        step: number of this step, from 1, a scalar tensor.
        lr: learning rate of every element, shape ``[size]``; zero freezes it.
        weight_decay: L2 factor of every element, shape ``[size]``.
        active: bool, shape ``[runs]``.
    """
    gradient = torch.where(active[:, None], gradient + weight_decay * parameters, 0.0)
    moment1.lerp_(gradient, 1 - _BETA1)
    moment2.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
    step = step.double()  # in float32, 1 - 0.999 alone would be off by 6e-5
    correction1 = 1 - _BETA1**step
    correction2 = (1 - _BETA2**step).sqrt()
    denominator = (moment2.sqrt() / correction2).add_(_EPS)
    update = (moment1 / denominator).mul_(lr / correction1)
    parameters.sub_(torch.where(active[:, None], update, 0.0))
