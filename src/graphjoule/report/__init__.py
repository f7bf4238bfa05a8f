"""The report page: records and traces as one HTML file that needs nothing else; pure functions that never train."""

from graphjoule.report.cells import AFTER, BEFORE, Cell, read_cells, states_of
from graphjoule.report.page import MOST_BYTES, Reference, check_report_path, report_page, write_report

__all__ = [
    "AFTER",
    "BEFORE",
    "MOST_BYTES",
    "Cell",
    "Reference",
    "check_report_path",
    "read_cells",
    "report_page",
    "states_of",
    "write_report",
]
