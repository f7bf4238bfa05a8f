"""What a model and its layers are called with, in PyG's conventions: the graph of each call."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from graphjoule.graph import Propagation
from graphjoule.trace.operators import Edges, Operator, attention_weights, passes_messages
from graphjoule.trace.outputs import tensors_in

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
        other: edges that were found by their shape, and are as likely as `edges`.
    """

    graph: Propagation | None = None
    edges: Any = None
    weight: Tensor | None = None
    batch: Tensor | None = None
    num_nodes: int | None = None
    relations: dict[Relation, Any] = field(default_factory=dict)
    other: Any = None

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
            if name in _EDGES and is_edges(value):
                found.edges = value
            elif name == "edge_weight" and isinstance(value, Tensor) and value.dim() == 1:
                found.weight = value
            elif name == "batch" and isinstance(value, Tensor) and value.dim() == 1:
                found.batch, found.num_nodes = value, value.numel()
            elif is_edges(value) and name != "x" and "label" not in name:
                by_shape.append(value)
        elif not isinstance(value, str | int | float | tuple | list | None):
            _read_data(value, found)
    if found.edges is None and not found.has_graph and by_shape:
        found.edges, found.other = by_shape[0], by_shape[1] if len(by_shape) > 1 else None
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
    found.edges = edges
    weight, batch, number = (getattr(data, name, None) for name in ("edge_weight", "batch", "num_nodes"))
    if isinstance(weight, Tensor) and weight.dim() == 1:
        found.weight = weight
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


def rows_of(inputs: Sequence[tuple[str, Any]]) -> tuple[int | None, int | None, bool]:
    """How many sources and targets a layer is called with, by its features, and whether these are two sets of nodes."""
    for name, value in inputs:
        if is_edges(value) and name != "x":
            continue
        if isinstance(value, Tensor) and (value.dim() >= 2 or name == "x"):
            rows = value.size(-2 if value.dim() >= 2 else 0)
            return rows, rows, False
        if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], Tensor):
            source, target = value
            if not isinstance(target, Tensor):
                return source.size(-2), None, True
            return source.size(-2), target.size(-2), not _are_one(source, target)
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
        num_sources: rows of the features that messages come from.
        num_targets: rows of the features that they go to.
        is_pair: whether these are two sets of nodes.
        is_reversed: whether messages go from ``edge_index[1]`` to ``edge_index[0]``.
        fill: weight of the self-loops that the layer adds; None for a model without such layers.
        passed: edges, maybe weights, and the stated number of targets of each distinct ``propagate``.
        attention: the weights of this call.
        made: the operator, once it was asked for.
    """

    operator: str
    inputs: CallInputs = field(default_factory=CallInputs)
    num_sources: int | None = None
    num_targets: int | None = None
    is_pair: bool = False
    is_reversed: bool = False
    fill: float | None = None
    passed: list[tuple[Any, Tensor | None, int | None]] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    made: Operator | None = None


class LayerCalls:
    """The calls of all message-passing layers of a model, read by hooks.

    Args:
        operators: the kind of operator of each layer; what is not such a layer is left alone.

    Attributes:
        finished: the last call of each layer.
        latest: the last of all.
    """

    def __init__(self, operators: Mapping[nn.Module, str]) -> None:
        self._operators = {layer: operator for layer, operator in operators.items() if passes_messages(layer)}
        self._open: dict[nn.Module, LayerCall] = {}
        self.finished: dict[nn.Module, LayerCall] = {}
        self.latest: LayerCall | None = None

    def clear(self) -> None:
        """Forget all calls."""
        self._open.clear()
        self.finished.clear()
        self.latest = None

    def attach(self) -> list[RemovableHandle]:
        """Hooks on all layers."""
        handles: list[RemovableHandle] = []
        for layer, operator in self._operators.items():
            handles.append(layer.register_forward_hook(self._finish, prepend=True, with_kwargs=True))
            handles.append(layer.register_propagate_forward_pre_hook(self._pass))  # type: ignore[operator]
            if operator == "attention":
                handles.append(layer.register_message_forward_hook(self._read_attention))  # type: ignore[operator]
        return handles

    def _pass(self, layer: nn.Module, inputs: tuple[Any, Any, dict[str, Any]]) -> None:
        edges, size, values = inputs
        call = self._open.setdefault(layer, LayerCall(self._operators[layer]))
        if any(edges is known for known, _, _ in call.passed) or not is_edges(edges):
            return
        weight = values.get("edge_weight")
        weight = weight if isinstance(weight, Tensor) and weight.dim() == 1 else None
        call.passed.append((edges, weight, None if size is None else size[1]))

    def _read_attention(self, layer: nn.Module, inputs: tuple[dict[str, Any]], message: Any) -> None:
        call = self._open.get(layer)
        if call is not None and call.passed and len(call.attention) < len(call.passed):
            num_edges = edges_of(call.passed[-1][0])[0].size(1)
            weights = attention_weights(layer, inputs[0], message, num_edges)
            if weights is not None:
                call.attention.append(weights)

    def _finish(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = self._open.pop(layer, None) or LayerCall(self._operators[layer])
        inputs = list(named_inputs(layer, args, kwargs))
        call.inputs = read_inputs(inputs)
        call.num_sources, call.num_targets, call.is_pair = rows_of(inputs)
        call.is_reversed = getattr(layer, "flow", "") == "target_to_source"
        call.fill = self_loop_weight(layer)
        if "hyperedge_index" in (name for name, _ in inputs) and call.passed:
            # Nodes pass to hyperedges and these back to nodes: neighbours are nodes that share a hyperedge.
            call.passed, call.is_pair = call.passed[-1:], True
            index = edges_of(call.passed[0][0], is_reversed=call.is_reversed)[0]
            call.num_sources = int(index[0].max()) + 1 if index.numel() else 1
        if call.num_targets is None:
            stated = [count for _, _, count in call.passed if count is not None]
            first = next((x for x in tensors_in(output) if x.is_floating_point() and x.dim() >= 2), None)
            call.num_targets = stated[0] if stated else None if first is None else first.size(0)
        self.finished[layer] = self.latest = call


def self_loop_weight(layer: nn.Module) -> float:
    """The weight of the self-loops that a layer with GCN's normalisation adds."""
    return 2.0 if getattr(layer, "improved", False) is True else 1.0
