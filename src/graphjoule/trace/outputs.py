"""Where the node features are in what a module takes and returns, and the graph that they are features of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import SparseFeatures


class TracedGraph:
    """A graph given as a `Propagation`, or as an ``edge_index``, which does not say how many nodes there are.

    The last nodes may have no edges. So the number is taken from `num_nodes`, else from what the model is called with,
    else from the first output that has enough rows.

    Args:
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.
        num_nodes: number of nodes, where an ``edge_index`` leaves it open.
    """

    def __init__(self, graph: Propagation | Tensor, num_nodes: int | None = None) -> None:
        if not isinstance(graph, Propagation | Tensor):
            raise GraphjouleError(
                f"The graph is of type {type(graph).__name__}; expected a Propagation, or an edge_index as a tensor "
                "[2, num_edges]."
            )
        if isinstance(graph, Tensor):  # checked now, not at the model's first call
            is_integer = not (graph.is_floating_point() or graph.is_complex() or graph.dtype == torch.bool)
            if graph.dim() != 2 or graph.size(0) != 2 or not is_integer:
                raise GraphjouleError(
                    f"edge_index has shape {list(graph.shape)} and dtype {graph.dtype}; expected [2, num_edges] and an "
                    "integer dtype such as torch.int64."
                )
        self._edge_index = graph if isinstance(graph, Tensor) else None
        self._on: dict[torch.device, Propagation] = {}
        self.num_nodes: int | None = None
        if not isinstance(graph, Tensor):
            if num_nodes not in (None, graph.num_nodes):
                raise GraphjouleError(f"num_nodes is {num_nodes}, but the graph has {graph.num_nodes} nodes.")
            self._keep(graph)
        elif num_nodes is not None:
            self._keep(Propagation.from_edge_index(graph, num_nodes=num_nodes))

    def on(self, device: torch.device) -> Propagation:
        """The graph on a device, moved once."""
        if device not in self._on:
            self._on[device] = self.any_device().to(device)
        return self._on[device]

    def any_device(self) -> Propagation:
        """The graph wherever it is."""
        return next(iter(self._on.values()))

    def read_inputs(self, inputs: Iterable[Any]) -> None:
        """Take the number of nodes from what the model is called with, if it is not known yet."""
        if self.num_nodes is None and self._edge_index is not None:
            count = count_nodes(inputs, self._edge_index)
            if count is not None:
                self._keep(Propagation.from_edge_index(self._edge_index, num_nodes=count))

    def features_in(self, output: Any) -> Tensor | None:
        """The node features in a module's output, see `find_features`; it may be the first to show how many nodes."""
        if self.num_nodes is None and isinstance(output, Tensor) and self._edge_index is not None:
            has_enough = output.dim() == 2 and output.size(0) >= _least_nodes(self._edge_index)  # a pooled vector: no
            if has_enough and output.is_floating_point():
                self._keep(Propagation.from_edge_index(self._edge_index, num_nodes=output.size(0)))
        return None if self.num_nodes is None else find_features(output, self.num_nodes)

    def _keep(self, graph: Propagation) -> None:
        self.num_nodes = graph.num_nodes
        self._on[graph.device] = graph


def find_features(output: Any, num_nodes: int) -> Tensor | None:
    """The first tensor of a module's output that is node features, or None.

    Node features are floating-point with `num_nodes` rows: ``[num_nodes, channels]``, or with leading run axes
    ``[runs, num_nodes, channels]``, or with channels in several axes ``[num_nodes, heads, channels]``. Tuples, lists
    and mappings are searched in their order.
    """
    for x in tensors_in(output):
        if x.is_floating_point() and x.dim() >= 2 and num_nodes in (x.size(-2), x.size(0)):
            return x
    return None


def as_matrix(x: Tensor, num_nodes: int) -> Tensor:
    """Node features as ``[num_nodes, channels]`` or ``[runs, num_nodes, channels]``, dense.

    >>> as_matrix(torch.zeros(5, 2, 3), 5).shape, as_matrix(torch.zeros(4, 2, 5, 3), 5).shape
    (torch.Size([5, 6]), torch.Size([8, 5, 3]))
    """
    x = x if x.layout == torch.strided else x.to_dense()
    if x.dim() == 2:
        return x
    return x.flatten(0, -3) if x.size(-2) == num_nodes else x.flatten(1)


def count_nodes(inputs: Iterable[Any], edge_index: Tensor) -> int | None:
    """The number of nodes by what a model was called with: the rows of its features, or the number a graph states.

    Edge features have as many rows as there are edges; they count only if there is nothing else.
    """
    least = _least_nodes(edge_index)
    rows: list[int] = []
    for value in inputs:
        number = getattr(value, "num_nodes", None)
        if isinstance(number, int) and not isinstance(value, Tensor):
            return number
        rows += [
            x.size(-2) for x in tensors_in(value) if x.dim() >= 2 and x.is_floating_point() and x.size(-2) >= least
        ]
    return next((n for n in rows if n != edge_index.size(-1)), rows[0] if rows else None)


def tensors_in(output: Any) -> Iterator[Tensor]:
    """All tensors of a module's output, in their order; features in CSR as a dense one."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, SparseFeatures):
        yield output.to_dense()
    elif isinstance(output, Mapping):
        yield from tensors_in(list(output.values()))
    elif isinstance(output, tuple | list):
        for part in output:
            yield from tensors_in(part)


def describe_output(output: Any) -> str:
    """What a module returned, in a few words.

    >>> describe_output((torch.zeros(5, 2), torch.tensor([1]))), describe_output(None)
    ('[5, 2], [1] int64', 'NoneType')
    """
    shapes = [f"{list(x.shape)}{'' if x.is_floating_point() else f' {x.dtype}'}" for x in tensors_in(output)]
    return ", ".join(shapes).replace("torch.", "") or type(output).__name__


def _least_nodes(edge_index: Tensor) -> int:
    return int(edge_index.max()) + 1 if edge_index.numel() else 1
