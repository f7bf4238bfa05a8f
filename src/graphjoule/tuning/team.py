"""Several workers on one machine: processes that share a search, and the one that watches over them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from types import FrameType

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.tasks import Task
from graphjoule.training import TrainingInterrupted
from graphjoule.tuning.board import Address
from graphjoule.tuning.search import Search, evaluate, work
from graphjoule.tuning.validation import hide_test

__all__ = ["Member", "run_team"]

_POLL_SECONDS = 0.2
_STOPPED = 130  # what a shell calls a program that Ctrl-C has ended


@dataclass(frozen=True)
class Member:
    """All that a worker process needs to know; it is sent to the process, so it holds no graph and nothing open.

    Attributes:
        load: reads the task.
        search: what is searched.
        address: where the search is kept.
        num_trials: how many settings to try.
        device: "auto", "cpu" or "cuda".
        timeout: seconds after which no further trial is begun.
    """

    load: Callable[[], Task]
    search: Search
    address: Address
    num_trials: int
    device: str
    timeout: float | None = None

    def run(self, num_threads: int, parent: int) -> None:
        """Work until all is done; the exit code tells the parent how it ended."""
        torch.set_num_threads(num_threads)
        # Before a training there is nothing to save: SIGTERM is then what Ctrl-C is.
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            task = hide_test(self.load(), self.search.recipe, self.search.seeds)
            board = self.address.open(self.search.about(task), self.search.direction)
            work(
                self.search.queue(board, self.num_trials),
                partial(evaluate, self.search, task, self.device),
                timeout=self.timeout,
                parent=parent,
            )
        except GraphjouleError as error:
            print(f"graphjoule: {error}", file=sys.stderr)
            sys.exit(2)
        except (TrainingInterrupted, KeyboardInterrupt):
            sys.exit(_STOPPED)


def run_team(member: Member, num_workers: int, *, on_poll: Callable[[], None] = lambda: None) -> list[int]:
    """Run several workers until all have ended; Ctrl-C and SIGTERM end them, their trials are put back.

    Args:
        member: what each of them is.
        num_workers: how many; the machine's cores are shared out among them.
        on_poll: called a few times a second.

    Returns:
        Their exit codes; the negative of a signal's number for one that was killed.

    Raises:
        KeyboardInterrupt: it was stopped; by then every worker has ended.
    """
    num_threads = max(1, torch.get_num_threads() // num_workers)
    context = multiprocessing.get_context("spawn")  # a fork would copy locks of threads that are not there any more
    workers: list[BaseProcess] = [
        context.Process(target=member.run, args=(num_threads, os.getpid())) for _ in range(num_workers)
    ]
    with _interruptible():
        try:
            for worker in workers:
                worker.start()
            while any(worker.is_alive() for worker in workers):
                on_poll()
                time.sleep(_POLL_SECONDS)
        except BaseException:
            for worker in workers:
                if worker.is_alive():
                    worker.terminate()
            for worker in workers:
                if worker.pid is not None:
                    worker.join()
            raise
    return [worker.exitcode or 0 for worker in workers]


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, for a killed parent could not end its workers."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
