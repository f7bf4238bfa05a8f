"""Wall time as people say it, "2min", and a budget of it that a training is asked to keep to."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

from graphjoule.errors import GraphjouleError

# Products a second of EGNN's epochs, there and back and with validation: 0.6e9 to 2.3e9 a core on a million and on
# 64,000 nodes, 8e11 on an H200 (reproduction/results/million and bench).
_PER_CORE, _PER_GPU = 1e9, 8e11
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)")


def parse_seconds(given: str | float) -> float:
    """Seconds from a text such as "90s", "2min", "1h30min" or "1.5d"; a number alone is seconds.

    >>> parse_seconds("2min"), parse_seconds("1h 30min"), parse_seconds(90)
    (120.0, 5400.0, 90.0)
    """
    seconds = math.nan
    if isinstance(given, str):
        text = given.strip().lower()
        parts = _PART.findall(text)
        if parts and not _PART.sub("", text).strip():
            seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        elif re.fullmatch(r"\d+(\.\d+)?", text):
            seconds = float(text)
    elif isinstance(given, int | float) and not isinstance(given, bool):
        seconds = float(given)
    if not 0 < seconds < math.inf:
        raise GraphjouleError(
            f"`budget` is {given!r}; expected a time above 0, such as 90s, 2min, 1.5h or 1d, or a number of seconds."
        )
    return seconds


def in_words(seconds: float) -> str:
    """A time as people say it.

    >>> in_words(42), in_words(130), in_words(9000), in_words(400_000)
    ('42 s', '2 min', '2.5 h', '4.6 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"


def expected_seconds(num_nodes: int, num_entries: int, width: int, passes: int, device: str, cores: int = 1) -> float:
    """About how long a training may take, by counting its products; within a factor of five, before it begins.

    Args:
        num_nodes: of the graph.
        num_entries: of the operator: edges in both directions, and loops.
        width: of the hidden layers.
        passes: through a graph layer: layers times epochs times runs.
        device: "cpu" or "cuda".
        cores: of the CPU.

    >>> in_words(expected_seconds(256_000, 2_304_000, 64, 32 * 1500 * 10, "cuda"))
    '12 min'
    """
    products = passes * width * (num_entries + width * num_nodes)
    return products / (_PER_CORE * cores if device == "cpu" else _PER_GPU)


class Budget:
    """Wall time that is spent from the moment it is made.

    Args:
        seconds: how much there is; less than nothing is nothing.
        clock: the time now, in seconds from any moment.

    >>> budget = Budget(60, clock=iter([0, 10, 70, 70]).__next__)
    >>> budget.left, budget.is_up, budget.left
    (50, True, -10)
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self._end = clock() + seconds

    @classmethod
    def of(cls, given: str | float | Budget) -> Budget:
        """A budget as it is, or a new one of so much time; see `parse_seconds`."""
        return given if isinstance(given, Budget) else cls(parse_seconds(given))

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 once it is overdrawn."""
        return self._end - self.clock()

    @property
    def is_up(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def part(self, seconds: float) -> Budget:
        """A budget of its own by the same clock, from now on."""
        return Budget(seconds, self.clock)
