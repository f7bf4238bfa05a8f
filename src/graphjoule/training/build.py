"""What a training begins with: the network of a recipe, or anybody's own, initialised from a seed."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import Features, SparseFeatures
from graphjoule.nn import MODELS, GraphModel, OutputScale
from graphjoule.tasks.objective import Objective, Regression
from graphjoule.tasks.task import Task
from graphjoule.trace.watch import watched_modules
from graphjoule.training.recipe import ModelSettings, Recipe

Builder = Callable[..., nn.Module]


@dataclass(frozen=True)
class Architecture:
    """Which network a training builds for every seed.

    Attributes:
        settings: what a record says about it.
        make: builds one from the number of input features and of outputs.
    """

    settings: ModelSettings
    make: Callable[[int, int], GraphModel]

    def initialised(self, in_channels: int, out_channels: int, seed: int) -> GraphModel:
        """The network with which a training of this seed begins.

        Its parameters depend on the settings, the sizes and the seed alone, whatever other threads draw or build
        meanwhile: torch's global generator is neither read nor moved. They are those that the constructor draws after
        `torch.manual_seed`, to the bit.
        """
        with draws_from(Draws(seed)):
            return self.make(in_channels, out_channels)

    def for_task(self, objective: Objective, in_channels: int, seed: int) -> GraphModel:
        """The same for an objective, see `in_units_of`."""
        return in_units_of(objective, self.initialised(in_channels, objective.out_channels, seed))


def in_units_of(objective: Objective, model: GraphModel) -> GraphModel:
    """A network that gives what an objective asks for: of a regression one that knows the unit of its targets."""
    return OutputScale(model) if isinstance(objective, Regression) else model


def architecture_of(recipe: Recipe) -> Architecture:
    """The network of a recipe's model, which must be one of `MODELS`."""
    settings = recipe.model
    if settings.is_own:
        raise GraphjouleError(
            f"The model {settings.name} is not one of graphjoule's; pass the function or class that builds it."
        )

    def make(in_channels: int, out_channels: int) -> GraphModel:
        width = settings.hidden_channels or 1
        return MODELS[settings.name](in_channels, width, out_channels, settings.num_layers, **settings.options)

    return Architecture(settings, make)


def own_architecture(build: Builder, task: Task) -> Architecture:
    """The network of a class with its options, or of any function that builds a module.

    Args:
        build: called with ``in_channels`` and ``out_channels`` if it takes arguments of these names, as PyG's models
            do; else with the task if it takes one argument, else with nothing. Options go in by `functools.partial`.
        task: what it will be trained on.
    """
    function = build.func if isinstance(build, functools.partial) else build
    options = dict(build.keywords) if isinstance(build, functools.partial) else {}
    name = next((name for name, known in MODELS.items() if known is function), None)
    if name is not None:  # one of ours, by its class: the same as by a recipe
        try:
            settings = ModelSettings(
                name=name,
                num_layers=options.pop("num_layers"),
                hidden_channels=options.pop("hidden_channels", 64),
                options=options,
            )
        except KeyError as error:
            raise GraphjouleError(f"{function.__name__} needs num_layers; add it with functools.partial.") from error
        width = settings.hidden_channels or 1
        known = MODELS[name]
        return Architecture(settings, lambda i, o: known(i, width, o, settings.num_layers, **settings.options))
    make = functools.partial(_make_own, build, task)
    with draws_from(Draws(0)):
        model = make(task.num_features, task.out_channels)
    settings = ModelSettings(
        name=qualified_name(function),
        num_layers=model.num_layers,
        hidden_channels=options.get("hidden_channels"),
        options={
            **{key: value for key, value in options.items() if isinstance(value, bool | int | float | str)},
            "architecture": hashlib.sha256(repr(model.module).encode()).hexdigest()[:16],
        },
    )
    return Architecture(settings, make)


def _make_own(build: Builder, task: Task, in_channels: int, out_channels: int) -> OwnModel:
    parameters = inspect.signature(build).parameters
    needed = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if {"in_channels", "out_channels"} <= parameters.keys():
        module = build(in_channels=in_channels, out_channels=out_channels)
    elif len(needed) <= 1:
        module = build(task) if needed else build()
    else:
        raise GraphjouleError(
            f"{build!r} takes {', '.join(needed)}; expected a function of the task, or one with in_channels and "
            "out_channels whose other arguments are filled in, such as functools.partial(GAT, hidden_channels=64, "
            "num_layers=4)."
        )
    if not isinstance(module, nn.Module):
        raise GraphjouleError(f"{build!r} returned {type(module).__name__}; expected a torch.nn.Module.")
    return OwnModel(module, in_channels, out_channels)


