"""The ends and the middle of a spectrum too large to compute: Lanczos, then a proof by counting where it is cheap."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from graphjoule.measures.spectrum.estimate import Estimate
from graphjoule.measures.spectrum.inertia import Factor
from graphjoule.measures.spectrum.lanczos import RISK, Krylov, lanczos
from graphjoule.measures.spectrum.operator import Floats, Operator

_NEAR = 0.02  # a Ritz value with a larger residual says too little to be kept
_INVERSE_STEPS = 60  # the inverse spreads the eigenvalues near the shift so far apart that few steps tell them


@dataclass(frozen=True, eq=False)
class Ends:
    """What is known of the eigenvalues ``p`` of ``P`` outside the kernel.

    Attributes:
        top: the largest.
        bottom: the smallest.
        middle: the smallest ``|p|``.
        known: numbers with an eigenvalue near each.
        errors: how near.
    """

    top: Estimate
    bottom: Estimate
    middle: Estimate
    known: Floats
    errors: Floats

    def with_known(self, found: list[Estimate], slack: float) -> Ends:
        """The same with these values among the known ones."""
        known = np.append(self.known, [estimate.value for estimate in found])
        errors = np.append(self.errors, [estimate.residual + slack for estimate in found])
        return replace(self, known=known, errors=errors)


def find_ends(operator: Operator, *, has_twins: bool) -> Ends:
    """Bounds by Lanczos, tightened to proved intervals where a sparse factorisation is cheap.

    Args:
        operator: components that are too large to be solved densely.
        has_twins: the middle is known to be 0, so no work is put into it.
    """
    krylov = lanczos(lambda x: operator.matrix @ x, operator)
    values, coordinates = krylov.ritz()
    slack = operator.rounding + 1e-14 * math.sqrt(operator.num_nodes)
    if krylov.is_invariant:  # up to what was taken for rounding
        slack += float(krylov.beta[-1])
    # Gershgorin: a row of the similar matrix D~^-1 (A + I) has 1 / (1 + d) on the diagonal and d / (1 + d) off it.
    floor = float(2 * operator.matrix.diagonal().min() - 1)
    top = _end(operator, krylov, coordinates[:, -1], 1, slack, 1.0)
    bottom = _end(operator, krylov, coordinates[:, 0], -1, slack, -floor)
    middle = _middle(operator, krylov.flattest(), slack)
    residuals = np.abs(krylov.beta[-1] * coordinates[-1])
    near = residuals <= _NEAR
    ends = Ends(top, bottom, middle, values[near], residuals[near] + slack)
    return _proved(operator, ends, slack, has_twins=has_twins)


def _end(
    operator: Operator, krylov: Krylov, coordinates: Floats, sign: Literal[1, -1], slack: float, most: float
) -> Estimate:
    """The largest eigenvalue of ``sign * P``, which the Ritz value bounds from below; `most` bounds it from above."""
    value, residual = _rayleigh(operator, krylov.vector(coordinates))
    value = sign * value
    missed = krylov.missed()
    high = most if missed >= 1 else min(most, (1 + value) / (1 - missed) - 1 + slack)
    found = Estimate(value, value - slack, max(high, value + slack), "lower bound", residual, RISK, "Lanczos")
    return found.shifted(0, sign)


def _middle(operator: Operator, x: Floats, slack: float) -> Estimate:
    """``min |p|`` is at most ``||P x|| / ||x||`` for any ``x`` outside the kernel."""
    x = operator.without_kernel(x)
    length = float(np.linalg.norm(operator.matrix @ x) / np.linalg.norm(x))
    _, residual = _rayleigh(operator, x / np.linalg.norm(x))
    return Estimate(length, 0.0, length + slack, "upper bound", residual, 0.0, "Lanczos")


def _rayleigh(operator: Operator, x: Floats) -> tuple[float, float]:
    """``p = x^T P x`` and the residual ``||P x - p x||`` of a vector of length one, made orthogonal to the kernel."""
    x = operator.without_kernel(x)
    x = x / np.linalg.norm(x)
    image = operator.matrix @ x
    value = float(x @ image)
    return value, float(np.linalg.norm(image - value * x))


def _proved(operator: Operator, ends: Ends, slack: float, *, has_twins: bool) -> Ends:
    """The same with both sides proved, as far as factorisations stay small."""
    beyond = Factor.of(operator.matrix, 1 + 1e-8)  # so near to 1 that the gap is resolved even on a long path
    if beyond is None or not beyond.is_affordable:
        return ends
    top = _proved_top(operator, _refined_top(operator, beyond, ends.top, slack), slack)
    bottom = _proved_bottom(operator, ends.bottom, slack)
    ends = replace(ends, top=top, bottom=bottom)
    return (ends if has_twins else _proved_middle(operator, ends, slack)).with_known([top, bottom], slack)


def _refined_top(operator: Operator, factor: Factor, top: Estimate, slack: float) -> Estimate:
    """The same with a better value, if inverse Lanczos has one."""
    value, residual = _nearest(operator, factor)
    if value < top.value or residual > top.residual:
        return top
    return Estimate(value, value - slack, max(value + slack, top.high), top.kind, residual, top.risk, "inverse Lanczos")


def _nearest(operator: Operator, factor: Factor) -> tuple[float, float]:
    """The eigenvalue nearest to the factor's shift and its residual, by Lanczos on the inverse."""
    krylov = lanczos(factor.solve, operator, _INVERSE_STEPS)
    values, coordinates = krylov.ritz()
    return _rayleigh(operator, krylov.vector(coordinates[:, np.argmax(np.abs(values))]))


def _proved_top(operator: Operator, top: Estimate, slack: float) -> Estimate:
    shift = top.value + max(2 * top.residual, 1e-4 * (1 - top.value))
    factor = Factor.of(operator.matrix, shift)
    if factor is None or factor.num_above != operator.num_components or shift + factor.error >= 1:
        return top
    return _counted(top, top.value - slack, shift + factor.error + slack)


def _proved_bottom(operator: Operator, bottom: Estimate, slack: float) -> Estimate:
    shift = bottom.value - max(2 * bottom.residual, 1e-6)
    factor = Factor.of(operator.matrix, shift)
    if factor is None or factor.num_above != operator.num_nodes:
        return bottom
    return _counted(bottom, shift - factor.error - slack, bottom.value + slack)


def _proved_middle(operator: Operator, ends: Ends, slack: float) -> Ends:
    factor = Factor.of(operator.matrix, 1e-7)  # not 0: the matrix may well be singular
    if factor is None:
        return ends
    value, residual = _nearest(operator, factor)
    distance = abs(value)
    if distance + residual > ends.middle.high:
        return ends
    found = Estimate(distance, 0.0, distance + residual + slack, "upper bound", residual, 0.0, "inverse Lanczos")
    ends = ends.with_known([replace(found, value=value)], slack)
    gap = distance - max(2 * residual, 1e-4 * distance)
    factors = [Factor.of(operator.matrix, shift) for shift in (-gap, gap)]
    if gap <= 0 or None in factors:
        return replace(ends, middle=found)
    counts, errors = zip(*((factor.num_above, factor.error) for factor in factors if factor), strict=True)
    if counts[0] != counts[1]:
        return replace(ends, middle=found)
    return replace(ends, middle=_counted(found, max(0.0, gap - max(errors) - slack), found.high))


def _counted(found: Estimate, low: float, high: float) -> Estimate:
    return Estimate(found.value, low, high, "computed", found.residual, 0.0, f"{found.method}, counted")
