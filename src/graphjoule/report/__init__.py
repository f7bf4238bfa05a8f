"""The report page: records and traces as one HTML file that needs nothing else; pure functions that never train."""

from graphjoule.report.cell import AFTER, BEFORE, Cell, states_of
from graphjoule.report.gather import read_cells
from graphjoule.report.page import MOST_BYTES, check_report_path, report_page, write_report
from graphjoule.report.words import paper_table

__all__ = [
    "AFTER",
    "BEFORE",
    "MOST_BYTES",
    "Cell",
    "check_report_path",
    "paper_table",
    "read_cells",
    "report_page",
    "states_of",
    "write_report",
]
