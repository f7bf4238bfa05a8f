"""A number together with how well it is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["exact", "computed", "upper bound", "lower bound"]


@dataclass(frozen=True)
class Estimate:
    """A number that lies between `low` and `high`, and how that is known.

    Attributes:
        value: the best single number.
        low: the true number is not smaller.
        high: the true number is not larger.
        kind: "exact" is known up to rounding; "computed" is proved on both sides; with "upper bound" the true number is
            proved to be at most `high`, with "lower bound" at least `low`, and the other side has a `risk`.
        residual: ``||P x - p x||`` of the vector behind the value: an eigenvalue is proved to lie that close.
        risk: probability that the other side of a bound does not hold, over the random start of the iteration.
        method: how it was found, in words.

    Example:
        >>> Estimate(0.75, 0.75, 0.75, "exact").shifted(2, -1)
        Estimate(value=1.25, low=1.25, high=1.25, kind='exact', residual=0.0, risk=0.0, method='')
    """

    value: float
    low: float
    high: float
    kind: Kind
    residual: float = 0.0
    risk: float = 0.0
    method: str = ""

    @classmethod
    def exact(cls, value: float, error: float, method: str) -> Estimate:
        """A number known up to a rounding error."""
        return cls(value, value - error, value + error, "exact", method=method)

    def shifted(self, offset: float, sign: Literal[1, -1]) -> Estimate:
        """``offset + sign * value``."""
        low, high = sorted((offset + sign * self.low, offset + sign * self.high))
        kind = self.kind if sign == 1 else _MIRRORED[self.kind]
        return replace(self, value=offset + sign * self.value, low=low, high=high, kind=kind)

    def squared(self, kind: Kind) -> Estimate:
        """The square; `kind` is what a one-sided estimate becomes."""
        ends = (self.low**2, self.high**2)
        low = 0.0 if self.low < 0 < self.high else min(ends)
        kept = self.kind if self.kind in ("exact", "computed") else kind
        return replace(self, value=self.value**2, low=low, high=max(ends), kind=kept)


_MIRRORED: dict[Kind, Kind] = {
    "exact": "exact",
    "computed": "computed",
    "upper bound": "lower bound",
    "lower bound": "upper bound",
}


def smallest(estimates: list[Estimate]) -> Estimate | None:
    """The minimum of numbers that are known more or less well; None of none.

    >>> clear = smallest([Estimate(1, 1, 1, "exact"), Estimate(3, 2, 3, "upper bound")])
    >>> clear.kind, smallest([clear, Estimate(3, 0.5, 3, "upper bound")])
    ('exact', Estimate(value=1, low=0.5, high=1, kind='upper bound', residual=0.0, risk=0.0, method=''))
    """
    if not estimates:
        return None
    first, *rest = sorted(estimates, key=lambda estimate: estimate.value)
    for other in rest:
        if other.low < first.high:  # it may be the smaller one after all
            kind = other.kind if first.kind == "exact" else first.kind
            low, high = min(first.low, other.low), min(first.high, other.high)
            first = replace(first, low=low, high=high, kind=kind, risk=max(first.risk, other.risk))
    return first


def largest(estimates: list[Estimate]) -> Estimate | None:
    """The maximum of numbers that are known more or less well; None of none."""
    found = smallest([estimate.shifted(0, -1) for estimate in estimates])
    return None if found is None else found.shifted(0, -1)
