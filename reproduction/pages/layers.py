"""The study of the constraint under the instruments: what they read of every cell, and layer by layer.

Every variant of the study is a side. What the instruments say comes from the records of energies alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from graphjoule.report import BLACK, Band, Drawing, Evidence, Key, Line, Panel, variant_styles
from graphjoule.studies import Cell, EnergyRecord
from graphjoule.terms import ConstraintReport, LayerState

__all__ = ["Factors", "Readings", "check_limits", "factors_of", "layers_drawing", "readings", "shown_families"]

_SHARES: Final = (1e-4, 1e4)  # of the first layer's energy are shown: a free network leaves them at both ends
_ALL_DECADES: Final = 100  # of energy are drawn, and cut by the shares that are shown
_DECADES: Final = 10  # of gradients are shown
_HELD = -1.0  # the gap of a limit that holds because there is no energy on its greater side, as in `EnergyConstraint`

Family = dict[str, EnergyRecord]
"""The records of one model at one depth, by side."""
Runs = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Factors:
    """The factors of both limits, ``c_min E(X_{k-1}) <= E(X_k) <= c_max E(X_0)``."""

    c_min: float
    c_max: float


def factors_of(cells: Iterable[Cell]) -> Factors | None:
    """The limits of the side that is held to them: the ones that every side is measured by; None without such a side.

    >>> from graphjoule.studies import STUDIES
    >>> factors_of(STUDIES["constraint"].cells(["cora"], ["gcn"], [2]))
    Factors(c_min=0.98, c_max=1.0)
    """
    held = (cell.recipe.terms.get("energy") for cell in cells)
    return next((Factors(found["c_min"], found["c_max"]) for found in held if found is not None), None)


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
        _median_of(report.max_violation for report in checked),
        _median_of(len(report.layers) - report.num_broken for report in checked),
        _median_of(min(run) for run in record.effective_rank),
        _median_of(run[-1] for run in record.effective_rank),
        _median_of(slopes),
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


def _median_of(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def layers_drawing(evidence: Evidence, dataset: str) -> tuple[Drawing, str] | None:
    """What the instruments say about a dataset's first model, a row of panels per depth, and the same in words.

    Drawn are the depth at which its sides differ most in accuracy and the deepest: what helps, and how far. None
    without a record.
    """
    families, factors = shown_families(evidence, dataset), factors_of(evidence.cells)
    if not families or factors is None:
        return None
    styles = variant_styles(evidence.cells)
    # Charts of ranks show all medians but the first layers': a first layer that no gradient reaches has the rank of
    # its random start, and would flatten all others.
    medians = [_median(record.effective_rank) for family in families for record in family.values()]
    ranks = 0.0, 1.2 * max(rank for ranks in medians for rank in ranks[1:])
    drawing = Drawing(
        f"{evidence.study.name}-layers-{dataset}",
        [panel for family in families for panel in _panels(family, styles, factors, ranks)],
        title=f"{dataset.capitalize()}: every layer after training, median and middle half of the runs",
        columns=3,
        size=(3.7, 2.8),
        legend=[
            *(Key(side, "line", *style) for side, style in styles.items()),
            Key("energies that the limits allow", "shade"),
        ],
    )
    said = " ".join(_describe_layers(family) for family in families)
    about = f"Dirichlet energy, effective rank and gradient of every layer after training on {dataset}."
    return drawing, f"{about} {said}"


def shown_families(evidence: Evidence, dataset: str) -> list[Family]:
    """The records that are drawn, the shallower first: of the first model that has some, two depths at most."""
    found: dict[str, dict[int, Family]] = {}
    for cell in evidence.cells:
        record = evidence.energies_of(cell) if cell.dataset == dataset else None
        if record is not None and len(record.trained[0]) > 1 and record.gradient and record.effective_rank:
            found.setdefault(cell.model, {}).setdefault(cell.num_layers, {})[cell.variant.value] = record
    if not found:
        return []
    depths = next(iter(found.values()))
    widest = max(depths, key=lambda depth: _width(depths[depth]))
    return [depths[depth] for depth in sorted({widest, max(depths)})]


def _width(family: Family) -> float:
    """How far the accuracies of the sides lie apart."""
    means = [_mean_accuracy(record) for record in family.values()]
    return max(means) - min(means)


def _mean_accuracy(record: EnergyRecord) -> float:
    """The mean test accuracy; 0 without test nodes, so that all depths are alike."""
    known = [accuracy for accuracy in record.test_score if accuracy is not None]
    return statistics.fmean(known) if known else 0.0


def _describe_layers(family: Family) -> str:
    first = next(iter(family.values()))
    texts = [f"{side}: {_describe_record(record)}" for side, record in family.items()]
    return f"{first.model.upper()} with {first.resolved.model.num_layers} layers. {'; '.join(texts)}."


def _describe_record(record: EnergyRecord) -> str:
    rank, gradient = _median(record.effective_rank), _median(record.gradient)
    known = any(accuracy is not None for accuracy in record.test_score)
    accuracy = f"{100 * _mean_accuracy(record):.1f} %, " if known else ""
    return (
        f"{accuracy}rank {min(rank):.1f} at the lowest, gradient {gradient[0]:.1g} at the first layer and "
        f"{gradient[-1]:.1g} at the last"
    )


def _panels(
    family: Family, styles: dict[str, tuple[str, str]], factors: Factors, ranks: tuple[float, float]
) -> list[Panel]:
    first = next(iter(family.values()))
    start, count, depth = first.first_layer, len(first.trained[0]), first.resolved.model.num_layers
    name = f"{first.model.upper()}, {depth} layers"
    ticks = [depth * quarter // 4 for quarter in range(5)]
    # The limits leave at most c_max, and at least c_min of the layer before, so c_min^k in all.
    lower = [factors.c_min**k for k in range(count)]
    allowed = Band("", range(start, start + count), lower, [factors.c_max] * count, BLACK)
    shares, share_bands = _lines(family, styles, _shares)
    rank, rank_bands = _lines(family, styles, lambda record: record.effective_rank)
    gradient, gradient_bands = _lines(family, styles, lambda record: record.gradient)
    return [
        Panel(
            f"{name}: energy",
            f"E(X_k) / E(X_{start})",
            shares,
            [allowed, *share_bands],
            decades=_ALL_DECADES,
            x_ticks=ticks,
            y_limits=_SHARES,
        ),
        Panel(
            f"{name}: effective rank",
            "effective rank",
            rank,
            rank_bands,
            is_log=False,
            x_ticks=ticks,
            y_limits=ranks,
        ),
        Panel(f"{name}: gradient", "‖dL/dX_k‖", gradient, gradient_bands, decades=_DECADES, x_ticks=ticks),
    ]


def _lines(
    family: Family, styles: dict[str, tuple[str, str]], of: Callable[[EnergyRecord], Runs]
) -> tuple[list[Line], list[Band]]:
    """The median of every side, and between which values the middle half of its runs lies."""
    lines, bands = [], []
    for side, (colour, style) in styles.items():
        if side in family:
            runs = of(family[side])
            x = range(family[side].first_layer, family[side].first_layer + len(runs[0]))
            low, middle, high = np.quantile(np.array(runs), [0.25, 0.5, 0.75], axis=0).tolist()
            lines.append(Line("", middle, x, colour, style))
            bands.append(Band("", x, low, high, colour))
    return lines, bands


def _shares(record: EnergyRecord) -> Runs:
    """Energies as shares of the first layer's: the upper limit is then the same for every run."""
    return [[energy / run[0] for energy in run] for run in record.trained if run[0] > 0] or record.trained


def _median(runs: Runs) -> list[float]:
    return [statistics.median(values) for values in zip(*runs, strict=True)]
