"""The study of the constraint under the instruments: energy, rank and gradient of every layer, a line per side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from graphjoule.report.drawings.chart import Chart, Drawing, Key
from graphjoule.report.drawings.evidence import Evidence
from graphjoule.report.drawings.instruments import Factors
from graphjoule.report.drawings.sides import factors_of, side_keys, side_style, sides_of
from graphjoule.report.figures import spread
from graphjoule.studies.energies import EnergyRecord
from graphjoule.trace.plots import BLACK, Band, Line, Panel

__all__ = ["Family", "layers_drawing", "shown_families"]

_MOST_POINTS: Final = 200  # of a line over layers, finer than its picture
_SHARES: Final = (1e-4, 1e4)  # of the first layer's energy are shown: a free network leaves them at both ends
_ALL_DECADES: Final = 100  # of energy are drawn, and cut by the shares that are shown
_DECADES: Final = 10  # of gradients are shown

Family = dict[str, EnergyRecord]
"""The records of one model at one depth, by side."""
Runs = Sequence[Sequence[float]]


def layers_drawing(evidence: Evidence, dataset: str) -> Drawing | None:
    """What the instruments say about a dataset's first model, a row of charts per depth; None without a record.

    Drawn are the depth at which its sides differ most in accuracy and the deepest: what helps, and how far.
    """
    families, factors = shown_families(evidence, dataset), factors_of(evidence.cells)
    if not families or factors is None:
        return None
    sides = sides_of(evidence.cells)
    ranks = _rank_limits(families)
    charts = [chart for family in families for chart in _charts(family, sides, factors, ranks)]
    said = " ".join(_say(family) for family in families)
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
    means = [_accuracy(record) for record in family.values()]
    return max(means) - min(means)


def _accuracy(record: EnergyRecord) -> float:
    """The mean test accuracy; 0 without test nodes, so that all depths are alike."""
    known = [accuracy for accuracy in record.test_score if accuracy is not None]
    return statistics.fmean(known) if known else 0.0


def _say(family: Family) -> str:
    first = next(iter(family.values()))
    told = [f"{side}: {_say_layers(record)}" for side, record in family.items()]
    return f"{first.model.upper()} with {first.recipe['num_layers']} layers. {'; '.join(told)}."


def _say_layers(record: EnergyRecord) -> str:
    rank, gradient = _median(record.effective_rank), _median(record.gradient)
    known = any(accuracy is not None for accuracy in record.test_score)
    accuracy = f"{100 * _accuracy(record):.1f} %, " if known else ""
    return (
        f"{accuracy}rank {min(rank):.1f} at the lowest, gradient {gradient[0]:.1g} at the first layer and "
        f"{gradient[-1]:.1g} at the last"
    )


def _charts(family: Family, sides: Sequence[str], factors: Factors, ranks: tuple[float, float]) -> list[Chart]:
    first = next(iter(family.values()))
    start, depth = first.first_layer, first.recipe["num_layers"]
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
