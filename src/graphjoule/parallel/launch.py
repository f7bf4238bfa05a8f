"""Start the processes of a training on this machine, and end them all when one dies."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from graphjoule.parallel.start import LIFELINE, READY
from graphjoule.training.loop import StopRequest, deferred_interrupt

LOST = 75
"""Exit code of a process that ends because another one did."""
STOPPED = 130
"""Exit code of a process that ends because it was asked to."""
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 10.0  # for the others to say what they have to say once one has ended in failure
_SAVE_SECONDS = 600.0  # for the others to end too, and the first to save its state, once one has stopped on request


@dataclass(frozen=True)
class Ending:
    """How a training in several processes ended.

    Attributes:
        code: exit code of the process that decided it: 0 if all is well, negative for a signal.
        rank: which process that is.
        last_words: last line that it wrote to standard error, where that was not shown already.
        is_early: whether it was stopped before all processes could stop by themselves; then none has said a word.
    """

    code: int
    rank: int = 0
    last_words: str = ""
    is_early: bool = False

    def sentence(self, size: int) -> str:
        """What happened, for the user of a training of `size` processes."""
        how = f"was killed by {_signal_name(-self.code)}" if self.code < 0 else f"ended with exit code {self.code}"
        words = f" ({self.last_words})" if self.last_words else ""
        return (
            f"process {self.rank} of {size} {how}{words}, so the others were ended; the same command with --resume "
            "goes on from the last epoch saved"
        )


def launch(command: Sequence[str], num_processes: int) -> Ending:
    """Run a command as so many processes that can join each other, and wait for them.

    The first one has this process's standard output and error. If any fails, all are ended. Ctrl-C is handed on
    once all have said that they are ready for it, so that all stop after the same epoch; before that they are ended.
    Should this process die, they end too.

    Args:
        command: the same for all; `graphjoule.parallel.start` tells each which one it is.
        num_processes: how many.

    Returns:
        How it ended.
    """
    # The store lives here: its port is bound from the start, so nobody can take it in between.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ExitStack() as stack, deferred_interrupt() as stop:
        outputs: list[IO[bytes]] = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(num_processes)]
        processes = [
            stack.enter_context(_started(command, rank, num_processes, store.port, outputs[rank]))
            for rank in range(num_processes)
        ]
        ended_here = _wait(processes, stop, lambda: store.add(READY, 0) >= num_processes)
        if ended_here is None:
            return Ending(STOPPED, is_early=True)
        codes = [process.returncode for process in processes]
        return _ending(codes, ended_here, outputs)


@contextmanager
def _started(
    command: Sequence[str], rank: int, size: int, port: int, output: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command,
        env=_environment(rank, size, port),
        stdin=subprocess.PIPE,
        stdout=None if rank == 0 else subprocess.DEVNULL,
        stderr=None if rank == 0 else output,
        start_new_session=True,  # a terminal's Ctrl-C reaches this process alone, which hands it on once
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    defaults = {"OMP_NUM_THREADS": str(max(1, cores // size))} | ({"GLOO_SOCKET_IFNAME": loopback} if loopback else {})
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # torch's word for: the store is already there, connect to it
        LIFELINE: "1",
    }
    return defaults | os.environ | own


def _wait(
    processes: Sequence[subprocess.Popen[bytes]], stop: StopRequest, are_ready: Callable[[], bool]
) -> set[int] | None:
    """Wait for all; returns the ranks that had to be ended from here, or None if it is asked to stop too early."""
    is_handed_on, deadline = False, math.inf
    while any(process.poll() is None for process in processes):
        time.sleep(_POLL_SECONDS)
        if stop.requested and not is_handed_on:
            if not are_ready():
                return None
            is_handed_on = True
            for process in processes:
                process.send_signal(signal.SIGINT)
        patience = _patience([process.poll() for process in processes], is_stopping=is_handed_on)
        deadline = min(deadline, time.monotonic() + patience)
        if time.monotonic() > deadline:
            late = {rank for rank, process in enumerate(processes) if process.poll() is None}
            for rank in late:
                processes[rank].kill()
            for process in processes:
                process.wait()
            return late
    return set()


def _patience(codes: Sequence[int | None], *, is_stopping: bool) -> float:
    """Seconds to wait for the others, by the exit codes so far; to end on request is no failure."""
    ended = {code for code in codes if code not in (None, 0)}
    if not ended:
        return math.inf
    return _SAVE_SECONDS if is_stopping and ended == {STOPPED} else _GRACE_SECONDS


def _ending(codes: Sequence[int], ended_here: set[int], outputs: Sequence[IO[bytes]]) -> Ending:
    """Who decided it: not one that was ended from here, nor if possible one that only lost another."""
    failed = [rank for rank, code in enumerate(codes) if code != 0 and rank not in ended_here]
    if not failed:
        return Ending(0)
    rank = next((rank for rank in failed if codes[rank] != LOST), failed[0])
    outputs[rank].seek(0)
    lines = outputs[rank].read().decode(errors="replace").strip().splitlines()
    return Ending(codes[rank], rank, lines[-1] if lines else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
