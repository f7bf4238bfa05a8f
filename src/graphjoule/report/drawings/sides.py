"""Sides of a comparison, such as networks that are free or held to limits: accuracy over depth, and layer by layer.

Every variant of the study is a side. What the instruments say comes from the records of energies alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from graphjoule.report.drawings.chart import Chart, Drawing, Key
from graphjoule.report.drawings.evidence import Evidence, Series, common_limits
from graphjoule.report.figures import spread
from graphjoule.studies import Cell, EnergyRecord
from graphjoule.terms import ConstraintReport, LayerState
from graphjoule.trace.plots import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION, Band, Line, Panel

__all__ = [
    "Factors",
    "Readings",
    "accuracy_of_sides",
    "check_limits",
    "factors_of",
    "readings",
    "shown_families",
    "side_drawings",
    "sides_of",
]

_STYLES: Final = ((VERMILION, ":"), (BLUE, "-"), (GREEN, "--"), (PURPLE, "-."), (ORANGE, "-"))
_MOST_POINTS: Final = 200  # of a line over layers, finer than its picture
_SHARES: Final = (1e-4, 1e4)  # of the first layer's energy are shown: a free network leaves them at both ends
_ALL_DECADES: Final = 100  # of energy are drawn, and cut by the shares that are shown
_DECADES: Final = 10  # of gradients are shown
_HELD = -1.0  # the gap of a limit that holds because there is no energy on its greater side, as in `EnergyConstraint`

Sides = dict[str, dict[str, Series]]
"""Accuracies over the number of layers, by model and side."""
Family = dict[str, EnergyRecord]
"""The records of one model at one depth, by side."""
Runs = Sequence[Sequence[float]]


def side_drawings(evidence: Evidence) -> list[Drawing]:
    """Two drawings per dataset: accuracy over depth, and every layer under the instruments."""
    datasets = dict.fromkeys(cell.dataset for cell in evidence.cells)
    drawings = [draw(evidence, dataset) for dataset in datasets for draw in (_accuracy_drawing, _layers_drawing)]
    return [drawing for drawing in drawings if drawing is not None]


# Which sides there are, and the limits they are measured by.


@dataclass(frozen=True)
class Factors:
    """The factors of both limits, ``c_min E(X_{k-1}) <= E(X_k) <= c_max E(X_0)``."""

    c_min: float
    c_max: float


def sides_of(cells: Iterable[Cell]) -> list[str]:
    """The sides of a study, in its order."""
    return list(dict.fromkeys(cell.variant.value for cell in cells))


def side_style(number: int) -> tuple[str, str]:
    """Colour and line style of a side, the same in every drawing of the study."""
    return _STYLES[number % len(_STYLES)]


def side_keys(sides: Sequence[str]) -> list[Key]:
    """What stands for the sides in a drawing."""
    return [Key(side, "line", *side_style(number)) for number, side in enumerate(sides)]


def factors_of(cells: Iterable[Cell]) -> Factors | None:
    """The limits of the side that is held to them: the ones that every side is measured by; None without such a side.

    >>> from graphjoule.studies import STUDIES
    >>> factors_of(STUDIES["constraint"].cells(["cora"], ["gcn"], [2]))
    Factors(c_min=0.98, c_max=1.0)
    """
    held = (cell.recipe.terms.get("energy") for cell in cells)
    return next((Factors(found["c_min"], found["c_max"]) for found in held if found is not None), None)


# Accuracy over depth.


def accuracy_of_sides(evidence: Evidence, dataset: str) -> Sides:
    """The accuracies of one dataset over the number of layers; models without a run are left out."""
    cells = [cell for cell in evidence.cells if cell.dataset == dataset]
    outcomes = [(cell, evidence.outcome(cell)) for cell in cells]
    found: Sides = {}
    for model in dict.fromkeys(cell.model for cell in cells):
        lines = {
            side: Series.of((c.num_layers, o) for c, o in outcomes if (c.model, c.variant.value) == (model, side))
            for side in sides_of(cells)
        }
        if any(series.x for series in lines.values()):
            found[model] = lines
    return found


def _accuracy_drawing(evidence: Evidence, dataset: str) -> Drawing | None:
    """Accuracy over depth on one dataset, a small chart for every model; None where nothing is run."""
    found = accuracy_of_sides(evidence, dataset)
    if not found:
        return None
    limits = common_limits(series for lines in found.values() for series in lines.values())
    charts = [_accuracy_chart(model, lines, limits) for model, lines in found.items()]
    said = " ".join(_describe_accuracy(model, lines) for model, lines in found.items())
    return Drawing(
        f"{evidence.study.name}-accuracy-{dataset}",
        f"Test accuracy over the number of layers on {dataset}, a chart for every model. {said}",
        charts,
        title=f"{dataset.capitalize()}: mean over the seeds, ± standard deviation" if len(charts) > 1 else "",
        columns=min(3, len(charts)),
        size=(3.7, 2.7) if len(charts) > 1 else (6.4, 3.4),  # one chart must hold the key
        key=side_keys(sides_of(evidence.cells)),
    )


def _describe_accuracy(model: str, lines: dict[str, Series]) -> str:
    """Where the sides of a model differ most, in a sentence.

    >>> lines = {"free": Series([2, 8], [80.0, 50.0], [1.0, 1.0], [9, 9]), "held": Series([8], [79.0], [1.0], [9])}
    >>> _describe_accuracy("gcn", lines)
    'GCN differs most with 8 layers: free 50.0 %, held 79.0 %.'
    """
    means = {side: dict(zip(series.x, series.mean, strict=True)) for side, series in lines.items()}
    depths = sorted({x for series in lines.values() for x in series.x})

    def at(depth: float) -> dict[str, float]:
        return {side: of[depth] for side, of in means.items() if depth in of}

    widest = max(depths, key=lambda depth: max(at(depth).values()) - min(at(depth).values()))
    means_text = ", ".join(f"{side} {mean:.1f} %" for side, mean in at(widest).items())
    return f"{model.upper()} differs most with {widest:,} layers: {means_text}."


def _accuracy_chart(model: str, lines: dict[str, Series], limits: tuple[float, float]) -> Chart:
    ticks = sorted({x for series in lines.values() for x in series.x})
    drawn, bands = [], []
    for number, series in enumerate(lines.values()):
        if series.x:
            colour, style = side_style(number)
            drawn.append(Line("", series.mean, series.x, colour, style))
            bands.append(Band("", series.x, series.low, series.high, colour))
    panel = Panel(model.upper(), "test accuracy, %", drawn, bands, "number of layers", is_log=False)
    return Chart(panel, "depth", ticks, limits)


# What the instruments say.


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


# Layer by layer.


def _layers_drawing(evidence: Evidence, dataset: str) -> Drawing | None:
    """What the instruments say about a dataset's first model, a row of charts per depth; None without a record.

    Drawn are the depth at which its sides differ most in accuracy and the deepest: what helps, and how far.
    """
    families, factors = shown_families(evidence, dataset), factors_of(evidence.cells)
    if not families or factors is None:
        return None
    sides = sides_of(evidence.cells)
    ranks = _rank_limits(families)
    charts = [chart for family in families for chart in _charts(family, sides, factors, ranks)]
    said = " ".join(_describe_layers(family) for family in families)
    return Drawing(
        f"{evidence.study.name}-layers-{dataset}",
        f"Dirichlet energy, effective rank and gradient of every layer after training on {dataset}. {said}",
        charts,
        title=f"{dataset.capitalize()}: every layer after training, median and middle half of the runs",
        columns=3,
        size=(3.7, 2.8),
        key=[*side_keys(sides), Key("energies that the limits allow", "shade")],
    )


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


def _charts(family: Family, sides: Sequence[str], factors: Factors, ranks: tuple[float, float]) -> list[Chart]:
    first = next(iter(family.values()))
    start, depth = first.first_layer, first.resolved.model.num_layers
    name = f"{first.model.upper()}, {depth} layers"
    allowed = _allowed(start, len(first.trained[0]), factors)
    shares, shares_bands = _lines(family, sides, _shares)
    rank, rank_bands = _lines(family, sides, lambda record: record.effective_rank)
    gradient, gradient_bands = _lines(family, sides, lambda record: record.gradient)
    panels: list[tuple[Panel, tuple[float, float] | None]] = [
        (
            Panel("energy", f"E(X_k) / E(X_{start})", shares, [allowed, *shares_bands], decades=_ALL_DECADES),
            _SHARES,
        ),
        (Panel("effective rank", "effective rank", rank, rank_bands, is_log=False), ranks),
        (Panel("gradient", "‖dL/dX_k‖", gradient, gradient_bands, decades=_DECADES), None),
    ]
    ticks = [depth * quarter // 4 for quarter in range(5)]
    return [
        Chart(replace(panel, title=f"{name}: {panel.title}"), x_ticks=ticks, y_limits=limits, dots="none")
        for panel, limits in panels
    ]


def _rank_limits(families: Sequence[Family]) -> tuple[float, float]:
    """What charts of ranks show: all medians but the first layers'.

    A first layer that no gradient reaches has the rank of its random start, and would flatten all others.
    """
    medians = [_median(record.effective_rank) for family in families for record in family.values()]
    return 0.0, 1.2 * max(rank for ranks in medians for rank in ranks[1:])


def _lines(family: Family, sides: Sequence[str], of: Callable[[EnergyRecord], Runs]) -> tuple[list[Line], list[Band]]:
    """The median of every side, and between which values the middle half of its runs lies."""
    lines, bands = [], []
    for number, side in enumerate(sides):
        if side in family:
            (colour, style), runs = side_style(number), of(family[side])
            kept = spread(len(runs[0]), _MOST_POINTS)
            x = [family[side].first_layer + k for k in kept]
            low, middle, high = np.quantile(np.array(runs)[:, kept], [0.25, 0.5, 0.75], axis=0).tolist()
            lines.append(Line("", middle, x, colour, style))
            bands.append(Band("", x, low, high, colour))
    return lines, bands


def _shares(record: EnergyRecord) -> Runs:
    """Energies as shares of the first layer's: the upper limit is then the same for every run."""
    return [[energy / run[0] for energy in run] for run in record.trained if run[0] > 0] or record.trained


def _allowed(start: int, count: int, factors: Factors) -> Band:
    """What the limits leave: at most ``c_max``, and at least ``c_min`` of the layer before, so ``c_min^k`` in all."""
    lower = [factors.c_min**k for k in range(count)]
    return Band("", range(start, start + count), lower, [factors.c_max] * count, BLACK)


def _median(runs: Runs) -> list[float]:
    return [statistics.median(values) for values in zip(*runs, strict=True)]
