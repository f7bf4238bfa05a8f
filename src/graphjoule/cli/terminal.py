"""How values are written on a command line, and how a training, a study or a search shows where it is.

Progress goes to standard error, so that standard output holds results alone.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphjoule.errors import GraphjouleError
from graphjoule.training.budget import in_words, parse_seconds
from graphjoule.training.settings import parse_overrides

if TYPE_CHECKING:
    from rich.table import Table

    from graphjoule.studies import StudyProgress
    from graphjoule.trace import LayerTrace
    from graphjoule.training import Progress
    from graphjoule.tuning.halving import AutoProgress
    from graphjoule.tuning.search import TrialProgress
    from graphjoule.tuning.storage import SearchStorage

DEFAULT_BUDGET = "2min"
"""What is spent on models and depths where nothing says which."""
_SECONDS_BETWEEN_LINES = 60.0
_TIMED_EPOCHS, _TIMED_SECONDS = 3, 2.0  # what a training is judged by, the first epoch apart, which also warms up
_LONG_SECONDS = 3600.0  # a training that may take longer says so
_MOST_LAYERS = 16  # of a deep network, spread evenly, the first and the last among them
_MOST_NAMED = 6  # on a line
_BAR, _DECADES = 24, 12.0  # letters of the longest bar, and the energies that it stands for


# Options that several commands have, and their values.

MOST_SEEDS = 10_000


def _check_device(device: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):  # whether the device is there, torch says later
        raise GraphjouleError(f"--device is {device!r}; choose one of auto, cpu, cuda.")
    return device


Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", callback=_check_device)]
Layers = Annotated[
    int | None, typer.Option(min=1, help="Number of graph layers.", show_default="32 with a recipe, else 8")
]
DataRoot = Annotated[
    Path | None, typer.Option(help="Where datasets are or go; by default GRAPHJOULE_DATA, else a cache folder.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the recipe; repeatable."),
]
Worth = Annotated[
    bool | None,
    typer.Option(
        "--worth/--no-worth",
        help="Compare with simpler models at the end: what the graph, the features and depth are worth.",
        show_default="on for your own graph",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")]
SelectOn = Annotated[
    str | None,
    typer.Option(metavar="METRIC", help="What chooses the epoch: loss, or a metric such as accuracy or roc_auc."),
]
ClassWeights = Annotated[
    str | None,
    typer.Option(metavar="WEIGHTS", help="Weight of each class in the loss: balanced, or numbers such as 1,5."),
]
FocalGamma = Annotated[
    float | None, typer.Option(metavar="GAMMA", help="Focal loss instead of cross entropy; 2 is usual.")
]


def overrides_of(set_: Sequence[str] | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of ``--set`` and of options that stand for one; None is an option that was not given.

    >>> overrides_of(["lr=0.1"], {"train.epochs": 5, "train.class_weights": "1,5", "train.select_on": None})
    {'lr': 0.1, 'train.epochs': 5, 'train.class_weights': [1.0, 5.0]}
    """
    given = dict(chosen)
    if (weights := given.get("train.class_weights")) is not None:
        with suppress(ValueError):  # a word, such as balanced
            given["train.class_weights"] = [float(part) for part in weights.split(",")]
    return parse_overrides([*(set_ or []), *(f"{key}={value}" for key, value in given.items() if value is not None)])


