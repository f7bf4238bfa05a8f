"""Interleaved measuring: in every repeat each side runs once, in turn, so that whatever slows the machine hits all."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from graphjoule.training import free_bytes, is_out_of_memory

try:
    import resource
except ImportError:  # Windows
    resource = None

Step = Callable[[], None]
Clock = Callable[[], float]

MIN_REPEATS, MAX_REPEATS = 5, 100
# On CUDA ours runs two steps as they are and captures the third; the fourth is the first like all that follow.
WARM_UP = {"cpu": 2, "cuda": 4}
# A turn lasts at least this long: a step of 3 ms would show the clock, the waiting and the scheduler.
_TURN_SECONDS, MAX_STEPS_PER_TURN = 0.05, 50
_MEMORY_SHARE = 0.9  # of the free memory; the rest is for the system and the neighbours


@dataclass
class Side:
    """One side of a comparison and what was measured of it.

    Attributes:
        name: what it is called.
        build: makes the step to measure, one epoch; its data and state are its own.
        steps_per_turn: how many steps a turn makes, from the warm-up.
        seconds: of one step, an entry per repeat; the same place is the same repeat on every side.
        peak_bytes: the most device memory it held at once, beside what was there before it; None on a CPU.
        failure: why it could not be measured, or None.
    """

    name: str
    build: Callable[[], Step]
    steps_per_turn: int = 1
    seconds: Sequence[float] = ()
    peak_bytes: int | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of two or more values; interpolated as NumPy does.

        >>> Spread.of([5.0, 1.0, 2.0, 3.0, 4.0])
        Spread(median=3.0, low=2.0, high=4.0)
        """
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


def paired_ratio(numerator: Side, denominator: Side, factor: float = 1.0) -> Spread:
    """Spread of the ratios of two sides' times, repeat by repeat: what slowed both in a repeat cancels."""
    pairs = zip(numerator.seconds, denominator.seconds, strict=True)
    return Spread.of([factor * above / below for above, below in pairs])


def measure_sides(
    sides: Sequence[Side],
    device: torch.device,
    budget: float,
    clock: Clock = time.perf_counter,
    least: int = MIN_REPEATS,
) -> None:
    """Warm every side up, then time them in turns; results are put into the sides.

    Args:
        sides: what to compare, in the order of their turns. One that runs out of memory says so and drops out.
        device: where they run.
        budget: seconds for the timed repeats.
        clock: tells the time in seconds.
        least: the fewest repeats, made whatever they take.
    """
    with limited_memory(device):
        steps: dict[str, Step] = {}
        for side in sides:
            step = _attempt(side, lambda side=side: _warm_up(side, device, clock))  # type: ignore[misc]
            if step is not None:
                steps[side.name] = step
        _take_turns([side for side in sides if not side.failure], steps, device, budget, clock, least)


def _warm_up(side: Side, device: torch.device, clock: Clock) -> Step:
    """Build a side and run it until every later step costs the same; its peak memory is that of these steps."""
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    step = side.build()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = [_timed(step, 1, device, clock) for _ in range(WARM_UP[device.type])]
    if device.type == "cuda":
        # A replayed CUDA graph allocates nothing; the first steps, which ran as they are, show what it holds.
        side.peak_bytes = torch.cuda.max_memory_allocated(device) - before
    wanted = math.ceil(_TURN_SECONDS / max(seconds[-1], 1e-6))
    side.steps_per_turn = min(max(wanted, 1), MAX_STEPS_PER_TURN)
    return step


def _take_turns(
    sides: list[Side], steps: Mapping[str, Step], device: torch.device, budget: float, clock: Clock, least: int
) -> None:
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    start = clock()
    for repeat in range(1, MAX_REPEATS + 1):
        for side in sides:
            seconds[side.name].append(_timed(steps[side.name], side.steps_per_turn, device, clock))
        elapsed = clock() - start
        if repeat >= least and elapsed * (repeat + 1) / repeat > budget:  # one more would pass the budget
            break
    for side in sides:
        side.seconds = seconds[side.name]


def _timed(step: Step, count: int, device: torch.device, clock: Clock) -> float:
    """Seconds of one step, the mean of `count` in a row, with the device idle before and after."""
    _wait(device)
    start = clock()
    for _ in range(count):
        step()
    _wait(device)
    return (clock() - start) / count


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _attempt(side: Side, make: Callable[[], Step]) -> Step | None:
    """What `make` returns, or None if memory ran out."""
    try:
        return make()
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not is_out_of_memory(error):
            raise
        side.failure = "out of memory"
    # Here and not above: as long as the error lives, its traceback keeps every tensor of the step alive.
    gc.collect()
    torch.cuda.empty_cache()
    return None


@contextmanager
def limited_memory(device: torch.device) -> Iterator[None]:
    """On a CPU, refuse allocations beyond the memory that is free now; a GPU's allocator refuses by itself.

    Linux promises more memory than it has and kills the process that takes it, and every result with it.
    """
    used = _address_space()
    if device.type != "cpu" or resource is None or used is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + int(_MEMORY_SHARE * free_bytes(device))
    known = [limit for limit in (soft, hard, wanted) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int | None:
    """Bytes of address space this process has, where the system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux
        return None
    return pages * resource.getpagesize() if resource is not None else None
