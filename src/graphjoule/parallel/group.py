"""The processes of a training: what they sum, agree on and send each other; a process on its own is all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.csr import linear_map

Result = TypeVar("Result")


class Group:
    """All processes of a training; this one is alone, and `ProcessGroup` is the group of many.

    All processes must make the same calls in the same order; every method is such a call unless it says otherwise.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.

    Example:
        >>> float(ALONE.total(torch.tensor(2.0))), ALONE.is_first
        (2.0, True)
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that reads and writes files for all; no call."""
        return self.rank == 0

    def total(self, x: Tensor) -> Tensor:
        """Sum of the tensors of all processes, the same bits on each; the gradient is the sum of all gradients."""
        return x

    def joined(self, x: Tensor) -> Tensor:
        """The tensor itself; its gradient is the sum of the gradients of all processes. No call before that."""
        return x

    def largest(self, number: int) -> int:
        """The largest of the numbers of all processes."""
        return number

    def any(self, flag: bool) -> bool:
        """Whether a flag is set on some process."""
        return self.largest(int(flag)) > 0

    def from_first(self, function: Callable[[], Result]) -> Result:
        """What a function returns on the first process, which alone calls it; its `GraphjouleError` is raised on all.

        Args:
            function: returns something that can be pickled; its tensors must be on the CPU.
        """
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
"""The group of a process on its own."""


class ProcessGroup(Group):
    """The processes of an initialised `torch.distributed`, or some of them.

    Args:
        device: the GPU of this process, where they talk by NCCL; gloo works with tensors from anywhere.
        handle: a group of `torch.distributed`; None is all processes.
    """

    def __init__(self, device: torch.device | str = "cpu", handle: Any = None) -> None:
        self._handle = handle
        # gloo has no all-to-all between GPUs: there, tensors travel by way of the host.
        self._wire = torch.device("cpu" if dist.get_backend(handle) == "gloo" else device)
        self.rank, self.size = dist.get_rank(handle), dist.get_world_size(handle)

    def total(self, x: Tensor) -> Tensor:
        """See `Group.total`."""
        return linear_map(x, self._sum)

    def joined(self, x: Tensor) -> Tensor:
        """See `Group.joined`."""
        return linear_map(x, Tensor.clone, adjoint=self.total)

    def largest(self, number: int) -> int:
        """See `Group.largest`."""
        numbers = torch.tensor([number], dtype=torch.int64, device=self._wire)
        dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self._handle)
        return int(numbers)

    def from_first(self, function: Callable[[], Result]) -> Result:
        """See `Group.from_first`."""
        sent: list[Any] = [self._attempt(function) if self.is_first else None]
        dist.broadcast_object_list(sent, group_src=0, group=self._handle, device=self._wire)
        result, refusal = sent[0]
        if refusal is not None:
            raise GraphjouleError(refusal)
        return result  # type: ignore[no-any-return]

    def together(self, function: Callable[[], Result]) -> Result:
        """See `Group.together`."""
        result, refusal = self._attempt(function)
        refusals: list[str | None] = [None] * self.size
        dist.all_gather_object(refusals, refusal, group=self._handle)
        if first := next((said for said in refusals if said is not None), None):
            raise GraphjouleError(first)
        return result  # type: ignore[return-value]

    @staticmethod
    def _attempt(function: Callable[[], Result]) -> tuple[Result | None, str | None]:
        """What a function returns, and with what sentence it refuses."""
        try:
            return function(), None
        except GraphjouleError as error:
            return None, str(error)

    def swap_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """See `Group.swap_rows`."""
        sent = rows.contiguous().to(self._wire)
        received = sent.new_empty(sum(receive), rows.size(1))
        dist.all_to_all_single(received, sent, list(receive), list(send), group=self._handle)
        return received.to(rows.device)

    def _sum(self, x: Tensor) -> Tensor:
        summed = x.detach().to(self._wire, copy=True, memory_format=torch.contiguous_format)
        dist.all_reduce(summed, group=self._handle)
        return summed.to(x.device)
