"""What the instruments say about the runs of one cell, from the record of their energies alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from graphjoule.studies.energies import EnergyRecord
from graphjoule.terms import ConstraintReport, LayerState

__all__ = ["Factors", "Readings", "check_limits", "readings"]

_HELD = -1.0  # the gap of a limit that holds because there is no energy on its greater side, as in `EnergyConstraint`


@dataclass(frozen=True)
class Factors:
    """The factors of both limits, ``c_min E(X_{k-1}) <= E(X_k) <= c_max E(X_0)``."""

    c_min: float
    c_max: float


@dataclass(frozen=True)
class Readings:
    """Medians over the runs of one cell; None where there is nothing to tell.

    Attributes:
        num_layers: layers that have limits: all but the first.
        violation: by which factor the worst layer misses its worse limit, less 1.
        num_held: layers that miss no limit by more than one per cent.
        lowest_rank: the smallest effective rank of all layers.
        last_rank: the effective rank of the last hidden layer.
        gradient_ratio: the gradient's norm at the first layer, divided by that at the last hidden one.
    """

    num_layers: int
    violation: float | None
    num_held: float | None
    lowest_rank: float | None
    last_rank: float | None
    gradient_ratio: float | None


def readings(record: EnergyRecord, factors: Factors) -> Readings:
    """What the instruments say about a cell's runs after training.

    Args:
        record: of the cell.
        factors: of the limits that all sides of the study are measured by, held to them or not.
    """
    checked = [report for run in record.trained if (report := check_limits(run, factors, record.first_layer))]
    slopes = [run[0] / run[-1] for run in record.gradient if len(run) > 1 and run[-1] > 0]
    return Readings(
        max(0, len(record.trained[0]) - 1),
        _median(report.max_violation for report in checked),
        _median(len(report.layers) - report.num_broken for report in checked),
        _median(min(run) for run in record.effective_rank),
        _median(run[-1] for run in record.effective_rank),
        _median(slopes),
    )


def check_limits(energies: Sequence[float], factors: Factors, first_layer: int = 0) -> ConstraintReport | None:
    """How far the layers of one run are from their limits; None where there is no layer after the first.

    Args:
        energies: of the layers, the first of them ``X_0`` of the limits.
        factors: of the limits.
        first_layer: number of the first layer.

    >>> print(check_limits([4.0, 2.0, 5.0], Factors(0.8, 1.0)))
    2 of 2 layers after X_0 miss a limit by more than 1 %; the largest violation is 60 %, the largest |lambda g| 0.
    """
    upper = factors.c_max * energies[0]
    layers = tuple(
        LayerState(f"X_{number}", _log_ratio(factors.c_min * before, now), _log_ratio(now, upper))
        for number, (before, now) in enumerate(pairwise(energies), start=first_layer + 1)
    )
    return ConstraintReport(f"X_{first_layer}", layers) if layers else None


def _log_ratio(above: float, below: float) -> float:
    """``log(above / below)``, also where no float holds the quotient; zero is within any limit."""
    if above == 0:
        return _HELD
    return math.inf if below == 0 else math.log(above) - math.log(below)


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None
