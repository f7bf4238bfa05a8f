"""The part of a graph that one process holds: which rows it has, and the part that is being computed on right now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from graphjoule.graph.group import Group


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


@dataclass(frozen=True, eq=False)
class Part:
    """What one process has of a graph.

    Attributes:
        nodes: its nodes.
        group: the processes that have the others.
    """

    nodes: Excerpt
    group: Group


_current: ContextVar[Part | None] = ContextVar("graphjoule_part", default=None)


def current_part() -> Part | None:
    """The part whose rows are being computed on; None where the graph is whole.

    Layers without a graph in their hands ask it: dropout, to draw the mask of a node wherever the node is, and
    normalisations, to take their means over all nodes.
    """
    return _current.get()


@contextmanager
def computing_on(part: Part | None) -> Iterator[None]:
    """Say which part is computed on within a ``with`` block; a `GraphModel` does so for its graph at every call."""
    token = _current.set(part)
    try:
        yield
    finally:
        _current.reset(token)
