"""The pages of results: every table and figure of the paper from the records, with what differs in plain sight."""

from reproduction.pages.page import BLOCKS, Results, fill_page, read_results

__all__ = ["BLOCKS", "Results", "fill_page", "read_results"]
