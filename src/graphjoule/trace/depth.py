"""`reach`: how many hops away each layer of any model still sees, and whether its depth is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import SparseFeatures
from graphjoule.measures.reach import Reach, jacobian_reach
from graphjoule.trace.outputs import TracedGraph, as_matrix
from graphjoule.trace.view import RecordedTrace, TraceView
from graphjoule.trace.watch import Watch, watched_modules

_MOST_LAYERS = 10  # of a deep network whose reach is measured by default: a backward pass from each


def reach(
    model: nn.Module,
    graph: Propagation | Tensor,
    inputs: Sequence[Any],
    watch: Watch | Sequence[Watch] | None = None,
    *,
    source: str | None = None,
    num_probes: int = 128,
    seed: int = 0,
) -> dict[str, Reach]:
    """Measure how far layers of any model reach, by random cotangents, in one call in evaluation mode.

    Beside `Trace`, which keeps no activation: reach needs a backward pass from each layer to the source.

    Args:
        model: any module.
        graph: what hops are counted on, a `Propagation` or an ``edge_index`` with both directions of each edge.
        inputs: what to call the model with; of features in CSR it is called with a dense copy.
        watch: layers to measure, by name with ``*`` as a wildcard within one level, or by type. By default up to ten of
            the members of `convs`, where the model has such a list, the first and the last among them and closer at
            the beginning; else all that a `Trace` watches.
        source: name of the module whose output the influence comes from, such as "encoder" for ``X_0``; by default the
            node features that the model is called with.
        num_probes: how many pairs of a node and a channel to draw at each layer; errors shrink with its root.
        seed: what they are drawn with.

    Returns:
        The reach of every layer by name, in the order of the calls, each with its standard errors.

    Example:
        >>> from graphjoule.nn import SGC
        >>> path = Propagation.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 3]]), symmetrize=True)
        >>> found = reach(SGC(2, 4, 3, num_layers=2), path, (torch.ones(4, 2), path))
        >>> {name: one.range() for name, one in found.items()}
        {'convs.0': 1, 'convs.1': 2}
    """
    inputs = [value.to_dense() if isinstance(value, SparseFeatures) else value for value in inputs]
    traced = TracedGraph(graph)
    traced.read_inputs(inputs)
    watched = watched_modules(model, _spread(model) if watch is None else watch)
    leaf: list[Tensor] = []
    if source is None:
        at = next((k for k, value in enumerate(inputs) if traced.features_in(value) is not None), None)
        if at is None or not isinstance(inputs[at], Tensor):
            raise GraphjouleError("The model is called without node features as a tensor; give `source` as a name.")
        inputs[at] = inputs[at].detach().requires_grad_()
        leaf.append(inputs[at])
    seen: dict[str, Tensor] = {}

    def cut(module: nn.Module, args: Any, output: Any) -> Any:
        if leaf:
            return output
        if not isinstance(output, Tensor):
            raise GraphjouleError(f"{source} returns {type(output).__name__}; a source must return node features.")
        leaf.append(output.detach().requires_grad_())
        return leaf[0]

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        features = traced.features_in(output) if leaf else None  # what comes before the source does not depend on it
        if features is not None and features.requires_grad and features is not leaf[0]:
            times = sum(key.partition("#")[0] == name for key in seen) + 1
            seen[name if times == 1 else f"{name}#{times}"] = features

    handles = [] if source is None else [watched_modules(model, source)[source].register_forward_hook(cut)]
    handles += [module.register_forward_hook(partial(note, name)) for name, module in watched.items()]
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.enable_grad():
            model.eval()(*inputs)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    if not seen:
        raise GraphjouleError(
            f"No output of {', '.join(list(watched)[:5])} is node features that depend on {source or 'the input'}."
        )
    nodes = traced.num_nodes
    assert nodes is not None
    found = {}
    for name, features in seen.items():
        matrix = as_matrix(features, nodes)
        if matrix.dim() != 2 or leaf[0].dim() != 2:
            raise GraphjouleError(f"{name} has shape {list(features.shape)}; a reach is of one run, [nodes, channels].")
        on = traced.on(matrix.device)
        found[name] = jacobian_reach(matrix, leaf[0], on, num_probes=num_probes, seed=seed)
    return found


def with_reach(trace: TraceView, found: Mapping[str, Reach]) -> RecordedTrace:
    """A trace whose rows have the mean reach as the measure "reach", where it was measured; `diagnose` reads it.

    Args:
        trace: rows of the same layers.
        found: what `reach` returned.

    Example:
        >>> from graphjoule.nn import SGC
        >>> from graphjoule.trace import Trace
        >>> path = Propagation.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 3]]), symmetrize=True)
        >>> model, inputs = SGC(2, 4, 3, num_layers=2), (torch.ones(4, 2), path)
        >>> rows = with_reach(Trace.of(model, path, inputs), reach(model, path, inputs)).layers
        >>> [round(row["reach"], 2) for row in rows if "reach" in row]
        [0.58, 0.73]
    """
    if not isinstance(trace, TraceView):
        raise GraphjouleError(f"The trace is of type {type(trace).__name__}; expected a Trace of a model.")
    if not isinstance(found, Mapping):
        raise GraphjouleError(f"What was found is of type {type(found).__name__}; expected what `reach` returned.")
    rows = [
        replace(row, values={**row.values, "reach": found[row.name].mean}) if row.name in found else row
        for row in trace.layers
    ]
    return RecordedTrace(rows, (*trace.measures, "reach"))


def _spread(model: nn.Module) -> list[str] | None:
    """Names of a few graph layers from the first to the last, closer together at the beginning."""
    convs = getattr(model, "convs", None)
    if not isinstance(convs, nn.ModuleList) or not len(convs):
        return None
    ratio = len(convs) ** (1 / (_MOST_LAYERS - 1))
    chosen = sorted({round(ratio**step) for step in range(_MOST_LAYERS)})
    return [f"convs.{number - 1}" for number in chosen if number <= len(convs)]
