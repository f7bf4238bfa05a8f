"""The figures of the studies, from records alone: what is drawn is data first, and a picture then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from graphjoule.report.drawings.chart import Drawing, Range, drawn_with, picture
from graphjoule.report.drawings.depths import depth_drawings
from graphjoule.report.drawings.energies import energy_drawings
from graphjoule.report.drawings.evidence import Evidence
from graphjoule.report.drawings.sides import Factors, Readings, factors_of, readings, side_drawings, sides_of
from graphjoule.report.drawings.sweeps import SweepResult, describe_sweeps, find_sweeps, sweep_drawings

__all__ = [
    "DRAWINGS",
    "Drawing",
    "Evidence",
    "Factors",
    "Range",
    "Readings",
    "SweepResult",
    "describe_sweeps",
    "drawings_of",
    "drawn_with",
    "factors_of",
    "find_sweeps",
    "picture",
    "readings",
    "sides_of",
]

DRAWINGS: Final[dict[str, Callable[[Evidence], list[Drawing]]]] = {
    "depth": depth_drawings,
    "energies": energy_drawings,
    "sides": side_drawings,
    "sweeps": sweep_drawings,
}
"""How a study can be drawn: what its file says as `drawing`."""


def drawings_of(evidence: Evidence) -> list[Drawing]:
    """The drawings of a study: an empty list for a table, and where nothing is recorded."""
    kind = evidence.study.drawing
    return DRAWINGS[kind](evidence) if kind else []