class OwnModel(GraphModel):
    """A user's module behind the calls of our networks.

    Args:
        module: called as ``module(x, edge_index)`` or ``module(x, edge_index, edge_weight)`` where its ``forward``
            has arguments of these names, else as ``module(x, graph)``.
        in_channels: number of input features.
        out_channels: number of outputs.
    """

    parameter_group_names = ("all",)
    is_stackable = False  # its random numbers come from torch, and nobody promises that vmap understands it

    def __init__(self, module: nn.Module, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, 1, out_channels, max(1, len(watched_modules(module, None))))
        self.module = module
        names = inspect.signature(module.forward).parameters
        self._takes_edges, self._takes_weights = "edge_index" in names, "edge_weight" in names

    def _forward(self, x: Features, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        x = x.to_dense() if isinstance(x, SparseFeatures) else x
        if not self._takes_edges:
            output = self.module(x, graph)
        elif self._takes_weights and graph.is_weighted:
            output = self.module(x, graph.edge_index, edge_weight=graph.edge_weight)
        else:
            output = self.module(x, graph.edge_index)
        if not isinstance(output, Tensor) or output.shape != (x.size(0), self.out_channels):
            found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise GraphjouleError(
                f"{type(self.module).__name__} returned {found}; expected a tensor of shape "
                f"[{x.size(0)}, {self.out_channels}], a row per node."
            )
        return output

    def penalty(self) -> Tensor:
        """What the module's own ``penalty`` returns, if it has one."""
        own = getattr(self.module, "penalty", None)
        return own() if callable(own) else super().penalty()

    def parameter_group(self, name: str) -> str:
        """One group for all parameters."""
        return "all"


def qualified_name(function: Any) -> str:
    """Where a class or function is defined, as a record names it."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', 'function')}.{name}"


def user_module(model: GraphModel) -> nn.Module:
    """What the user built, without our wrapper; a network of ours, or of a regression, as it is."""
    return model.module if isinstance(model, OwnModel) else model


_TAKE_A_GENERATOR = {
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal),
    *(torch.bernoulli, torch.multinomial, torch.poisson, Tensor.bernoulli, Tensor.multinomial),
    *(Tensor.uniform_, Tensor.normal_, Tensor.random_, Tensor.bernoulli_, Tensor.exponential_, Tensor.log_normal_),
    *(Tensor.cauchy_, Tensor.geometric_),
}


class Draws:
    """Random numbers of one run: a generator for every kind of device, all from one seed.

    Args:
        seed: what the generators start from.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.generators: dict[str, torch.Generator] = {}

    def on(self, device: torch.device) -> torch.Generator:
        """The generator of a kind of device; a meta tensor takes any."""
        if device.type not in self.generators:
            where = "cpu" if device.type == "meta" else device
            self.generators[device.type] = torch.Generator(where).manual_seed(self._seed)
        return self.generators[device.type]


@contextmanager
def draws_from(draws: Draws) -> Iterator[None]:
    """Let all random numbers that torch draws within the block, in this thread alone, come from `draws`.

    It serves any module, also one made of torch's own layers, whose draws cannot be handed a generator.
    """
    with _DrawMode(draws):
        yield


class _DrawMode(TorchFunctionMode):
    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self._draws = draws

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        # `torch.nn.init` says generator=None
        if kwargs.get("generator") is None and ("generator" in kwargs or func in _TAKE_A_GENERATOR):
            kwargs = {**kwargs, "generator": self._draws.on(_device(args, kwargs))}
        return func(*args, **kwargs)

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Torch's dropout, whose own draws take no generator."""
        if not training or p == 0:
            return input
        kept = torch.empty_like(input).bernoulli_(1 - p, generator=self._draws.on(input.device))
        return input * (kept / (1 - p) if p < 1 else kept)


def _device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """Where a draw takes place: where the tensor is that it fills or reads, else where it says, else the default."""
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, Tensor):
            return arg.device
    return torch.device(kwargs.get("device") or torch.get_default_device())


def initialised(recipe: Recipe, in_channels: int, out_channels: int, seed: int) -> GraphModel:
    """The network with which a training of this recipe and seed begins, see `Architecture.initialised`."""
    return architecture_of(recipe).initialised(in_channels, out_channels, seed)


def build_model(recipe: Recipe, task: Task, seed: int) -> GraphModel:
    """The recipe's network for a task, initialised from a seed."""
    return architecture_of(recipe).for_task(task.objective, task.num_features, seed)
