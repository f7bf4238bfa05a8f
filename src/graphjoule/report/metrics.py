"""The scores of a run: which ones its record holds, and how they are written.

Nothing else of the report reads a score from a record or knows what one is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from graphjoule.tasks.metrics import Metric
from graphjoule.tasks.objective import OBJECTIVES, Classification
from graphjoule.training.records import Record, mean, sample_std

Part = Literal["val", "test"]
PARTS: dict[Part, str] = {"val": "validation", "test": "test"}
"""The nodes that a score is of, in words."""


def metrics_of(records: Sequence[Record]) -> tuple[Metric, ...]:
    """The metrics that tables show of runs of one objective; the first is the headline."""
    if not records:
        return Classification.tabled
    return tuple(dict.fromkeys([records[0].metric, *OBJECTIVES[records[0].objective].tabled]))


def score_of(record: Record, part: Part, metric: Metric) -> float | None:
    """A run's score at its selected epoch; None where there is none, as on a split without test nodes."""
    return (record.val if part == "val" else record.test).get(metric.name)


def mean_score(records: Sequence[Record], part: Part, metric: Metric) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation over the runs that are done; None where there are too few."""
    scores = [score_of(record, part, metric) for record in records if record.status == "done"]
    known = [score for score in scores if score is not None]
    return mean(known) if known else None, sample_std(known)


def is_better(metric: Metric, value: float | None, other: float | None) -> bool:
    """Whether a value of a metric beats another; any beats None."""
    if value is None or other is None:
        return value is not None
    return value > other if metric.is_higher_better else value < other


def label(metric: Metric) -> str:
    """Its name in words."""
    return metric.name.replace("_", " ")


def unit(metric: Metric) -> str:
    """What follows its numbers."""
    return " %" if metric.is_share else ""


def heading(name: str, metric: Metric) -> str:
    """A name with the metric's unit, for an axis or the head of a table.

    >>> from graphjoule.tasks.metrics import ACCURACY, MAE
    >>> heading("test accuracy", ACCURACY), heading("test mae", MAE)
    ('test accuracy, %', 'test mae')
    """
    return f"{name}, %" if metric.is_share else name


def scaled(metric: Metric, value: float) -> float:
    """A value in the unit that it is written in."""
    return 100 * value if metric.is_share else value


def number(metric: Metric, value: float | None, spread: float | None = None) -> str:
    """A value as `Metric.text` writes it but without the unit, which stands in the head of its column."""
    return metric.text(value, spread).removesuffix(unit(metric))
