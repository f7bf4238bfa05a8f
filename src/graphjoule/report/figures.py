"""The charts of a report, as numbers for the page's script and as the static pictures that stand in for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphjoule.report.cell import AFTER, Cell, embeddings, first_layer
from graphjoule.report.curves import CURVES, mean_curves
from graphjoule.report.svg import Band, Chart, Line


def chosen_first(cells: Sequence[Cell], best: Sequence[Cell]) -> int:
    """Number of the cell that the page opens with: the first of the best that was traced, else of any."""
    traced = [cell for cell in (*best, *cells) if cell.states] or list(best)
    return next(number for number, cell in enumerate(cells) if cell is traced[0])


def companions(cells: Sequence[Cell], cell: Cell) -> list[Cell]:
    """The traced cells of the same dataset and depth, one per model: a cell that was chosen is its model's."""
    family: dict[str, Cell] = {}
    for other in cells:
        if other.states and (other.key[0], other.key[2]) == (cell.key[0], cell.key[2]):
            family.setdefault(other.recipe.model.name, other)
    return list(({**family, cell.recipe.model.name: cell} if cell.states else family).values())


def energy_chart(cells: Sequence[Cell], cell: Cell) -> Chart:
    """The energy of every layer: all models of the depth after training where there are several, else both states."""
    family = companions(cells, cell)
    if len(family) > 1:
        lines = [_energy_line(other.recipe.model.name, other, AFTER, style) for style, other in enumerate(family)]
        title = f"Energy of every layer after training: {cell.recipe.model.num_layers} layers, {cell.recipe.data.name}"
    else:
        lines = [_energy_line(state, cell, state, 1 - style) for style, state in enumerate(cell.states)]
        title = f"Energy of every layer: {cell.name}"
    return Chart(title, "layer", "Dirichlet energy", lines, energy_band(cell), is_log=True)


def _energy_line(label: str, cell: Cell, state: str, style: int) -> Line:
    rows = embeddings(cell.states[state])
    first = first_layer(rows)
    return Line(label, range(first, first + len(rows)), [row.energy for row in rows], style)


def energy_band(cell: Cell) -> Band | None:
    """The limits of the trained network; None where it has none."""
    found = cell.states.get(AFTER)
    if found is None or found.limits is None:
        return None
    layers = found.limits.layers
    lower, upper = [layer.lower for layer in layers], [layer.upper for layer in layers]
    return Band(f"limits of {cell.recipe.model.name}", range(1, len(layers) + 1), lower, upper)


def curve_charts(cell: Cell, most: int) -> tuple[Chart, Chart]:
    """Both losses over the epochs, and the validation accuracy in percent."""
    curves = mean_curves(cell.records, most)
    mark = None if curves.selected is None else (float(curves.selected), "selected epoch")
    losses = ("train_loss", "val_loss")
    loss_lines = [Line(CURVES[name], curves.epochs, curves.values[name], k) for k, name in enumerate(losses)]
    shares = [None if value is None else 100 * value for value in curves.values["val_accuracy"]]
    accuracy = [Line(CURVES["val_accuracy"], curves.epochs, shares, 2)]
    return (
        Chart(f"Losses over the epochs: {cell.name}", "epoch", "loss", loss_lines, is_log=True, mark=mark),
        Chart(f"Validation accuracy over the epochs: {cell.name}", "epoch", "accuracy, %", accuracy, mark=mark),
    )


def script_data(cells: Sequence[Cell], variants: Sequence[str], chosen: int, most: int) -> dict[str, Any]:
    """What the page's script draws: four significant digits, finer than any screen."""
    return {"chosen": chosen, "cells": [_cell_data(*pair, most) for pair in zip(cells, variants, strict=True)]}


def _cell_data(cell: Cell, variant: str, most: int) -> dict[str, Any]:
    curves, band = mean_curves(cell.records, most), energy_band(cell)
    dataset, model, layers = cell.key
    states = [_energy_line(state, cell, state, 0) for state in cell.states]
    return {
        "pick": {"dataset": dataset, "model": model, "layers": layers, "variant": variant},
        "name": cell.name,
        "untraced": cell.untraced,
        "states": [{"label": line.label, "first": line.x[0], "y": _short(line.y)} for line in states],
        "limits": None if band is None else {"lower": _short(band.lower), "upper": _short(band.upper[:1])[0]},
        "curves": {
            "x": curves.epochs,
            "selected": curves.selected,
            **{name: _short(values) for name, values in curves.values.items()},
        },
    }


def _short(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else float(f"{value:.4g}") for value in values]
