"""The epoch loop of one group of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from graphjoule.nn import GraphModel
from graphjoule.tasks import Split
from graphjoule.training.capture import CapturedStep
from graphjoule.training.failure import describe_failure
from graphjoule.training.interrupt import StopRequest
from graphjoule.training.seed_batch import Runs

CURVE_NAMES = ("train_loss", "val_loss", "val_accuracy")
# How often the host looks at the device. A CPU has nothing to wait for; on a GPU each look empties its queue, unless an
# epoch has to wait for the device anyway.
_LOOK_EVERY = {"cpu": 1, "cuda": 10}


class TrainingInterrupted(Exception):  # noqa: N818 - asked for, not an error
    """Training stopped on request; the state at `epoch` is saved."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"stopped after epoch {epoch}")
        self.epoch = epoch


@dataclass(frozen=True)
class Progress:
    """How far a group of runs is: what a progress bar shows.

    Attributes:
        epoch: number of epochs done.
        epochs: the most there can be.
        num_active: number of runs that still train.
        num_runs: number of all runs.
        train_loss: of this epoch, the mean over the runs that still train, or over all if none does.
        val_loss: the same mean in the last epoch that was validated; NaN before the first one.
        val_accuracy: likewise.
    """

    epoch: int
    epochs: int
    num_active: int
    num_runs: int
    train_loss: float
    val_loss: float
    val_accuracy: float


@dataclass(frozen=True)
class RunResult:
    """What came out of one run. The test accuracy is the only thing that saw a test label."""

    seed: int
    split: Split
    failure: str | None
    curve: dict[str, list[float]]
    epochs_run: int
    selected_epoch: int | None
    val_loss: float | None
    val_accuracy: float | None
    test_accuracy: float | None
    model: GraphModel


def train(
    runs: Runs,
    split_of: Mapping[int, Split],
    *,
    stop: StopRequest,
    save: Callable[[Runs], None],
    save_every: int,
    on_progress: Callable[[Progress], None],
) -> Iterator[RunResult]:
    """Train until every run has stopped; yields each run's result as soon as it has.

    Runs that have stopped are dropped from the program once they are a quarter of it: fewer rows, same results.

    Args:
        runs: the state to train on, fresh or restored.
        split_of: the split of each seed of the whole group, some of which may be gone from `runs` already.
        stop: read after every epoch; when set, the state is saved and `TrainingInterrupted` raised.
        save: called with the state every `save_every` epochs.
        save_every: epochs between two calls of `save`.
        on_progress: called whenever the host looks at the device.
    """
    device = runs.parameters.device
    look_every = _LOOK_EVERY[device.type] if runs.is_capturable else 1
    num_runs = len(split_of)
    step = _step_of(runs)
    for epoch in range(int(runs.epoch), runs.recipe.epochs):
        step()
        done = epoch + 1
        last = done == runs.recipe.epochs
        if done % look_every == 0 or last:
            on_progress(_progress(runs, done, num_runs))
            stopped = [True] * len(runs.seeds) if last else runs.selection.state["stopped"].tolist()
            if all(stopped) or sum(stopped) * 4 >= len(stopped):
                yield from (_result(runs, run, split_of) for run, is_over in enumerate(stopped) if is_over)
                if all(stopped):
                    return
                runs.keep([run for run, is_over in enumerate(stopped) if not is_over])
                step = _step_of(runs)
        is_asked_to_stop = runs.processes.any(stop.requested)  # a signal may reach processes in different epochs
        if done % save_every == 0 or is_asked_to_stop:
            save(runs)
        if is_asked_to_stop:
            raise TrainingInterrupted(done)


def _step_of(runs: Runs) -> Callable[[], None]:
    """One epoch of the runs, as a CUDA graph where it can be one: what other processes send cannot be recorded."""
    if runs.processes.size > 1 or runs.task.graph.part is not None or not runs.is_capturable:
        return runs.train_epoch
    return CapturedStep(runs.train_epoch, runs.parameters.device)


def _progress(runs: Runs, epoch: int, num_runs: int) -> Progress:
    active = runs.selection.active
    validated = runs.last_validation(epoch)
    rows = runs.curve[:, epoch - 1].clone()
    rows[:, 1:] = runs.curve[:, validated - 1, 1:] if validated else math.nan
    means = (rows[active] if bool(active.any()) else rows).mean(dim=0).tolist()
    return Progress(epoch, runs.recipe.epochs, int(active.sum()), num_runs, *means)


def _result(runs: Runs, run: int, split_of: Mapping[int, Split]) -> RunResult:
    """Close one run: read its curve, and now, for the first and only time, the test labels."""
    state = {name: value[run].item() for name, value in runs.selection.state.items()}
    seed, epochs_run = runs.seeds[run], int(state["last_epoch"]) + 1
    curve = runs.curve[run, :epochs_run].T.tolist()
    failed, selected = bool(state["failed"]), state["best_epoch"] >= 0  # a run may fail before its first good epoch
    return RunResult(
        seed=seed,
        split=split_of[seed],
        failure=describe_failure(runs, run) if failed else None,
        curve=dict(zip(CURVE_NAMES, curve, strict=True)),
        epochs_run=epochs_run,
        selected_epoch=int(state["best_epoch"]) if selected else None,
        val_loss=float(state["val_loss"]) if selected else None,
        val_accuracy=float(state["val_accuracy"]) if selected else None,
        test_accuracy=None if failed else _test_accuracy(runs, run, split_of[seed]),
        model=runs.selected_model(run),
    )


def _test_accuracy(runs: Runs, run: int, split: Split) -> float:
    """Share of test nodes that the selected parameters classify rightly."""
    test = split.test.to(runs.task.labels.device)
    correct = runs.selected_logits(run)[test].argmax(dim=-1) == runs.task.labels[test]
    num_test = split.sizes[2]
    return float(runs.task.graph.group.total(correct.double().sum())) / num_test if num_test else math.nan
