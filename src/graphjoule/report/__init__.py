"""Records as pictures and as one HTML page that needs nothing else: pure functions that never train."""

from graphjoule.report.cells import AFTER, BEFORE, Cell, read_cells, states_of
from graphjoule.report.drawings import (
    DRAWINGS,
    Drawing,
    Evidence,
    Series,
    SweepResult,
    draw,
    drawings_of,
    find_sweeps,
    picture,
    variant_styles,
)
from graphjoule.report.page import MOST_BYTES, Reference, check_report_path, report_page, write_report
from graphjoule.trace.plots import BLACK, Band, Key, Line, Panel

__all__ = [
    "AFTER",
    "BEFORE",
    "BLACK",
    "DRAWINGS",
    "MOST_BYTES",
    "Band",
    "Cell",
    "Drawing",
    "Evidence",
    "Key",
    "Line",
    "Panel",
    "Reference",
    "Series",
    "SweepResult",
    "check_report_path",
    "draw",
    "drawings_of",
    "find_sweeps",
    "picture",
    "read_cells",
    "report_page",
    "states_of",
    "variant_styles",
    "write_report",
]
