"""What a training begins with: the network of a recipe, or anybody's own, initialised from a seed."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import itertools
import logging
import random
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from graphjoule.errors import GraphjouleError, counted
from graphjoule.graph import Propagation, as_propagation
from graphjoule.graph.features import Features, as_dense
from graphjoule.nn import MODELS, GraphModel, OutputScale
from graphjoule.tasks.objective import Objective
from graphjoule.tasks.task import Task
from graphjoule.training.recipe import Recipe
from graphjoule.training.settings import ModelSettings, checked

logger = logging.getLogger("graphjoule")
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
        check_memory(self.settings, in_channels, out_channels)
        with Draws(seed):
            return self.make(in_channels, out_channels)

    def for_task(self, objective: Objective, in_channels: int, seed: int) -> GraphModel:
        """The same for an objective, see `in_units_of`."""
        return in_units_of(objective, self.initialised(in_channels, objective.out_channels, seed))


def in_units_of(objective: Objective, model: GraphModel) -> GraphModel:
    """A network that gives what an objective asks for: of a regression one that knows the unit of its targets."""
    return OutputScale(model) if objective.is_scaled else model


def inner_network(model: nn.Module) -> nn.Module:
    """What terms and instruments look at: the network itself, ours or the user's, without what we put around it."""
    model = model.model if isinstance(model, OutputScale) else model
    return model.module if isinstance(model, OwnModel) else model


def user_module(model: GraphModel) -> nn.Module:
    """What the user built, without our wrapper; a network of ours, or of a regression, as it is."""
    return model.module if isinstance(model, OwnModel) else model


def set_norm_momentum(model: nn.Module, momentum: float, name: str) -> None:
    """Let all batch norms of a network forget at one rate; one that has none is refused by its name."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        raise GraphjouleError(f"train.norm_momentum is {momentum:g}, and {name} has no batch norm.")
    for norm in norms:
        norm.momentum = momentum


def not_finite(model: nn.Module) -> str | None:
    """The name of the first weight that has a value that is not finite, as a training that blew up leaves it."""
    state = model.state_dict().items()
    return next((name for name, weight in state if not bool(torch.isfinite(weight).all())), None)


def architecture_of(recipe: Recipe) -> Architecture:
    """The network of a recipe's model, which must be one of `MODELS`."""
    if recipe.model.is_own:
        raise GraphjouleError(
            f"The model {recipe.model.name} is not one of graphjoule's; pass the function or class that builds it."
        )
    return _of_the_zoo(recipe.model)


def _of_the_zoo(settings: ModelSettings) -> Architecture:
    def make(in_channels: int, out_channels: int) -> GraphModel:
        width = settings.hidden_channels or 1
        return MODELS[settings.name](in_channels, width, out_channels, settings.num_layers, **settings.options)

    return Architecture(settings, make)


_WORTH_COUNTING = 10**8  # parameters, about; fewer fit into any memory


def check_memory(settings: ModelSettings, in_channels: int, out_channels: int) -> None:
    """Refuse a network whose parameters do not fit into this machine's memory, before it is built."""
    from graphjoule.training.trainer import free_bytes  # which imports this file

    width = settings.hidden_channels or 1
    if width * (in_channels + out_channels + width * settings.num_layers) < _WORTH_COUNTING:
        return
    needed = 4 * (count_state(settings, in_channels, out_channels) or (0, 0))[1]
    if needed > (free := free_bytes(torch.device("cpu"))):
        raise GraphjouleError(
            f"One {settings.name} with {counted(settings.num_layers, 'layer')} and hidden_channels = {width} takes "
            f"{needed / 2**30:,.0f} GiB, and {free / 2**30:,.0f} GiB of memory are free; use fewer layers or a smaller "
            "hidden_channels."
        )


