"""All parameters of a run as one vector, so that the state of many runs is a handful of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_ALIGN = 16  # elements; every parameter starts on a 64-byte boundary, which matrix kernels like


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
