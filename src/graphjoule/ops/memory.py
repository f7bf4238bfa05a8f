"""Memory that is used again from one epoch to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor


class Memory:
    """Float32 vectors on a CPU that somebody is done with, for whoever needs one next.

    Fresh memory must be mapped page by page: the activations of 64 layers on Pubmed are 80,000 pages, which takes 9 %
    of the processor time of an epoch. It keeps as many vectors as were in use at once; where none of them is large
    enough, all are dropped.
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, size: int) -> Tensor:
        """A vector of at least so many numbers, any numbers: the smallest that is large enough, or a new one."""
        fitting = [place for place, vector in enumerate(self._free) if vector.numel() >= size]
        if not fitting:
            self._free.clear()
            with torch.inference_mode(False):  # or training could not write to it later
                return torch.empty(size, dtype=torch.float32, device="cpu")  # whatever the defaults are
        return self._free.pop(min(fitting, key=lambda place: self._free[place].numel()))

    def give_back(self, vector: Tensor) -> None:
        """Let the next one have a vector from `take` that nobody reads any more."""
        self._free.append(vector)


_current: ContextVar[Memory | None] = ContextVar("graphjoule_memory", default=None)


def current_memory() -> Memory:
    """The memory of the block around, or one that ends with who asks."""
    return _current.get() or Memory()


@contextmanager
def using_memory(memory: Memory) -> Iterator[None]:
    """Let all stacks that begin within a ``with`` block take their activations from here.

    Example:
        >>> memory = Memory()
        >>> with using_memory(memory):
        ...     current_memory() is memory
        True
    """
    token = _current.set(memory)
    try:
        yield
    finally:
        _current.reset(token)