def count_state(settings: ModelSettings, in_channels: int, out_channels: int) -> tuple[int, int] | None:
    """How many tensors and how many numbers the state of a network has, without building it.

    Of our networks the first grows with the depth by the same number for every layer, from two layers on; so does the
    second, and it is a polynomial of degree two of the width. Six networks of width 1 to 3 say which.

    Returns:
        None for a network that is not ours: nobody knows how it grows.
    """
    network = MODELS.get(settings.name)
    if network is None or not network.__module__.startswith("graphjoule.nn."):
        return None
    depth, width = settings.num_layers, settings.hidden_channels or 1
    depths = (2, 3) if depth > 1 else (1, 1)

    def count(small: int, layers: int) -> tuple[int, int]:
        state = network(in_channels, small, out_channels, layers, **settings.options).state_dict().values()
        return len(state), sum(value.numel() for value in state)

    with Draws(0):
        counts = [[count(small, layers) for small in (1, 2, 3)] for layers in depths]
    tensors = [by_width[0][0] for by_width in counts]
    numbers = []
    for (_, one), (_, two), (_, three) in counts:
        slope, bend = two - one, (three - 2 * two + one) // 2
        numbers.append(one + (width - 1) * slope + (width - 1) * (width - 2) * bend)
    more = max(depth - 2, 0)
    return tensors[0] + more * (tensors[1] - tensors[0]), numbers[0] + more * (numbers[1] - numbers[0])


def own_architecture(build: Builder, task: Task) -> Architecture:
    """The network of a class with its options, or of any function that builds a module.

    Args:
        build: called with ``in_channels`` and ``out_channels`` if it takes arguments of these names, as PyG's models
            do; else with the task if it takes one argument, else with nothing. Options go in by `functools.partial`.
        task: what it will be trained on.
    """
    function, positional, options = build, (), {}
    if isinstance(build, functools.partial):
        function, positional, options = build.func, build.args, dict(build.keywords)
    name = next((name for name, known in MODELS.items() if known is function), None)
    if name is not None:  # one of ours, by its class: the same as by a recipe
        if positional:
            raise GraphjouleError(f"The options of {function.__name__} need their names: use num_layers=16 and so on.")
        if "num_layers" not in options:
            raise GraphjouleError(f"{function.__name__} needs num_layers; add it with functools.partial.")
        own: dict[str, Any] = {key: options.pop(key) for key in ("num_layers", "hidden_channels") if key in options}
        return _of_the_zoo(checked(ModelSettings, {"name": name, "options": options, **own}))
    make = functools.partial(_make_own, build, task, weakref.WeakSet())
    with Draws(0):
        model = make(task.num_features, task.out_channels)
    if model.drops_weights and task.graph.is_weighted:
        logger.warning(
            "%s has edge weights, and %s.forward takes none: the training does not see them; give forward an argument "
            "edge_weight, or edges of weight 1 to the task",
            task.name,
            type(model.module).__name__,
        )
    depth, width = (options.get(key) for key in ("num_layers", "hidden_channels"))
    plain = {key: value for key, value in options.items() if isinstance(value, bool | int | float | str)}
    if type(depth) is not int or depth < 1:
        from graphjoule.trace.watch import watched_modules  # here: a training of ours needs no instruments

        # The layers that pass messages; where nobody can see which do, those that a trace watches.
        depth = sum(callable(getattr(m, "propagate", None)) for m in model.module.modules())
        layers = watched_modules(model.module, None).values()
        depth = depth or sum(not isinstance(m, nn.ModuleList | nn.Sequential | nn.ModuleDict) for m in layers) or 1
    fields = {
        "name": qualified_name(function),
        "num_layers": depth,
        "hidden_channels": width if type(width) is int and width > 0 else None,
        "options": {key: value for key, value in plain.items() if key not in ModelSettings.model_fields}
        | {"architecture": hashlib.sha256(repr(model.module).encode()).hexdigest()[:16]},
    }
    return Architecture(checked(ModelSettings, fields), make)


