"""A search for the settings that validate best: shared by any number of workers, safe to kill, blind to test labels."""

from graphjoule.tuning.outcome import Outcome, Row, read_outcome, recipe_text
from graphjoule.tuning.ranges import (
    Choices,
    Interval,
    Range,
    default_ranges,
    fit_ranges,
    parse_range,
    parse_ranges,
    with_settings,
)
from graphjoule.tuning.search import Evaluation, Search, TrialProgress, tune, work
from graphjoule.tuning.storage import SearchStorage, StorageRef
from graphjoule.tuning.validation import ValidationTask, hide_test

__all__ = [
    "Choices",
    "Evaluation",
    "Interval",
    "Outcome",
    "Range",
    "Row",
    "Search",
    "SearchStorage",
    "StorageRef",
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
