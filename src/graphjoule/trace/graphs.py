"""By which graph and which operator a module's output is measured: those of the very call, or a fixed graph."""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from graphjoule.errors import GraphjouleError, check_count, counted
from graphjoule.graph import Propagation
from graphjoule.graph.csr import outside_transforms
from graphjoule.graph.nodes import ALL_NODES, Nodes
from graphjoule.graph.propagation import InducedPropagation
from graphjoule.trace.calls import (
    CallInputs,
    LayerCall,
    LayerCalls,
    Relation,
    edges_of,
    is_matrix,
    named_inputs,
    read_call,
    read_inputs,
)
from graphjoule.trace.hooks import OneThread
from graphjoule.trace.operators import (
    CallOperator,
    Loops,
    Operator,
    expects_norm,
    is_of_many_runs,
    loops_of,
    operator_of,
    operators_in,
    pair_operator,
    passes_as_called,
    passes_messages,
    square_operator,
    weighted_operator,
)
from graphjoule.trace.outputs import TracedGraph, count_nodes, describe_output, find_features, tensors_in

_MOST_KEPT = 16  # operators of the latest graphs: those of a full-batch training are built once


@dataclass(frozen=True, eq=False)
class Measured:
    """One thing to measure in a module's output.

    Attributes:
        features: node features.
        origin: the tensor of the output that they come from.
        num_nodes: number of their rows.
        operator: what their energy is measured by; None where `adds` says it.
        graph: what other measures take; where it has no edges, those that need some are left out.
        part: which graph of a batch, node type or relation it is; None for all.
        adds: of a node type: which relations' energies add up to its own, by their place in the list.
    """

    features: Tensor
    origin: Tensor
    num_nodes: int
    operator: Operator | None
    graph: Nodes
    part: str | None = None
    adds: tuple[int, ...] = ()


Split = tuple[str, Tensor, Operator, Propagation]
"""One graph of a batch: its name, its nodes, the operator and the graph among them."""
_KnownSplits = tuple[weakref.ref[Tensor], int | None, list[Split]]  # a ``batch`` vector, its version, and its graphs


