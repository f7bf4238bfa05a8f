"""`Trace`: a context manager that measures every layer's output and then lets go."""

from __future__ import annotations

import math
import warnings
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from graphjoule.errors import GraphjouleError, check_count
from graphjoule.graph import Propagation
from graphjoule.graph.csr import is_plain, with_signature
from graphjoule.graph.product import Product
from graphjoule.measures import DEFAULT_MEASURES, MEASURES, Measure, measure_names
from graphjoule.measures.energy import ratio
from graphjoule.nn.base import Onlooker
from graphjoule.trace.compiled import as_written, uncompiled
from graphjoule.trace.graphs import GraphReader, Measured, version
from graphjoule.trace.hooks import Hook
from graphjoule.trace.measuring import Number, Waiting, measure_features
from graphjoule.trace.outputs import as_matrix, describe_output
from graphjoule.trace.view import LayerTrace, TraceView, some
from graphjoule.trace.watch import Watch, is_in_backward, watched_modules

_EMPTY = torch.empty(0)
_MOST_WAITING = 4096  # entries on a device: each number takes a block of 512 bytes there until it is read back


class Trace(TraceView):
    """Record measures of node features at every layer of any torch model.

    Numbers are computed inside the forward hooks and stay on the device until they are read; no activation is kept, but
    on a GPU copies of at most 256 MB wait until many are measured at once. Outputs and random numbers stay as they are
    without it. Hooks are gone when the block ends, also after an error.

    A batch of runs is recorded run by run: from outputs ``[runs, num_nodes, channels]``, and inside `torch.vmap`.

    By default all modules whose output is node features are watched, but for the parts of a layer (see
    `graphjoule.trace.watch.layer_modules`). A tensor is then recorded once: a module that returns its input unchanged,
    such as dropout in evaluation mode, has no row, and what a module returns from its last part has the module's name.
    What `torch.compile` made runs as it is written inside the block, so that no row is missing.
    Modules asked for by name or type have a row at each of their calls. Where a call of the model uses a module again,
    as one activation for all layers, rows are numbered: "act", "act#2". A trace without rows ends in a warning.

    Args:
        model: any module.
        graph: a graph for all calls, as a `Propagation` or an ``edge_index`` with both directions of each edge; by
            default each call is measured on the graph that it was called with.
        measures: names of `MEASURES`, or `Measure` of your own.
        watch: modules to record, by name with ``*`` as a wildcard within one level, or by type.
        num_nodes: number of nodes; by default an ``edge_index`` is completed by the rows of the model's input.
        operator: what the energy is that of, a key of `graphjoule.trace.operators.OPERATORS`; by default what each
            layer of PyG does, and "symmetric" for other models.
        by_graph: a row for each graph of a batch, told apart by the ``batch`` vector of the call.
        gradients: record the norm of the loss's gradient by every output, ``||dL/dX||``, and by the parameters of every
            module, when a backward pass comes inside the block.
        every: record each `every`-th call of the model only; the others cost nothing.
        on_collapse: what to do when a layer dies, which is looked at after each recorded call and waits for the device:
            "warn" once per layer, "stop" with a `LayerCollapse`, or a function that is called with its row. A layer is
            dead where its rows are not finite, all zero, or have a ``rayleigh`` below 1e-6, with neighbours that agree
            to three digits; "norm" and "rayleigh" must be among the measures.

    Example:
        >>> from graphjoule.nn import GCN
        >>> edge_index, x = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> model = GCN(2, 4, 3, num_layers=2).eval()
        >>> with Trace(model, watch=["convs.*"]) as trace:
        ...     scores = model(x, edge_index)
        >>> [layer.name for layer in trace.layers]
        ['convs.0', 'convs.1']
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Propagation | Tensor | None = None,
        measures: Sequence[str | Measure] = DEFAULT_MEASURES,
        watch: Watch | Sequence[Watch] | None = None,
        *,
        num_nodes: int | None = None,
        operator: str | None = None,
        by_graph: bool = False,
        gradients: bool = False,
        every: int = 1,
        on_collapse: str | Callable[[LayerTrace], None] | None = None,
    ) -> None:
        check_count("every", every)
        if not isinstance(model, nn.Module):
            raise GraphjouleError(f"The model is of type {type(model).__name__}; expected a torch.nn.Module.")
        model = as_written(model)
        if gradients and isinstance(graph, Propagation):
            graph.require_whole("A trace with `gradients=True`")
        if isinstance(measures, str):
            measure_names(measures)  # refuses it
        wrong = next((m for m in measures if not isinstance(m, str | Measure)), None)
        if wrong is not None:
            raise GraphjouleError(f"A measure is {wrong!r}; expected a name, or Measure(...) with your function in it.")
        named = [MEASURES[measure_names([m])[0]] if isinstance(m, str) else m for m in measures]
        self._model = model
        self._measures = tuple({measure.name: measure for measure in named}.values())
        self._watched = watched_modules(model, watch)
        self._is_default = watch is None
        asked = None if watch is None else self._watched.values()
        self._graphs = GraphReader(model, graph, num_nodes, operator, by_graph=by_graph, watched=asked)
        self._gradients, self._every = gradients, every
        missing = [name for name in ("norm", "rayleigh") if name not in self.measures]
        if on_collapse is not None and missing:
            raise GraphjouleError(f"on_collapse needs the measures norm and rayleigh; {missing[0]} is missing.")
        self._alarm, self._num_looked = None if on_collapse is None else Alarm(on_collapse), 0
        self._is_open = False
        self._waiting = Waiting()
        self._shown: tuple[Any, Any, Any] = (None, None, None)  # a fused stack's kwargs, its shape, what is measured
        self._can_wait = all(measure is MEASURES.get(measure.name) for measure in self._measures)
        self._uncompiled = ExitStack()
        self._call, self._num_calls, self._is_called = -1, 0, False
        self._first_part = ""  # the first module with a row, of those that are called outside of a call of the model
        self._mark: int | str | None = None
        self._entries: list[Entry] = []
        self._num_settled = 0
        self._seen: dict[int, _SeenTensor] = {}  # the tensors of this call that have a row, by id
        self._uses: Counter[str] = Counter()  # of this call: how often each module gave a row
        self._missed: dict[str, str] = {}  # outputs that are not node features, while there is no row
        self._latest: dict[str, Entry] = {}  # of a call with gradients, by the module's name
        self._handles: list[RemovableHandle] = []
        self._layer_handles: list[RemovableHandle] = []

    @classmethod
    def of(
        cls,
        model: nn.Module,
        graph: Propagation | Tensor | None,
        inputs: Sequence[Any],
        measures: Sequence[str | Measure] = DEFAULT_MEASURES,
        watch: Watch | Sequence[Watch] | None = None,
    ) -> Self:
        """The trace of one call in evaluation mode and without gradients; every module's mode is as before after it.

        Args:
            model: any module.
            graph: the graph its layers work on; None for that of the call.
            inputs: what to call the model with.
            measures: what to record.
            watch: where to record it.

        Example:
            >>> from graphjoule.nn import GCN
            >>> edge_index, model = torch.tensor([[0, 1], [1, 0]]), GCN(2, 4, 3, num_layers=2)
            >>> len(Trace.of(model, edge_index, (torch.ones(2, 2), edge_index)).layers), model.training
            (2, True)
        """
        if isinstance(inputs, Tensor):
            raise GraphjouleError(
                "The inputs are a tensor; expected all that the model is called with, (x, edge_index)."
            )
        if not isinstance(model, nn.Module):
            raise GraphjouleError(f"The model is of type {type(model).__name__}; expected a torch.nn.Module.")
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
        self._uncompiled.enter_context(uncompiled())
        begin = Hook(self._begin_call)
        self._handles.append(self._model.register_forward_pre_hook(begin, prepend=True, with_kwargs=True))
        self._attach()
        if self._gradients:  # where several watched modules have a parameter, it counts for each
            for name, module in self._watched.items():
                for key, parameter in module.named_parameters():
                    if parameter.requires_grad:
                        hook = partial(self._record_weight, name, key)
                        self._handles.append(parameter.register_hook(hook))  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop watching."""
        self._is_open = False
        self._waiting.measure(self._measures)
        self._uncompiled.close()
        self._detach()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen.clear()
        self._shown = None, None, None
        self._latest.clear()
        if kind is None:
            self._graphs.end(has_rows=bool(self._entries))
        self._graphs.forget()
        if kind is None and not self._entries:
            warnings.warn(f"The trace recorded nothing: {self._why_nothing()}.", stacklevel=2)

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
        self._waiting.measure(self._measures)
        settle(self._entries)
        return [row for entry in self._entries for row in entry.rows()]

    def _begin_call(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_in_backward() or not self._graphs.claim():
            return  # a checkpoint around the whole model computes it again
        self._next_call()
        is_due = self._num_calls % self._every == 0
        self._num_calls += 1
        self._is_called, self._first_part = True, ""
        self._graphs.end(has_rows=bool(self._entries))
        if is_due:
            self._graphs.begin(args, kwargs)
        if is_due and not self._layer_handles:
            self._attach()
        elif not is_due:
            self._detach()
            self._graphs.release()
        if len(self._entries) - self._num_settled >= _MOST_WAITING:
            self._waiting.measure(self._measures)
            settle(self._entries[self._num_settled :])
            self._num_settled = len(self._entries)

    def _next_call(self) -> None:
        self._call += 1
        self._seen.clear()
        self._uses.clear()

    def _end_call(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if self._graphs.is_ours and not is_in_backward():
            self._is_called = False
            self._graphs.end(has_rows=bool(self._entries), has_failed=output is None)
        self._graphs.release()

    def _attach(self) -> None:
        self._layer_handles += self._graphs.attach()
        for name, module in self._watched.items():
            see = partial(self._record, name)
            hook = Hook(see) if self._gradients else Onlooker(see)  # a gradient needs outputs that autograd knows
            self._layer_handles.append(module.register_forward_hook(hook, with_kwargs=True))
        self._layer_handles += self._graphs.attach_last()
        if self._alarm is not None:
            self._layer_handles.append(self._model.register_forward_hook(Hook(self._look)))
        self._layer_handles.append(self._model.register_forward_hook(Hook(self._end_call), always_call=True))

    def _detach(self) -> None:
        for handle in self._layer_handles:
            handle.remove()
        self._layer_handles.clear()

    def _record(
        self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any, product: Product | None = None
    ) -> None:
        if is_in_backward() or not self._graphs.is_ours:
            return  # a checkpoint computes the layer again, or another thread calls it
        stack, shape, measured = self._shown
        if stack is kwargs and shape == output.shape and self._call >= 0:
            # By the fused stack that showed the layer before, on the same graph: of a short network on a GPU each
            # microsecond counts, and nobody else has this tensor.
            kind, times = type(module).__name__, self._times(name)
            entry = Entry(name, kind, self._call, self._mark, module.training, times)
            self._entries.append(entry)
            self._measure(entry, output, measured, product, is_ours=True)
            return
        if self._is_default and self._graphs.is_inside_layer:
            return
        found = self._graphs.measured(name, module, args, kwargs, output)
        if not found:
            if not self._entries:
                self._missed.setdefault(name, describe_output(output))
            return
        origin = found[0].origin
        if not args and kwargs.keys() == {"graph"} and found[0].features is output:
            self._shown = kwargs, output.shape, replace(found[0], features=_EMPTY, origin=_EMPTY)
        if self._is_default and self._is_seen(name, module, origin):
            return
        if not self._is_called and self._first_part in ("", name):
            # Outside of a call of the model, as where a loop calls its `encode`, or where another model has the module.
            self._first_part = name
            self._next_call()
        times, kind, mode = self._times(name), type(module).__name__, module.training
        entries = [Entry(name, kind, self._call, self._mark, mode, times, part=each.part) for each in found]
        self._entries += entries
        self._seen[id(origin)] = weakref.ref(origin), version(origin), entries
        if torch.is_grad_enabled():
            self._latest[name] = entries[0]
        for each, entry in zip(found, entries, strict=True):
            if product is None or each.features is not output:
                _show(each.features, self, entry, each)
            else:
                self._measure(entry, output, each, product, is_ours=True)
            if each.operator is None:
                leading = [entries[k] for k in each.adds]
                entry.add_up(leading, self.measures)
                entry.has_edges = any(other.has_edges for other in leading)

    def _look(self, model: nn.Module, inputs: Any, output: Any) -> None:
        """Sound the alarm for the dead layers of this call."""
        if not self._graphs.is_ours:
            return
        entries, self._num_looked = self._entries[self._num_looked :], len(self._entries)
        self._waiting.measure(self._measures)
        settle(entries)
        assert self._alarm is not None
        for row in (row for entry in entries if entry.has_edges for row in entry.rows()):
            self._alarm.check(row, f"call {row.call}")

    def _is_seen(self, name: str, module: nn.Module, features: Tensor) -> bool:
        """Whether this very tensor has its row already, which then takes the name of the outermost module giving it.

        A tensor is known by the object itself, alive, and by its version, which every change in place raises; addresses
        are no help, for memory is used again.
        """
        found = self._seen.get(id(features))
        if found is None or found[0]() is not features:
            return False
        _, before, entries = found
        if before != version(features) or (before is None and getattr(module, "inplace", False)):
            return False
        if entries[0].name.startswith(f"{name}."):
            times = self._times(name)
            for entry in entries:
                entry.name, entry.module, entry.times = name, type(module).__name__, times
            if torch.is_grad_enabled():
                self._latest[name] = entries[0]
        return True

    def _times(self, name: str) -> int:
        """How often this call has used a module."""
        self._uses[name] += 1
        return self._uses[name]

    @torch.no_grad()
    def _fill(self, entry: Entry, x: Tensor, measured: Measured) -> None:
        """Compute the measures of `x`, whatever autograd does around."""
        self._measure(entry, x, measured)

    def _measure(
        self, entry: Entry, x: Tensor, measured: Measured, product: Product | None = None, *, is_ours: bool = False
    ) -> None:
        """Compute the measures of `x`, which has the axes of all vmaps in front; it is not kept.

        On a GPU, where many small operations cost more than their arithmetic, outputs wait for others of their kind, as
        copies unless nobody else will change them (`is_ours`), and all are measured at once.
        """
        x = as_matrix(x, measured.num_nodes)
        entry.channels, entry.num_nodes = x.size(-1), measured.num_nodes
        entry.num_runs = x.size(0) if x.dim() == 3 else None
        entry.operator = "symmetric" if measured.operator is None else measured.operator.name
        if self._alarm is not None and measured.operator is not None:
            entry.has_edges = measured.operator.has_edges
        if x.device.type == "cuda" and not measured.part and self._can_wait:
            self._waiting.add(entry, x if is_ours else x.clone(), measured, self._measures)
        else:
            entry.values.update(measure_features(x, measured, self._measures, product))

    def _await_gradient(self, entry: Entry, x: Tensor, num_nodes: int, to_front: Callable[[Tensor], Tensor]) -> None:
        """Hang a hook on `x` that computes ``||dL/dX||``; `to_front` moves the run axis to the front.

        The hook does not refer to `x`, so it keeps no activation.
        """
        if not self._gradients:
            return

        def record(gradient: Tensor) -> None:
            if self._is_open:
                matrix = as_matrix(to_front(gradient.detach()), num_nodes)
                entry.gradient["norm"] = torch.linalg.vector_norm(matrix.double(), dim=(-2, -1))

        x.register_hook(record)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _record_weight(self, name: str, key: str, gradient: Tensor) -> None:
        entry = self._latest.get(name)
        if entry is not None and entry.name == name:
            entry.weight_squares[key] = gradient.double().square().sum()

    def _why_nothing(self) -> str:
        if not self._missed:
            watched = some(list(self._watched), ", ")
            return f"of the modules that it watches ({watched}) none was called inside the block"
        nodes = self._graphs.num_nodes
        rows = "one row per node" if nodes is None else f"{nodes} rows, one per node of the graph"
        outputs = some([f"{name} {shapes}" for name, shapes in self._missed.items()], "; ")
        return f"no output is node features, floating-point with {rows}; the outputs were: {outputs}"


class LayerCollapse(GraphjouleError):  # noqa: N818 - what happened, not a wrong input
    """A layer died while a `Trace` with ``on_collapse="stop"`` watched it."""


_DEAD_RAYLEIGH = 1e-6  # below float32's rounding of a difference of neighbours that agree to three digits, squared


class Alarm:
    """What happens when a layer is dead: not finite, all zero, or with neighbours that agree to three digits.

    Args:
        on_collapse: "warn" once per layer, "stop" with a `LayerCollapse`, or a function that is called with its row.
    """

    def __init__(self, on_collapse: str | Callable[[LayerTrace], None]) -> None:
        if not (on_collapse in ("warn", "stop") or callable(on_collapse)):
            raise GraphjouleError(f"on_collapse is {on_collapse!r}; expected 'warn', 'stop' or a function of a row.")
        self._on_collapse = on_collapse
        self._dead: set[str] = set()

    def check(self, row: LayerTrace, when: str) -> None:
        """Sound it if the layer of a row, which has a norm and a rayleigh, is dead.

        Args:
            row: of a layer; those of one graph of a batch are not looked at, for the nodes of a small one may be alike.
            when: the row's call or epoch in words.
        """
        norm, rayleigh = row.values["norm"], row.values.get("rayleigh")
        if rayleigh is None or (row.part or "").startswith("graph "):
            return
        if math.isfinite(norm) and norm > 0 and rayleigh >= _DEAD_RAYLEIGH:
            return
        if callable(self._on_collapse):
            self._on_collapse(row)
            return
        name = f"{row.name} ({row.part})" if row.part else row.name
        says = f"{name} has collapsed in {when}: norm {norm:.3g}, rayleigh {rayleigh:.3g}"
        if self._on_collapse == "stop":
            raise LayerCollapse(f"{says}; the training is stopped as `on_collapse='stop'` asks.")
        if name not in self._dead:
            self._dead.add(name)
            warnings.warn(f"{says}.", stacklevel=3)


@dataclass(eq=False)
class Entry:
    """A row while its numbers are on the device: a tensor ``[]`` or ``[runs]`` each, until `settle` makes it a list.

    `times` is how often the call of the model has used the module, this time counted.
    """

    name: str
    module: str
    call: int
    mark: int | str | None
    training: bool
    times: int = 1
    part: str | None = None
    operator: str = "symmetric"
    num_nodes: int = 0
    channels: int = 0
    num_runs: int | None = None
    has_edges: bool = True  # without any, no two nodes can differ and none has collapsed
    values: dict[str, Number] = field(default_factory=dict)
    gradient: dict[str, Number] = field(default_factory=dict)  # its "norm", once there was a backward pass
    weight_squares: dict[str, Number] = field(default_factory=dict)  # by the parameter's name

    def add_up(self, relations: Sequence[Entry], measures: Sequence[str]) -> None:
        """The energy of a node type: that of the relations that lead to it."""
        numbers = [entry.values.get("energy") for entry in relations]
        energies = [number for number in numbers if isinstance(number, Tensor)]
        self.operator = " + ".join(sorted({entry.operator for entry in relations})) or self.operator
        if energies:
            energy = self.values["energy"] = torch.stack(energies).sum(dim=0)
            norm = self.values.get("norm")
            if "rayleigh" in measures and isinstance(norm, Tensor):
                self.values["rayleigh"] = ratio(energy, norm.square())

    def rows(self) -> Iterator[LayerTrace]:
        """One row per run, or one; everything must be settled."""
        for run in range(1 if self.num_runs is None else self.num_runs):
            squares = [_number(number, run) for number in self.weight_squares.values()]
            yield LayerTrace(
                name=self.name if self.times == 1 else f"{self.name}#{self.times}",
                values={name: _number(number, run) for name, number in self.values.items()},
                module=self.module,
                channels=self.channels,
                part=self.part,
                operator=self.operator,
                num_nodes=self.num_nodes,
                call=self.call,
                mark=self.mark,
                run=None if self.num_runs is None else run,
                training=self.training,
                gradient=_number(self.gradient["norm"], run) if self.gradient else None,
                weight_gradient=sum(squares) ** 0.5 if squares else None,
            )


_SeenTensor = tuple[weakref.ref[Tensor], int | None, list[Entry]]  # a tensor, its version, and its rows


def settle(entries: Iterable[Entry]) -> None:
    """Read all numbers of some entries back with one wait per device."""
    waiting: dict[torch.device, list[tuple[dict[str, Number], str, Tensor]]] = defaultdict(list)
    for entry in entries:
        for table in (entry.values, entry.gradient, entry.weight_squares):
            for name, number in table.items():
                if isinstance(number, Tensor):
                    waiting[number.device].append((table, name, number))
    for numbers in waiting.values():
        flat = torch.cat([number.double().reshape(-1) for _, _, number in numbers]).tolist()
        start = 0
        for table, name, number in numbers:
            table[name] = flat[start : start + number.numel()]
            start += number.numel()


def _number(number: Number, run: int) -> float:
    """A run's number; one that all runs share is stored once."""
    assert isinstance(number, list)
    return number[run] if len(number) > 1 else number[0]


def _show(x: Tensor, trace: Trace, entry: Entry, measured: Measured) -> None:
    """Fill an entry from a tensor as it is outside all `torch.vmap` around this call.

    Inside a vmap a tensor looks like that of one run, and a number computed from it cannot leave. A custom function's
    vmap rule is handed the whole batch; that is the public way out, and all that `_Show` is for.
    """
    if is_plain() and not x.requires_grad:
        trace._fill(entry, x, measured)
    else:
        _Show.apply(x, trace, entry, measured)  # type: ignore[no-untyped-call]


@with_signature
class _Show(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, trace: Trace, entry: Entry, measured: Measured) -> Tensor:
        if x.requires_grad:
            trace._await_gradient(entry, x, measured.num_nodes, lambda gradient: gradient)
        trace._fill(entry, x.detach(), measured)
        return x.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None, None, None], x: Tensor, trace: Trace, entry: Entry, measured: Measured
    ) -> tuple[Tensor, None]:
        axis = in_dims[0]
        if x.requires_grad:
            trace._await_gradient(entry, x, measured.num_nodes, lambda gradient: gradient.movedim(axis, 0))
        _show(x.movedim(axis, 0).detach(), trace, entry, measured)
        return x.new_empty(0), None