def _make_own(
    build: Builder, task: Task, made: weakref.WeakSet[nn.Module], in_channels: int, out_channels: int
) -> OwnModel:
    try:
        signature = inspect.signature(build)
    except ValueError as error:  # such as dict
        raise GraphjouleError(f"{build!r} builds no module; expected a class or function that does.") from error
    needed = [p.name for p in signature.parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    given: dict[str, Any] = {}
    if {"in_channels", "out_channels"} <= signature.parameters.keys():
        given = {"in_channels": in_channels, "out_channels": out_channels}
    positional = [] if given or not needed else [task]
    try:
        signature.bind(*positional, **given)
    except TypeError as error:
        raise GraphjouleError(
            f"{build!r} needs {', '.join(needed)}; expected a function of the task, or one with in_channels and "
            "out_channels whose other arguments are filled in, such as functools.partial(GAT, hidden_channels=64, "
            "num_layers=4)."
        ) from error
    module = build(*positional, **given)
    if not isinstance(module, nn.Module):
        raise GraphjouleError(f"{build!r} returned {type(module).__name__}; expected a torch.nn.Module.")
    if module in made:
        raise GraphjouleError(
            f"{build!r} returned the same {type(module).__name__} twice; expected a new module at every call, because "
            "every seed trains its own: lambda task: MyModel(task.num_features, task.out_channels), or "
            "copy.deepcopy(module) to start all seeds from one."
        )
    made.add(module)
    module = copy.deepcopy(module)  # training moves it, and modules of several seeds may share a part
    model = OwnModel(module, in_channels, out_channels)
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        with torch.no_grad():  # layers whose sizes are left open, such as GCNConv(-1, 16), learn them from a call
            model.eval()(task.features, task.graph)
        model.train()
    kinds = {p.dtype for p in module.parameters()}
    if len(kinds) != 1 or not next(iter(kinds)).is_floating_point:
        found = ", ".join(sorted(map(str, kinds))) or "none"
        raise GraphjouleError(
            f"The parameters of {type(module).__name__} have the dtypes {found}; expected one floating-point dtype."
        )
    return model


_HOW_CALLED = "A module is called as forward(x, edge_index[, edge_weight]) or forward(x, graph): use these names"


class OwnModel(GraphModel):
    """A user's module behind the calls of our networks.

    Args:
        module: called as ``module(x, edge_index)`` or ``module(x, edge_index, edge_weight)`` where its ``forward``
            has arguments of these names, else as ``module(x, graph)``. Without weights, and where all are 1, a default
            of ``edge_weight`` stays; one that has none is 1 for every edge.
        in_channels: number of input features.
        out_channels: number of outputs.
    """

    is_stackable = False  # its random numbers come from torch, and nobody promises that vmap understands it

    def __init__(self, module: nn.Module, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, 1, out_channels, 1)
        self.module = module
        signature = inspect.signature(module.forward)
        weight = signature.parameters.get("edge_weight")
        self._takes_edges = "edge_index" in signature.parameters
        self._takes_weights = self._takes_edges and weight is not None
        self._needs_weights = weight is not None and weight.default is weight.empty
        self._call = f"{type(module).__name__}.forward({', '.join(signature.parameters)})"
        try:
            signature.bind(None, None, **({"edge_weight": None} if self._takes_weights else {}))
        except TypeError as error:
            raise GraphjouleError(
                f"{self._call} cannot be called: {error}. {_HOW_CALLED}, and an attribute for what else it needs."
            ) from error
        self._names_graph = self._takes_edges or list(signature.parameters)[1:2] == ["graph"]

    @property
    def drops_weights(self) -> bool:
        """Whether the module is called without the weights of edges."""
        return self._takes_edges and not self._takes_weights

    def forward(
        self,
        x: Features,
        graph: Propagation | Tensor,
        edge_weight: Tensor | None = None,
        *,
        key: Tensor | None = None,
    ) -> Tensor:
        """The module's output; `key` is for our own dropout and not used here."""
        x = as_dense(x)
        graph = as_propagation(graph, x.size(0), x, edge_weight)
        output = self._called(x, graph)
        if not isinstance(output, Tensor) or output.shape != (x.size(0), self.out_channels):
            found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise GraphjouleError(
                f"{type(self.module).__name__} returned {found}; expected a tensor of shape "
                f"[{x.size(0)}, {self.out_channels}], a row per node."
            )
        return output

    def _called(self, x: Tensor, graph: Propagation) -> Any:
        """What the module returns, or a sentence where it expects another graph or other features than it is given."""
        try:
            if not self._takes_edges:
                return self.module(x, graph)
            if self._takes_weights and (self._needs_weights or graph.is_weighted):
                return self.module(x, graph.edge_index, edge_weight=graph.edge_weight)
            return self.module(x, graph.edge_index)
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError | GraphjouleError):
                raise
            if not self._names_graph:
                message = f"{self._call} failed with x and a Propagation: {error}. {_HOW_CALLED}."
                raise GraphjouleError(message) from error
            dtype = next(self.module.parameters()).dtype
            if isinstance(error, RuntimeError) and x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
                raise GraphjouleError(
                    f"The features are {x.dtype} and the parameters of {type(self.module).__name__} {dtype}; give the "
                    f"task features of {dtype}, or build a module of {x.dtype}. Torch says: {error}."
                ) from error
            raise

    def penalty(self) -> Tensor:
        """What the module's own ``penalty`` returns, if it has one."""
        own = getattr(self.module, "penalty", None)
        return own() if callable(own) else super().penalty()

    def parameter_group(self, name: str) -> str:
        """One group for all parameters but those that the user has frozen."""
        return "all" if self.get_parameter(name).requires_grad else "frozen"


