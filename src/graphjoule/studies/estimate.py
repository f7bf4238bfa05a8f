"""How long runs will take, judged by the records of runs like them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

from graphjoule.studies.plan import Job
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record

__all__ = ["Estimate", "Pace", "in_words"]


@dataclass(frozen=True)
class Estimate:
    """What is known about the time of some runs.

    Attributes:
        seconds: of the runs that can be judged.
        num_runs: how many runs there are.
        num_judged: for how many of them there is a record to judge by.
    """

    seconds: float
    num_runs: int
    num_judged: int

    def __str__(self) -> str:
        if not self.num_judged:
            return "how long it takes is not known: no run like these is recorded on this device"
        if self.num_judged == self.num_runs:
            return f"about {in_words(self.seconds)}"
        return f"about {in_words(self.seconds)} for {self.num_judged} of them; no run like the others is recorded"


class Pace:
    """The time that runs took on one device.

    Args:
        device: the device in words, as records call it.
        records: runs so far; those on other devices say nothing.
    """

    def __init__(self, device: str, records: Iterable[Record] = ()) -> None:
        self._device = device
        self._known: list[Record] = []
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Learn from one more run."""
        if record.device == self._device and record.epochs_run:
            self._known.append(record)

    def seconds(self, recipe: Recipe) -> float | None:
        """Seconds of one run of a recipe; None if no run was like it.

        The nearest runs count: those of the same model and dataset, else of the same dataset, and of these the ones of
        the most similar depth. Time grows with layers and with epochs, which a run may stop before the recipe's last.
        """
        on_dataset = [record for record in self._known if record.dataset == recipe.data.name]
        like = [record for record in on_dataset if record.model == recipe.model.name] or on_dataset
        if not like:
            return None
        nearest = min(
            (record.num_layers for record in like), key=lambda depth: abs(log(depth / recipe.model.num_layers))
        )
        found = [record for record in like if record.num_layers == nearest]
        epochs = min(recipe.train.epochs, statistics.fmean(record.epochs_run for record in found))
        per_step = statistics.fmean(r.seconds / (r.epochs_run * r.num_layers) for r in found)
        return per_step * recipe.model.num_layers * epochs

    def estimate(self, jobs: Sequence[Job]) -> Estimate:
        """The time of all runs of the jobs that are still missing."""
        left = [(len(job.missing()), self.seconds(job.recipe)) for job in jobs]
        judged = [(runs, seconds) for runs, seconds in left if seconds is not None]
        return Estimate(
            sum(runs * seconds for runs, seconds in judged),
            sum(runs for runs, _ in left),
            sum(runs for runs, _ in judged),
        )


def in_words(seconds: float) -> str:
    """A time as people say it.

    >>> in_words(42), in_words(130), in_words(9000)
    ('42 s', '2 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
