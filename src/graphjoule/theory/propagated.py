"""Energy carried through layers with any weights: two bounds, and the intervals where both hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphjoule.measures.spectrum import Spectrum
from graphjoule.theory.interval import Enclosure, Interval
from graphjoule.theory.layers import covering, polynomials


@dataclass(frozen=True)
class _Reach:
    """The least and largest size over the spectrum of what a layer does: ``|t(p)|``, and that of the first layer."""

    least: float
    most: float
    first_least: float
    first_most: float

    @classmethod
    def of(cls, p: Interval, c_min: float, beta: float) -> _Reach:
        later = p.times(1 - c_min).plus(c_min - beta).absolute()
        first = p.times(1 - c_min).plus(c_min).absolute()
        return cls(*(float(end) for part in (later, first) for end in (part.low.min(), part.high.max())))


def energy_intervals(
    spectrum: Spectrum, weights: Sequence[Tensor], c_min: float, beta: float
) -> Iterator[tuple[Tensor, Enclosure, Enclosure]]:
    """Layer by layer the singular values of the weight, and the intervals of ``E_k / E_{k-1}`` and ``E_k / E_0``.

    Args:
        spectrum: of the graph.
        weights: square float64 matrices.
        c_min: strength of all residual connections.
        beta: the part of `c_min` that goes to ``X_0``.
    """
    p = covering(spectrum)
    reach = _Reach.of(p, c_min, beta)
    scales = [float(weight.diagonal().mean()) for weight in weights]
    root, near, drift = Enclosure(1.0, 1.0), Enclosure(1.0, 1.0), 0.0
    for k, (q, quotient) in enumerate(polynomials(p, c_min, beta, scales)):
        singular = torch.linalg.svdvals(weights[k])
        sigma = Enclosure(float(singular.min()), float(singular.max()))
        step, following = _by_triangle(reach, sigma, beta, root, is_first=k == 0)
        away = weights[k] - scales[k] * torch.eye(len(weights[k]), dtype=torch.float64)
        before = reach.first_most if k == 0 else reach.most * near.high + beta  # of what the weight multiplies
        drifted = sigma.high * reach.most * drift + float(torch.linalg.matrix_norm(away, ord=2)) * before
        size = q.absolute()
        nearest = Enclosure(float(size.low.min()), float(size.high.max()))
        ratio = Enclosure(float(quotient.low.min()), float(quotient.high.max()))
        following = _both(following, Enclosure(max(0.0, nearest.low - drifted), nearest.high + drifted))
        step = _both(step, _near_step(ratio, near.low, drift, drifted), _quotient(following, root))
        yield singular, _squared(step), _squared(following)
        root, near, drift = following, nearest, drifted


def _by_triangle(
    reach: _Reach, sigma: Enclosure, beta: float, root: Enclosure, *, is_first: bool
) -> tuple[Enclosure, Enclosure]:
    """Roots of ``E_k / E_{k-1}`` and ``E_k / E_0`` from that of ``E_{k-1} / E_0`` by the triangle inequality."""
    if is_first:
        both = Enclosure(sigma.low * reach.first_least, sigma.high * reach.first_most)
        return both, both
    least = max(0.0, reach.least * root.low - beta, beta - reach.most * root.high)
    total = Enclosure(sigma.low * least, sigma.high * (reach.most * root.high + beta))
    again = _divided(beta, root.low), _divided(beta, root.high)  # the most and the least that X_0 adds, relative
    step_least = max(0.0, reach.least - again[0], again[1] - reach.most)
    return Enclosure(sigma.low * step_least, _product(sigma.high, reach.most + again[0])), total


def _near_step(ratio: Enclosure, least: float, drift: float, drifted: float) -> Enclosure:
    """Root of ``E_k / E_{k-1}`` near a polynomial network with this ratio, whose layer before has at least `least`."""
    if drift == drifted == 0:
        return ratio
    low = max(0.0, ratio.low * least - drifted) / (least + drift) if least + drift else 0.0
    return Enclosure(low, _divided(ratio.high * least + drifted, least - drift) if least > drift else math.inf)


def _quotient(one: Enclosure, other: Enclosure) -> Enclosure:
    return Enclosure(_divided(one.low, other.high) if one.low else 0.0, _divided(one.high, other.low))


def _both(*enclosures: Enclosure) -> Enclosure:
    """The interval where all hold; rounding must not turn it round."""
    low, high = max(one.low for one in enclosures), min(one.high for one in enclosures)
    return Enclosure(min(low, high), max(low, high))


def _squared(root: Enclosure) -> Enclosure:
    return Enclosure(root.low**2, root.high**2)


def _divided(number: float, by: float) -> float:
    return number / by if by else (math.inf if number else 0.0)


def _product(number: float, other: float) -> float:
    return number * other if number else 0.0  # 0 times infinity: a weight of zero leaves nothing