def qualified_name(function: Any) -> str:
    """Where a class or function is defined, as a record names it."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', 'function')}.{name}"


_TAKE_A_GENERATOR = {
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal),
    *(torch.bernoulli, torch.multinomial, torch.poisson, Tensor.bernoulli, Tensor.multinomial),
    *(Tensor.uniform_, Tensor.normal_, Tensor.random_, Tensor.bernoulli_, Tensor.exponential_, Tensor.log_normal_),
    *(Tensor.cauchy_, Tensor.geometric_),
}
# These draw inside, where no generator can be handed to them.
_DRAW_INSIDE = {
    *(torch.rand_like, torch.randn_like, torch.randint_like),
    *(F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, F.rrelu, F.gumbel_softmax),
    *(F.multi_head_attention_forward, F.scaled_dot_product_attention),
    *(torch.native_dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout),
    *(torch.dropout_, torch.feature_dropout_, torch.alpha_dropout_, torch.feature_alpha_dropout_),
    *(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu),  # dropout between their layers
    *(torch._standard_gamma, torch._sample_dirichlet, torch.binomial),  # what torch.distributions draws from
}
_GLOBAL_GENERATOR = threading.Lock()
_IN_THREAD = threading.local()  # `draws`: those that are entered in this thread, the innermost last


class Draws(TorchFunctionMode):
    """Random numbers of one run: a generator for every kind of device, all from one seed.

    ``with draws:`` lets all random numbers that torch draws within the block, in this thread alone, come from them. It
    serves any module, also one made of torch's own layers, whose draws cannot be handed a generator. What
    `torch.utils.checkpoint` runs again in a backward pass draws what it drew in the block.

    Args:
        seed: what the generators start from.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self.generators: dict[str, torch.Generator] = {}

    def __enter__(self) -> Self:
        _IN_THREAD.draws = [*getattr(_IN_THREAD, "draws", ()), self]
        with _GLOBAL_GENERATOR:
            _repeat_checkpointed_draws()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _IN_THREAD.draws = _IN_THREAD.draws[:-1]

    def repeating(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, drawing whenever it is called the numbers that come next now; what others draw stays the same."""
        begin = self._state()

        def again(*args: Any, **kwargs: Any) -> Any:
            here = self._state()
            self._set_state(begin)
            try:
                with self:
                    return function(*args, **kwargs)
            finally:
                self._set_state(here)

        return again

    def _state(self) -> dict[str, Tensor]:
        return {kind: generator.get_state() for kind, generator in self.generators.items()}

    def _set_state(self, state: Mapping[str, Tensor]) -> None:
        for kind, generator in self.generators.items():
            if kind in state:
                generator.set_state(state[kind])
            else:  # it was made later
                generator.manual_seed(self._seed)

    def on(self, device: torch.device) -> torch.Generator:
        """The generator of a kind of device; a meta tensor takes any."""
        if device.type not in self.generators:
            where = "cpu" if device.type == "meta" else device
            self.generators[device.type] = torch.Generator(where).manual_seed(self._seed)
        return self.generators[device.type]

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout or func is torch.dropout:
            return self._dropout(*args, **kwargs)
        if func in _DRAW_INSIDE:
            return self._borrowing_the_global_generator(func, args, kwargs)
        # `torch.nn.init` says generator=None
        if kwargs.get("generator") is None and ("generator" in kwargs or func in _TAKE_A_GENERATOR):
            kwargs = {**kwargs, "generator": self.on(_device(args, kwargs))}
        return func(*args, **kwargs)

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Torch's dropout, whose own draws take no generator."""
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        if not training or p == 0:
            return input
        kept = torch.empty_like(input).bernoulli_(1 - p, generator=self.on(input.device))
        factor = kept / (1 - p) if p < 1 else kept
        return input.mul_(factor) if inplace else input * factor

    def _borrowing_the_global_generator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call that draws from torch's global generator, which starts from a number of ours and is then put back.

        Another thread that draws in this moment gets other numbers; for the functions above there is no better way.
        """
        device = _device(args, kwargs)
        seed = int(torch.randint(2**62, (), generator=self.on(torch.device("cpu"))))
        with _GLOBAL_GENERATOR, torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            return func(*args, **kwargs)


def shared_generators(device: torch.device) -> dict[str, Any]:
    """The states of the generators that all of a process shares, by whose they are; no seed of a run reaches them."""
    kind, keys, place, *_ = np.random.get_state(legacy=True)
    with _GLOBAL_GENERATOR:  # another training may borrow them
        cpu = torch.get_rng_state().numpy().tobytes()
        gpu = torch.cuda.get_rng_state(device).tolist() if device.type == "cuda" else []
    return {
        "torch": (cpu, gpu),
        "Python's random": random.getstate(),
        "NumPy": (kind, np.asarray(keys).tobytes(), place),
    }


@functools.cache
def _repeat_checkpointed_draws() -> None:
    """Let `torch.utils.checkpoint` call again with the draws of the first call, of either of its two kinds.

    It restores the state of torch's global generators alone, and nobody can hand it others. From here on it does as
    before wherever no `Draws` is entered. The names are those of torch 2.6 to 2.13.
    """
    anew: Any
    kept: Any
    anew, kept = checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction.apply

    def without_reentry(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """It calls `function` in the backward pass only."""
        draws = getattr(_IN_THREAD, "draws", None)
        return anew(draws[-1].repeating(function) if draws else function, *args, **kwargs)

    def with_reentry(function: Callable[..., Any], *args: Any) -> Any:
        """It calls `function` in the forward pass too."""
        if not (draws := getattr(_IN_THREAD, "draws", None)):
            return kept(function, *args)
        calls = itertools.chain([function], itertools.repeat(draws[-1].repeating(function)))
        return kept(lambda *inputs: next(calls)(*inputs), *args)

    checkpoint._checkpoint_without_reentrant_generator = without_reentry  # type: ignore[assignment]
    checkpoint.CheckpointFunction.apply = with_reentry  # type: ignore[method-assign]


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
