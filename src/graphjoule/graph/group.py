"""The processes that hold one graph together, as everything else sees them; on its own, a process is all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

Result = TypeVar("Result")


class Group:
    """All processes of a training. This one is alone, so that what is said to all is said to itself.

    Code that sums over nodes, agrees on something or writes a file asks the group, and is the same for one process and
    for many; `graphjoule.parallel.ProcessGroup` is the group of many.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.

    Example:
        >>> import torch
        >>> float(ALONE.total(torch.tensor(2.0))), ALONE.is_first
        (2.0, True)
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def total(self, x: Tensor) -> Tensor:
        """Sum of the tensors of all processes, the same bits on each of them; differentiable."""
        return x

    def joined(self, x: Tensor) -> Tensor:
        """A tensor that all processes have; its gradient is the sum of the gradients of all."""
        return x

    def any(self, flag: bool) -> bool:
        """Whether a flag is set on some process."""
        return flag

    def largest(self, number: int) -> int:
        """The largest of the numbers of all processes."""
        return number

    def from_first(self, function: Callable[[], Any]) -> Any:
        """What a function returns on the first process, which alone calls it; its `GraphjouleError` is raised on all.

        Args:
            function: returns something JSON can hold.
        """
        return function()

    def tensors_from_first(self, function: Callable[[], dict[str, Tensor] | None]) -> dict[str, Tensor] | None:
        """Named tensors that a function returns on the first process, which alone calls it; None is None on all."""
        return function()

    def together(self, function: Callable[[], Result]) -> Result:
        """What a function returns, which every process calls; if it is a `GraphjouleError` on one, all raise it."""
        return function()

    def swap_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Send each process its rows and return those that the others sent, both in the order of the ranks.

        Args:
            rows: shape ``[sum(send), width]``.
            send: how many rows each process gets.
            receive: how many each process sends.

        Returns:
            Shape ``[sum(receive), width]``.
        """
        return rows[:0]


ALONE = Group()
"""The group of a process that holds the whole graph."""
