"""What every model of the zoo promises, so that one trainer, one trace and one test serve all; and what they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from graphjoule.errors import GraphjouleError, choices
from graphjoule.graph import Propagation, as_propagation
from graphjoule.graph.csr import is_plain
from graphjoule.graph.features import Features, SparseFeatures
from graphjoule.graph.nodes import computing_on, current_nodes
from graphjoule.graph.product import Product, Show
from graphjoule.nn.table import MODELS
from graphjoule.ops import dropout, sparse_linear, split_key


class GraphModel(nn.Module):
    """A network from node features and a graph to class scores or other numbers per node, written for one run.

    A subclass implements `_forward`, and `penalty` if its loss has a term of its own. The optimiser's parameter groups
    are a partition of all parameters by construction: every name is put into one of `parameter_group_names` or into
    "frozen".
    """

    parameter_group_names: ClassVar[tuple[str, ...]] = ("all",)
    is_stackable: ClassVar[bool] = True  # many runs of it can train in one program
    needs_undirected: ClassVar[bool] = False  # its formula, or a gradient written for it, holds for a symmetric P alone
    checkpoint: Literal["auto"] | int | None = "auto"
    """Layers per checkpointed segment, None to keep every layer; "auto" is sqrt(num_layers) beyond 64 layers."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int) -> None:
        super().__init__()
        self.in_channels, self.hidden_channels, self.out_channels = in_channels, hidden_channels, out_channels
        self.num_layers = num_layers
        for name in ("in_channels", "hidden_channels", "out_channels", "num_layers"):
            if (value := getattr(self, name)) < 1:
                raise GraphjouleError(f"{name} is {value}; it must be at least 1.")

    def forward(
        self,
        x: Features,
        graph: Propagation | Tensor,
        edge_weight: Tensor | None = None,
        *,
        key: Tensor | None = None,
    ) -> Tensor:
        """Class scores of every node, shape ``[num_nodes, out_channels]``.

        Args:
            x: node features, dense or `SparseFeatures`.
            graph: a `Propagation`, or PyG's ``edge_index`` with both directions of each edge.
            edge_weight: weight of every edge of an ``edge_index``, without a gradient; a `Propagation` has its own.
            key: dropout key for training, see `graphjoule.ops.make_key`. By default one is drawn from torch's global
                generator, so a plain training loop under `torch.manual_seed` behaves as expected.
        """
        if x.size(-1) != self.in_channels:
            raise GraphjouleError(f"The features have {x.size(-1)} columns; this model expects {self.in_channels}.")
        like = next(self.parameters())
        is_number = x.dtype.is_floating_point  # ids may be for an embedding
        if is_number and x.dtype != like.dtype and not torch.is_autocast_enabled(x.device.type):
            raise GraphjouleError(
                f"The features are {x.dtype} and the parameters of {type(self).__name__} {like.dtype}; give features "
                f"of {like.dtype}, or convert the model with model.to({x.dtype})."
            )
        graph = as_propagation(graph, x.size(0), like, edge_weight)
        self.check_graph(graph)
        if not self.training:
            key = None
        elif key is None:
            key = torch.randint(-(2**31), 2**31, (2,), dtype=torch.int32, device=x.device)
        with computing_on(graph):
            return self._forward(x, graph, split_key(key, self.num_layers + 2))

    @classmethod
    def check_graph(cls, graph: Propagation) -> None:
        """Refuse a graph whose operator the network's formula, or the gradient written for it, does not fit."""
        if cls.needs_undirected and graph.is_directed:
            able = choices([name for name in MODELS if not MODELS[name].needs_undirected])
            raise GraphjouleError(
                f"{cls.__name__} needs edges that count in both directions, because its P must be symmetric, and here "
                f"they keep theirs; take `direction=both`, or a `model` that follows directions: {able}."
            )

    def _forward(self, x: Features, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        """The network itself. Layer k drops with ``keys[k]``, the encoder with ``keys[0]``, the head with the last."""
        raise NotImplementedError

    def penalty(self) -> Tensor:
        """The model's own term of the training loss, a scalar."""
        return zero_of(self)

    def spectral_limits(self) -> dict[str, float]:
        """Weights that a trainer holds to a spectral norm after every step, by name, each with its limit."""
        return {}

    def in_loss_units(self, values: Tensor) -> Tensor:
        """Outputs or targets in the unit in which the loss counts them; see `OutputScale`."""
        return values

    def centered(self, values: Tensor) -> Tensor:
        """Outputs or targets less a number that all have in common; see `OutputScale`."""
        return values

    @property
    def output_center(self) -> Tensor | float:
        """The number that all outputs have in common; see `OutputScale`."""
        return 0.0

    def kept_activations(self, *, is_fused: bool) -> int:
        """About how many activations ``[num_nodes, hidden_channels]`` a training step needs at its peak.

        Plain autograd keeps up to eight per layer, counted on a 64-layer EGNN.
        """
        return 8 * (self.num_layers + 2)

    def _segment(self) -> int | None:
        """Layers per checkpointed segment."""
        if self.checkpoint == "auto":
            return math.isqrt(self.num_layers) if self.num_layers > 64 else None
        return self.checkpoint

    def parameter_group(self, name: str) -> str:
        """The optimiser group of the parameter called `name`; by default there is one for all."""
        return "all"

    def parameter_groups(self) -> dict[str, list[str]]:
        """Parameter names by optimiser group; together they are all parameters, each once."""
        groups: dict[str, list[str]] = {group: [] for group in self.parameter_group_names}
        for name, _ in self.named_parameters():
            groups.setdefault(self.parameter_group(name), []).append(name)
        return groups

    def reset_parameters(self) -> None:
        """Draw the initial parameters anew from torch's global generator."""
        for module in self.children():
            _reset(module)


def zero_of(model: nn.Module) -> Tensor:
    """A term of the loss that is nothing: a plain zero like the parameters, also where these are sharded."""
    first = next(model.parameters())
    return torch.zeros((), dtype=first.dtype, device=first.device)  # `new_zeros` would be a DTensor


def whole_weight(weight: Tensor) -> Tensor:
    """A matrix of a layer, gathered from all processes where `fully_shard` gives each a part; gradients go back."""
    gather = getattr(weight, "full_tensor", None)  # a DTensor, without importing `torch.distributed` for it
    found: Tensor = weight if gather is None else gather()
    if found.dim() != 2:
        raise GraphjouleError(
            f"A weight of the model has the shape {list(found.shape)} and not that of a matrix: outside of its forward "
            "pass FullyShardedDataParallel leaves each process a flat part. Wrap a module whose forward returns the "
            "scores and the penalty, or take `fully_shard`, whose weights can be gathered here."
        )
    return found


def _reset(module: nn.Module) -> None:
    if callable(reset := getattr(module, "reset_parameters", None)):
        reset()
    else:
        for child in module.children():
            _reset(child)


ModuleType = TypeVar("ModuleType", bound=type[nn.Module])
_STOCK: dict[type[nn.Module], tuple[Any, frozenset[str]]] = {}
"""By class the `forward` that it was written with, and all names it has, which an instance could hide."""


def stock(kind: ModuleType) -> ModuleType:
    """A class decorator: what modules of this very class compute, as it is written, may be computed in another way."""
    _STOCK[kind] = kind.forward, frozenset(dir(kind))
    return kind


@stock
class FeatureLinear(nn.Linear):
    """A linear map of node features, dense or sparse, with dropout on its input."""

    def forward(self, x: Features, p: float = 0.0, key: Tensor | None = None) -> Tensor:
        """``dropout(X) W^T + b``, shape ``[num_nodes, out_features]``."""
        if isinstance(x, SparseFeatures):
            out = sparse_linear(x, self.weight.t(), p, key)
            return out if self.bias is None else out + self.bias
        # In half precision under autocast, and then back: graph layers and energies want the dtype of the parameters.
        out = super().forward(dropout(x, p, key))
        return out if out.dtype == self.weight.dtype else out.to(self.weight.dtype)


stock(nn.ReLU)
stock(nn.Identity)


class Onlooker:
    """A forward hook that only reads a layer's output: a fused backend may run, and show the outputs that it makes.

    Register it ``with_kwargs=True``.

    Args:
        see: called with the module, its arguments, its keyword arguments, its output, and None or what the layer after
            it made of that output, see `graphjoule.graph.product.Product`. What a fused backend shows comes without
            arguments, with ``{"graph": graph}`` for all its layers, and is overwritten soon, but not on a GPU.
    """

    only_reads = True  # see `is_only_seen`

    def __init__(self, see: Callable[[nn.Module, Any, Any, Any, Product | None], None]) -> None:
        self.see = see

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """What torch calls."""
        self.see(module, args, kwargs, output, None)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a module has a hook that sees nothing: who looks on looks at the module itself."""
        return Onlooker, (_see_nothing,)


def _see_nothing(*args: Any) -> None:
    pass


def onlookers(layers: nn.ModuleList, graph: Propagation) -> Show | None:
    """What shows the outputs of layers to all who look on; None where nobody does, or there is nothing to show.

    Where a gradient or a vmap is at work, the outputs inside a fused backend are not those of one run.
    """
    if not is_plain() or not any(layer._forward_hooks for layer in layers):
        return None

    watched = [(layer, list(layer._forward_hooks.values())) for layer in layers]
    kwargs = {"graph": graph}  # one for all layers, by which an onlooker knows the layers of one call

    def show(k: int, x: Tensor, product: Product | None) -> None:
        layer, hooks = watched[k]
        for hook in hooks:
            assert isinstance(hook, Onlooker)
            hook.see(layer, (), kwargs, x.detach(), product)  # a tensor of its own in the same memory

    return show


def is_as_written(module: nn.Module) -> bool:
    """Whether a module computes, hooks aside, what its class was written to.

    It does not where the class is another one (a subclass, or the one that a parametrization puts in its place), and
    where the class or the module was given another `forward` or the module any other method. What the module's settings
    are is not asked here.
    """
    kind = type(module)
    forward, names = _STOCK.get(kind, (None, frozenset()))
    return forward is kind.forward and vars(module).keys().isdisjoint(names)


def is_only_seen(module: nn.Module) -> bool:
    """Whether a module `is_as_written`, and every hook on its call is one that says that it changes nothing."""
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return is_as_written(module) and all(getattr(hook, "only_reads", False) for hook in hooks)


def is_stock(module: nn.Module, *, or_seen: bool = False) -> bool:
    """Whether a module `is_as_written` and no hook waits for its call or its gradient.

    A fused backend may replace what is stock.

    Args:
        module: what might be replaced.
        or_seen: whether an `Onlooker` does not count, because the backend will show it the output.
    """
    hooks = module._forward_hooks
    is_free = not hooks or (or_seen and all(isinstance(hook, Onlooker) for hook in hooks.values()))
    has_hooks = (not is_free or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks) or (
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )
    return is_as_written(module) and not has_hooks


@stock
class BatchNorm(nn.BatchNorm1d):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` of every channel, with mean and variance over all nodes.

    Torch's own, unless the nodes at hand are not all nodes of the graph; then the graph sums over the others too.

    Args:
        channels: number of channels.

    Example:
        >>> BatchNorm(1)(torch.tensor([[1.0], [3.0]])).detach().round(decimals=3)
        tensor([[-1.],
                [ 1.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """The normalised features, the shape of `x`."""
        return current_nodes().batch_norm(x, self) if self.training else super().forward(x)


class Encoder(nn.Module):
    """The map ``f`` from input features to ``X_0``, which the graph layers start from.

    Args:
        in_channels: number of input features.
        channels: width of ``X_0``.
        kind: "linear" is dropout, linear, ReLU; "mlp" is linear, batch norm, ReLU, dropout, linear.
        dropout: dropout probability.
    """

    def __init__(self, in_channels: int, channels: int, kind: Literal["linear", "mlp"], dropout: float) -> None:
        super().__init__()
        check_choice("encoder", kind, ("linear", "mlp"))
        self.dropout = dropout
        self.first = FeatureLinear(in_channels, channels)
        self.norm = BatchNorm(channels) if kind == "mlp" else None
        self.second = FeatureLinear(channels, channels) if kind == "mlp" else None

    def forward(self, x: Features, key: Tensor | None = None) -> Tensor:
        """``X_0``, shape ``[num_nodes, channels]``."""
        if self.norm is None or self.second is None:
            return torch.relu(self.first(x, self.dropout, key))
        out: Tensor = self.second(self.norm(self.first(x)).relu(), self.dropout, key)
        return out


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode for a ``with`` block; then every part has its own mode again.

    ``model.train()`` would not do: some part may have been frozen in evaluation mode.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def check_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a setting that is not one of the `allowed` words."""
    if value not in (allowed := list(allowed)):
        raise GraphjouleError(f"{name} is {value!r}; choose one of {', '.join(allowed)}.")


def check_unit_interval(name: str, value: float, *, closed: bool) -> None:
    """Refuse a setting outside [0, 1], or outside [0, 1) unless `closed`."""
    if not 0 <= value <= 1 or (value == 1 and not closed):
        raise GraphjouleError(f"{name} is {value}; it must be in [0, 1{']' if closed else ')'}.")
