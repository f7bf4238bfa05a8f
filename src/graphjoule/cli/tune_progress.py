"""How a search shows where it is: a bar on a terminal, a line per trial elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from graphjoule.tuning.queue import attempts_of
from graphjoule.tuning.search import TrialProgress

Show = Callable[[TrialProgress | None], None]


@contextmanager
def show_search(name: str, study: Any, num_trials: int) -> Iterator[Show]:
    """Gives a callback for `work`, or to be called with None now and then; everything goes to standard error.

    What every training logs about itself would come once per trial, so only warnings pass meanwhile.
    """
    logger = logging.getLogger("graphjoule")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        if sys.stderr.isatty():
            with _bar(name, study, num_trials) as show:
                yield show
        else:
            yield _Lines(name, study, num_trials)
    finally:
        logger.setLevel(before)


@contextmanager
def _bar(name: str, study: Any, num_trials: int) -> Iterator[Show]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("trials, {task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, state="", total=num_trials)

        def show(progress: TrialProgress | None) -> None:
            if progress is None or progress.training is None or progress.training.epoch % 10 == 0:
                over, told = state_of(study)
                epoch = f", epoch {progress.training.epoch}" if progress and progress.training else ""
                bar.update(task, completed=over, state=f"{told}{epoch}")

        yield show


class _Lines:
    """A line whenever another trial is over."""

    def __init__(self, name: str, study: Any, num_trials: int) -> None:
        self._name, self._study, self._num_trials = name, study, num_trials
        self._over = state_of(study)[0]

    def __call__(self, progress: TrialProgress | None) -> None:
        if progress is not None and progress.training is not None:
            return
        over, told = state_of(self._study)
        if over != self._over:
            self._over = over
            typer.echo(f"{self._name}: {over}/{self._num_trials} trials, {told}", err=True)


def state_of(study: Any) -> tuple[int, str]:
    """How many trials are over, and the best value so far in words."""
    last = [tries[-1] for tries in attempts_of(study).values()]
    values = [trial.value for trial in last if trial.state.name == "COMPLETE"]
    over = len(values) + sum(trial.state.name == "PRUNED" for trial in last)
    if not values:
        return over, "none has a result yet"
    return over, f"best {max(values) if study.direction.name == 'MAXIMIZE' else min(values):.4f}"
