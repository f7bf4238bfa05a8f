"""Start the processes of a training on this machine, join them, and end them all when one dies.

`launch` is the side of the one that starts them, `joined_processes` that of each of them; torchrun may start them too.
Ours and not `torch.distributed.elastic`: that one ends all as soon as one exits and may blame one that only lost
another, and it makes Ctrl-C the end at once, where here all processes save the same epoch first.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import IO

import torch
import torch.distributed as dist

from graphjoule.errors import GraphjouleError
from graphjoule.parallel.group import ProcessGroup
from graphjoule.training import resolve_device
from graphjoule.training.loop import StopRequest, deferred_interrupt
from graphjoule.training.threads import share_threads

LOST = 75
"""Exit code of a process that ends because another one did."""
STOPPED = 130
"""Exit code of a process that ends because it was asked to."""
LIFELINE = "GRAPHJOULE_LIFELINE"
"""Environment variable: set where standard input ends when the launching process does."""
_READY = "graphjoule/ready"  # key of the launching process's store: how many processes may be asked to stop
_TIMEOUT = "GRAPHJOULE_RANK_TIMEOUT"
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
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
        if self.code < 0:
            names = {int(known): known.name for known in signal.Signals}
            how = f"was killed by {names.get(-self.code, f'signal {-self.code}')}"
        else:
            how = f"ended with exit code {self.code}"
        words = f" ({self.last_words})" if self.last_words else ""
        return f"process {self.rank} of {size} {how}{words}, so the others were ended"


def launch(command: Sequence[str], num_processes: int) -> Ending:
    """Run a command as so many processes that can join each other, and wait for them.

    The first one has this process's standard output and error. If any fails, all are ended. Ctrl-C is handed on
    once all have said that they are ready for it, so that all stop after the same epoch; before that they are ended.
    Should this process die, they end too.

    Args:
        command: the same for all; `joined_processes` says to each which one it is.
        num_processes: how many.

    Returns:
        How it ended.
    """
    # The store lives here: its port is bound from the start, so nobody can take it in between.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    with ExitStack() as stack, deferred_interrupt() as stop:
        outputs: list[IO[bytes]] = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(num_processes)]
        environment = _environment(num_processes, store.port)
        processes = [
            stack.enter_context(_started(command, rank, environment, output)) for rank, output in enumerate(outputs)
        ]
        ended_here = _wait(processes, stop, lambda: store.add(_READY, 0) >= num_processes)
        if ended_here is None:
            return Ending(STOPPED, is_early=True)
        # Who decided it: not one that was ended from here, nor if possible one that only lost another.
        failed = [rank for rank, process in enumerate(processes) if process.returncode and rank not in ended_here]
        if not failed:
            return Ending(0)
        rank = next((rank for rank in failed if processes[rank].returncode != LOST), failed[0])
        outputs[rank].seek(0)
        lines = outputs[rank].read().decode(errors="replace").strip().splitlines()
        return Ending(processes[rank].returncode, rank, lines[-1] if lines else "")


@contextmanager
def _started(
    command: Sequence[str], rank: int, environment: dict[str, str], output: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command,
        env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
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


def _environment(size: int, port: int) -> dict[str, str]:
    """The variables of all processes, as torchrun would set them."""
    defaults = {}
    if loopback := next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None):
        defaults["GLOO_SOCKET_IFNAME"] = loopback
    own = {
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


class RankLostError(Exception):
    """Another process of the training is gone, so this one cannot go on; what was saved can be resumed."""


@contextmanager
def joined_processes(device: str) -> Iterator[tuple[ProcessGroup, torch.device]]:
    """Join the other processes, as the variables say that torchrun sets; leave them at the end of the block.

    On GPUs they talk by NCCL, process i of a machine on GPU i; on CPUs by gloo. An operation that others do not join
    within ``GRAPHJOULE_RANK_TIMEOUT`` seconds, 600 by default, counts as a loss.

    Args:
        device: "auto", "cpu" or "cuda".

    Yields:
        The group, and this process's device.

    Raises:
        RankLostError: another process has died or does not answer.
    """
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise GraphjouleError(
            f"To join other processes the environment variables {', '.join(_NEEDED)} are needed, but "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; start it with torchrun."
        )
    said = os.environ.get(_TIMEOUT, "600")
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise GraphjouleError(f"{_TIMEOUT} is {said!r}; expected a positive number of seconds.")
    where = _own_device(device)
    if os.environ.get(LIFELINE):
        # Nothing happens but where an epoch's end can be waited for, see `say_ready`. Not SIG_IGN: what a process was
        # started to ignore, as under nohup, it ignores to its end, see `stop_signals`.
        signal.signal(signal.SIGINT, lambda signum, frame: None)
        _end_with_the_launcher()
        share_threads(int(os.environ["LOCAL_WORLD_SIZE"]))
    try:
        timeout = timedelta(seconds=seconds)
        # Bound to its GPU, NCCL need not guess it from the rank, which is wrong on a second machine.
        bound = where if where.type == "cuda" else None
        dist.init_process_group("gloo" if bound is None else "nccl", timeout=timeout, device_id=bound)
        yield ProcessGroup(where), where
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise RankLostError(
            f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} has lost another one"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@cache
def say_ready() -> None:
    """Tell the launching process, where there is one, that an epoch is over: from now on Ctrl-C may be handed on.

    It is said once, however often this is called.
    """
    if os.environ.get(LIFELINE):
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
        store.add(_READY, 1)


def is_lost(error: RuntimeError) -> bool:
    """Whether an error says that another process is gone: torch has a class for some, gloo only words."""
    words = str(error).lower()
    return isinstance(error, dist.DistError) or "gloo" in words or "connection" in words or "timed out" in words


def _own_device(device: str) -> torch.device:
    """The GPU of this process's number on its machine, or the CPU."""
    where = resolve_device(device)
    if where.type != "cuda":
        return where
    number, count = int(os.environ.get("LOCAL_RANK", os.environ["RANK"])), torch.cuda.device_count()
    if number >= count:
        raise GraphjouleError(
            f"Process {number} of this machine needs a GPU of its own, but there are {count}; start at most {count} "
            "processes here, or choose the device cpu."
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _end_with_the_launcher() -> None:
    """End at once when standard input ends: no process of a training outlives the one that started it."""

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock a thread that waits would hold when Python ends
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
