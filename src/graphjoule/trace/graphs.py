"""The graph that a trace measures on, once the number of nodes is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.trace.outputs import count_nodes, smallest_count


class TracedGraph:
    """A graph given as a `Propagation`, or as an ``edge_index`` that does not tell how many nodes there are.

    The last nodes may have no edges. So the number is taken from `num_nodes`, else from what the model is called with,
    else from the first output that has enough rows.

    Args:
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.
        num_nodes: number of nodes, where an ``edge_index`` leaves it open.
    """

    def __init__(self, graph: Propagation | Tensor, num_nodes: int | None = None) -> None:
        _check_graph(graph)
        self._edge_index = graph if isinstance(graph, Tensor) else None
        self._on: dict[torch.device, Propagation] = {}
        self.num_nodes: int | None = None
        if not isinstance(graph, Tensor):
            if num_nodes not in (None, graph.num_nodes):
                raise GraphjouleError(f"num_nodes is {num_nodes}, but the graph has {graph.num_nodes} nodes.")
            self._keep(graph)
        elif num_nodes is not None:
            self._build(num_nodes)

    def on(self, device: torch.device) -> Propagation:
        """The graph on a device, moved once."""
        if device not in self._on:
            self._on[device] = next(iter(self._on.values())).to(device)
        return self._on[device]

    def learn_from_inputs(self, inputs: Iterable[Any]) -> None:
        """Take the number of nodes from what the model is called with, if it is not known and they tell."""
        if self.num_nodes is None and self._edge_index is not None:
            count = count_nodes(inputs, self._edge_index)
            if count is not None:
                self._build(count)

    def learn_from_output(self, output: Any) -> None:
        """Take the number of nodes from an output with enough rows: a pooled vector has too few."""
        if self.num_nodes is None and self._edge_index is not None and isinstance(output, Tensor):
            enough = output.dim() == 2 and output.size(0) >= smallest_count(self._edge_index)
            if enough and output.is_floating_point():
                self._build(output.size(0))

    def _build(self, num_nodes: int) -> None:
        assert self._edge_index is not None
        self._keep(Propagation.from_edge_index(self._edge_index, num_nodes=num_nodes))

    def _keep(self, graph: Propagation) -> None:
        self.num_nodes = graph.num_nodes
        self._on[graph.device] = graph


def _check_graph(graph: Propagation | Tensor) -> None:
    """Refuse what is no graph now, not at the model's first call."""
    if isinstance(graph, Propagation):
        return
    if not isinstance(graph, Tensor):
        raise GraphjouleError(
            f"The graph is of type {type(graph).__name__}; expected a Propagation, or an edge_index as a tensor "
            "[2, num_edges]."
        )
    is_integer = not (graph.is_floating_point() or graph.is_complex() or graph.dtype == torch.bool)
    if graph.dim() != 2 or graph.size(0) != 2 or not is_integer:
        raise GraphjouleError(
            f"edge_index has shape {list(graph.shape)} and dtype {graph.dtype}; expected [2, num_edges] and an integer "
            "dtype such as torch.int64."
        )
