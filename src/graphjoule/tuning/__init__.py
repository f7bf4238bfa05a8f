"""A search for the settings that validate best: shared by any number of workers, safe to kill, blind to test labels."""

from graphjoule.tuning.board import Address, Board
from graphjoule.tuning.defaults import default_ranges
from graphjoule.tuning.outcome import Outcome, Row, read_outcome
from graphjoule.tuning.ranges import Choices, Interval, Range, parse_range, parse_ranges
from graphjoule.tuning.search import Evaluation, Search, TrialProgress, tune, work
from graphjoule.tuning.settings import fit_ranges, with_settings
from graphjoule.tuning.validation import ValidationTask, hide_test
from graphjoule.tuning.winner import recipe_text

__all__ = [
    "Address",
    "Board",
    "Choices",
    "Evaluation",
    "Interval",
    "Outcome",
    "Range",
    "Row",
    "Search",
    "TrialProgress",
    "ValidationTask",
    "default_ranges",
    "fit_ranges",
    "hide_test",
    "parse_range",
    "parse_ranges",
    "read_outcome",
    "recipe_text",
    "tune",
    "with_settings",
    "work",
]
