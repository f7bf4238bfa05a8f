"""The energies of a model's layers, taken by hooks while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.terms.log_energy import SmoothingGraph, log_energy
from graphjoule.trace.outputs import TracedGraph, as_matrix
from graphjoule.trace.watch import Watch, watched_modules


@dataclass(frozen=True, eq=False)
class Embedding:
    """What is known of one layer's output: ``log E(X)`` with its gradient, but not the output itself.

    Attributes:
        name: the layer's name.
        log_energy: shape ``[]`` or ``[runs]``.
        is_nil: whether the energy is zero up to rounding.
        channels: width of the output.
        dtype: dtype of the output.
    """

    name: str
    log_energy: Tensor
    is_nil: Tensor
    channels: int
    dtype: torch.dtype


class EmbeddingHooks:
    """Hooks that measure the outputs of the watched layers at each call of a model.

    Args:
        model: any module.
        graph: the graph its layers work on.
        layers: modules to watch, see `watched_modules`.
        num_nodes: number of nodes, where an ``edge_index`` leaves it open.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Propagation | Tensor,
        layers: Watch | Sequence[Watch] | None,
        num_nodes: int | None,
    ) -> None:
        self._graph = TracedGraph(graph, num_nodes)
        self._smoothing: dict[tuple[torch.device, torch.dtype], SmoothingGraph] = {}
        self._seen: list[Embedding] = []
        self._last: Tensor | None = None  # of this call: a module that hands on what it was given is no layer
        watched = watched_modules(model, layers)
        self._handles: list[RemovableHandle] = [
            model.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True),
            *(module.register_forward_hook(partial(self._measure, name)) for name, module in watched.items()),
            model.register_forward_hook(self._end),
        ]

    def remove(self) -> None:
        """Take all hooks off; what was measured last stays."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def clear(self) -> None:
        """Forget what was measured."""
        self._seen.clear()

    def chain(self) -> list[Embedding]:
        """``X_0, X_1, ...`` of the last call; a last output of another width is class scores and left free."""
        seen = self._seen
        if not seen:
            raise GraphjouleError("There are no energies yet: call the model first, then the constraint.")
        if len(seen) > 2 and seen[-1].channels != seen[-2].channels:
            seen = seen[:-1]
        if len(seen) < 2:
            raise GraphjouleError(
                f"There is no layer after {seen[0].name!r}: a constraint needs X_0 and at least one layer; "
                "name more with layers=[...]."
            )
        return seen

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._seen.clear()
        self._graph.read_inputs(chain(args, kwargs.values()))

    def _end(self, model: nn.Module, inputs: Any, output: Any) -> None:
        self._last = None  # activations belong to autograd, not to a hook

    def _measure(self, name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        features = self._graph.features_in(output)
        if features is None or features is self._last:
            return
        if not self._seen:
            given = next((x for x in _plain_tensors(inputs) if x.shape == features.shape and x is not features), None)
            if given is not None:
                self._add(f"input of {name}", given)
        self._last = features
        self._add(name, features)

    def _add(self, name: str, x: Tensor) -> None:
        assert self._graph.num_nodes is not None
        x = as_matrix(x, self._graph.num_nodes)
        x = x if x.dtype in (torch.float32, torch.float64) else x.float()
        key = x.device, x.dtype
        if key not in self._smoothing:
            self._smoothing[key] = SmoothingGraph.of(self._graph.on(x.device), x.dtype)
        self._seen.append(Embedding(name, *log_energy(x, self._smoothing[key]), x.size(-1), x.dtype))


def _plain_tensors(inputs: tuple[Any, ...]) -> Iterator[Tensor]:
    return (x for x in inputs if isinstance(x, Tensor) and x.layout == torch.strided and x.is_floating_point())


def graph_layers(model: nn.Module) -> str | None:
    """The pattern of a model's graph layers: ``convs.*`` where it has such a list, as ours have, else None."""
    return "convs.*" if isinstance(getattr(model, "convs", None), nn.ModuleList) else None
