"""The network with which a training begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graphjoule.nn import MODELS, GraphModel
from graphjoule.recipe import Recipe

_DRAWS = {
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal),
    *(torch.bernoulli, torch.multinomial, torch.poisson, Tensor.bernoulli, Tensor.multinomial),
    *(Tensor.uniform_, Tensor.normal_, Tensor.random_, Tensor.bernoulli_, Tensor.exponential_, Tensor.log_normal_),
    *(Tensor.cauchy_, Tensor.geometric_),
}
"""Torch's functions that draw and take a generator."""


def initialised(recipe: Recipe, in_channels: int, out_channels: int, seed: int) -> GraphModel:
    """The network with which a training of this seed begins.

    Its parameters depend on the recipe, the sizes and the seed alone, whatever other threads draw or build meanwhile:
    torch's global generator is neither read nor moved nor seeded. They are those that the model's constructor draws
    after `torch.manual_seed`, to the bit. A model of one's own in `MODELS` has the same promise for all that it draws
    by torch's layers, `torch.nn.init` and the functions of torch that take a generator.
    """
    with _DrawsOfItsOwn(seed):
        return MODELS[recipe.model](
            in_channels, recipe.hidden_channels, out_channels, recipe.num_layers, **recipe.options
        )


class _DrawsOfItsOwn(TorchFunctionMode):
    """Within the block, and in its thread alone, every draw that names no generator comes from one of our own.

    So it serves any constructor, also one that calls torch's own layers, whose draws cannot be handed a generator.

    Args:
        seed: what the generator starts from.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[str, torch.Generator] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Torch's function, with our generator if it is one that draws; `torch.nn.init` says ``generator=None``."""
        kwargs = kwargs or {}
        if kwargs.get("generator") is None and ("generator" in kwargs or func in _DRAWS):
            kwargs = {**kwargs, "generator": self._generator(_device(args, kwargs))}
        return func(*args, **kwargs)

    def _generator(self, device: torch.device) -> torch.Generator:
        """One for all draws on a kind of device, as torch has it; a meta tensor takes any."""
        if device.type not in self._generators:
            where = "cpu" if device.type == "meta" else device
            self._generators[device.type] = torch.Generator(where).manual_seed(self._seed)
        return self._generators[device.type]


def _device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """Where a draw takes place: where the tensor is that it fills or reads, else where it says, else the default."""
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, Tensor):
            return arg.device
    return torch.device(kwargs.get("device") or torch.get_default_device())
