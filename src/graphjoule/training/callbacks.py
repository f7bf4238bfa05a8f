"""What may listen to a training: the base class `Callback`, `LayerWatch` and `TensorBoard`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.files import printable, reason
from graphjoule.tasks.facts import TaskFacts
from graphjoule.trace import LayerTrace
from graphjoule.trace.trace import Alarm
from graphjoule.training.loop import Progress, TrainingInterrupted
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from graphjoule.fitting import FitResult


@dataclass(frozen=True)
class TrainingJob:
    """What a call of `fit` is about to train.

    Attributes:
        recipe: every setting.
        data: what it trains on, in numbers.
        seeds: one run each; some may be done already where a training goes on.
        device: where steps are computed.
        folder: where records, models and checkpoints go; None writes nothing.
    """

    recipe: Recipe
    data: TaskFacts
    seeds: list[int]
    device: torch.device
    folder: Path | None


class Callback:
    """Listens to a training: ``fit(..., callbacks=[MyCallback()])`` calls what a subclass overrides.

    Where many processes train together, the first one calls them. What a callback raises ends the training and is
    raised by `fit`, but nothing is lost where `fit` has an ``out``: the runs that are done are recorded before, and of
    the others the epoch is saved first, so that ``resume=True`` goes on from there.

    Example:
        >>> class Longest(Callback):
        ...     epochs = 0
        ...     def on_run_end(self, record):
        ...         self.epochs = max(self.epochs, record.epochs_run)
        >>> from graphjoule import fit, load_recipe, load_task
        >>> longest = Longest()
        >>> recipe = load_recipe("gcn", "digits", 2, {"epochs": 3})
        >>> result = fit(recipe, load_task("digits"), device="cpu", callbacks=[longest])
        >>> longest.epochs
        3
    """

    def on_begin(self, job: TrainingJob) -> None:
        """Before the first epoch; nothing has been written yet."""

    def on_epoch(self, progress: Progress) -> None:
        """About once an epoch, on a GPU every ten: means over the runs that train together now."""

    def on_run_end(self, record: Record) -> None:
        """A run of this call is over, failed or done; its model and record are written. The record has its curve."""

    def on_end(self, result: FitResult) -> None:
        """All runs are over."""


class Listeners:
    """The callbacks of one call of `fit`; what one of them raises waits until the state is saved.

    `on_progress` listens to epochs too, and `should_stop` asks the training to stop for somebody else.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        if not isinstance(callbacks, Sequence):
            raise GraphjouleError(f"callbacks is a {type(callbacks).__name__}; expected a list of objects: [Print()].")
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise GraphjouleError(
                    f"callbacks has a {type(callback).__name__}; expected objects of a subclass of "
                    "graphjoule.training.Callback."
                )
        self.callbacks = list(callbacks)
        self._on_progress, self._should_stop = on_progress, should_stop
        self._error: Exception | None = None

    def on_epoch(self, progress: Progress) -> None:
        """Tell all of an epoch; what `on_progress` raises is not held back."""
        self._on_progress(progress)
        self._call([callback.on_epoch for callback in self.callbacks], progress)

    def on_run_end(self, record: Record) -> None:
        """Tell all of a run that is over."""
        self._call([callback.on_run_end for callback in self.callbacks], record)

    def _call(self, functions: Sequence[Callable[[Any], None]], argument: Any) -> None:
        if self._error is None:
            try:
                for function in functions:
                    function(argument)
            except Exception as error:
                self._error = error

    def should_stop(self) -> bool:
        """Whether somebody asks the training to stop, or a callback has failed."""
        return self._error is not None or self._should_stop()

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Train within the block: what a callback has raised is raised at its end, where everything is saved."""
        try:
            yield
        except TrainingInterrupted as stopped:
            if self._error is None:
                raise
            self._error.add_note(f"graphjoule: a callback raised this; the training {stopped}.")
        if self._error is not None:
            raise self._error


class LayerWatch(Callback):
    """Looks at every layer while a training runs: its energy, norm and their quotient, of the first run that trains.

    A look is one more pass in evaluation mode. It is taken every so many epochs, but never before looks would take more
    than `most` of the time, so that is what watching costs beyond the first look, which is always taken. There is none
    where the graph is trained in parts.

    Args:
        show: called with the epoch and the rows of all layers; None shows nothing.
        on_collapse: what to do when a layer dies, as in `Trace`: "warn" once per layer, "stop" with a `LayerCollapse`,
            or a function that is called with its row.
        every: epochs from one look to the next.
        most: the largest share of the time that looks may take.

    Example:
        >>> from graphjoule import fit, load_recipe, load_task
        >>> seen = {}
        >>> watch = LayerWatch(lambda epoch, rows: seen.update({epoch: [row.name for row in rows]}), every=2, most=1.0)
        >>> result = fit(load_recipe("gcn", "digits", 2, {"epochs": 3}), load_task("digits"), callbacks=[watch])
        >>> seen
        {1: ['convs.0', 'convs.1'], 3: ['convs.0', 'convs.1']}
    """

    def __init__(
        self,
        show: Callable[[int, list[LayerTrace]], None] | None = None,
        *,
        on_collapse: str | Callable[[LayerTrace], None] | None = None,
        every: int = 10,
        most: float = 0.05,
    ) -> None:
        if every < 1:
            raise GraphjouleError(f"every is {every}; it must be at least 1.")
        if not 0 < most <= 1:
            raise GraphjouleError(f"most is {most}; it must be in (0, 1].")
        self._show, self._every, self._most = show, every, most
        self._alarm = None if on_collapse is None else Alarm(on_collapse)
        self._begin, self._spent, self._last = time.perf_counter(), 0.0, math.inf

    def on_begin(self, job: TrainingJob) -> None:
        """Start the clock."""
        self._begin, self._spent, self._last = time.perf_counter(), 0.0, math.inf

    def on_epoch(self, progress: Progress) -> None:
        """Look, if it is time: at the first epoch of a group of seeds, and then every so often."""
        begin = time.perf_counter()
        is_due = not 0 <= progress.epoch - self._last < self._every
        if progress.trace is None or not is_due or self._spent > self._most * (begin - self._begin):
            return
        self._last = progress.epoch
        rows = progress.trace(("energy", "norm", "rayleigh")).layers
        if self._show is not None:
            self._show(progress.epoch, rows)
        self._spent += time.perf_counter() - begin
        if self._alarm is not None:
            for row in rows:
                self._alarm.check(row, f"epoch {progress.epoch}")


class TensorBoard(Callback):
    """Writes curves for TensorBoard: ``seed-N`` for every run once it is over, and the mean of all while they train.

    Beside the mean are the energies of every layer, as ``energy/LAYER``, of the first run that trains; see `LayerWatch`
    for when, and for what that costs. It needs the package of the extra ``tensorboard``;
    ``tensorboard --logdir FOLDER`` shows what is there.

    Args:
        folder: where to write; made when there is something to write.
        most: the largest share of the time that looking at energies may take; 0 leaves them out.
    """

    def __init__(self, folder: str | os.PathLike[str], *, most: float = 0.05) -> None:
        self.folder = Path(folder)
        self._watch = LayerWatch(self._write_energies, most=most) if most else None
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError as error:
            raise GraphjouleError(
                "Writing for TensorBoard needs tensorboard, which is not installed: pip install "
                "'graphjoule[tensorboard]'."
            ) from error
        if printable(str(self.folder)) != str(self.folder):
            raise GraphjouleError(
                f"Cannot write for TensorBoard into {str(self.folder)!a}: it takes paths in UTF-8 alone; name another."
            )
        if self.folder.exists() and not self.folder.is_dir():
            raise GraphjouleError(f"Cannot write for TensorBoard into {self.folder}: it is a file; name a folder.")
        self._mean: SummaryWriter | None = None
        self._group, self._epoch = 1, 0

    def on_begin(self, job: TrainingJob) -> None:
        """Begin with the first group of seeds."""
        self._group, self._epoch = 1, 0
        if self._watch is not None:
            self._watch.on_begin(job)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say in words that the disk is full or broken."""
        try:
            yield
        except OSError as error:
            raise GraphjouleError(
                f"Cannot write for TensorBoard into {self.folder}: {reason(error)}; without it the training goes on "
                "with `resume=True`."
            ) from error

    def on_epoch(self, progress: Progress) -> None:
        """Write the means, of seeds that train after others as a curve of their own."""
        with self._writing():
            self._write_means(progress)

    def _write_means(self, progress: Progress) -> None:
        if progress.epoch <= self._epoch:
            self._close()
            self._group += 1
        self._epoch = progress.epoch
        if self._mean is None:
            self._mean = self._writer("mean" if self._group == 1 else f"mean-{self._group}")
        scores = {"train_loss": progress.train_loss, **{f"val_{name}": value for name, value in progress.val.items()}}
        for name, value in scores.items():
            if math.isfinite(value):
                self._mean.add_scalar(name, value, progress.epoch)
        if self._watch is not None:
            self._watch.on_epoch(progress)

    def _write_energies(self, epoch: int, rows: list[LayerTrace]) -> None:
        assert self._mean is not None
        for row in rows:
            if math.isfinite(row["energy"]):
                self._mean.add_scalar(f"energy/{row.name}", row["energy"], epoch)

    def on_run_end(self, record: Record) -> None:
        """Write the whole curve of a run."""
        with self._writing():
            writer = self._writer(f"seed-{record.seed}")
            for name, values in record.curve.items():
                for epoch, value in enumerate(values, start=1):
                    if value is not None:  # was not finite, or not validated
                        writer.add_scalar(name, value, epoch)
            writer.close()

    def on_end(self, result: FitResult) -> None:
        """Close the files."""
        with self._writing():
            self._close()

    def _close(self) -> None:
        if self._mean is not None:
            self._mean.close()
            self._mean = None

    def _writer(self, name: str) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        # Flushed often: a training that is killed does not close it.
        return SummaryWriter(str(self.folder / name), flush_secs=5)
