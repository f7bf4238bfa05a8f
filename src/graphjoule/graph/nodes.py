"""What needs all nodes of a graph at once, for layers and measures that have features and no graph in their hands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn


def moved(owner: Any, device: torch.device | str | None, **others: Any) -> dict[str, Any]:
    """The fields of a dataclass that lie on a device, on another one, for `dataclasses.replace`.

    Args:
        owner: the dataclass.
        device: where to.
        others: fields that are there already; they are not copied again.
    """
    names = (each.name for each in fields(owner) if each.init and each.name not in others)
    values = ((name, getattr(owner, name)) for name in names)
    return {name: value.to(device) for name, value in values if hasattr(value, "to")} | others


@dataclass(frozen=True, eq=False)
class Excerpt:
    """Some rows of a larger tensor: which, and of how many.

    Attributes:
        index: number of every row in the larger tensor, int64.
        total: number of rows of the larger tensor.
    """

    index: Tensor
    total: int

    def __len__(self) -> int:
        return self.index.numel()

    def to(self, device: torch.device | str | None) -> Excerpt:
        """The same on another device."""
        return Excerpt(self.index.to(device), self.total)


class Nodes:
    """The nodes whose features are computed on: here all nodes of the graph.

    A `Propagation` is one. Where a graph lies in parts, `graphjoule.parallel` has another kind with the same calls, and
    whoever uses them need not know which it is.

    Attributes:
        has_gpu_kernels: whether the fused kernels for GPUs can work on it; they need all rows in one memory.

    Example:
        >>> float(ALL_NODES.global_mean(torch.tensor([1.0, 3.0])))
        2.0
    """

    has_gpu_kernels: bool = True

    @property
    def row_ids(self) -> Excerpt | None:
        """Which rows of the whole graph's features these are; None if they are all, in order."""
        return None

    def global_sum(self, x: Tensor) -> Tensor:
        """The sum over all nodes from the sum over the nodes here."""
        return x

    def global_mean(self, x: Tensor, dim: int = 0) -> Tensor:
        """The mean over all nodes of the features of those here, whose axis is `dim`."""
        return x.mean(dim=dim)

    def global_norm(self, norm: Tensor) -> Tensor:
        """The Euclidean norm over all nodes from that over the nodes here."""
        return norm

    def global_gram(self, x: Tensor) -> Tensor:
        """``X^T X`` over all nodes or ``X X^T``, the smaller one: both have the squared singular values of ``X``."""
        return x.mT @ x if x.size(-1) <= x.size(-2) else x @ x.mT

    def batch_norm(self, x: Tensor, layer: nn.BatchNorm1d) -> Tensor:
        """What a batch norm makes of the nodes here, with the statistics of all nodes."""
        return nn.BatchNorm1d.forward(layer, x)


ALL_NODES = Nodes()
"""All nodes of whatever graph."""

_current: ContextVar[Nodes] = ContextVar("graphjoule_nodes", default=ALL_NODES)


def current_nodes() -> Nodes:
    """The nodes that are being computed on.

    Layers without a graph ask it: dropout, to draw the mask of a node wherever the node is, and normalisations, to take
    their means over all nodes.
    """
    return _current.get()


@contextmanager
def computing_on(nodes: Nodes) -> Iterator[None]:
    """Say which nodes are computed on within a ``with`` block; a `GraphModel` does so for its graph at every call."""
    token = _current.set(nodes)
    try:
        yield
    finally:
        _current.reset(token)
