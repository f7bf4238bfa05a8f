"""Many processes as one `Group`: sums that autograd and vmap understand, and words from the first to all."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.csr import with_signature
from graphjoule.graph.group import Group, Result


class ProcessGroup(Group):
    """The processes of an initialised `torch.distributed`, or some of them.

    All of them must make the same calls in the same order; every method is such a call unless it says otherwise.

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
        """Sum of the tensors of all processes, the same bits on each; the gradient is the sum of all gradients."""
        out: Tensor = _Total.apply(x, self)  # type: ignore[no-untyped-call]
        return out

    def joined(self, x: Tensor) -> Tensor:
        """The tensor itself; its gradient is the sum of the gradients of all processes. No call before that."""
        out: Tensor = _Joined.apply(x, self)  # type: ignore[no-untyped-call]
        return out

    def any(self, flag: bool) -> bool:
        """Whether a flag is set on some process."""
        return self.largest(int(flag)) > 0

    def largest(self, number: int) -> int:
        """The largest of the numbers of all processes."""
        numbers = torch.tensor([number], dtype=torch.int64, device=self._wire)
        dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self._handle)
        return int(numbers)

    def from_first(self, function: Callable[[], Any]) -> Any:
        """What a function returns on the first process, or its `GraphjouleError`, on all."""
        said = b""
        if self.is_first:
            try:
                said = json.dumps({"value": function()}).encode()
            except GraphjouleError as error:
                said = json.dumps({"error": str(error)}).encode()
        heard = json.loads(self._bytes_from(0, said))
        if "error" in heard:
            raise GraphjouleError(heard["error"])
        return heard["value"]

    def tensors_from_first(self, function: Callable[[], dict[str, Tensor] | None]) -> dict[str, Tensor] | None:
        """Named tensors that a function returns on the first process, on the CPU of all; None is None on all."""
        tensors: dict[str, Tensor] | None = None

        def describe() -> list[tuple[str, str, list[int]]] | None:
            nonlocal tensors
            tensors = function()
            if tensors is None:
                return None
            return [(name, str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()]

        described = self.from_first(describe)
        if described is None:
            return None
        received = {}
        for name, dtype, shape in described:
            source = torch.empty(shape, dtype=getattr(torch, dtype)) if tensors is None else tensors[name].contiguous()
            received[name] = self._broadcast(source)
        return received

    def together(self, function: Callable[[], Result]) -> Result:
        """What a function returns, which every process calls; if it is a `GraphjouleError` on one, all raise it."""
        error: GraphjouleError | None = None
        try:
            result = function()
        except GraphjouleError as raised:
            error = raised
        first = self.size - self.largest(0 if error is None else self.size - self.rank)
        if first == self.size:
            return result
        raise GraphjouleError(self._bytes_from(first, b"" if error is None else str(error).encode()).decode())

    def swap_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Send each process its rows and return those that the others sent, both in the order of the ranks."""
        sent = rows.contiguous().to(self._wire)
        received = sent.new_empty(sum(receive), rows.size(1))
        dist.all_to_all_single(received, sent, list(receive), list(send), group=self._handle)
        return received.to(rows.device)

    def _bytes_from(self, rank: int, said: bytes) -> bytes:
        size = int(self._broadcast(torch.tensor([len(said)]), rank))
        is_sender = self.rank == rank
        buffer = torch.tensor(list(said), dtype=torch.uint8) if is_sender else torch.empty(size, dtype=torch.uint8)
        return bytes(self._broadcast(buffer, rank).tolist())

    def _broadcast(self, tensor: Tensor, rank: int = 0) -> Tensor:
        # As bytes, because not every backend knows every dtype.
        flat = tensor.flatten().view(torch.uint8).to(self._wire, copy=True)
        if flat.numel():
            dist.broadcast(flat, group_src=rank, group=self._handle)
        return flat.cpu().view(tensor.dtype).view(tensor.shape)

    def _sum(self, x: Tensor) -> Tensor:
        summed = x.detach().to(self._wire, copy=True, memory_format=torch.contiguous_format)
        dist.all_reduce(summed, group=self._handle)
        return summed.to(x.device)


@with_signature
class _SumOfGradients(torch.autograd.Function):
    """What has a sum over processes for its gradient; under vmap all runs are in one call."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ProcessGroup], output: Tensor) -> None:
        ctx.group = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.group.total(grads[0]), None


class _Total(_SumOfGradients):
    """A sum over processes."""

    @staticmethod
    def forward(x: Tensor, group: ProcessGroup) -> Tensor:
        return group._sum(x)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, group: ProcessGroup) -> tuple[Tensor, int]:
        return group.total(x), in_dims[0]


class _Joined(_SumOfGradients):
    """The identity."""

    @staticmethod
    def forward(x: Tensor, group: ProcessGroup) -> Tensor:
        return x.clone()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, group: ProcessGroup) -> tuple[Tensor, int]:
        return group.joined(x), in_dims[0]
