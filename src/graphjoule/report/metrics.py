"""The scores of a run: which ones a record holds, which of them selects, and how they are written.

Nothing else of the report reads a score from a record or knows what one is called.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from graphjoule.training.records import Record

Part = Literal["val", "test"]
PARTS: dict[Part, str] = {"val": "validation", "test": "test"}
"""The nodes that a score is of, in words."""


@dataclass(frozen=True)
class Metric:
    """A score.

    Attributes:
        name: as in a record.
        is_share: whether it lies in [0, 1], and so is written in percent.
        higher_is_better: its direction.

    Example:
        >>> Metric("accuracy").text(0.857, 0.0041), Metric("mean_error", is_share=False).text(0.5)
        ('85.70 ± 0.41', '0.5')
        >>> Metric("accuracy").heading, Metric("mean_error", is_share=False).heading
        ('accuracy, %', 'mean error')
    """

    name: str
    is_share: bool = True
    higher_is_better: bool = True

    @property
    def label(self) -> str:
        """Its name in words."""
        return self.name.replace("_", " ")

    @property
    def unit(self) -> str:
        """The unit it is written in, as a table's head ends."""
        return ", %" if self.is_share else ""

    @property
    def heading(self) -> str:
        """Its name and unit, for an axis or the head of a table."""
        return self.label + self.unit

    def scaled(self, value: float) -> float:
        """A value in the unit that it is written in."""
        return 100 * value if self.is_share else value

    def text(self, value: float | None, spread: float | None = None) -> str:
        """A value with its spread; empty where there is no value."""
        digits = ".2f" if self.is_share else ".4g"
        return " ± ".join(f"{self.scaled(number):{digits}}" for number in (value, spread) if number is not None)

    def is_better(self, value: float | None, other: float | None) -> bool:
        """Whether a value beats another; any beats None."""
        if value is None or other is None:
            return value is not None
        return value > other if self.higher_is_better else value < other


def metrics_of(records: Iterable[Record]) -> list[Metric]:
    """The metrics that some runs were scored by; the first is the one that selects."""
    return [Metric("accuracy")]


def score_of(record: Record, part: Part, metric: Metric) -> float | None:
    """A run's score at its selected epoch; None where there is none, as on a split without test nodes."""
    value: float | None = getattr(record, f"{part}_{metric.name}")
    return value


def curve_name(metric: Metric) -> str:
    """What a record calls the curve of a metric on the validation nodes."""
    return f"val_{metric.name}"


def mean_score(records: Sequence[Record], part: Part, metric: Metric) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation over the runs that are done; None where there are too few."""
    scores = [score_of(record, part, metric) for record in records if record.status == "done"]
    known = [score for score in scores if score is not None]
    return statistics.fmean(known) if known else None, statistics.stdev(known) if len(known) > 1 else None