def split_list(text: str, kind: Callable[[str], Any] = str) -> list[Any]:
    """What stands between commas; empty if some of it is not of the kind.

    >>> split_list("2, 16,", int), split_list("2,x", int), split_list("a, b")
    ([2, 16], [], ['a', 'b'])
    """
    try:
        return [kind(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        return []


def parse_seeds(text: str) -> list[int]:
    """Seeds from a count or a list.

    >>> parse_seeds("3"), parse_seeds("3,7"), parse_seeds("3,")
    ([0, 1, 2], [3, 7], [3])
    """
    numbers = split_list(text, int)
    if not numbers or (numbers[0] < 1 and "," not in text):
        raise GraphjouleError(f"--seeds is {text!r}; expected how many seeds, such as 10, or a list, such as 3,7.")
    if len(set(numbers)) != len(numbers) or min(numbers) < 0 or max(numbers) >= 2**32:
        raise GraphjouleError(f"--seeds is {text!r}; expected different numbers from 0 to {2**32 - 1}.")
    if "," not in text and numbers[0] > MOST_SEEDS:  # a list of them would fill the memory before anything is said
        raise GraphjouleError(f"--seeds is {text!r}; expected at most {MOST_SEEDS:,} of them, or a list, such as 3,7.")
    return numbers if "," in text else list(range(numbers[0]))


def parse_budget(text: str) -> float | None:
    """Seconds from a time such as 90s or 2min; None from none.

    >>> parse_budget("2min"), parse_budget("none")
    (120.0, None)
    """
    return None if text == "none" else parse_seconds(text)


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds as ``--seeds`` reads them: a number alone means how many.

    >>> seeds_text([0, 1, 2]), seeds_text([3, 7]), seeds_text([7])
    ('3', '3,7', '7,')
    """
    if tuple(seeds) == tuple(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")


def value_text(value: Any) -> str:
    """A setting as ``--set`` reads it.

    >>> value_text(None), value_text("relu"), value_text(True), value_text(0.5)
    ('none', 'relu', 'true', '0.5')
    """
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def aligned(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The cells of a table, those of a column all as wide as its widest, with the text at the right.

    >>> aligned([["a", "bcd"], ["12", "3"]])
    [[' a', 'bcd'], ['12', '  3']]
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]


# Progress.


@contextmanager
def _display(
    title: str, noun: str = "", step: Hashable = None, below: object = None
) -> Iterator[Callable[[int, int, str, Hashable], None]]:
    """Gives a function of how many are done, how many there are, the state in words and the step.

    On a terminal it is a bar. Elsewhere it prints a line when a step begins that is not the last one, and one a minute
    within a step. With a `noun` it is about many trainings: what each logs about itself would come once for each and
    tear the bar, so only warnings pass meanwhile. `below` is what rich draws below the bar, anew each time.
    """
    logger, last = logging.getLogger("graphjoule"), time.monotonic()
    before = logger.level

    def show(done: int, total: int, state: str, at: Hashable) -> None:
        nonlocal last, step
        now = time.monotonic()
        if at != step or now - last >= _SECONDS_BETWEEN_LINES:
            last, step = now, at
            typer.echo(f"{title}: {f'{done}/{total} {noun}, ' if noun else ''}{state}", err=True)

    try:
        if noun:
            logger.setLevel(logging.WARNING)
        if not sys.stderr.isatty():
            yield show
            return
        from rich import progress as rich
        from rich.console import Console

        state = rich.TextColumn(f"{noun}, {{task.fields[state]}}" if noun else "{task.fields[state]}")
        many = (rich.MofNCompleteColumn(), state, rich.TimeElapsedColumn())
        columns = many if noun else (rich.TaskProgressColumn(), state, rich.TimeRemainingColumn())
        first = (rich.TextColumn("{task.description}"), rich.BarColumn())

        class Bar(rich.Progress):
            def get_renderables(self) -> Iterator[Any]:
                yield from super().get_renderables()
                if below is not None:
                    yield below

        with Bar(*first, *columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, state="", total=None)
            yield lambda done, total, state, step: bar.update(task, completed=done, total=total, state=state)
    finally:
        logger.setLevel(before)


class _TimeLeft:
    """How long a training may still take at most, judged by its epochs after the first; it may stop earlier.

    Args:
        num_seeds: runs of the whole training; they may train one group after the other.
        budget: seconds after which it ends.
    """

    def __init__(self, num_seeds: int, budget: float | None) -> None:
        self._num_seeds, self._budget, self._begin = num_seeds, budget, time.monotonic()
        self._first: tuple[int, float] | None = None
        self._num_done = 0
        self.is_judged = False

    def seconds(self, progress: Progress) -> float | None:
        """Seconds; None before there is enough to judge by."""
        now = time.monotonic()
        if self._first is None or progress.epoch < self._first[0]:  # another group begins
            self._num_done += progress.num_runs if self._first is not None else 0
            self._first = (progress.epoch, now)
        timed, taken = progress.epoch - self._first[0], now - self._first[1]
        left = None if self._budget is None else max(self._budget - (now - self._begin), 0.0)
        if timed < _TIMED_EPOCHS and (timed < 1 or taken < _TIMED_SECONDS):
            return left
        self.is_judged = True
        groups_left = max(self._num_seeds - self._num_done, progress.num_runs) / progress.num_runs
        at_most = taken / timed * (groups_left * progress.epochs - progress.epoch)
        return at_most if left is None else min(at_most, left)


@contextmanager
def show_progress(
    title: str, num_seeds: int = 1, budget: float | None = None, below: object = None
) -> Iterator[Callable[[Progress], None]]:
    """Gives a callback for `fit`, which also says once, after the first epochs, that a training may take hours or days.

    The training has so many seeds in all and ends after its budget of seconds; `below` stands below the bar.
    """
    clock, is_said = _TimeLeft(num_seeds, budget), False
    with _display(title, below=below) as display:

        def show(progress: Progress) -> None:
            nonlocal is_said
            left = clock.seconds(progress)
            if clock.is_judged and left is not None and left > _LONG_SECONDS and not is_said:
                is_said = True
                typer.echo(
                    f"{title}: this may take {in_words(left)}, for up to {progress.epochs} epochs; it ends earlier "
                    "once validation stops getting better. Ctrl-C stops it, --resume goes on, and --budget TIME ends "
                    "it with what it has.",
                    err=True,
                )
            scores = progress.val if not all(map(math.isnan, progress.val.values())) else {}  # no validation yet
            trained = (
                f"epoch {progress.epoch}/{progress.epochs}, {progress.num_active}/{progress.num_runs} runs, "
                f"train loss {progress.train_loss:.3f}"
            )
            time_left = [] if left is None else [f"at most {in_words(left)} left"]
            state = ", ".join([trained, *(f"val {name} {score:.3f}" for name, score in scores.items()), *time_left])
            display(progress.epoch, progress.epochs, state, None)

        yield show


@contextmanager
def show_auto(title: str, budget: float) -> Iterator[Callable[[AutoProgress], None]]:
    """Gives a callback for `graphjoule.tuning.auto`."""
    with _display(title, "s") as display:

        def show(progress: AutoProgress) -> None:
            best = progress.best
            so_far = f"best {best.name} {best.score:.3f}, " if best is not None and best.score is not None else ""
            epoch = f", epoch {progress.training.epoch}" if progress.training else ""
            spent = min(max(budget - progress.seconds_left, 0.0), budget)
            display(round(spent), round(budget), f"{so_far}{progress.rung}: {progress.name}{epoch}", progress.rung)

        yield show


@contextmanager
def show_study(name: str) -> Iterator[Callable[[StudyProgress], None]]:
    """Gives a callback for `graphjoule.studies.work`."""
    with _display(name, "runs", step="") as display:

        def show(progress: StudyProgress) -> None:
            left = "" if progress.seconds_left is None else f"about {in_words(progress.seconds_left)} left, "
            epoch = f", epoch {progress.training.epoch}" if progress.training else ""
            job = progress.job or "waiting for another process that trains the rest"
            display(progress.num_done, progress.num_runs, f"{left}{job}{epoch}", progress.job)

        yield show


@contextmanager
def show_search(storage: SearchStorage, num_trials: int) -> Iterator[Callable[[TrialProgress | None], None]]:
    """Gives a callback for `graphjoule.tuning.work`, or to be called with None now and then."""
    from graphjoule.tuning.queue import attempts_of, is_over

    def state() -> tuple[int, str]:
        over = [tries[-1] for tries in attempts_of(storage.trials()).values() if is_over(tries[-1])]
        values = [trial.value for trial in over if trial.value is not None]
        if not values:
            return len(over), "none has a result yet"
        return len(over), f"best {max(values) if storage.study.direction.name == 'MAXIMIZE' else min(values):.4f}"

    with _display(storage.ref.name, "trials", step=state()[0]) as display:

        def show(progress: TrialProgress | None) -> None:
            training = progress.training if progress is not None else None
            if training is not None and (training.epoch % 10 or not sys.stderr.isatty()):
                return  # reading the storage takes time
            num_over, best = state()
            display(num_over, num_trials, f"{best}, epoch {training.epoch}" if training else best, num_over)

        yield show


class LayerTable:
    """The latest energies: a table on a terminal, which `rich` draws below the bar, and a line each time elsewhere.

    Args:
        title: of the training, at the beginning of a line.
    """

    def __init__(self, title: str) -> None:
        self._title, self._epoch = title, 0
        self._rows: Sequence[LayerTrace] = ()

    def show(self, epoch: int, rows: Sequence[LayerTrace]) -> None:
        """Take the rows of all layers after an epoch."""
        self._epoch, self._rows = epoch, rows
        if not sys.stderr.isatty():
            typer.echo(f"{self._title}: {self.line()}", err=True)

    def line(self) -> str:
        """The energies of some layers, and the layer whose neighbours are most alike."""
        from graphjoule.training.evaluation import spread

        energies = ", ".join(f"{k + 1}: {self._rows[k]['energy']:.3g}" for k in spread(len(self._rows), _MOST_NAMED))
        least = min(range(len(self._rows)), key=lambda k: _size(self._rows[k]["rayleigh"]), default=None)
        ending = "" if least is None else f"; lowest E / |X|^2 {self._rows[least]['rayleigh']:.2g} at layer {least + 1}"
        return f"epoch {self._epoch}, energy of layer {energies}{ending}"

    def __rich__(self) -> Table:
        """The table."""
        from rich.table import Table

        from graphjoule.training.evaluation import spread

        table = Table(title=f"energy of every layer after epoch {self._epoch}" if self._rows else None, box=None)
        if not self._rows:
            return table
        for name in ("layer", "energy", "E / |X|^2"):
            table.add_column(name, justify="right")
        table.add_column("")
        top = max((_size(row["energy"]) for row in self._rows if math.isfinite(row["energy"])), default=0.0)
        for k in spread(len(self._rows), _MOST_LAYERS):
            row = self._rows[k]
            table.add_row(str(k + 1), f"{row['energy']:.3g}", f"{row['rayleigh']:.3g}", _bar(row["energy"], top))
        return table


def _size(value: float) -> float:
    """A number to compare by: what is not finite is below all."""
    return value if math.isfinite(value) else -1.0


def _bar(value: float, top: float) -> str:
    """A bar on a logarithmic scale; the longest is that of `top`.

    >>> len(_bar(1.0, 1.0)), len(_bar(1e-6, 1.0)), _bar(0.0, 1.0), _bar(float("nan"), 1.0)
    (24, 12, '', '')
    """
    if not (math.isfinite(value) and value > 0 and top > 0):
        return ""
    return "█" * max(1, round(_BAR * (1 + math.log10(value / top) / _DECADES)))
