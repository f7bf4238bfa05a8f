"""The charts of a report, as numbers for the page's script and as the static pictures that stand in for it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from graphjoule.report.cells import AFTER, PARTS, Cell
from graphjoule.report.svg import Band, Chart, Line
from graphjoule.training.evaluation import spread
from graphjoule.training.records import Record, mean


def companions(cells: Sequence[Cell], cell: Cell) -> list[Cell]:
    """The traced cells of the same dataset and depth, one per model: of its own model, the cell itself."""
    dataset, model, layers = cell.key
    family: dict[str, Cell] = {}
    for other in cells:
        if other.states and (other.key[0], other.key[2]) == (dataset, layers):
            family.setdefault(other.key[1], other)
    return list(({**family, model: cell} if cell.states else family).values())


def energy_chart(cells: Sequence[Cell], cell: Cell) -> Chart:
    """The energy of every layer: all models of the depth after training where there are several, else both states."""
    family, (dataset, _, layers) = companions(cells, cell), cell.key
    if len(family) > 1:
        lines = [_energy_line(other.key[1], other, AFTER, style) for style, other in enumerate(family)]
        title = f"Energy of every layer after training: {layers} layers, {dataset}"
    else:
        lines = [_energy_line(state, cell, state, 1 - style) for style, state in enumerate(cell.states)]
        title = f"Energy of every layer: {cell.name}"
    return Chart(title, "layer", "Dirichlet energy", lines, _energy_band(cell), is_log=True)


def _energy_line(label: str, cell: Cell, state: str, style: int) -> Line:
    first, rows = cell.energies(state)
    return Line(label, range(first, first + len(rows)), [row.energy for row in rows], style)


def _energy_band(cell: Cell) -> Band | None:
    """The limits of the trained network; None where it has none."""
    found = cell.states.get(AFTER)
    if found is None or found.limits is None:
        return None
    layers = found.limits.layers
    lower, upper = [layer.lower for layer in layers], [layer.upper for layer in layers]
    return Band(f"limits of {cell.key[1]}", range(1, len(layers) + 1), lower, upper)


def curve_charts(cell: Cell, most: int) -> tuple[Chart, Chart]:
    """Both losses over the epochs, and the headline score on the validation nodes."""
    metric = cell.metrics[0]
    epochs, (train, val, scores) = mean_curves(cell.records, ["train_loss", "val_loss", f"val_{metric.name}"], most)
    losses = [Line("training loss", epochs, train, 0), Line("validation loss", epochs, val, 1)]
    name = f"{PARTS['val']} {metric.label}"
    score = Line(name, epochs, [None if y is None else metric.scaled(y) for y in scores], 2)
    title = f"{name.capitalize()} over the epochs: {cell.name}"
    chosen = [record.selected_epoch for record in cell.records if record.selected_epoch is not None]
    mark = statistics.median_low(chosen) if chosen else None
    return (
        Chart(f"Losses over the epochs: {cell.name}", "epoch", "loss", losses, is_log=True, mark=mark),
        Chart(title, "epoch", metric.heading(metric.label), [score], mark=mark),
    )


def mean_curves(
    records: Sequence[Record], names: Sequence[str], most: int = 240
) -> tuple[list[int], list[list[float | None]]]:
    """The mean of all runs' curves, up to the last epoch that at least half of them reached.

    Past it the mean would be one of few survivors, and would jump where a run stops.

    Args:
        records: the runs.
        names: of the curves, as in a record.
        most: the most epochs to keep; they are spread evenly, the first and the last among them.

    Returns:
        The epochs, from 0 as in a record, and the mean of every curve at them; None where no run has a number.
    """
    lengths = sorted((record.epochs_run for record in records), reverse=True)
    epochs = spread(lengths[(len(lengths) - 1) // 2] if lengths else 0, most)
    values = []
    for name in names:
        curves = [record.curve.get(name, []) for record in records]
        at_epochs = ([curve[epoch] for curve in curves if len(curve) > epoch] for epoch in epochs)
        known = ([value for value in at_epoch if value is not None] for at_epoch in at_epochs)
        values.append([mean(numbers) if numbers else None for numbers in known])
    return epochs, values


def script_data(
    cells: Sequence[Cell], variants: Sequence[str], charts: Sequence[tuple[Chart, Chart]], chosen: int
) -> dict[str, Any]:
    """What the page's script draws of all cells: four significant digits, finer than any screen."""
    return {"chosen": chosen, "cells": [_cell_data(*of_cell) for of_cell in zip(cells, variants, charts, strict=True)]}


def _cell_data(cell: Cell, variant: str, charts: tuple[Chart, Chart]) -> dict[str, Any]:
    band = _energy_band(cell)
    dataset, model, layers = cell.key
    states = [_energy_line(state, cell, state, 0) for state in cell.states]
    return {
        "pick": {"dataset": dataset, "model": model, "layers": layers, "variant": variant},
        "name": cell.name,
        "untraced": cell.untraced,
        "states": [{"label": line.label, "first": line.x[0], "y": _short(line.y)} for line in states],
        "limits": None if band is None else {"lower": _short(band.lower), "upper": _short(band.upper[:1])[0]},
        "curves": {
            "x": list(charts[0].lines[0].x),
            "selected": charts[0].mark,
            "charts": [
                {
                    "title": chart.title,
                    "yLabel": chart.y_label,
                    "isLog": chart.is_log,
                    "lines": [{"label": one.label, "style": one.style, "y": _short(one.y)} for one in chart.lines],
                }
                for chart in charts
            ],
        },
    }


def _short(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else float(f"{value:.4g}") for value in values]
