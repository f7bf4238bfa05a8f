"""Layers that keep one activation per segment in training, so that a thousand of them fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from graphjoule.graph import Propagation
from graphjoule.graph.nodes import computing_on, current_nodes
from graphjoule.nn.base import is_stock
from graphjoule.ops import backend_for, use_backend
from graphjoule.ops.edge_dropout import EdgeSubset
from graphjoule.ops.recompute import recompute

State = tuple[Tensor, ...]
"""What goes from layer to layer."""
Step = Callable[[Callable[..., Tensor], State, Any, Tensor | None], State]
"""One layer: what calls it, the state, the graph, and its key, to the state after it."""


def call_layer(layer: Callable[..., Tensor], state: State, graph: Any, key: Tensor | None) -> State:
    """The step of a layer whose output is all there is."""
    return (layer(state[0], graph, key),)


def run_layers(
    layers: Sequence[nn.Module],
    step: Step,
    state: State,
    graph: Propagation | EdgeSubset,
    keys: Sequence[Tensor | None],
    segment: int | None,
) -> State:
    """The state after all layers.

    With a `segment` autograd keeps the state where a segment begins, and computes the layers of one segment at a time
    again, at the price of a second forward pass. Dropout hashes its keys, so the layers are the same to the bit. They
    are called one by one where that would not be so: where something may see or change a layer (see `is_stock`), under
    `torch.autocast`, and on a part of a graph. A batch norm counts each of its calls once.

    Args:
        layers: modules with nothing random but by their keys.
        step: what a layer does.
        state: that before the first layer.
        graph: what the layers work on.
        keys: the dropout key of every layer.
        segment: layers per segment; None for all activations.
    """
    if segment is None or not torch.is_grad_enabled() or not can_recompute(layers, graph, state[0]):
        for layer, key in zip(layers, keys, strict=True):
            state = step(layer, state, graph, key)
        return state
    for start in range(0, len(layers), segment):
        some = slice(start, start + segment)
        state = _run_segment(layers[some], step, state, graph, [key for key in keys[some] if key is not None])
    return state


def can_recompute(layers: Sequence[nn.Module], graph: Propagation | EdgeSubset | None, x: Tensor | None = None) -> bool:
    """Whether layers computed again are the same, as far as can be seen; without a graph, by the layers alone."""
    if graph is not None and not graph.has_gpu_kernels:
        return False
    if x is not None and torch.is_autocast_enabled(x.device.type):
        return False
    modules = [module for layer in layers for module in layer.modules()]
    # A setting that is a tensor may have a gradient, which a part that is computed again would not give it.
    return all(is_stock(m) and not any(isinstance(value, Tensor) for value in vars(m).values()) for m in modules)


def kept_of_layers(layers: Sequence[nn.Module], each: int, segment: int | None, num_state: int = 1) -> int:
    """About how many activations a training step of `run_layers` needs at its peak, see `GraphModel`.

    Args:
        layers: all of a network.
        each: how many a layer keeps, but for its norm, which keeps one.
        segment: layers per segment.
        num_state: how many go from layer to layer.
    """
    norms = sum(not isinstance(getattr(layer, "norm", None), nn.Identity) for layer in layers)
    if segment is None or not can_recompute(layers, None):
        return each * len(layers) + norms + 8
    boundaries = -(-len(layers) // segment)
    return num_state * boundaries + -(-(each * len(layers) + norms) // boundaries) + 8


def _run_segment(
    layers: Sequence[nn.Module], step: Step, state: State, graph: Propagation | EdgeSubset, keys: Sequence[Tensor]
) -> State:
    parameters = [dict(layer.named_parameters()) for layer in layers]
    buffers = [dict(layer.named_buffers()) for layer in layers]  # of batch norms, which change theirs at every call
    nodes, backend, drawn = current_nodes(), backend_for(state[0]), graph.drawn

    def run(*tensors: Tensor) -> State:
        rest = iter(tensors)
        state = tuple(next(rest) for _ in range(num_state))
        part = graph.redrawn(*[next(rest) for _ in drawn])
        own_keys: list[Any] = [next(rest) for _ in keys] or [None] * len(layers)
        changed: list[Tensor] = []
        # A GPU's backward pass has a thread of its own, which knows nothing of what was said around the forward pass.
        with computing_on(nodes), use_backend(backend):
            for layer, own, kept, key in zip(layers, parameters, buffers, own_keys, strict=True):
                values = {name: next(rest) for name in own}
                values |= {name: next(rest).clone() for name in kept}
                state = step(lambda *args: functional_call(layer, values, args), state, part, key)  # noqa: B023
                changed += [values[name] for name in kept]
        return *state, *changed

    num_state = len(state)
    of_layers = []
    for own, kept in zip(parameters, buffers, strict=True):
        of_layers += [*own.values(), *(buffer.clone() for buffer in kept.values())]
    out = recompute(run, *state, *drawn, *keys, *of_layers)
    for buffer, new in zip((b for kept in buffers for b in kept.values()), out[num_state:], strict=True):
        buffer.copy_(new.detach())
    return out[:num_state]
