"""How many threads torch computes with on a CPU: measured when a training begins, and again while it runs.

Threads that share their cores with other programs wait for each other in every operation, and OpenMP's spin while they
wait: with four other busy programs on two cores, two threads took ten to twenty times as long as one. Only a
measurement shows it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from graphjoule.training.seed_batch import SeedBatch

SPLIT_SUMS = 32768
"""Torch splits a sum of so many numbers to a single one among its threads, so their number shows in its rounding."""

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_NUMBERS_PER_THREAD = 2**17  # of a measured matrix; more would be the same work for every thread, for longer
_BLOCK_SECONDS, _BLOCKS = 1e-3, 10  # a scheduler's slices are some milliseconds, and several must be seen
_GAIN = 1.1  # more threads must be that much faster; other programs want them too
_HOPELESS = 6.0  # times as long as expected: no need to see the end; of several blocks that much less is enough
_CLEAR = 1.5
_CROWDED_SECONDS = 0.2  # to measure for beside other programs: what has slept is let run for some tenths of that first
_SHARE = 0.02  # of a training's time may be spent on measuring
_SLOW = 2.0  # times the shortest epoch: another program may have begun
_EARLY_SHARE = 0.1  # of the time may be spent on measuring then

_part: int | None = None  # of torch's threads, that is this process's
_first: dict[tuple[int, int, int], int] = {}  # what trainings begin with, by rows, channels and most threads
_latest: dict[tuple[int, int, int], tuple[int, float, float]] = {}
"""What was fastest, when to measure again, and when to at the earliest."""


def num_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_threads(num_processes: int) -> None:
    """Take this process's part of torch's threads, where so many share the cores and the user chose no number.

    A training may still choose fewer.
    """
    global _part
    if not is_number_chosen():
        _part = max(1, torch.get_num_threads() // num_processes)
        torch.set_num_threads(_part)


def is_number_chosen() -> bool:
    """Whether the user has chosen a number of threads: by a variable, or another one than torch's own.

    Torch takes one thread for each core, or for each two where cores are halves of real ones.
    """
    cores = num_cores()
    own = (_part,) if _part else (cores, cores // 2)
    return any(os.environ.get(name) for name in _VARIABLES) or torch.get_num_threads() not in own


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """One thread for the short operations before a training on a CPU, unless the user has chosen a number.

    Beside other programs each operation of two threads waits for a slice of the scheduler's time.
    """
    before = torch.get_num_threads()
    if device.type == "cpu" and not is_number_chosen():
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_crowded(threads: int) -> bool:
    """Whether more than so many threads of any programs are running at this moment; no where the system is silent."""
    try:
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):  # not Linux
        return False
    return running > threads


def fastest(most: int, seconds: Callable[[int], float], least_seconds: float = 0.0) -> int:
    """The fastest number of threads: 1, doubled as long as that is faster.

    Args:
        most: the largest number.
        seconds: how long the same work takes now with a number of threads.
        least_seconds: how long to look before more threads are called faster.

    >>> fastest(16, {1: 8.0, 2: 4.5, 4: 2.5, 8: 3.0}.__getitem__)
    4
    """
    number, *others = _ladder(most)
    for more in others:
        few_seconds, more_seconds, blocks = 0.0, 0.0, 0
        while blocks < _BLOCKS or few_seconds + more_seconds < least_seconds / len(others):
            few_seconds += seconds(number)  # in turns, so that both see the same other programs
            more_seconds += seconds(more)
            blocks += 1
            if blocks > 1 and more_seconds > max(_HOPELESS / (blocks - 1), _CLEAR) * few_seconds:
                break
        if more_seconds * _GAIN > few_seconds:
            break
        number = more
    return number


def measured(rows: int, channels: int, most: int) -> Callable[[int], float]:
    """The seconds of a block of work like a layer's on ``[rows, channels]``: a product and a short operation."""
    x, weight = _matrices(rows, channels, most)
    out = torch.empty_like(x)

    def layers(count: int) -> float:
        start, taken, done = time.perf_counter(), 0.0, 0
        while done < count and taken < _HOPELESS * _BLOCK_SECONDS:
            torch.mm(x, weight, out=out)
            out.add_(x)
            taken, done = time.perf_counter() - start, done + 1
        return taken * count / done

    torch.set_num_threads(1)
    count = max(1, int(_BLOCK_SECONDS / min(layers(1) for _ in range(3))))

    def seconds(number: int) -> float:
        torch.set_num_threads(number)
        return layers(count)

    return seconds


def _ladder(most: int) -> list[int]:
    """1, 2, 4 and so on, and `most`."""
    return [*(2**power for power in range((most - 1).bit_length())), most]


