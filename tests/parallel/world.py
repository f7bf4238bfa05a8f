"""Four processes on this machine that stay for all tests of the room: a job is a function that each of them calls."""

import queue
import socket
import time
import traceback
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.forked import context as forked_context

SIZE = 4
_SECONDS = 240  # for a job, on a machine that is busy with others


def _serve(rank: int, port: int, jobs, answers) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    store = dist.TCPStore("127.0.0.1", port, SIZE, is_master=rank == 0, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE, timeout=timedelta(seconds=60))
    # Every process must make every group, in the same order.
    handles = {size: dist.new_group(list(range(size))) for size in range(1, SIZE + 1)}
    while (job := jobs.get()) is not None:
        function, size, arguments = job
        if rank >= size:
            continue
        from graphjoule.parallel import ProcessGroup

        try:
            answers.put((rank, function(ProcessGroup(handle=handles[size]), *arguments), None))
        except BaseException:
            answers.put((rank, None, traceback.format_exc()))
    dist.destroy_process_group()


class World:
    """The pool. Ranks are forked from a process that has imported everything once."""

    def __init__(self) -> None:
        context = forked_context()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._answers = context.Queue()
        self._jobs = [context.Queue() for _ in range(SIZE)]
        self._ranks = [
            context.Process(target=_serve, args=(rank, port, jobs, self._answers), daemon=True)
            for rank, jobs in enumerate(self._jobs)
        ]
        for rank in self._ranks:
            rank.start()

    def run(self, function, size: int, *arguments) -> list:
        """What `function(group, *arguments)` returns on each of the first `size` ranks; never waits for ever."""
        for jobs in self._jobs:
            jobs.put((function, size, arguments))
        results, deadline = {}, time.monotonic() + _SECONDS
        while len(results) < size:
            try:
                rank, value, error = self._answers.get(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"only ranks {sorted(results)} of {size} answered") from None
            if error is not None:
                raise AssertionError(f"rank {rank} of {size}:\n{error}")
            results[rank] = value
        return [results[rank] for rank in range(size)]

    def close(self) -> None:
        for jobs in self._jobs:
            jobs.put(None)
        for rank in self._ranks:
            rank.join(timeout=5)
            if rank.is_alive():
                rank.kill()
