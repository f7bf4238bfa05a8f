"""Accuracy over one setting at a time, as in figures 2 to 5 of the paper."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from graphjoule.report.drawings.chart import Chart, Drawing, Key, Mark, Range
from graphjoule.report.drawings.evidence import Evidence, Series, common_limits
from graphjoule.studies import Cell, Sweep, Variant
from graphjoule.trace.plots import BLUE, Band, Line, Panel

__all__ = ["SweepResult", "describe_sweeps", "find_sweeps", "sweep_drawings"]

Place = tuple[str, str, int]
"""Dataset, model and depth."""


@dataclass(frozen=True)
class SweepResult:
    """The accuracies over one setting.

    Attributes:
        sweep: the setting and its values.
        series: over its values.
        own: the recipe's value and its accuracy; None where it is not run.
        num_missing: values of the study that are not run.
    """

    sweep: Sweep
    series: Series
    own: Mark | None
    num_missing: int

    @property
    def recommended(self) -> Range | None:
        """The values that the reference recommends."""
        if self.sweep.recommended is None:
            return None
        low, high = (end if isfinite(end) else None for end in self.sweep.recommended)
        return Range(low, high)

    def means(self, *, inside: bool) -> list[float]:
        """The means at the recommended values, or at the others."""
        within = self.recommended or Range(None, None)
        return [mean for x, mean in zip(self.series.x, self.series.mean, strict=True) if (x in within) == inside]


def find_sweeps(evidence: Evidence) -> dict[Place, list[SweepResult]]:
    """The sweeps of a study by dataset, model and depth, in the study's order."""
    families: dict[Place, dict[str, list[Cell]]] = {}
    for cell in evidence.cells:
        place = (cell.dataset, cell.model, cell.num_layers)
        families.setdefault(place, {}).setdefault(cell.variant.component, []).append(cell)
    return {
        place: [_result(evidence, sweep, cells[sweep.component]) for sweep in evidence.study.sweeps]
        for place, cells in families.items()
    }


def _result(evidence: Evidence, sweep: Sweep, cells: list[Cell]) -> SweepResult:
    plain = replace(cells[0], variant=Variant())
    setting = next(iter(cells[0].variant.settings))  # by its dotted name
    points = [(float(cell.variant.settings[setting]), evidence.outcome(cell)) for cell in cells]
    value, outcome = float(plain.recipe.settings()[setting]), evidence.outcome(plain)
    own = None if outcome.mean is None else Mark(value, outcome.mean)
    return SweepResult(sweep, Series.of([*points, (value, outcome)]), own, sum(not o.n for _, o in points))


def sweep_drawings(evidence: Evidence) -> list[Drawing]:
    """A drawing per dataset, model and depth, a chart per setting; none where nothing is run."""
    return [
        _drawing(evidence, place, sweeps)
        for place, sweeps in find_sweeps(evidence).items()
        if any(len(sweep.series.x) > 1 for sweep in sweeps)
    ]


def _drawing(evidence: Evidence, place: Place, sweeps: list[SweepResult]) -> Drawing:
    dataset, model, layers = place
    network, source = f"{model.upper()} with {layers} layers", f"the {evidence.study.reference.name}"
    limits = common_limits(sweep.series for sweep in sweeps)
    *first, last = [sweep.sweep.component for sweep in sweeps]
    names = f"{', '.join(first)} and {last}" if first else last
    said = describe_sweeps(sweeps, source)
    key = (
        Key("mean over the seeds, ± standard deviation", colour=BLUE),
        Key(f"values {source} recommends", "shade"),
        Key("the recipe's own value", "ring"),
    )
    return Drawing(
        f"{evidence.study.name}-{dataset}-{layers}",
        f"Test accuracy of {network} on {dataset} over {names}. {said}",
        [_chart(sweep, limits) for sweep in sweeps],
        title=f"{dataset.capitalize()}, {network}",
        size=(5.2, 2.8),
        key=key if any(sweep.recommended for sweep in sweeps) else (key[0], key[2]),
    )


def describe_sweeps(sweeps: list[SweepResult], source: str) -> str:
    """The message of the sweeps in a sentence; empty where nothing is recommended.

    >>> sweep = Sweep(component="b", setting="srelu_init", values=[-1.0, 0.0], recommended=[-9.0, 0.0])
    >>> describe_sweeps([SweepResult(sweep, Series([-1.0, 0.0], [85.0, 84.0], [0.1] * 2, [9, 9]), None, 0)], "the book")
    'Within the ranges that the book recommends the means lie between 84.0 and 85.0 %.'
    """
    if not any(sweep.recommended for sweep in sweeps):
        return ""
    inside, outside = ([m for s in sweeps for m in s.means(inside=side)] for side in (True, False))
    parts = [
        f"{where} between {min(means):.1f} and {max(means):.1f} %"
        for where, means in (("the means lie", inside), ("outside", outside))
        if means
    ]
    return f"Within the ranges that {source} recommends {', '.join(parts)}." if inside else ""


def _chart(result: SweepResult, limits: tuple[float, float]) -> Chart:
    series, sweep = result.series, result.sweep
    lines = [Line("", series.mean, series.x, BLUE)] if series.x else []
    bands = [Band("", series.x, series.low, series.high, BLUE)] if series.x else []
    panel = Panel("", "test accuracy, %", lines, bands, sweep.label or sweep.component, is_log=False)
    ticks = series.x if sweep.scale == "shift" else ()
    return Chart(panel, sweep.scale, ticks, limits, shaded=result.recommended, mark=result.own)
