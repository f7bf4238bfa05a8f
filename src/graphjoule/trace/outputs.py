"""Where the node features are in what a module takes and gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from graphjoule.graph.features import SparseFeatures


def find_features(output: Any, num_nodes: int) -> Tensor | None:
    """The first tensor of a module's output that is node features, or None.

    Node features are floating-point with `num_nodes` rows: ``[num_nodes, channels]``, or with leading run axes
    ``[runs, num_nodes, channels]``, or with channels in several axes ``[num_nodes, heads, channels]``. Tuples, lists
    and mappings are searched in their order.
    """
    return next((x for x in tensors_in(output) if _is_features(x, num_nodes)), None)


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
    """The number of nodes, told by what a model was called with: its features' rows, or a graph's own number.

    Edge features have as many rows as there are edges; they are believed only if nothing else tells.
    """
    least = smallest_count(edge_index)
    rows: list[int] = []
    for given in inputs:
        number = getattr(given, "num_nodes", None)
        if isinstance(number, int) and not isinstance(given, Tensor):
            return number
        rows += [
            x.size(-2) for x in tensors_in(given) if x.dim() >= 2 and x.is_floating_point() and x.size(-2) >= least
        ]
    return next((n for n in rows if n != edge_index.size(-1)), rows[0] if rows else None)


def smallest_count(edge_index: Tensor) -> int:
    """The least number of nodes that the edges allow."""
    return int(edge_index.max()) + 1 if edge_index.numel() else 1


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


def _is_features(x: Tensor, num_nodes: int) -> bool:
    return x.is_floating_point() and x.dim() >= 2 and num_nodes in (x.size(-2), x.size(0))
