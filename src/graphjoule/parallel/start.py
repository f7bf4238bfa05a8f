"""How a process joins the others, and what it says when one of them is gone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from graphjoule.errors import GraphjouleError
from graphjoule.parallel.process_group import ProcessGroup
from graphjoule.training.environment import resolve_device

LIFELINE = "GRAPHJOULE_LIFELINE"
"""Environment variable: set where standard input ends when the launching process does."""
READY = "graphjoule/ready"
"""Key of the launching process's store: how many processes have said that they stop by themselves when asked to."""
_TIMEOUT = "GRAPHJOULE_RANK_TIMEOUT"
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


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
    _check_environment()
    where = _own_device(device)
    if os.environ.get(LIFELINE):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # but where an epoch's end can be waited for; see `say_ready`
        _end_with_the_launcher()
    try:
        timeout = timedelta(seconds=_timeout_seconds())
        # Bound to its GPU, NCCL need not guess it from the rank, which is wrong on a second machine.
        bound = where if where.type == "cuda" else None
        dist.init_process_group("gloo" if bound is None else "nccl", timeout=timeout, device_id=bound)
        yield ProcessGroup(where), where
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise RankLostError(
            f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} has lost another one; the same command with "
            "--resume goes on from the last epoch saved"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def say_ready() -> None:
    """Tell the launching process, where there is one, that an epoch is over: from now on Ctrl-C may be handed on."""
    if os.environ.get(LIFELINE):
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        TCPStore(address, port, is_master=False, wait_for_workers=False).add(READY, 1)


def is_lost(error: RuntimeError) -> bool:
    """Whether an error says that another process is gone: torch has a class for some, gloo only words."""
    words = str(error).lower()
    return isinstance(error, dist.DistError) or "gloo" in words or "connection" in words or "timed out" in words


def _check_environment() -> None:
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise GraphjouleError(
            f"--distributed needs the environment variables {', '.join(_NEEDED)}, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set; start it with torchrun, or use --processes."
        )


def _timeout_seconds() -> float:
    said = os.environ.get(_TIMEOUT, "600")
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise GraphjouleError(f"{_TIMEOUT} is {said!r}; expected a positive number of seconds.")
    return seconds


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
