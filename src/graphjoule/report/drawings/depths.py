"""Accuracy over the number of layers, and the energy of every layer of every network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphjoule.errors import counted
from graphjoule.report.drawings.chart import Chart, Drawing, Key
from graphjoule.report.drawings.energies import style_of
from graphjoule.report.drawings.evidence import Evidence, Series, common_limits
from graphjoule.report.figures import spread
from graphjoule.studies import EnergyRecord
from graphjoule.trace.plots import Band, Line, Panel

__all__ = ["accuracy_over_depth", "depth_drawings"]

_MOST_POINTS: Final = 200  # of a line over layers, finer than its picture
_MOST_TICKS: Final = 8  # numbers that have room along the axis; of more, every second has one
_DECADES: Final = 12  # of energy are shown: a deep GCN falls through hundreds


def accuracy_over_depth(evidence: Evidence) -> dict[str, dict[str, Series]]:
    """The accuracies over the number of layers, by dataset and model; models without a run are left out."""
    points: dict[str, dict[str, list[tuple[float, int]]]] = {}
    outcomes = [(cell, evidence.outcome(cell)) for cell in evidence.cells]
    for number, (cell, _) in enumerate(outcomes):
        points.setdefault(cell.dataset, {}).setdefault(cell.model, []).append((cell.num_layers, number))
    found = {
        dataset: {model: Series.of((x, outcomes[n][1]) for x, n in line) for model, line in lines.items()}
        for dataset, lines in points.items()
    }
    kept = {dataset: {model: s for model, s in lines.items() if s.x} for dataset, lines in found.items()}
    return {dataset: lines for dataset, lines in kept.items() if lines}


def depth_drawings(evidence: Evidence) -> list[Drawing]:
    """Accuracy over depth in one drawing, and energies in one per dataset; none where nothing is run."""
    datasets = dict.fromkeys(cell.dataset for cell in evidence.cells)
    drawings = [_accuracy_drawing(evidence), *(_energy_drawing(evidence, dataset) for dataset in datasets)]
    return [drawing for drawing in drawings if drawing is not None]


def _accuracy_drawing(evidence: Evidence) -> Drawing | None:
    found = accuracy_over_depth(evidence)
    if not found:
        return None
    limits = common_limits(series for lines in found.values() for series in lines.values())
    charts = [_accuracy_chart(dataset, lines, limits) for dataset, lines in found.items()]
    said = " ".join(_describe_ends(dataset, lines) for dataset, lines in found.items())
    name = f"{evidence.study.name}-accuracy"
    alt = f"Test accuracy over the number of layers. {said}"
    return Drawing(name, alt, charts, columns=min(3, len(charts)), size=(4.0, 3.0))


def _describe_ends(dataset: str, lines: dict[str, Series]) -> str:
    ends = [f"{model.upper()} {series.mean[-1]:.1f} % at {series.x[-1]:,}" for model, series in lines.items()]
    return f"On {dataset}: {', '.join(ends)} layers."


def _accuracy_chart(dataset: str, lines: dict[str, Series], limits: tuple[float, float]) -> Chart:
    depths = sorted({x for series in lines.values() for x in series.x})
    ticks = depths if len(depths) <= _MOST_TICKS else depths[::-2][::-1]
    drawn, bands = [], []
    for model, series in lines.items():
        colour, style = style_of(model)
        drawn.append(Line(model.upper(), series.mean, series.x, colour, style))
        bands.append(Band("", series.x, series.low, series.high, colour))
    panel = Panel(dataset.capitalize(), "test accuracy, %", drawn, bands, "number of layers", is_log=False)
    return Chart(panel, "depth", ticks, limits)


def _energy_drawing(evidence: Evidence, dataset: str) -> Drawing | None:
    """The energies of a dataset's networks, a small chart for every depth; None where there is no record."""
    families: dict[int, list[EnergyRecord]] = {}
    for cell in evidence.cells:
        record = evidence.energies_of(cell) if cell.dataset == dataset else None
        if record is not None:
            families.setdefault(cell.num_layers, []).append(record)
    if not families:
        return None
    records = [record for depth in sorted(families) for record in families[depth]]
    models = list(dict.fromkeys(record.model for record in records))
    top = max(max(record.median("trained")) for record in records)
    alt = (
        f"Dirichlet energy of every layer after training on {dataset}, a small chart for each of "
        f"{counted(len(families), 'depth')}. {' '.join(_describe_energy(model, records) for model in models)}"
    )
    return Drawing(
        f"{evidence.study.name}-energy-{dataset}",
        alt,
        [_energy_chart(depth, families[depth], top) for depth in sorted(families)],
        title=f"{dataset.capitalize()}: Dirichlet energy of every layer after training, median over the seeds",
        columns=min(5, len(families)),
        size=(2.5, 2.2) if len(families) > 2 else (5.6, 3.2),
        key=[Key(model.upper(), "line", *style_of(model)) for model in models],
    )


def _describe_energy(model: str, records: Sequence[EnergyRecord]) -> str:
    deepest = max((record for record in records if record.model == model), key=lambda r: r.resolved.model.num_layers)
    energies = deepest.median("trained")
    return (
        f"{model.upper()} with {deepest.resolved.model.num_layers:,} layers: {energies[0]:.2g} at first, "
        f"{min(energies):.2g} at the lowest, {energies[-1]:.2g} at last."
    )


def _energy_chart(depth: int, family: Sequence[EnergyRecord], top: float) -> Chart:
    panel = Panel(f"{depth:,} layers", "", [_energy_line(record) for record in family], decades=_DECADES)
    limits = (top * 10.0**-_DECADES, 4 * top) if top > 0 else None
    return Chart(panel, y_limits=limits, x_ticks=[0, depth // 2, depth], dots="last")


def _energy_line(record: EnergyRecord) -> Line:
    energies = record.median("trained")
    kept = spread(len(energies), _MOST_POINTS)
    colour, style = style_of(record.model)
    return Line("", [energies[k] for k in kept], [record.first_layer + k for k in kept], colour, style)
