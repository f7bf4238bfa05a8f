"""Figures 2 to 5: accuracy over one setting at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from graphjoule.report.drawings.chart import Chart, Drawing, Key, Mark, Range
from graphjoule.report.drawings.evidence import Evidence, Series, common_limits
from graphjoule.studies.study import Cell, Variant
from graphjoule.trace.plots import BLUE, Band, Line, Panel

__all__ = ["RANGES", "Sweep", "find_sweeps", "sweep_drawings"]

RANGES: Final = {"b": Range(None, 0.0), "gamma": Range(1.0, None), "c_min": Range(0.1, 0.75), "c_max": Range(0.2, 1.0)}
"""The values that the paper calls appropriate, in its appendix on hyperparameters."""
_SCALES: Final = {"b": "shift", "gamma": "log"}
_NAMES: Final = {"b": "b, initial shift of SReLU", "gamma": "gamma, weight of the penalty"}
_KEY: Final = (
    Key("mean over the seeds, ± standard deviation", colour=BLUE),
    Key("values the paper recommends", "shade"),
    Key("the recipe's own value", "ring"),
)

Place = tuple[str, str, int]
"""Dataset, model and depth."""


@dataclass(frozen=True)
class Sweep:
    """The accuracies over one setting.

    Attributes:
        component: what the paper calls the setting.
        series: over its values.
        own: the recipe's value and its accuracy; None where it is not run.
        num_missing: values of the study that are not run.
    """

    component: str
    series: Series
    own: Mark | None
    num_missing: int

    def means(self, *, inside: bool) -> list[float]:
        """The means at the values within the paper's range, or of those outside."""
        within = RANGES.get(self.component, Range(None, None))
        return [mean for x, mean in zip(self.series.x, self.series.mean, strict=True) if (x in within) == inside]


def find_sweeps(evidence: Evidence) -> dict[Place, list[Sweep]]:
    """The sweeps of a study by dataset, model and depth, in the study's order."""
    families: dict[Place, dict[str, list[Cell]]] = {}
    for cell in evidence.cells:
        place = (cell.dataset, cell.model, cell.num_layers)
        families.setdefault(place, {}).setdefault(cell.variant.component, []).append(cell)
    return {place: _sweeps(evidence, family) for place, family in families.items()}


def _sweeps(evidence: Evidence, family: dict[str, list[Cell]]) -> list[Sweep]:
    plain = replace(next(iter(family.values()))[0], variant=Variant())
    return [_sweep(evidence, component, cells, plain) for component, cells in family.items()]


def _sweep(evidence: Evidence, component: str, cells: list[Cell], plain: Cell) -> Sweep:
    setting = next(iter(cells[0].variant.settings))
    points = [(float(cell.variant.settings[setting]), evidence.outcome(cell)) for cell in cells]
    value, outcome = float(plain.recipe.model.options[setting]), evidence.outcome(plain)
    own = None if outcome.mean is None else Mark(value, outcome.mean)
    return Sweep(component, Series.of([*points, (value, outcome)]), own, sum(not o.n for _, o in points))


def sweep_drawings(evidence: Evidence) -> list[Drawing]:
    """A drawing per dataset, model and depth, a chart per setting; none where nothing is run."""
    return [
        _drawing(evidence.study.name, place, sweeps)
        for place, sweeps in find_sweeps(evidence).items()
        if any(len(sweep.series.x) > 1 for sweep in sweeps)
    ]


def _drawing(study: str, place: Place, sweeps: list[Sweep]) -> Drawing:
    dataset, model, layers = place
    limits = common_limits(sweep.series for sweep in sweeps)
    alt = f"Test accuracy of {model.upper()} with {layers} layers on {dataset} over {_names(sweeps)}. {say(sweeps)}"
    charts = [_chart(sweep, limits) for sweep in sweeps]
    title = f"{dataset.capitalize()}, {model.upper()} with {layers} layers"
    return Drawing(f"{study}-{dataset}-{layers}", alt, charts, title, size=(5.2, 2.8), key=_KEY)


def _names(sweeps: list[Sweep]) -> str:
    *first, last = [sweep.component for sweep in sweeps]
    return f"{', '.join(first)} and {last}" if first else last


def say(sweeps: list[Sweep]) -> str:
    """The message of the sweeps in a sentence.

    >>> say([Sweep("b", Series([-1.0, 0.0], [85.0, 84.0], [0.1, 0.1], [10, 10]), None, 0)])
    'Within the ranges that the paper recommends the means lie between 84.0 and 85.0 %.'
    """
    inside, outside = ([m for s in sweeps for m in s.means(inside=side)] for side in (True, False))
    parts = [
        f"{where} between {min(means):.1f} and {max(means):.1f} %"
        for where, means in (("the means lie", inside), ("outside", outside))
        if means
    ]
    return f"Within the ranges that the paper recommends {', '.join(parts)}." if inside else ""


def _chart(sweep: Sweep, limits: tuple[float, float]) -> Chart:
    series, name = sweep.series, sweep.component
    lines = [Line("", series.mean, series.x, BLUE)] if series.x else []
    bands = [Band("", series.x, series.low, series.high, BLUE)] if series.x else []
    panel = Panel("", "test accuracy, %", lines, bands, _NAMES.get(name, name), is_log=False)
    scale = _SCALES.get(name, "linear")
    ticks = series.x if scale == "shift" else ()
    return Chart(panel, scale, ticks, limits, shaded=RANGES.get(name), mark=sweep.own)
