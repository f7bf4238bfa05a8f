"""What is searched where nobody says: a table of ranges for every model, in ``ranges.toml``."""

from __future__ import annotations

import tomllib
from importlib import resources

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS
from graphjoule.training.recipe import unknown
from graphjoule.tuning.ranges import Range, parse_ranges

__all__ = ["default_ranges"]


def default_ranges(model: str) -> dict[str, Range]:
    """The ranges of a model's settings that are worth a search on any dataset.

    Args:
        model: A key of `MODELS`.

    Returns:
        A range by the name of each setting.

    >>> default_ranges("sgc")["lr"].text
    '0.001..0.3:log'
    """
    if model not in MODELS:
        raise GraphjouleError(unknown(model, MODELS, "model"))
    table = tomllib.loads((resources.files(__package__) / "ranges.toml").read_text(encoding="utf-8"))
    return parse_ranges(f"{key}={text}" for key, text in table[model].items())
