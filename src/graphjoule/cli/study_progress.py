"""How a study shows where it is: one bar with the time left on a terminal, lines now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from graphjoule.studies import StudyProgress, in_words

_SECONDS_BETWEEN_LINES = 60.0


@contextmanager
def show_study(name: str) -> Iterator[Callable[[StudyProgress], None]]:
    """Gives a callback for `work`; everything goes to standard error.

    What every training logs about itself would come once per cell and tear the bar, so only warnings pass meanwhile.
    """
    logger = logging.getLogger("graphjoule")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        if sys.stderr.isatty():
            with _bar(name) as update:
                yield update
        else:
            yield _Lines(name)
    finally:
        logger.setLevel(before)


@contextmanager
def _bar(name: str) -> Iterator[Callable[[StudyProgress], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs, {task.fields[state]}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, state="", total=None)

        def update(progress: StudyProgress) -> None:
            bar.update(task, total=progress.num_runs, completed=progress.num_done, state=describe_state(progress))

        yield update


class _Lines:
    """A line for every cell, and one a minute within it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._job: str | None = ""
        self._last = time.monotonic()

    def __call__(self, progress: StudyProgress) -> None:
        if progress.job == self._job and time.monotonic() - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._job, self._last = progress.job, time.monotonic()
        done = f"{progress.num_done}/{progress.num_runs} runs"
        typer.echo(f"{self._name}: {done}, {describe_state(progress)}", err=True)


def describe_state(progress: StudyProgress) -> str:
    """What is trained now and how long all will take.

    >>> describe_state(StudyProgress("gcn, 2 layers, cora", 3, 9, 130.0))
    'about 2 min left, gcn, 2 layers, cora'
    """
    left = "" if progress.seconds_left is None else f"about {in_words(progress.seconds_left)} left, "
    if progress.job is None:
        return f"{left}waiting for another process that trains the rest"
    epoch = f", epoch {progress.training.epoch}" if progress.training else ""
    return f"{left}{progress.job}{epoch}"
