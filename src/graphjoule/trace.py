"""Watch any model layer by layer: a context manager that measures every layer's output and then lets go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from graphjoule.energy import dirichlet_energy
from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation


@dataclass(frozen=True)
class LayerTrace:
    """What one layer's output looked like.

    Attributes:
        name: the module's name in the model.
        energy: its Dirichlet energy ``E(X)``.
        norm: its Frobenius norm ``||X||``.
    """

    name: str
    energy: float
    norm: float


class Trace:
    """Record the Dirichlet energy and the norm of node features at every layer of any torch model.

    Numbers are computed inside the forward hooks; no activation is kept. The hooks are gone when the block ends, also
    after an error.

    Args:
        model: any module.
        graph: the graph its layers work on, as a `Propagation` or an ``edge_index`` with both directions of each edge.
        watch: names of the modules to record, with ``*`` as a wildcard; by default all whose output is node features.

    Example:
        >>> from graphjoule.nn import GCN
        >>> edge_index, x = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> model = GCN(2, 4, 3, num_layers=2).eval()
        >>> with Trace(model, edge_index, watch=["convs.*"]) as trace:
        ...     scores = model(x, edge_index)
        >>> [layer.name for layer in trace.layers]
        ['convs.0', 'convs.1']
    """

    def __init__(self, model: nn.Module, graph: Propagation | Tensor, watch: Sequence[str] | None = None) -> None:
        self._model = model
        self._watched = _watched_modules(model, watch)
        self._graph = graph
        self._handles: list[RemovableHandle] = []
        self.layers: list[LayerTrace] = []

    def __enter__(self) -> Self:
        """Start watching."""
        for name, module in self._watched.items():
            self._handles.append(module.register_forward_hook(partial(self._record, name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @torch.no_grad()
    def _record(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor) or output.dim() != 2 or not output.is_floating_point():
            return
        if isinstance(self._graph, Tensor):  # how many nodes there are, the last ones without edges too, a layer tells
            if self._graph.numel() and output.size(0) <= int(self._graph.max()):  # a pooled vector, not node features
                return
            self._graph = Propagation.from_edge_index(self._graph, num_nodes=output.size(0))
        if output.size(0) != self._graph.num_nodes:
            return
        x = output.detach()
        energy = dirichlet_energy(x, self._graph.to(x.device))
        self.layers.append(LayerTrace(name, float(energy), float(torch.linalg.vector_norm(x.double()))))

    def table(self) -> str:
        """The layers as text, one line each."""
        width = max((len(layer.name) for layer in self.layers), default=5)
        lines = [f"{'layer':<{width}}  {'energy':>10}  {'norm':>10}"]
        lines += [f"{layer.name:<{width}}  {layer.energy:>10.3g}  {layer.norm:>10.3g}" for layer in self.layers]
        return "\n".join(lines)


def _watched_modules(model: nn.Module, watch: Sequence[str] | None) -> dict[str, nn.Module]:
    modules = {name: module for name, module in model.named_modules() if name}
    if watch is None:
        return modules
    found: set[str] = set()
    for pattern in watch:
        matching = [name for name in modules if fnmatch(name, pattern) and name.count(".") == pattern.count(".")]
        if not matching:
            raise GraphjouleError(f"No module is called {pattern!r}; the model has {', '.join(modules) or 'none'}.")
        found.update(matching)
    return {name: module for name, module in modules.items() if name in found}
