"""Training curves of many runs as one: the mean over the runs that still train, thinned to what a screen shows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from graphjoule.training.records import Record

CURVES = {"train_loss": "training loss", "val_loss": "validation loss", "val_accuracy": "validation accuracy"}
"""The curves that are shown, by their name in a record."""


@dataclass(frozen=True)
class MeanCurves:
    """The curves of a cell.

    Attributes:
        epochs: the epochs that are kept, from 0 as in a record.
        values: the mean at these epochs, by the curve's name in a record; None where no run has a number.
        selected: the epoch that validation chose, the median over the runs; None if no run came to that.
    """

    epochs: list[int]
    values: dict[str, list[float | None]]
    selected: int | None


def mean_curves(records: Sequence[Record], most: int = 240) -> MeanCurves:
    """The mean of all runs' curves, up to the last epoch that at least half of them reached.

    Past it the mean would be one of few survivors, and would jump where a run stops.

    Args:
        records: the runs.
        most: the most epochs to keep; they are spread evenly, the first and the last among them.
    """
    lengths = sorted((record.epochs_run for record in records), reverse=True)
    last = lengths[(len(lengths) - 1) // 2] if lengths else 0
    epochs = spread(last, most)
    curves = {name: [record.curve.get(name, []) for record in records] for name in CURVES}
    values = {name: [_mean(theirs, epoch) for epoch in epochs] for name, theirs in curves.items()}
    chosen = [record.selected_epoch for record in records if record.selected_epoch is not None]
    return MeanCurves(epochs, values, statistics.median_low(chosen) if chosen else None)


def spread(count: int, most: int) -> list[int]:
    """At most so many of the numbers from 0 below `count`, evenly, with the first and the last.

    >>> spread(10, 4), spread(3, 4), spread(0, 4)
    ([0, 3, 6, 9], [0, 1, 2], [])
    """
    if count <= most:
        return list(range(count))
    return sorted({round(k * (count - 1) / (most - 1)) for k in range(most)})


def _mean(curves: Sequence[Sequence[float | None]], epoch: int) -> float | None:
    numbers = [value for curve in curves if len(curve) > epoch and (value := curve[epoch]) is not None]
    return statistics.fmean(numbers) if numbers else None
