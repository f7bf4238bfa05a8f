"""How a training shows where it is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from graphjoule.training import Progress

_SECONDS_BETWEEN_LINES = 60.0
logger = logging.getLogger("graphjoule")


@contextmanager
def show_progress(title: str) -> Iterator[Callable[[Progress], None]]:
    """Gives a callback for `fit`; everything goes to standard error, so that standard output holds results alone."""
    if not sys.stderr.isatty():
        yield _Lines(title)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, state="")

        def update(progress: Progress) -> None:
            bar.update(task, total=progress.epochs, completed=progress.epoch, state=_state(progress))

        yield update


class _Lines:
    """One log line a minute."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            logger.info("%s: %s", self._title, _state(progress))


def _state(progress: Progress) -> str:
    trained = (
        f"epoch {progress.epoch}/{progress.epochs}, {progress.num_active}/{progress.num_runs} runs, "
        f"train loss {progress.train_loss:.3f}"
    )
    if all(math.isnan(score) for score in progress.val.values()):  # no validation yet
        return trained
    return ", ".join([trained, *(f"val {name} {score:.3f}" for name, score in progress.val.items())])
