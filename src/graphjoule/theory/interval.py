"""Interval arithmetic on arrays, and numbers that are known to lie in an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from graphjoule.measures.eigenvalues import Floats

Verdict = Literal["yes", "no", "unknown"]

_WIDER = 2.0**-50  # relative, after every operation: more than the rounding of its two or three steps
_LARGEST = np.finfo(np.float64).max
_TOLERANCE = 1e-9  # of comparisons, relative: a limit that is met with equality counts as kept
_NOTHING = 1e-12  # and absolute: that share of an energy is none


class Enclosure(NamedTuple):
    """A number that lies between `low` and `high`; the two agree up to rounding when it is known."""

    low: float
    high: float

    def is_at_least(self, limit: float) -> Verdict:
        """Whether the number reaches the limit.

        >>> Enclosure(0.1, 0.3).is_at_least(0.2), Enclosure(0.1, 0.3).is_at_least(0.4)
        ('unknown', 'no')
        """
        if math.isfinite(limit):
            limit -= _TOLERANCE * abs(limit) + _NOTHING
        return "yes" if self.low >= limit else "no" if self.high < limit else "unknown"

    def is_at_most(self, limit: float) -> Verdict:
        """Whether the number stays within the limit."""
        return Enclosure(-self.high, -self.low).is_at_least(-limit)


def number(enclosure: Enclosure) -> str:
    """A number with the digits that are known, or the interval it lies in.

    >>> number(Enclosure(0.25, 0.25 + 1e-12)), number(Enclosure(0.25, 0.5)), number(Enclosure(1, float("inf")))
    ('0.25', '0.25 to 0.5', 'at least 1')
    """
    low, high = (0.0 if end < 1e-12 else end for end in enclosure)
    if high == float("inf"):
        return "unbounded" if low > 1e12 else f"at least {low:.4g}"
    return f"{high:.4g}" if f"{low:.4g}" == f"{high:.4g}" or high - low <= 1e-9 else f"{low:.4g} to {high:.4g}"


@dataclass(frozen=True, eq=False)
class Interval:
    """Many intervals at once; every operation contains all results that its operands allow."""

    low: Floats
    high: Floats

    @classmethod
    def of(cls, value: float, like: Interval) -> Interval:
        """The number `value` as often as `like` has intervals."""
        return cls(np.full_like(like.low, value), np.full_like(like.low, value))

    def plus(self, number: float) -> Interval:
        """The sum with a number."""
        return _wider(self.low + number, self.high + number)

    def times(self, other: Interval | float) -> Interval:
        """The product with other intervals, one by one, or with a number."""
        others = (other, other) if isinstance(other, float | int) else (other.low, other.high)
        products = [mine * theirs for mine in (self.low, self.high) for theirs in others]
        return _wider(np.minimum.reduce(products), np.maximum.reduce(products))

    def scaled(self, number: float) -> Interval:
        """Intervals without a sign, which may be infinite, times a number that is not negative; 0 times all is 0."""
        return _wider(self.low * number, self.high * number) if number else Interval.of(0.0, self)

    def squared(self) -> Interval:
        """Squares of intervals without a sign, which may be infinite."""
        return _wider(np.square(self.low), np.square(self.high))

    def absolute(self) -> Interval:
        """Absolute values."""
        ends = np.abs(self.low), np.abs(self.high)
        crosses = (self.low < 0) & (self.high > 0)
        return Interval(np.where(crosses, 0.0, np.minimum(*ends)), np.maximum(*ends))

    def plus_quotient(self, number: float, divisor: Interval) -> Interval:
        """Absolute values of ``self + number / divisor`` for a `number` that is not negative; infinite at a pole."""
        if number == 0:
            return self.absolute()
        size, mine = divisor.absolute(), self.absolute()
        has_pole = (divisor.low <= 0) & (divisor.high >= 0)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # at a pole
            quotient = _wider(number / divisor.high, number / divisor.low)
            far = _wider(self.low + quotient.low, self.high + quotient.high).absolute()
            near = np.maximum(0.0, number / size.high * (1 - _WIDER) - mine.high)
        return Interval(np.where(has_pole, near, far.low), np.where(has_pole, np.inf, far.high))


def _wider(low: Floats, high: Floats) -> Interval:
    """Room for rounding; an end that has overflowed stands for numbers beyond the largest there is."""
    low, high = np.minimum(low, _LARGEST), np.maximum(high, -_LARGEST)
    with np.errstate(invalid="ignore", over="ignore"):
        return Interval(
            np.where(np.isneginf(low), low, low - np.abs(low) * _WIDER),
            np.where(np.isposinf(high), high, high + np.abs(high) * _WIDER),
        )