class GraphReader:
    """Finds what to measure in the outputs of a model's modules.

    Args:
        model: any module.
        graph: a graph for all calls; None to read it from each.
        num_nodes: number of nodes, where an ``edge_index`` leaves it open.
        operator: a key of `OPERATORS` for all layers; None to read it from each.
        by_graph: measure each graph of a batch by itself.
        watched: modules that were asked for by name or type; None for the default.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Propagation | Tensor | None,
        num_nodes: int | None = None,
        operator: str | None = None,
        *,
        by_graph: bool = False,
        watched: Iterable[nn.Module] | None = None,
    ) -> None:
        if num_nodes is not None:
            check_count("num_nodes", num_nodes)
        self._fixed = None if graph is None else TracedGraph(graph, num_nodes)
        self._given, self._num_nodes = graph, num_nodes
        self._model, self._by_graph = model, by_graph
        self._operators = operators_in(model, operator, watched)
        self._wanted = operator
        # Of rows before the first layer whose weights are read: what those of the latest one were.
        self._read = "symmetric" if any(expects_norm(layer) for layer in self._operators) else None
        self._latest_read: tuple[tuple[Tensor, Tensor], tuple[int | None, int | None], CallOperator] | None = None
        self._loops = next((loops_of(layer) for layer in self._operators if passes_messages(layer)), None)
        self._call = CallInputs()
        self._thread = OneThread()
        self._layers = LayerCalls(model, self._operators, self._thread)
        self._of_edges: dict[int, weakref.ref[Tensor]] = {}  # tensors of this call with a row for every edge, by id
        self._of_nodes: dict[int, weakref.ref[Tensor]] = {}  # and those with a row for every node
        self._on_edges: set[str] = set()  # modules that were seen to return features of edges
        self._on_nodes: set[str] = set()  # and those of nodes
        self._kept: OrderedDict[tuple[Any, ...], tuple[list[weakref.ref[Any]], Operator]] = OrderedDict()
        self._splits: weakref.WeakKeyDictionary[Operator, _KnownSplits] = weakref.WeakKeyDictionary()
        self._compared: weakref.ref[Any] | None = None  # the latest graph that was held against the fixed one
        self._had_rows: set[str] = set()
        self._warned: set[str] = set()
        self._early: set[str] = set()  # modules that are called before any graph is seen
        self._num_rows: int | None = None  # of this call of the model; None where none runs
        self._is_empty = False  # whether a call had no row

    @property
    def num_nodes(self) -> int | None:
        """Number of nodes of a fixed graph, where it is known."""
        return None if self._fixed is None else self._fixed.num_nodes

    def attach(self) -> list[RemovableHandle]:
        """Hooks on all message-passing layers and around them."""
        return self._layers.attach()

    def attach_last(self) -> list[RemovableHandle]:
        """Hooks that must come after all others."""
        return self._layers.attach_last()

    @property
    def is_ours(self) -> bool:
        """Whether no call of the model runs in another thread."""
        return self._thread.is_here

    @property
    def is_inside_layer(self) -> bool:
        """Whether what is called is a part of a layer, such as an activation that an MLP in it shares with others."""
        return self._layers.is_inside

    def claim(self) -> bool:
        """Watch the call of the model that begins in this thread, if none runs in another."""
        if self._thread.begin():
            return True
        self._warn(
            "thread",
            f"{type(self._model).__name__} is called from two threads at once; the calls of the second are left out.",
        )
        return False

    def release(self) -> None:
        """The call of the model is over, or ended in an error."""
        self._thread.end()

    def begin(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A call of the model begins."""
        self._num_rows = 0
        self._call = read_call(self._model, args, kwargs)
        if self._num_nodes is not None and self._fixed is None:
            self._state_num_nodes(self._num_nodes)
        self._layers.begin(self._call)
        self._of_edges = {id(x): weakref.ref(x) for x in self._call.edge_features}
        self._of_nodes = {}
        if self._fixed is not None:
            self._fixed.read_inputs(chain(args, kwargs.values()))
            self._compare()

    def end(self, *, has_rows: bool, has_failed: bool = False) -> None:
        """The last call of the model ended, maybe in an error, or there was none; nothing of it is kept.

        Args:
            has_rows: whether there are rows of any call.
            has_failed: whether it ended in an error, so that rows may be missing.
        """
        self._is_empty |= self._num_rows == 0 and not has_failed
        if self._is_empty and has_rows:
            self._warn("call", f"A call of {type(self._model).__name__} gave no row: no output fits its graph.")
        self._call, self._num_rows = CallInputs(), None
        self._layers.begin(self._call)
        self._of_edges, self._of_nodes = {}, {}

    def forget(self) -> None:
        """Let go of the weights of the last call; operators go with the tensors that they were made of."""
        self._latest_read = None

    def measured(
        self, name: str, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any
    ) -> list[Measured]:
        """What to measure in a module's output; nothing where it is not node features.

        A message-passing layer, or a module that had a row before, warns once by its name if there is nothing.
        """
        why = "its output is not node features of the graph"
        is_wrong = False
        if self._is_of_edges(args, output) or (self._num_rows is None and name in self._early):
            return []  # a part that is called by itself, before a layer: what was seen last is another call's graph
        try:
            found = self._find(module, args, kwargs, output)
        except GraphjouleError as error:
            found, why, is_wrong = [], str(error).rstrip("."), True
        if not passes_messages(module) and not self._is_of_nodes(name, args, found, output):
            return []
        if found:
            self._of_nodes[id(found[0].origin)] = weakref.ref(found[0].origin)
            self._had_rows.add(name)
            self._num_rows = None if self._num_rows is None else self._num_rows + len(found)
        elif not is_wrong and self._is_too_early(output):
            self._early.add(name)
            self._warn(
                "early",
                f"{name} has no row: it is called before any graph is seen, and the model is called without one; pass "
                "the graph as graph=...",
            )
        elif is_wrong or passes_messages(module) or name in self._had_rows:
            size = "" if self.num_nodes is None or is_wrong else f" of {self.num_nodes} nodes"
            self._warn(name, f"{name} has no row in some calls: {why}{size}; it returned {describe_output(output)}.")
        return found

    def _is_of_edges(self, args: Sequence[Any], output: Any) -> bool:
        """Whether a module maps features of edges, of which there may be as many as nodes; then so is its output."""
        if len(args) != 1:
            return False
        if not _is_among(args[0], self._of_edges) and not any(
            args[0] is x for x in self._layers.scope.inputs.edge_features
        ):
            return False
        self._of_edges.update((id(x), weakref.ref(x)) for x in tensors_in(output))
        return True

    def _is_of_nodes(self, name: str, args: Sequence[Any], found: Sequence[Measured], output: Any) -> bool:
        """Whether what was found are features of nodes, where there are as many edges: else their shape tells.

        A module does what it did where the numbers differ; what it is called with may be known too. Else it warns.
        """
        inputs = self._layers.scope.inputs
        if not inputs.has_graph and self._layers.latest is not None:
            inputs = self._layers.latest.inputs
        if not found:
            if any(x.dim() >= 2 and x.size(0) in inputs.num_edges for x in tensors_in(output)):
                self._on_edges.add(name)
            return True
        if found[0].num_nodes not in inputs.num_edges:
            self._on_nodes.add(name)
            return True
        if (name in self._on_nodes) != (name in self._on_edges):
            return name in self._on_nodes
        if not any(_is_among(x, self._of_nodes) or any(x is y for y in inputs.node_features) for x in tensors_in(args)):
            self._warn(
                "as many",
                f"There are as many edges as nodes ({found[0].num_nodes}), so {name}, and others after it, may have "
                "features of edges; they are measured as those of nodes. If they are not, name the modules to watch.",
            )
        return True

    def _is_too_early(self, output: Any) -> bool:
        """Whether an output might be node features, but no graph is known yet."""
        scope = self._layers.scope
        if self._fixed is not None or scope.inputs.has_graph or scope.latest is not None:
            return False
        return any(x.is_floating_point() and x.dim() >= 2 for x in tensors_in(output))

    # What to measure.

    def _find(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> list[Measured]:
        if self._fixed is not None:
            features = self._fixed.features_in(output)
            if features is None:
                return []
            graph = self._fixed.on(features.device)
            return self._split(self._on_graph(features, graph, self._layers.finished.get(module, self._layers.latest)))
        is_layer, is_mapping = passes_messages(module), isinstance(output, Mapping)
        scope, own = self._layers.scope, CallInputs()
        if scope.module is module:
            own = scope.inputs
        elif (is_mapping or not is_layer) and (len(args) > 1 or kwargs):
            own = read_inputs(list(named_inputs(module, args, kwargs)))
        relations = own.relations or scope.inputs.relations
        if relations and (is_mapping or not is_layer):
            return list(self._hetero(module, relations, args, output)) if is_mapping else []
        call = self._layers.finished.get(module)
        found = None
        if call is None:
            call = self._layers.latest
            if call is None or own.edges is not call.inputs.edges:  # else it is a block around that layer
                found = self._on_inputs(own, output)
        is_own = found is not None or is_layer
        if found is None and call is not None:
            found = self._on_layer(call, output)
        if found is None and not is_layer:
            found = self._on_inputs(scope.inputs, output)
        if found is not None and not is_own and scope.inputs.other is not None:
            self._warn(
                "ambiguous",
                f"{type(scope.module or self._model).__name__} is called with two tensors that can be edges, and "
                "neither is called edge_index; what is not called with one of them is measured on that of the last "
                "layer, or else on the first. Pass the graph as graph=... to say which.",
            )
        if found is None:
            return []
        if is_layer and scope.inputs.relations and call is not None:  # as `to_hetero` makes one for each relation
            edges = call.inputs.edges
            part = next((" ".join(key) for key, known in scope.inputs.relations.items() if known is edges), None)
            return [replace(found, part=part)]
        return self._split(found)

    def _on_graph(self, features: Tensor, graph: Propagation, call: LayerCall | None) -> Measured:
        """Features on a graph that was given as a whole."""
        name = self._before_layers() if call is None else call.operator
        if name == "sum" and call is not None and call.num_targets is not None:
            name = self._of_layer(call).name
        if name == "symmetric":
            operator = self._keep((name, "given"), [graph], lambda: Operator(name, graph))
        elif name == "attention" and call is not None and not call.is_pair and call.num_targets == graph.num_nodes:
            operator = self._of_layer(call).to(graph.device)
        else:
            if name == "attention" and call is not None:
                self._warn_of_attention(call)
            graph.require_whole(f"The operator {name!r}")
            name = "random_walk" if name == "attention" else name
            edges = graph.edge_index, graph.edge_weight
            make = lambda: square_operator(name, [edges], graph.num_nodes)  # noqa: E731
            operator = self._keep((name, "given"), [graph], make).to(graph.device)
        return Measured(features, features, graph.num_nodes, operator, graph)

    def _on_layer(self, call: LayerCall, output: Any) -> Measured | None:
        """Features on the graph of a layer's call, if they fit."""
        features = None if call.num_targets is None else find_features(output, call.num_targets)
        if features is None or call.num_targets is None:
            return None
        operator = self._of_layer(call)
        graph: Nodes = ALL_NODES if call.is_pair else self._moved(self._plain_graph(call, operator), features.device)
        return Measured(features, features, call.num_targets, operator.to(features.device), graph)

    def _on_inputs(self, inputs: CallInputs, output: Any) -> Measured | None:
        """Features on the graph that a call states, if they fit."""
        if inputs.graph is not None:
            features = find_features(output, inputs.graph.num_nodes)
            return (
                None
                if features is None
                else self._on_graph(features, self._moved(inputs.graph, features.device), self._layers.latest)
            )
        if inputs.edges is None:
            return None
        if inputs.num_nodes is None:  # the first output that has enough rows tells
            inputs.num_nodes = count_nodes([x for x in tensors_in(output) if x.dim() == 2], edges_of(inputs.edges)[0])
        nodes = inputs.num_nodes
        call = LayerCall(self._before_layers(), inputs, num_sources=nodes, num_targets=nodes, loops=self._loops)
        return self._on_layer(call, output)

    def _hetero(
        self, module: nn.Module, relations: Mapping[Relation, Any], args: Sequence[Any], output: Mapping[Any, Any]
    ) -> Iterator[Measured]:
        """Each relation, then each node type, whose energy is that of the relations that lead to it."""
        types = {key: x for key, x in output.items() if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 1}
        rows = {key: x.size(-2) for key, x in types.items()}
        for key, x in chain.from_iterable(given.items() for given in args if isinstance(given, Mapping)):
            if isinstance(key, str) and isinstance(x, Tensor) and x.dim() > 1:
                rows.setdefault(key, x.size(-2))
        layers = getattr(module, "convs", None)  # of HeteroConv, by relation
        layers = dict(layers.items()) if isinstance(layers, nn.ModuleDict) else {}
        calls: dict[Any, LayerCall | None] = {key: self._layers.finished.get(layer) for key, layer in layers.items()}
        whole = self._layers.finished.get(module)  # of a layer that takes all relations at once
        if whole is not None:
            sizes = [edges_of(edges)[0].size(1) for edges in relations.values()]
            alpha = torch.cat(whole.attention) if whole.attention else torch.zeros(0)
            can_read = alpha.numel() == sum(sizes)
            pieces = [[piece] for piece in torch.split(alpha, sizes)] if can_read else [[] for _ in sizes]
            calls.update(
                (key, _of_relation(whole, edges, piece))
                for (key, edges), piece in zip(relations.items(), pieces, strict=True)
            )
        leading: dict[str, list[int]] = {key: [] for key in types}
        origin = next(iter(types.values()), None)
        for count, (relation, edges) in enumerate((key, edges) for key, edges in relations.items() if key[2] in types):
            source, _, target = relation
            x = types[target]
            call = calls.get(relation)
            if call is None:
                call = LayerCall(self._before_layers(), CallInputs(edges=edges), loops=Loops())
            elif call.inputs.edges is not edges:  # of a shared layer the last call alone is kept
                call = _of_relation(call, edges, [])
            if source not in rows:
                index = edges_of(edges)[0]
                rows[source] = int(index[0].max()) + 1 if index.numel() else 1
            call.num_sources, call.num_targets, call.is_pair = rows[source], rows[target], source != target
            both = call.is_pair and source in types and types[source].size(-1) == x.size(-1)
            operator = self._of_layer(call, both=both).to(x.device)
            x = torch.cat([types[source], x], dim=-2) if both else x
            leading[target].append(count)
            nodes = ALL_NODES if call.is_pair else operator.graph
            assert origin is not None
            yield Measured(x, origin, x.size(-2), operator, nodes, " ".join(relation))
        for key, x in types.items():
            assert origin is not None
            yield Measured(x, origin, x.size(-2), None, ALL_NODES, key, tuple(leading[key]))

    def _split(self, found: Measured) -> list[Measured]:
        """Each graph of a batch by itself, where that was asked for."""
        batch = self._layers.scope.inputs.batch
        if batch is None and self._call.other is None:
            batch = self._call.batch
        if not self._by_graph or found.operator is None:
            return [found]
        if batch is None or batch.numel() != found.num_nodes or not isinstance(found.graph, Propagation):
            self._warn(
                "batch",
                f"{type(self._model).__name__} is called without a batch vector for the {found.num_nodes} nodes of an "
                "output, which is measured as one graph; expected an argument called batch, or a Batch of graphs.",
            )
            return [found]
        known = self._splits.get(found.operator)
        if known is not None and known[0]() is batch and known[1] == version(batch):
            splits = known[2]
        else:
            ids, splits = batch.to(found.graph.device), []
            for k in torch.unique(ids).tolist():
                nodes = (ids == k).nonzero().flatten()
                splits.append((f"graph {k}", nodes, found.operator.induced(nodes), found.graph.induced(nodes)))
            self._splits[found.operator] = weakref.ref(batch), version(batch), splits
        axis = -2 if found.features.size(-2) == found.num_nodes else 0
        return [
            Measured(found.features.index_select(axis, nodes), found.origin, nodes.numel(), operator, graph, part)
            for part, nodes, operator, graph in splits
        ]

    # The operator of a call.

    def _before_layers(self) -> str:
        """The operator where no layer has been called: of attention, that of equal weights."""
        operator = self._operators[self._model]
        if operator == "sum" and self._wanted is None and self._read is not None:
            return self._read
        return "random_walk" if operator == "attention" else operator

    def _of_layer(self, call: LayerCall, *, both: bool = False) -> Operator:
        """The operator of a layer's call; `both` says that features of sources and targets are at hand."""
        if call.made is not None:
            return call.made
        assert call.num_targets is not None
        name, targets, raw = call.operator, call.num_targets, [(edges, weight) for edges, weight, _ in call.passed]
        can_read = len(call.attention) == len(call.passed) > 0
        is_normalised = name in ("symmetric", "loopless")
        if call.layer is not None and not call.passed and not is_normalised and not passes_as_called(call.layer):
            kind = type(call.layer).__name__
            self._warn(
                f"unseen {kind}",
                f"The messages of {kind} cannot be seen, as in compiled code; its energy is that of the edges that it "
                "is called with, with equal weights in place of attention.",
            )
        elif name == "attention" and not can_read:
            self._warn_of_attention(call)
        if (name == "attention" and not can_read) or (is_normalised and call.is_pair):
            name, is_normalised = "random_walk", False
        if call.is_unread and self._wanted is None:
            self._warn_of_weights(call)
        if (is_normalised or not raw) and call.inputs.edges is not None:  # before the layer normalised them
            raw = [(call.inputs.edges, call.inputs.weight)]
        elif call.operator == "attention":
            raw = [(edges, None) for edges, _ in raw]
        parts = [edges_of(edges, weight, is_reversed=call.is_reversed) for edges, weight in raw]
        if name == "attention":
            parts = [(index, weight) for (index, _), weight in zip(parts, call.attention, strict=True)]
        if call.is_pair:
            call.made = pair_operator(name, parts, call.num_sources or targets, targets, both=both)
        elif name == "attention":
            index = torch.cat([index for index, _ in parts], dim=1)
            call.made = CallOperator(name, index, torch.cat(call.attention), targets)
        else:
            for stated in (count for _, _, count in call.passed if count is not None):
                if stated != targets:
                    raise GraphjouleError(f"its edges lead to {stated} nodes, but its features have {targets} rows")
            is_read = name == "sum" and self._wanted is None
            # The layer does not normalise its weights, or there is none that could; they may have been before it.
            is_bare = call.layer is None and self._wanted is None and len(self._operators) == 1
            is_given = is_normalised and (is_bare or (call.layer is not None and operator_of(call.layer) == "sum"))

            def make() -> Operator:
                made = self._of_weights(raw, call) if is_read or is_given else None
                is_mean = is_bare and made is not None and made.name == "random_walk"
                if made is None or (is_given and not (made.is_normalised or is_mean)):
                    return square_operator(name, parts, targets, call.loops, is_matrix=is_matrix(raw[0][0]))
                return made

            key = name, targets, call.loops, call.is_reversed, is_given
            call.made = self._keep(key, list(chain(*raw)), make)
            if is_read and isinstance(call.made, CallOperator):
                self._read = call.made.name
                if call.made.is_skew:
                    self._warn(
                        f"skew {id(call.layer)}",
                        f"{self._name_of(call)} multiplies its messages by weights that are normalised neither like "
                        "GCN's nor like a mean's, as where each node divides what it sends by its degree. Its energy "
                        "is that of 'sum', which may stay high where the layer has smoothed all it can. Choose one for "
                        "all layers with operator=...",
                    )
        return call.made

    def _of_weights(self, raw: Sequence[tuple[Any, Tensor | None]], call: LayerCall) -> CallOperator | None:
        """The operator of the weights that a layer multiplies messages by; None where it has none, or not of numbers.

        Layers that make the same weights at every call have one operator, so that a constraint sorts it once.
        """
        if len(raw) != 1 or call.is_pair or call.num_targets is None:
            return None
        index, weight = edges_of(*raw[0], is_reversed=call.is_reversed)
        if weight is None or index.numel() == 0 or int(index.max()) >= call.num_targets:
            return None
        if is_of_many_runs(weight) or not bool(((weight >= 0) & weight.isfinite()).all()):
            return None
        if call.layer is None and bool((weight == 1).all()):  # of edges that are no more than listed
            return None
        weight, versions = weight.detach(), (version(index), version(weight))
        if self._latest_read is not None:
            known, before, operator = self._latest_read
            if (
                operator.num_nodes == call.num_targets
                and before == tuple(map(version, known))
                and all(a.device == b.device and torch.equal(a, b) for a, b in zip(known, (index, weight), strict=True))
            ):
                return operator
        operator = weighted_operator(index, weight, call.num_targets)
        self._latest_read = (index, weight), versions, operator
        return operator

    def _warn_of_weights(self, call: LayerCall) -> None:
        name = self._name_of(call)
        self._warn(
            f"weights {id(call.layer)}",
            f"What {name} multiplies its messages by cannot be read in some calls: its energy is that of 'sum' there, "
            "with equal weights, which a normalised layer does not follow. Choose one for all layers with "
            "operator=..., such as operator='symmetric' for GCN's.",
        )

    def _name_of(self, call: LayerCall) -> str:
        """The name of a layer and its class."""
        name = next((name for name, module in self._model.named_modules() if module is call.layer), "")
        kind = type(call.layer).__name__
        return f"{name} ({kind})" if name else kind

    def _warn_of_attention(self, call: LayerCall) -> None:
        key = f"attention {id(call.layer)}"
        if key in self._warned:
            return
        self._warn(
            key,
            f"The attention weights of {self._name_of(call)} cannot be read in some calls: its energy is that of "
            "'random_walk' there, with equal weights. Choose one for all layers with operator=...",
        )

    def _plain_graph(self, call: LayerCall, operator: Operator) -> Propagation:
        """The undirected graph that measures other than the energy take."""
        if operator.is_scaled or (isinstance(operator, CallOperator) and operator.is_normalised):
            return operator.graph
        edges, weight = call.inputs.edges, call.inputs.weight
        if edges is None:
            edges, weight = call.passed[0][0], None
        assert call.num_targets is not None
        targets, parts = call.num_targets, [edges_of(edges, weight)]
        key = "symmetric", targets, None, False
        return self._keep(key, [edges, weight], lambda: square_operator("symmetric", parts, targets)).graph

    def _moved(self, graph: Propagation, device: torch.device) -> Propagation:
        if graph.device == device:
            return graph
        return self._keep(("moved", device), [graph], lambda: Operator("symmetric", graph.to(device))).graph

    # What is kept and what is said.

    def _keep(self, key: tuple[Any, ...], things: Sequence[Any], make: Callable[[], Operator]) -> Operator:
        """An operator made of some tensors, kept as long as they are the same ones, unchanged."""
        things = [thing for thing in things if thing is not None]
        key = (*key, *((id(thing), version(thing)) for thing in things))
        found = self._kept.get(key)
        if found is not None and all(ref() is thing for ref, thing in zip(found[0], things, strict=True)):
            self._kept.move_to_end(key)
            return found[1]
        with outside_transforms():
            operator = make()
        kept = self._kept
        self._kept[key] = [weakref.ref(thing, lambda _: kept.pop(key, None)) for thing in things], operator
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return operator

    def _state_num_nodes(self, given: int) -> None:
        """Complete a call's graph to the stated number of nodes, unless the call itself says another number."""
        call, number = self._call, given
        if call.graph is not None or is_matrix(call.edges):
            number = call.edges.size(0) if call.graph is None else call.graph.num_nodes
        elif call.batch is not None:
            number = call.batch.numel()
        elif call.num_nodes not in call.num_edges and find_features(call.node_features, given) is None:
            number = next(
                (x.size(-2) for x in call.node_features if x.dim() > 1 and x.size(-2) == call.num_nodes), given
            )
        if number == given and isinstance(call.edges, Tensor) and not is_matrix(call.edges) and call.edges.numel():
            number = max(given, int((call.edges[0] if call.are_hyperedges else call.edges).max()) + 1)
        if number != given:
            raise GraphjouleError(
                f"num_nodes is {given}, but {type(self._model).__name__} is called with a graph of "
                f"{counted(number, 'node')}; expected {number}, or leave it out, and each call says its own number."
            )
        if call.edges is not None:
            call.num_nodes = given

    def _compare(self) -> None:
        """Warn where the model is called with another graph than the fixed one."""
        called = self._call.graph if self._call.graph is not None else self._call.edges
        if called is None or called is self._given or "another" in self._warned or self.num_nodes is None:
            return
        if self._compared is not None and self._compared() is called:
            return
        self._compared = weakref.ref(called)
        assert self._fixed is not None
        fixed = self._fixed.any_device()
        if type(fixed) not in (Propagation, InducedPropagation):  # rows of several processes, or directed edges
            return
        try:
            is_graph = isinstance(called, Propagation)
            graph = called if is_graph else square_operator("symmetric", [edges_of(called)], fixed.num_nodes).graph
            is_same = all(a.cpu().equal(b.cpu()) for a, b in ((graph.rowptr, fixed.rowptr), (graph.col, fixed.col)))
        except GraphjouleError:  # more nodes than the fixed one has
            is_same = False
        if not is_same:
            self._warn(
                "another",
                f"{type(self._model).__name__} is called with another graph than the fixed one, which has "
                f"{fixed.num_nodes} nodes and {fixed.num_edges} edges and is what its outputs are measured on; leave "
                "out the graph to measure each call on its own.",
            )

    def _warn(self, key: str, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(message, stacklevel=3)


def _is_among(x: Any, known: Mapping[int, weakref.ref[Tensor]]) -> bool:
    """Whether it is one of the tensors that are kept by their id."""
    found = known.get(id(x))
    return found is not None and found() is x


def version(thing: Any) -> int | None:
    """How often a tensor was changed in place; tensors of inference mode, and other things, do not count it."""
    return thing._version if isinstance(thing, Tensor) and not thing.is_inference() else None


def _of_relation(call: LayerCall, edges: Any, attention: list[Tensor]) -> LayerCall:
    """A layer's call as one on the edges of one relation."""
    return replace(call, inputs=CallInputs(edges=edges), passed=[(edges, None, None)], attention=attention, made=None)