def _matrices(rows: int, channels: int, most: int) -> tuple[Tensor, Tensor]:
    """Any numbers, but no random ones: those belong to the runs."""
    rows = max(1, min(rows, most * _NUMBERS_PER_THREAD // channels))
    x = torch.linspace(-1, 1, rows * channels).sin_().view(rows, channels)
    return x, torch.linspace(-1, 1, channels * channels).view(channels, channels) / channels


class ThreadWatch:
    """The number of threads of one training; the one before is put back at the end of the block.

    It is at most torch's own, and just that where the user has chosen it or another device computes. It is measured
    before the first epoch, and once in a process for trainings of the same size; what comes out is what that number
    gives, to the bit. Where another one turns out to be faster later, an epoch is made with both, and the number is
    changed if they agree to the bit.

    Args:
        batch: the runs that train.
        number: what an earlier part of the same training began with.
        is_alone: whether no other process shares the training; they would all have to take the same number.

    Attributes:
        number: of threads that the training begins with, and that its result is that of.
        is_watched: whether another number may be taken up.
    """

    def __init__(self, batch: SeedBatch, number: int | None = None, *, is_alone: bool = True) -> None:
        clusters, channels = batch.recipe.train.clusters, batch.recipe.model.hidden_channels or 64
        self._batch, self._before = batch, torch.get_num_threads()
        self._size = batch.task.num_nodes // (clusters.parts if clusters else 1), channels, self._before
        is_free = batch.parameters.device.type == "cpu" and self._before > 1 and not is_number_chosen()
        self.is_watched = is_free and is_alone and can_repeat(batch)
        self.number = self._before
        if is_free and is_alone:
            if number is None and self._size not in _first:
                _first[self._size] = self._fastest()
            self.number = min(number or _first[self._size], self._before)
        self._num_runs, self._alike = len(batch.seeds), {self.number}
        self._epoch_began, self._shortest_epoch = math.inf, math.inf

    def __enter__(self) -> ThreadWatch:
        torch.set_num_threads(self.number)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        torch.set_num_threads(self._before)

    def adapt(self) -> None:
        """Before an epoch: measure again if it is time to, and take up the number that is fastest now.

        It is time when measuring takes a small share of the time, or when the last epoch took twice as long as another.
        """
        if not self.is_watched:
            return
        if self._num_runs != len(self._batch.seeds):  # other matrices, which may be multiplied in another way
            self._num_runs, self._alike = len(self._batch.seeds), {self.number}
            torch.set_num_threads(self.number)
        if (seconds := time.perf_counter() - self._epoch_began) > _SLOW * self._shortest_epoch:
            number, _, earliest = _latest.get(self._size, (1, 0.0, 0.0))
            _latest[self._size] = number, earliest, earliest
            self._shortest_epoch = math.inf  # of those by the number that is found now
        elif seconds > 0:
            self._shortest_epoch = min(self._shortest_epoch, seconds)
        number = self._fastest()
        if number not in self._alike:
            if not self._is_alike(number):
                self.is_watched, number = False, self.number
            self._alike.add(number)
        torch.set_num_threads(number)
        self._epoch_began = time.perf_counter()

    def _fastest(self) -> int:
        """The fastest number now, or lately: measuring may take a small share of the time."""
        number, until, _ = _latest.get(self._size, (1, -math.inf, -math.inf))
        if (start := time.perf_counter()) >= until:
            current = torch.get_num_threads()
            try:
                least_seconds = _CROWDED_SECONDS if is_crowded(self._before) else 0.0
                number = fastest(self._before, measured(*self._size), least_seconds)
            finally:
                torch.set_num_threads(current)
            now = time.perf_counter()
            seconds = now - start
            _latest[self._size] = number, now + seconds / _SHARE, now + seconds / _EARLY_SHARE
        return number

    def _is_alike(self, number: int) -> bool:
        """Whether the next epoch gives the same bits with a number of threads as with the first one; it is undone."""
        before = {name: value.clone() for name, value in self._batch.snapshot().items()}
        after = []
        for each in (self.number, number):
            torch.set_num_threads(each)
            self._batch.train_epoch()
            after.append(self._batch.snapshot())
            self._batch.restore(before)
        bits = [{name: value.contiguous().view(torch.uint8) for name, value in state.items()} for state in after]
        return all(value.equal(bits[1][name]) for name, value in bits[0].items())


def can_repeat(batch: SeedBatch) -> bool:
    """Whether an epoch can be made twice and compared, and what it shows holds for all that follow.

    Modules and terms of the user's may count their calls, and processes must do the same things. Sums over many nodes
    are rounded to fewer digits than they are added up in, so that one epoch may not show how they were split.
    """
    is_plain = type(batch) is SeedBatch and batch.model.is_stackable and batch.terms.keys() == {"penalty"}
    return is_plain and batch.task.num_nodes < SPLIT_SUMS
