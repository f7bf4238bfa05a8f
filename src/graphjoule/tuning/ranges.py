"""What is searched: for each setting an interval or some choices, as people type them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphjoule.errors import GraphjouleError
from graphjoule.training.recipes.overrides import parse_override

__all__ = ["Choices", "Interval", "Range", "count_settings", "parse_range", "parse_ranges"]

_EXPECTED = "expected key=low..high, key=low..high:log or key=one,another"


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`, both included.

    Attributes:
        low: the smallest value.
        high: the largest value.
        log: whether every factor is as likely as any other, rather than every difference.
        is_whole: whether only whole numbers are meant.
    """

    low: float
    high: float
    log: bool = False
    is_whole: bool = False

    @property
    def text(self) -> str:
        """As it is typed.

        >>> Interval(1e-4, 0.1, log=True).text, Interval(16, 64, is_whole=True).text
        ('0.0001..0.1:log', '16..64')
        """
        return f"{self.low!r}..{self.high!r}{':log' if self.log else ''}"

    @property
    def ends(self) -> tuple[float, ...]:
        """The values that are tried before a search begins."""
        return (self.low, self.high)

    def contains(self, value: Any) -> bool:
        """Whether it could be drawn.

        >>> Interval(0.1, 0.5).contains(0.2), Interval(0.1, 0.5).contains("relu")
        (True, False)
        """
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def num_values(self) -> int | None:
        """How many values there are; None where they cannot be counted.

        >>> Interval(16, 64, is_whole=True).num_values, Interval(0.1, 0.5).num_values
        (49, None)
        """
        return int(self.high) - int(self.low) + 1 if self.is_whole else None

    def pick(self, generator: random.Random) -> float:
        """Any of its values, none more likely than another."""
        if self.is_whole:
            return generator.randint(int(self.low), int(self.high))
        return generator.uniform(self.low, self.high)

    def suggest(self, trial: Any, name: str) -> float:
        """A value for an Optuna trial."""
        if self.is_whole:
            return int(trial.suggest_int(name, int(self.low), int(self.high), log=self.log))
        return float(trial.suggest_float(name, self.low, self.high, log=self.log))

    def of_whole_numbers(self) -> Interval:
        """The same for a setting that takes whole numbers only."""
        return replace(self, low=int(self.low), high=int(self.high), is_whole=True)


@dataclass(frozen=True)
class Choices:
    """Some values, none nearer to another."""

    values: tuple[Any, ...]

    @property
    def text(self) -> str:
        """As it is typed.

        >>> Choices(("srelu", True, 16)).text
        'srelu,true,16'
        """
        return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in self.values)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that are tried before a search begins: all of them."""
        return self.values

    def contains(self, value: Any) -> bool:
        """Whether it could be drawn."""
        return value in self.values

    @property
    def num_values(self) -> int:
        """How many values there are."""
        return len(set(self.values))

    def pick(self, generator: random.Random) -> Any:
        """Any of its values, none more likely than another."""
        return generator.choice(self.values)

    def suggest(self, trial: Any, name: str) -> Any:
        """A value for an Optuna trial."""
        return trial.suggest_categorical(name, list(self.values))


Range = Interval | Choices


def count_settings(ranges: Mapping[str, Range]) -> int | None:
    """How many different settings some ranges hold; None where they cannot be counted.

    >>> count_settings(parse_ranges(["batch_norm=true,false", "hidden_channels=16,64,256"]))
    6
    >>> count_settings(parse_ranges(["batch_norm=true,false", "lr=0.1..0.2"]))
    """
    counts = [found.num_values for found in ranges.values()]
    return None if None in counts else math.prod(count for count in counts if count is not None)


def parse_ranges(texts: Iterable[str]) -> dict[str, Range]:
    """Ranges from texts such as "lr=1e-4..1e-1:log"; a key given twice is refused."""
    ranges: dict[str, Range] = {}
    for key, found in map(parse_range, texts):
        if key in ranges:
            raise GraphjouleError(f"{key} has two ranges, {ranges[key].text} and {found.text}: give one.")
        ranges[key] = found
    return ranges


def parse_range(text: str) -> tuple[str, Range]:
    """A setting and what is searched of it.

    >>> parse_range("lr=1e-4..0.1:log")
    ('lr', Interval(low=0.0001, high=0.1, log=True, is_whole=False))
    >>> parse_range("activation=srelu,relu")
    ('activation', Choices(values=('srelu', 'relu')))
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or not equals or not value:
        raise GraphjouleError(f"{text!r} is not a range: {_EXPECTED}.")
    if ".." in value:
        return key, _parse_interval(value, text)
    return key, _parse_choices(key, value, text)


def _parse_interval(value: str, text: str) -> Interval:
    bounds, _, scale = value.partition(":")
    low, high = (_number(part, text) for part in bounds.split("..", 1))
    if scale.strip() not in ("", "log"):
        raise GraphjouleError(f"{text!r} is not a range: after the colon it says {scale.strip()!r}, expected log.")
    if not low < high:
        raise GraphjouleError(f"{text!r} is not a range: {low!r} is not below {high!r}.")
    if scale and low <= 0:
        raise GraphjouleError(f"{text!r} is not a range: on a logarithmic scale {low!r} must be above 0.")
    return Interval(low, high, log=bool(scale))


def _number(part: str, text: str) -> float:
    try:
        number = float(part)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise GraphjouleError(f"{text!r} is not a range: {part.strip()!r} is not a number; {_EXPECTED}.")
    return number


def _parse_choices(key: str, value: str, text: str) -> Choices:
    parts = value.split(",")
    if len(parts) < 2:
        raise GraphjouleError(
            f"{text!r} is not a range: there is nothing to choose; {_EXPECTED}, or fix it with --set {text}."
        )
    if not all(part.strip() for part in parts):
        raise GraphjouleError(f"{text!r} is not a range: a choice is empty; {_EXPECTED}.")
    values = [parse_override(f"{key}={part}")[1] for part in parts]
    if any(not isinstance(one, bool | int | float | str) for one in values):
        raise GraphjouleError(f"{text!r} is not a range: expected numbers, words, true or false.")
    if len(set(values)) != len(values):  # 1 and 1.0 too, which Optuna cannot tell apart
        raise GraphjouleError(f"{text!r} is not a range: a choice is there twice.")
    return Choices(tuple(values))
