"""The figures of the studies, from records alone: what is drawn is data first, and a picture then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from graphjoule.report.drawings.chart import Drawing, drawn_with, picture
from graphjoule.report.drawings.depths import depth_drawings
from graphjoule.report.drawings.evidence import Evidence
from graphjoule.report.drawings.layer_energies import energy_drawings
from graphjoule.report.drawings.side_layers import layers_drawing
from graphjoule.report.drawings.sides import accuracy_drawing
from graphjoule.report.drawings.sweeps import sweep_drawings

__all__ = ["DRAWINGS", "Drawing", "Evidence", "drawings_of", "drawn_with", "picture"]


def _side_drawings(evidence: Evidence) -> list[Drawing]:
    datasets = dict.fromkeys(cell.dataset for cell in evidence.cells)
    drawings = [draw(evidence, dataset) for dataset in datasets for draw in (accuracy_drawing, layers_drawing)]
    return [drawing for drawing in drawings if drawing is not None]


DRAWINGS: Final[dict[str, Callable[[Evidence], list[Drawing]]]] = {
    "figure1": energy_drawings,
    "figure2": sweep_drawings,
    "figure3": sweep_drawings,
    "figure4": sweep_drawings,
    "figure5": sweep_drawings,
    "depth": depth_drawings,
    "constraint": _side_drawings,
}
"""How the studies that are drawn are drawn, by name."""


def drawings_of(evidence: Evidence) -> list[Drawing]:
    """The drawings of a study; none for a table, and none where nothing is recorded."""
    draw = DRAWINGS.get(evidence.study.name)
    return draw(evidence) if draw else []
