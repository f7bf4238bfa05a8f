"""`Trace`: a context manager that measures every layer's output and then lets go."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.measures import DEFAULT_MEASURES, MEASURES, Measure, measure_names
from graphjoule.trace.batching import show
from graphjoule.trace.entry import Entry, EntryWatcher, settle
from graphjoule.trace.graphs import TracedGraph
from graphjoule.trace.layer import LayerTrace
from graphjoule.trace.missed import describe_output, why_nothing
from graphjoule.trace.outputs import find_features
from graphjoule.trace.seen import Seen
from graphjoule.trace.view import TraceView
from graphjoule.trace.watch import Watch, watched_modules

_MOST_WAITING = 4096  # entries on a device: each number takes a block of 512 bytes there until it is brought home


class Trace(TraceView):
    """Record measures of node features at every layer of any torch model.

    Numbers are computed inside the forward hooks and stay on the device until they are read; no activation is kept,
    outputs and random numbers are what they would be without. Hooks are gone when the block ends, also after an error.

    A batch of runs is recorded run by run: from outputs ``[runs, num_nodes, channels]``, and inside `torch.vmap`.

    By default all modules whose output is node features are watched, but for the parts of a layer (see
    `graphjoule.trace.watch.layer_modules`). A tensor is then recorded once: a module that hands on what it was given,
    such as dropout in evaluation mode, has no row, and what a module takes from its last part has the module's name.
    Modules asked for by name or type have a row at each of their calls. Where a call of the model uses a module again,
    as one activation for all layers, rows are numbered: "act", "act#2". A trace without rows ends in a warning.

    Args:
        model: any module.
        graph: the graph its layers work on, as a `Propagation` or an ``edge_index`` with both directions of each edge.
        measures: names of `MEASURES`, or `Measure` of your own.
        watch: modules to record, by name with ``*`` as a wildcard within one level, or by type.
        num_nodes: number of nodes; by default an ``edge_index`` is completed by the rows of the model's input.
        gradients: record the norm of the loss's gradient by every output, ``||dL/dX||``, and by the parameters of every
            module, when a backward pass comes inside the block.
        every: record each `every`-th call of the model only; the others cost nothing.

    Example:
        >>> from graphjoule.nn import GCN
        >>> edge_index, x = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> model = GCN(2, 4, 3, num_layers=2).eval()
        >>> with Trace(model, edge_index, watch=["convs.*"]) as trace:
        ...     scores = model(x, edge_index)
        >>> [layer.name for layer in trace.layers]
        ['convs.0', 'convs.1']
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Propagation | Tensor,
        measures: Sequence[str | Measure] = DEFAULT_MEASURES,
        watch: Watch | Sequence[Watch] | None = None,
        *,
        num_nodes: int | None = None,
        gradients: bool = False,
        every: int = 1,
    ) -> None:
        if every < 1:
            raise GraphjouleError(f"every is {every}; it must be at least 1.")
        if not isinstance(model, nn.Module):
            raise GraphjouleError(f"The model is of type {type(model).__name__}; expected a torch.nn.Module.")
        if gradients and isinstance(graph, Propagation):
            graph.require_whole("A trace with `gradients=True`")
        self._model = model
        self._measures = _chosen(measures)
        self._watched = watched_modules(model, watch)
        self._is_default = watch is None
        self._graph = TracedGraph(graph, num_nodes)
        self._gradients, self._every = gradients, every
        self._is_open = False
        self._call = -1
        self._mark: int | str | None = None
        self._entries: list[Entry] = []
        self._num_settled = 0
        self._seen = Seen()  # of this call
        self._missed: dict[str, str] = {}  # outputs that are no node features, while there is no row
        self._latest: dict[str, Entry] = {}  # of a call with gradients, by the module's name
        self._handles: list[RemovableHandle] = []
        self._layer_handles: list[RemovableHandle] = []

    @classmethod
    def of(
        cls,
        model: nn.Module,
        graph: Propagation | Tensor,
        inputs: Sequence[Any],
        measures: Sequence[str | Measure] = DEFAULT_MEASURES,
        watch: Watch | Sequence[Watch] | None = None,
    ) -> Self:
        """The trace of one call in evaluation mode and without gradients; every module's mode is as before after it.

        Args:
            model: any module.
            graph: the graph its layers work on.
            inputs: what to call the model with.
            measures: what to record.
            watch: where to record it.

        Example:
            >>> from graphjoule.nn import GCN
            >>> edge_index, model = torch.tensor([[0, 1], [1, 0]]), GCN(2, 4, 3, num_layers=2)
            >>> len(Trace.of(model, edge_index, (torch.ones(2, 2), edge_index)).layers), model.training
            (2, True)
        """
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            with torch.no_grad(), cls(model, graph, measures, watch) as trace:
                model(*inputs)
        finally:
            for module, mode in modes.items():  # not model.train(): some part may have been frozen in evaluation mode
                module.training = mode
        return trace

    def __enter__(self) -> Self:
        """Start watching."""
        self._is_open = True
        self._handles.append(self._model.register_forward_pre_hook(self._begin_call, prepend=True, with_kwargs=True))
        self._attach()
        if self._gradients:
            self._watch_weights()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop watching."""
        self._is_open = False
        self._detach()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen.clear()
        self._latest.clear()
        if kind is None and not self._entries:
            warnings.warn(why_nothing(self._graph.num_nodes, self._watched, self._missed), stacklevel=2)

    def mark(self, label: int | str | None) -> None:
        """Write `label`, such as the epoch, into all rows from now on."""
        self._mark = label

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the recorded measures."""
        return tuple(measure.name for measure in self._measures)

    @property
    def layers(self) -> list[LayerTrace]:
        """All rows in the order of the calls; reading them waits for the device."""
        settle(self._entries)
        return [row for entry in self._entries for row in entry.rows()]

    def _begin_call(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call += 1
        self._seen.clear()
        self._graph.learn_from_inputs(chain(args, kwargs.values()))
        is_due = self._call % self._every == 0
        if is_due and not self._layer_handles:
            self._attach()
        elif not is_due:
            self._detach()
        if len(self._entries) - self._num_settled >= _MOST_WAITING:
            settle(self._entries[self._num_settled :])
            self._num_settled = len(self._entries)

    def _attach(self) -> None:
        for name, module in self._watched.items():
            self._layer_handles.append(module.register_forward_hook(partial(self._record, name)))

    def _detach(self) -> None:
        for handle in self._layer_handles:
            handle.remove()
        self._layer_handles.clear()

    def _record(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        self._graph.learn_from_output(output)
        num_nodes = self._graph.num_nodes
        features = None if num_nodes is None else find_features(output, num_nodes)
        if features is None or num_nodes is None:
            if not self._entries:
                self._missed.setdefault(name, describe_output(output))
            return
        if self._is_default and self._is_seen(name, module, features):
            return
        entry = Entry(name, type(module).__name__, max(self._call, 0), self._mark, module.training)
        entry.times = self._times(name)
        self._entries.append(entry)
        self._seen.add(features, entry)
        if torch.is_grad_enabled():
            self._latest[name] = entry
        is_open = (lambda: self._is_open) if self._gradients else None
        show(features, EntryWatcher(entry, self._measures, self._measure, num_nodes, is_open))

    def _is_seen(self, name: str, module: nn.Module, features: Tensor) -> bool:
        """Whether this very tensor has its row already, which then takes the name of the outermost module giving it."""
        entry = self._seen.entry_of(features, module)
        if entry is None:
            return False
        if entry.name.startswith(f"{name}."):
            entry.name, entry.module, entry.times = name, type(module).__name__, self._times(name)
            if torch.is_grad_enabled():
                self._latest[name] = entry
        return True

    def _times(self, name: str) -> int:
        """How often this call of the model has used a module; parts called by themselves belong to no call."""
        return self._seen.count(name) if self._call >= 0 else 1

    def _measure(self, measure: Measure, x: Tensor) -> Tensor:
        return measure.function(x, self._graph.on(x.device))

    def _watch_weights(self) -> None:
        """Hang hooks on the parameters; where several watched modules have one, it counts for each."""
        for name, module in self._watched.items():
            for key, parameter in module.named_parameters():
                if parameter.requires_grad:
                    hook = partial(self._record_weight, name, key)
                    self._handles.append(parameter.register_hook(hook))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _record_weight(self, name: str, key: str, gradient: Tensor) -> None:
        entry = self._latest.get(name)
        if entry is not None and entry.name == name:
            entry.weight_squares[key] = gradient.double().square().sum()


def _chosen(measures: Sequence[str | Measure]) -> tuple[Measure, ...]:
    if isinstance(measures, str):
        measure_names(measures)  # refuses it
    named = [MEASURES[measure_names([m])[0]] if isinstance(m, str) else m for m in measures]
    return tuple({measure.name: measure for measure in named}.values())
