"""The study of the constraint: accuracy over depth, for every model its sides (free, held to limits, and so on)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from graphjoule.report.drawings.chart import Chart, Drawing, Key
from graphjoule.report.drawings.evidence import Evidence, Series, common_limits
from graphjoule.report.drawings.instruments import Factors
from graphjoule.studies.study import Cell
from graphjoule.trace.plots import BLUE, GREEN, ORANGE, PURPLE, VERMILION, Band, Line, Panel

__all__ = ["accuracy_drawing", "accuracy_of_sides", "factors_of", "side_keys", "side_style", "sides_of"]

_STYLES: Final = ((VERMILION, ":"), (BLUE, "-"), (GREEN, "--"), (PURPLE, "-."), (ORANGE, "-"))

Sides = dict[str, dict[str, Series]]
"""Accuracies over the number of layers, by model and side."""


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
    held = (cell.recipe.constraint for cell in cells)
    return next((Factors(found.c_min, found.c_max) for found in held if found is not None), None)


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


def accuracy_drawing(evidence: Evidence, dataset: str) -> Drawing | None:
    """Accuracy over depth on one dataset, a small chart for every model; None where nothing is run."""
    found = accuracy_of_sides(evidence, dataset)
    if not found:
        return None
    limits = common_limits(series for lines in found.values() for series in lines.values())
    charts = [_chart(model, lines, limits) for model, lines in found.items()]
    said = " ".join(_say(model, lines) for model, lines in found.items())
    return Drawing(
        f"{evidence.study.name}-accuracy-{dataset}",
        f"Test accuracy over the number of layers on {dataset}, a chart for every model. {said}",
        charts,
        title=f"{dataset.capitalize()}: mean over the seeds, ± standard deviation" if len(charts) > 1 else "",
        columns=min(3, len(charts)),
        size=(3.7, 2.7) if len(charts) > 1 else (6.4, 3.4),  # one chart must hold the key
        key=side_keys(sides_of(evidence.cells)),
    )


def _say(model: str, lines: dict[str, Series]) -> str:
    """Where the sides of a model differ most, in a sentence.

    >>> lines = {"free": Series([2, 8], [80.0, 50.0], [1.0, 1.0], [9, 9]), "held": Series([8], [79.0], [1.0], [9])}
    >>> _say("gcn", lines)
    'GCN differs most with 8 layers: free 50.0 %, held 79.0 %.'
    """
    means = {side: dict(zip(series.x, series.mean, strict=True)) for side, series in lines.items()}
    depths = sorted({x for series in lines.values() for x in series.x})

    def at(depth: float) -> dict[str, float]:
        return {side: of[depth] for side, of in means.items() if depth in of}

    widest = max(depths, key=lambda depth: max(at(depth).values()) - min(at(depth).values()))
    told = ", ".join(f"{side} {mean:.1f} %" for side, mean in at(widest).items())
    return f"{model.upper()} differs most with {widest:,} layers: {told}."


def _chart(model: str, lines: dict[str, Series], limits: tuple[float, float]) -> Chart:
    ticks = sorted({x for series in lines.values() for x in series.x})
    drawn, bands = [], []
    for number, series in enumerate(lines.values()):
        if series.x:
            colour, style = side_style(number)
            drawn.append(Line("", series.mean, series.x, colour, style))
            bands.append(Band("", series.x, series.low, series.high, colour))
    panel = Panel(model.upper(), "test accuracy, %", drawn, bands, "number of layers", is_log=False)
    return Chart(panel, "depth", ticks, limits)
