"""How a training, a study or a search shows where it is: a bar on a terminal, a line now and then elsewhere.

Everything goes to standard error, so that standard output holds results alone.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from graphjoule.studies import StudyProgress
    from graphjoule.training import Progress
    from graphjoule.tuning.search import TrialProgress
    from graphjoule.tuning.storage import SearchStorage

_SECONDS_BETWEEN_LINES = 60.0
_Show = Callable[[int, int, str, Hashable], None]


@contextmanager
def _display(title: str, columns: tuple[ProgressColumn, ...], noun: str = "", step: Hashable = None) -> Iterator[_Show]:
    """Gives a function of how many are done, how many there are, the state in words and the step.

    Off a terminal it prints a line when a step begins that is not the last one, and one a minute within a step.
    """
    if sys.stderr.isatty():
        start = (TextColumn("{task.description}"), BarColumn())
        with Bar(*start, *columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, state="", total=None)
            yield lambda done, total, state, step: bar.update(task, completed=done, total=total, state=state)
        return
    last = time.monotonic()

    def show(done: int, total: int, state: str, at: Hashable) -> None:
        nonlocal last, step
        now = time.monotonic()
        if at != step or now - last >= _SECONDS_BETWEEN_LINES:
            last, step = now, at
            counts = f"{done}/{total} {noun}, " if noun else ""
            typer.echo(f"{title}: {counts}{state}", err=True)

    yield show


@contextmanager
def _display_of_many(title: str, noun: str, step: Hashable) -> Iterator[_Show]:
    """The display of many trainings.

    What every training logs about itself would come once for each and tear the bar, so only warnings pass meanwhile.
    """
    columns = (MofNCompleteColumn(), TextColumn(noun + ", {task.fields[state]}"), TimeElapsedColumn())
    logger = logging.getLogger("graphjoule")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with _display(title, columns, noun, step) as show:
            yield show
    finally:
        logger.setLevel(before)


@contextmanager
def show_progress(title: str) -> Iterator[Callable[[Progress], None]]:
    """Gives a callback for `fit`."""
    columns = (TaskProgressColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    with _display(title, columns) as show:
        yield lambda progress: show(progress.epoch, progress.epochs, _training_state(progress), None)


def _training_state(progress: Progress) -> str:
    trained = (
        f"epoch {progress.epoch}/{progress.epochs}, {progress.num_active}/{progress.num_runs} runs, "
        f"train loss {progress.train_loss:.3f}"
    )
    if all(math.isnan(score) for score in progress.val.values()):  # no validation yet
        return trained
    return ", ".join([trained, *(f"val {name} {score:.3f}" for name, score in progress.val.items())])


@contextmanager
def show_study(name: str) -> Iterator[Callable[[StudyProgress], None]]:
    """Gives a callback for `graphjoule.studies.work`."""
    with _display_of_many(name, "runs", step="") as show:
        yield lambda progress: show(progress.num_done, progress.num_runs, study_state(progress), progress.job)


def study_state(progress: StudyProgress) -> str:
    """What is trained now and how long all will take.

    >>> from graphjoule.studies import StudyProgress
    >>> study_state(StudyProgress("gcn, 2 layers, cora", 3, 9, 130.0))
    'about 2 min left, gcn, 2 layers, cora'
    """
    from graphjoule.studies import in_words

    left = "" if progress.seconds_left is None else f"about {in_words(progress.seconds_left)} left, "
    if progress.job is None:
        return f"{left}waiting for another process that trains the rest"
    epoch = f", epoch {progress.training.epoch}" if progress.training else ""
    return f"{left}{progress.job}{epoch}"


@contextmanager
def show_search(storage: SearchStorage, num_trials: int) -> Iterator[Callable[[TrialProgress | None], None]]:
    """Gives a callback for `graphjoule.tuning.work`, or to be called with None now and then."""
    with _display_of_many(storage.ref.name, "trials", step=search_state(storage)[0]) as display:

        def show(progress: TrialProgress | None) -> None:
            training = progress.training if progress is not None else None
            if training is not None and (training.epoch % 10 or not sys.stderr.isatty()):
                return  # reading the storage takes time
            num_over, best = search_state(storage)
            display(num_over, num_trials, f"{best}, epoch {training.epoch}" if training else best, num_over)

        yield show


def search_state(storage: SearchStorage) -> tuple[int, str]:
    """How many trials are over, and the best value so far in words."""
    from graphjoule.tuning.queue import attempts_of, is_over

    over = [tries[-1] for tries in attempts_of(storage.trials()).values() if is_over(tries[-1])]
    values = [trial.value for trial in over if trial.value is not None]
    if not values:
        return len(over), "none has a result yet"
    return len(over), f"best {max(values) if storage.study.direction.name == 'MAXIMIZE' else min(values):.4f}"
