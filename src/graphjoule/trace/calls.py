"""What a model and its layers are called with, in PyG's conventions: the graph of each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from graphjoule.graph import Propagation
from graphjoule.trace.hooks import Hook, OneThread, uncompiled_hook
from graphjoule.trace.operators import (
    Edges,
    Loops,
    Operator,
    attention_weights,
    has_own_forward,
    has_own_messages,
    is_of_many_runs,
    loops_of,
    message_weights,
    passes_messages,
    weights_around,
)
from graphjoule.trace.outputs import count_nodes, tensors_in
from graphjoule.trace.watch import modules_around_layers

Relation = tuple[str, str, str]
_EDGES = ("edge_index", "adj_t", "adj", "hyperedge_index")


@dataclass(eq=False)
class CallInputs:
    """What a call says about its graph.

    Attributes:
        graph: the `Propagation` it was given.
        edges: what its edges came as, an ``edge_index`` or a sparse matrix.
        weight: the ``edge_weight``.
        batch: the graph of every node.
        num_nodes: number of nodes, where something states it.
        relations: edges by relation, ``(source type, name, target type)``.
        other: edges of a second graph, as likely as `edges`.
        edge_features: tensors with a row for every edge.
        node_features: other tensors, with a row for every node if with one for anything.
        num_edges: how many rows features of edges may have: of the graph's, and of others such as ``edge_label_index``.
        are_hyperedges: whether `edges` lead from nodes to hyperedges, which have numbers of their own.
    """

    graph: Propagation | None = None
    edges: Any = None
    weight: Tensor | None = None
    batch: Tensor | None = None
    num_nodes: int | None = None
    relations: dict[Relation, Any] = field(default_factory=dict)
    other: Any = None
    edge_features: list[Tensor] = field(default_factory=list)
    node_features: list[Tensor] = field(default_factory=list)
    num_edges: set[int] = field(default_factory=set)
    are_hyperedges: bool = False

    @property
    def has_graph(self) -> bool:
        """Whether there is any."""
        return self.graph is not None or self.edges is not None or bool(self.relations)


def named_inputs(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a module is called with, under the names of its ``forward``, in their order; "" where there is none."""
    try:
        signature = inspect.signature(module.forward)
        bound = signature.bind_partial(*args, **kwargs)
    except (TypeError, ValueError):  # the call itself will fail, or forward is not written in Python
        yield from (("", value) for value in args)
        yield from kwargs.items()
        return
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from (("", each) for each in value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        else:
            yield name, value


def read_inputs(inputs: Sequence[tuple[str, Any]]) -> CallInputs:
    """The graph in what a model or a layer is called with: by its type, then by its name, then by its shape.

    Args:
        inputs: names and values, as `named_inputs` gives them.
    """
    found, by_shape = CallInputs(), []
    for name, value in inputs:
        if isinstance(value, Propagation):
            found.graph = value
        elif isinstance(value, Mapping):
            relations = {key: edges for key, edges in value.items() if _is_relation(key) and is_edges(edges)}
            found.relations.update(relations)
        elif isinstance(value, Tensor) or _is_sparse_tensor(value):
            found.num_edges |= _num_edges(value)
            if name in _EDGES and is_edges(value):
                found.edges, found.are_hyperedges = value, name == "hyperedge_index"
            elif name == "edge_weight" and (weight := as_weights(value)) is not None:
                found.weight = weight
            elif name == "batch" and isinstance(value, Tensor) and value.dim() == 1:
                found.batch, found.num_nodes = value, value.numel()
            elif is_edges(value) and name != "x" and "label" not in name:
                by_shape.append(value)
            elif isinstance(value, Tensor) and value.is_floating_point():
                (found.edge_features if name.startswith("edge_") else found.node_features).append(value)
        elif not isinstance(value, str | int | float | tuple | list | None):
            _read_data(value, found)
    if found.edges is None and not found.has_graph and by_shape:
        found.edges, found.other = by_shape[0], by_shape[1] if len(by_shape) > 1 else None
    return found


def read_call(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallInputs:
    """The graph in a call of a module that holds layers, and how many nodes it has by the rows of its features."""
    inputs = list(named_inputs(module, args, kwargs))
    found = read_inputs(inputs)
    if found.num_nodes is None and is_matrix(found.edges):
        found.num_nodes = found.edges.size(0)
    elif found.num_nodes is None and found.edges is not None:
        found.num_nodes = count_nodes((value for _, value in inputs), found.edges)
    return found


def _read_data(data: Any, found: CallInputs) -> None:
    """A ``Data``, ``Batch`` or ``HeteroData`` of PyG, judged by its attributes."""
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):
        for relation in data.edge_types:
            store = data[relation]
            edges = next((store[name] for name in _EDGES if name in store), None)
            if is_edges(edges):
                found.relations[relation] = edges
        return
    edges = next((e for e in (getattr(data, name, None) for name in _EDGES) if is_edges(e)), None)
    if edges is None:
        return
    found.num_edges |= _num_edges(edges) | _num_edges(getattr(data, "edge_label_index", None))
    if found.edges is not None:  # two graphs at once, as pairs that are compared
        found.other = edges
        return
    found.edges, found.weight = edges, as_weights(getattr(data, "edge_weight", None))
    found.are_hyperedges = edges is getattr(data, "hyperedge_index", None)
    x, features, batch, number = (getattr(data, name, None) for name in ("x", "edge_attr", "batch", "num_nodes"))
    if isinstance(features, Tensor):
        found.edge_features.append(features)
    if isinstance(x, Tensor):
        found.node_features.append(x)
    if isinstance(batch, Tensor):
        found.batch = batch
    if isinstance(number, int):
        found.num_nodes = number


def is_edges(value: Any) -> bool:
    """Whether it can be the edges of a graph: integers ``[2, num_edges]``, or a sparse matrix."""
    if isinstance(value, Tensor) and value.layout == torch.strided:
        is_integer = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
        return is_integer and value.dim() == 2 and value.size(0) == 2
    if isinstance(value, Tensor):
        return value.dim() == 2 and value.size(0) == value.size(1)
    return _is_sparse_tensor(value)


def _num_edges(value: Any) -> set[int]:
    """The number of edges of an ``edge_index``; a sparse matrix has no features of edges in the order of others."""
    return {value.size(1)} if is_edges(value) and not is_matrix(value) else set()


def is_matrix(value: Any) -> bool:
    """Whether edges came as a sparse matrix."""
    return _is_sparse_tensor(value) or (isinstance(value, Tensor) and value.layout != torch.strided)


def as_weights(value: Any) -> Tensor | None:
    """Weights ``[num_edges]``, where it can be some: they may come as one column."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return None
    return value if value.dim() == 1 else value.squeeze(1) if value.dim() == 2 and value.size(1) == 1 else None


def edges_of(value: Any, weight: Tensor | None = None, *, is_reversed: bool = False) -> Edges:
    """Sources, targets and weights; a sparse matrix ``adj_t`` has targets as rows.

    Args:
        value: what `is_edges` accepts.
        weight: weights of an ``edge_index``.
        is_reversed: whether messages go from ``edge_index[1]`` to ``edge_index[0]``.
    """
    if _is_sparse_tensor(value):
        row, col, entries = value.coo()
        return torch.stack([col, row]), entries
    if value.layout != torch.strided:
        matrix = value.detach().to_sparse_coo().coalesce()
        return matrix.indices().flip(0), matrix.values()
    index = value.as_subclass(Tensor)
    if weight is not None and weight.numel() != index.size(1):
        weight = None
    return index.flip(0) if is_reversed else index, weight


def rows_of(inputs: Sequence[tuple[str, Any]], node_dim: int = -2) -> tuple[int | None, int | None, bool]:
    """How many sources and targets a layer is called with, by its features, and whether these are two sets of nodes.

    Args:
        inputs: names and values, as `named_inputs` gives them.
        node_dim: the axis of nodes in features of several axes; that of the layer.
    """
    for name, value in inputs:
        if is_edges(value) and name != "x":
            continue
        if isinstance(value, Tensor) and (value.dim() >= 2 or name == "x"):
            rows = value.size(node_dim if value.dim() >= 2 else 0)
            return rows, rows, False
        if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], Tensor):
            source, target = value
            if not isinstance(target, Tensor):
                return source.size(node_dim), None, True
            return source.size(node_dim), target.size(node_dim), not _are_one(source, target)
    return None, None, False


def _are_one(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are the same, or the same view of one memory."""
    if first is second or first.shape != second.shape:
        return first is second
    try:
        return first.data_ptr() == second.data_ptr() and first.stride() == second.stride()
    except RuntimeError:  # inside vmap there is no memory to look at
        return False


def _is_relation(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 3 and all(isinstance(part, str) for part in key)


def _is_sparse_tensor(value: Any) -> bool:
    """Whether it is a ``SparseTensor`` of torch-sparse."""
    return not isinstance(value, Tensor) and hasattr(value, "coo") and hasattr(value, "sparse_sizes")


@dataclass(eq=False)
class LayerCall:
    """One call of a message-passing layer.

    Attributes:
        operator: the kind of its operator.
        inputs: what it was called with.
        layer: the layer; None for what stands in for one.
        num_sources: rows of the features that messages come from.
        num_targets: rows of the features that they go to.
        is_pair: whether these are two sets of nodes.
        is_reversed: whether messages go from ``edge_index[1]`` to ``edge_index[0]``.
        loops: the self-loops that the layer adds; None for a model without such layers.
        passed: edges, maybe weights, and the stated number of targets of each distinct ``propagate``.
        attention: the weights of this call.
        num_read: how many of `passed` an own layer's messages were looked at for.
        is_unread: whether they are multiplied by something that could not be read.
        made: the operator, once it was asked for.
    """

    operator: str
    inputs: CallInputs = field(default_factory=CallInputs)
    layer: nn.Module | None = None
    num_sources: int | None = None
    num_targets: int | None = None
    is_pair: bool = False
    is_reversed: bool = False
    loops: Loops | None = None
    passed: list[tuple[Any, Tensor | None, int | None]] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    num_read: int = 0
    is_unread: bool = False
    made: Operator | None = None


@dataclass(eq=False)
class Sides:
    """What a layer of one's own has before and after its sum, while it runs.

    Attributes:
        before: what its last part before the sum returned.
        sent: what it sent to the neighbours, if it summed once.
        summed: what came of that.
        after: what its first part after the sum took.
        num_sums: how often it summed.
    """

    before: Tensor | None = None
    sent: Tensor | None = None
    summed: Tensor | None = None
    after: Tensor | None = None
    num_sums: int = 0


@dataclass(eq=False)
class Scope:
    """A call that layers are called in: of the model, or of a module in it that is called with a graph.

    Attributes:
        inputs: what it was called with.
        latest: the last layer's call in it.
        module: the module; None for the model.
    """

    inputs: CallInputs = field(default_factory=CallInputs)
    latest: LayerCall | None = None
    module: nn.Module | None = None


class LayerCalls:
    """The calls of all message-passing layers of a model and of the modules around them, read by hooks.

    Args:
        model: the whole model.
        operators: the kind of operator of each layer; what is not such a layer is left alone.
        thread: which thread is watched.

    Attributes:
        finished: the last call of each layer.
    """

    def __init__(self, model: nn.Module, operators: Mapping[nn.Module, str], thread: OneThread) -> None:
        self._operators = {layer: operator for layer, operator in operators.items() if passes_messages(layer)}
        self._around = modules_around_layers(model)
        self._thread = thread
        self._open: dict[nn.Module, LayerCall] = {}
        self._sides: dict[nn.Module, Sides] = {}
        self._scopes = [Scope()]
        self.finished: dict[nn.Module, LayerCall] = {}

    @property
    def scope(self) -> Scope:
        """The innermost call that is running."""
        return self._scopes[-1]

    @property
    def latest(self) -> LayerCall | None:
        """The last layer's call in it."""
        return self.scope.latest

    @property
    def is_inside(self) -> bool:
        """Whether a layer is at work, so that whatever is called is a part of it."""
        return bool(self._open)

    def begin(self, inputs: CallInputs) -> None:
        """A call of the model begins; all others are forgotten."""
        self._open.clear()
        self._sides.clear()
        self.finished.clear()
        self._scopes = [Scope(inputs)]

    def attach(self) -> list[RemovableHandle]:
        """Hooks on all layers and modules around them; what `attach_last` returns must come after all others."""
        handles: list[RemovableHandle] = []
        for layer, operator in self._operators.items():
            finish = self._hook(self._finish)
            handles.append(layer.register_forward_hook(finish, prepend=True, with_kwargs=True, always_call=True))
            handles.append(layer.register_propagate_forward_pre_hook(self._hook(self._pass)))  # type: ignore[operator]
            if operator == "attention":
                read = self._hook(self._read_attention)
                handles.append(layer.register_message_forward_hook(read))  # type: ignore[operator]
            elif operator == "sum" and has_own_messages(layer):
                read = self._hook(self._read_weights)
                handles.append(layer.register_message_forward_hook(read))  # type: ignore[operator]
            if operator == "sum" and has_own_forward(layer):
                handles += self._attach_sides(layer)
        enter = self._hook(self._enter)
        return handles + [module.register_forward_pre_hook(enter, with_kwargs=True) for module in self._around]

    def _attach_sides(self, layer: nn.Module) -> list[RemovableHandle]:
        """Hooks that see what a layer has before and after its sum."""

        def begin(layer: nn.Module, args: Any) -> None:
            self._sides[layer] = Sides()

        def see_sum(layer: nn.Module, inputs: tuple[Any, Any, dict[str, Any]], output: Any) -> None:
            sides, sent = self._sides.get(layer), list(tensors_in(inputs[2]))
            if sides is None or not isinstance(output, Tensor):
                return
            sent = [x for x in sent if x.is_floating_point() and x.shape == output.shape]
            sides.sent, sides.summed = (sent[0], output) if sides.num_sums == len(sent) == 1 else (None, None)

        def see_part(part: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            sides = self._sides.get(layer)
            if sides is not None and sides.num_sums == 0 and isinstance(output, Tensor):
                sides.before = output
            elif (
                sides is not None
                and sides.summed is not None
                and sides.after is None
                and args
                and isinstance(args[0], Tensor)
            ):
                sides.after = args[0]

        parts = [module for module in layer.modules() if module is not layer]
        return [
            layer.register_forward_pre_hook(self._hook(begin)),
            layer.register_propagate_forward_hook(self._hook(see_sum)),  # type: ignore[operator]
            *(part.register_forward_hook(self._hook(see_part)) for part in parts),
        ]

    def attach_last(self) -> list[RemovableHandle]:
        """Hooks that end the scope of a module, also after an error in it."""
        leave = self._hook(self._leave)
        return [module.register_forward_hook(leave, always_call=True) for module in self._around]

    def _hook(self, see: Callable[..., None]) -> Hook:
        def seen(*args: Any) -> None:
            if self._thread.is_here:
                see(*args)

        return uncompiled_hook(seen)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = read_call(module, args, kwargs)
        if inputs.has_graph:
            self._scopes.append(Scope(inputs, module=module))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.scope.module is module:
            scope = self._scopes.pop()
            self.scope.latest = scope.latest or self.scope.latest

    def _pass(self, layer: nn.Module, inputs: tuple[Any, Any, dict[str, Any]]) -> None:
        edges, size, values = inputs
        if layer in self._sides:
            self._sides[layer].num_sums += 1
        call = self._open.setdefault(layer, LayerCall(self._operators[layer]))
        if any(edges is known for known, _, _ in call.passed) or not is_edges(edges):
            return
        targets, kinds = None if size is None else size[1], values.get("edge_type")
        if type(layer).__name__ == "FastRGCNConv" and isinstance(kinds, Tensor):  # the mean over each kind by itself
            call.passed += [(edges[:, kinds == kind], None, targets) for kind in range(layer.num_relations)]  # type: ignore[arg-type]
        else:
            call.passed.append((edges, as_weights(values.get("edge_weight")), targets))

    def _read_attention(self, layer: nn.Module, inputs: tuple[dict[str, Any]], message: Any) -> None:
        call = self._open.get(layer)
        if call is not None and call.passed and len(call.attention) < len(call.passed):
            num_edges = edges_of(call.passed[-1][0])[0].size(1)
            weights = attention_weights(layer, inputs[0], message, num_edges)
            if weights is not None:
                call.attention.append(weights)

    def _read_weights(self, layer: nn.Module, inputs: tuple[dict[str, Any]], message: Any) -> None:
        call = self._open.get(layer)
        if call is None or call.num_read >= len(call.passed):
            return
        edges, _, targets = call.passed[-1]
        weights, is_known = message_weights(inputs[0], message, edges_of(edges)[0].size(1))
        call.passed[-1] = edges, weights, targets
        call.num_read, call.is_unread = len(call.passed), call.is_unread or not is_known

    def _finish(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = self._open.pop(layer, None) or LayerCall(self._operators[layer])
        sides = self._sides.pop(layer, None)
        if output is None:  # it ended in an error
            return
        inputs = list(named_inputs(layer, args, kwargs))
        call.inputs, call.layer = read_inputs(inputs), layer
        call.num_sources, call.num_targets, call.is_pair = rows_of(inputs, getattr(layer, "node_dim", -2))
        call.is_reversed = getattr(layer, "flow", "") == "target_to_source"
        call.loops = loops_of(layer)
        if "hyperedge_index" in (name for name, _ in inputs) and call.passed:
            # Nodes pass to hyperedges and these back to nodes: neighbours are nodes that share a hyperedge.
            call.passed, call.is_pair = call.passed[-1:], True
            index = edges_of(call.passed[0][0], is_reversed=call.is_reversed)[0]
            call.num_sources = int(index[0].max()) + 1 if index.numel() else 1
        if call.num_targets is None:
            stated = [count for _, _, count in call.passed if count is not None]
            first = next((x for x in tensors_in(output) if x.is_floating_point() and x.dim() >= 2), None)
            call.num_targets = stated[0] if stated else None if first is None else first.size(0)
        if sides is not None and len(call.passed) == 1 and not (call.is_pair or call.is_unread):
            self._read_sides(call, sides, [value for _, value in inputs], output)
        self.finished[layer] = self.scope.latest = call

    @torch.no_grad()
    def _read_sides(self, call: LayerCall, sides: Sides, inputs: Sequence[Any], output: Any) -> None:
        """Take the weights of a plain sum from what is before and after it."""
        edges, weight, targets = call.passed[0]
        index, entries = edges_of(edges, weight, is_reversed=call.is_reversed)
        sent, summed = sides.sent, sides.summed
        if sent is None or summed is None or entries is not None or is_of_many_runs(summed):
            return
        if summed.dim() != 2 or not summed.numel() or not index.numel():
            return
        before, after = (
            [
                x
                for x in tensors_in([part, given])
                if x.shape == summed.shape and x.layout == summed.layout and x.is_floating_point()
            ]
            for part, given in ((sides.before, inputs), (sides.after, output))
        )
        assert call.layer is not None
        added = [p for p in call.layer.parameters(recurse=False) if p.shape == summed.shape[-1:]]
        after += [x - bias for x in after for bias in added]
        weight, is_known = weights_around(index, before, sent, summed, after)
        call.passed[0], call.is_unread = (edges, weight, targets), not is_known
