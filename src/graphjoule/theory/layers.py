"""The initialised network as a polynomial in ``P``: the least and most energy that each layer can leave on a graph.

All bounds are intervals: numbers that are known to lie between two others, and arithmetic that never loses a result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, NamedTuple

import numpy as np

from graphjoule.errors import GraphjouleError
from graphjoule.measures import Spectrum
from graphjoule.measures.eigenvalues import Floats

Verdict = Literal["yes", "no", "unknown"]

_CELLS = 2**16  # of the interval of eigenvalues, where not all are known; the bounds are off by about 1e-5 / beta
_WIDER = 2.0**-50  # relative, after every operation: more than the rounding of its two or three steps
_LARGEST = np.finfo(np.float64).max
_TOLERANCE = 1e-9  # of comparisons, relative: a limit that is met with equality counts as kept
_NOTHING = 1e-12  # and absolute: that share of an energy is none
_KINDS: dict[str, type] = {"c_min": Real, "c_max": Real, "beta": Real, "num_layers": Integral}


@dataclass(frozen=True)
class Setting:
    """An EGNN at its initial point, without activation.

    ``X_k = s_k [(1 - c_min) P X_{k-1} + alpha X_{k-1} + beta X_0]`` with ``s_1 = sqrt(c_max)``, all other ``s_k = 1``,
    and ``alpha = c_min - beta``.

    Args:
        c_min: strength of all residual connections together, the lower energy limit.
        c_max: the upper energy limit.
        beta: the part of `c_min` that goes to ``X_0``.
        num_layers: number of layers.

    Example:
        >>> round(Setting(c_min=0.15, beta=0.1).alpha, 9)
        0.05
    """

    c_min: float = 0.2
    c_max: float = 1.0
    beta: float = 0.1
    num_layers: int = 64

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                what = "a whole number" if kind is Integral else "a number"
                raise GraphjouleError(f"{name} is {value!r}; expected {what}.")
        if not 0 <= self.c_min <= 1:
            raise GraphjouleError(f"c_min is {self.c_min}; it must be in [0, 1].")
        if not 0 < self.c_max < float("inf"):
            raise GraphjouleError(f"c_max is {self.c_max}; it must be positive.")
        if not 0 <= self.beta <= self.c_min:
            raise GraphjouleError(f"beta is {self.beta}; it must be between 0 and c_min, which is {self.c_min}.")
        if self.num_layers < 1:
            raise GraphjouleError(f"num_layers is {self.num_layers}; it must be at least 1.")

    @property
    def alpha(self) -> float:
        """The part of `c_min` that goes to the previous layer."""
        return self.c_min - self.beta

    @property
    def scales(self) -> list[float]:
        """The initial weights, each a multiple ``s_k`` of the identity."""
        return [self.c_max**0.5, *[1.0] * (self.num_layers - 1)]


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

    def range(self) -> Enclosure:
        """From the least to the largest number of all."""
        return Enclosure(float(self.low.min()), float(self.high.max()))

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


@dataclass(frozen=True)
class LayerRange:
    """How much Dirichlet energy a layer can leave, over all features ``X_0`` with energy.

    Attributes:
        layer: its number, from 1.
        step_min: the least ``E(X_k) / E(X_{k-1})``.
        step_max: the largest; infinite where a layer wipes out a frequency that the next brings back from ``X_0``.
        total_min: the least ``E(X_k) / E(X_0)``.
        total_max: the largest.
    """

    layer: int
    step_min: Enclosure
    step_max: Enclosure
    total_min: Enclosure
    total_max: Enclosure


def layer_ranges(spectrum: Spectrum, setting: Setting) -> list[LayerRange]:
    r"""The range of energy ratios of every layer of the initialised network, from the graph's own spectrum.

    Without activation ``X_k = q_k(P) X_0`` with ``q_0 = 1``, ``q_1(p) = sqrt(c_max) ((1 - c_min) p + c_min)`` and
    ``q_k(p) = ((1 - c_min) p + alpha) q_{k-1}(p) + beta``. In the basis of eigenvectors

    .. math::
        \frac{E(X_k)}{E(X_{k-1})} = \frac{\sum_i \lambda_i \|u_i^\top X_0\|^2 \, q_k(p_i)^2}
                                         {\sum_i \lambda_i \|u_i^\top X_0\|^2 \, q_{k-1}(p_i)^2}

    lies between the least and the largest of the quotients of its terms, and an eigenvector attains either. So the
    extremes are those of ``q_k^2`` and ``q_k^2 / q_{k-1}^2`` over the non-zero eigenvalues ``lambda = 1 - p``. They are
    evaluated in interval arithmetic: on every eigenvalue when all are known; else on small cells that cover all
    eigenvalues, which bounds the extremes from outside, and on the known ones, which bounds them from inside.

    Args:
        spectrum: of the graph.
        setting: of the network.

    Returns:
        One range for each layer; none if the graph has no edges, as then there is no energy.

    Example:
        >>> import torch
        >>> from graphjoule.graph import Propagation
        >>> from graphjoule.measures import spectrum
        >>> pair = spectrum(Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]])))  # P has eigenvalues 1 and 0
        >>> first = layer_ranges(pair, Setting(c_min=0.2, beta=0.1, num_layers=2))[0]
        >>> round(first.total_min.low, 9), round(first.total_max.high, 9)
        (0.04, 0.04)
    """
    if spectrum.interval is None:
        return []
    outer, inner = (
        polynomials(p, setting.c_min, setting.beta, setting.scales) for p in (covering(spectrum), _known(spectrum))
    )
    return [
        LayerRange(
            layer,
            *_extremes(step.squared(), known_step.squared()),
            *_extremes(total.absolute().squared(), known_total.absolute().squared()),
        )
        for layer, ((total, step), (known_total, known_step)) in enumerate(zip(outer, inner, strict=True), start=1)
    ]


def depth_limit(spectrum: Spectrum, setting: Setting) -> tuple[Enclosure, Enclosure] | None:
    """The least and the largest ``E(X_k) / E(X_0)`` as the depth grows without end.

    ``q_k(p)`` tends to ``beta / ((1 - c_min) lambda + beta)``, whatever `c_max` is: the scale of the first weight
    washes out, because ``X_0`` comes in again at every layer.
    """
    if spectrum.lambda_0 is None or spectrum.lambda_max is None:
        return None
    if setting.beta == 0:
        rest = setting.c_max if setting.c_min == 1 else 0.0  # only the previous layer, or less and less of it
        return Enclosure(rest, rest), Enclosure(rest, rest)

    def limit(eigenvalue: float) -> float:
        return (setting.beta / ((1 - setting.c_min) * max(0.0, eigenvalue) + setting.beta)) ** 2

    return (
        Enclosure(limit(spectrum.lambda_max.high), limit(spectrum.lambda_max.low)),
        Enclosure(limit(spectrum.lambda_0.high), limit(spectrum.lambda_0.low)),
    )


def polynomials(p: Interval, c_min: float, beta: float, scales: Sequence[float]) -> Iterator[tuple[Interval, Interval]]:
    """Layer by layer ``q_k(p)``, and ``|q_k(p) / q_{k-1}(p)|``.

    Args:
        p: eigenvalues of ``P``.
        c_min: strength of all residual connections.
        beta: the part of `c_min` that goes to ``X_0``.
        scales: the weights, each a multiple of the identity.
    """
    t = p.times(1 - c_min).plus(c_min - beta)
    q = Interval.of(1.0, p)
    for k, scale in enumerate(scales):
        # The first layer gets X_0 twice; taken together, its two parts do not widen the interval twice.
        ratio = p.times(1 - c_min).plus(c_min).absolute() if k == 0 else t.plus_quotient(beta, q)
        q = (p.times(1 - c_min).plus(c_min) if k == 0 else t.times(q).plus(beta)).times(scale)
        yield q, ratio.scaled(abs(scale))


def covering(spectrum: Spectrum) -> Interval:
    """Small intervals of ``p`` that together hold all eigenvalues but those of the kernel."""
    assert spectrum.interval is not None
    if spectrum.is_complete:
        return _known(spectrum)
    low, high = spectrum.interval
    ends = np.linspace(1 - high, 1 - low, _CELLS + 1)
    return Interval(ends[:-1], ends[1:])


def _known(spectrum: Spectrum) -> Interval:
    """Intervals of ``p`` that each hold an eigenvalue."""
    p = 1 - spectrum.eigenvalues
    return Interval(p - spectrum.errors, p + spectrum.errors)


def _extremes(cells: Interval, known: Interval) -> tuple[Enclosure, Enclosure]:
    """The minimum and the maximum, each between what the cells allow and what a known eigenvalue attains."""
    lowest, highest = float(cells.low.min()), float(cells.high.max())
    attained_low = float(known.high.min(initial=highest))
    attained_high = float(known.low.max(initial=lowest))
    return Enclosure(lowest, max(lowest, attained_low)), Enclosure(min(highest, attained_high), highest)
