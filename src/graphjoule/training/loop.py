"""The epoch loop of one batch of seeds: how it is captured, stopped and closed."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from graphjoule.nn import GraphModel
from graphjoule.ops import fold_in
from graphjoule.tasks import Split
from graphjoule.trace import TraceView
from graphjoule.training.calibration import Calibration
from graphjoule.training.evaluation import Predicted
from graphjoule.training.seed_batch import SeedBatch

# How often the host looks at the device. A CPU has nothing to wait for; on a GPU each look empties its queue, unless an
# epoch has to wait for the device anyway.
_LOOK_EVERY = {"cpu": 1, "cuda": 10}
_WARM_UP_CALLS = 2  # libraries choose their algorithms and workspaces in the first calls, outside the graph
_ECHO_SECONDS = 1.0  # `timeout`, job schedulers and wrappers signal a program and then its group: twice at once


class TrainingInterrupted(Exception):  # noqa: N818 - asked for, not an error
    """Training stopped on request; the state at `epoch` is saved."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"stopped after epoch {epoch}")
        self.epoch = epoch


@dataclass(frozen=True)
class Progress:
    """How far a batch of runs is: what a progress bar shows.

    Attributes:
        epoch: number of epochs done.
        epochs: the most there can be.
        num_active: number of runs that still train.
        num_runs: number of all runs.
        train_loss: of this epoch, the mean over the runs that still train, or over all if none does.
        val: loss and metrics by name, the same means in the last epoch that was validated; NaN before the first one.
        trace: traces a pass of the first run that still trains, called with names of measures, at its own cost; None
            where no pass goes over the whole graph.
    """

    epoch: int
    epochs: int
    num_active: int
    num_runs: int
    train_loss: float
    val: dict[str, float] = field(default_factory=dict)
    trace: Callable[[Sequence[str]], TraceView] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class RunResult:
    """What came out of one run. The test scores and `predicted` are all that saw a test target."""

    seed: int
    split: Split
    failure: str | None
    curve: dict[str, list[float]]
    epochs_run: int
    selected_epoch: int | None
    val: dict[str, float] | None
    test: dict[str, float] | None
    model: GraphModel
    calibration: Calibration | None = None
    predicted: dict[str, Predicted] = field(default_factory=dict)


def train(
    batch: SeedBatch,
    split_of: Mapping[int, Split],
    *,
    should_stop: Callable[[], bool],
    save: Callable[[SeedBatch], None],
    save_every: int,
    on_progress: Callable[[Progress], None],
    is_time_up: Callable[[], bool] | None = None,
) -> Iterator[RunResult]:
    """Train until every run has stopped; yields each run's result as soon as it has.

    Runs that have stopped are dropped from the program once they are a quarter of it: fewer rows, same results.

    Args:
        batch: the state to train on, fresh or restored.
        split_of: the split of each seed of the whole batch, some of which may be gone from `batch` already.
        should_stop: asked after every epoch; if so, the state is saved and `TrainingInterrupted` raised.
        save: called with the state every `save_every` epochs.
        save_every: epochs between two calls of `save`.
        on_progress: called whenever the host looks at the device.
        is_time_up: asked after every epoch once there was a validation; if so, all runs end with what they have.
    """
    device = batch.parameters.device
    look_every = _LOOK_EVERY[device.type] if batch.is_capturable else 1
    epochs = batch.recipe.train.epochs
    step = _step_of(batch)
    for epoch in range(int(batch.epoch), epochs):
        step()
        done = epoch + 1
        last = done == epochs
        if is_time_up is not None and batch.last_validation(done):
            last = batch.is_stop_agreed(is_time_up()) or last
        if done % look_every == 0 or last:
            on_progress(_progress(batch, done, len(split_of)))
            stopped = [True] * len(batch.seeds) if last else batch.selection.state["stopped"].tolist()
            if all(stopped) or sum(stopped) * 4 >= len(stopped):
                yield from (_result(batch, run, split_of) for run, is_over in enumerate(stopped) if is_over)
                if all(stopped):
                    return
                batch.keep([run for run, is_over in enumerate(stopped) if not is_over])
                step = _step_of(batch)
        is_asked_to_stop = batch.is_stop_agreed(should_stop())
        if done % save_every == 0 or is_asked_to_stop:
            save(batch)
        if is_asked_to_stop:
            raise TrainingInterrupted(done)


def _step_of(batch: SeedBatch) -> Callable[[], None]:
    """One epoch of the runs, as a CUDA graph where it can be one."""
    return CapturedStep(batch.train_epoch, batch.parameters.device) if batch.is_capturable else batch.train_epoch


def _score_names(batch: SeedBatch) -> list[str]:
    return ["loss", *(metric.name for metric in batch.watched)]


def _progress(batch: SeedBatch, epoch: int, num_runs: int) -> Progress:
    active = batch.selection.active
    validated = batch.last_validation(epoch)
    rows = batch.curve[:, epoch - 1].clone()
    rows[:, 1:] = batch.curve[:, validated - 1, 1:] if validated else math.nan
    loss, *val = (rows[active] if bool(active.any()) else rows).mean(dim=0).tolist()
    scores = dict(zip(_score_names(batch), val, strict=True))
    trace = batch.traced if batch.is_whole else None
    return Progress(epoch, batch.recipe.train.epochs, int(active.sum()), num_runs, loss, scores, trace)


def _result(batch: SeedBatch, run: int, split_of: Mapping[int, Split]) -> RunResult:
    """Close one run: read its curve, score all metrics, and read, for the first and only time, the test targets."""
    state: dict[str, Any] = {name: value[run].tolist() for name, value in batch.selection.state.items()}
    seed, epochs_run = batch.seeds[run], state["last_epoch"] + 1
    names = _score_names(batch)
    curves = batch.curve[run, :epochs_run].T.tolist()
    selected = state["best_epoch"] >= 0  # a run may fail before its first good epoch
    failure = describe_failure(batch, run) if state["failed"] else None
    if not selected and failure is None:
        failure = f"seed {seed}: {batch.recipe.train.select_on} is not defined on the validation nodes in any epoch"
    split = split_of[seed]
    val, test, calibration = dict(zip(names, state["best"], strict=True)), None, None
    predicted: dict[str, Predicted] = {}
    if failure is None:
        # What chose the epoch stays as it was then; the same pass again may round in another way.
        again, test, calibration, predicted = batch.final_scores(run, split)
        val = {name: val.get(name, score) for name, score in again.items()}
    return RunResult(
        seed=seed,
        split=split,
        failure=failure,
        curve=dict(zip(["train_loss", *(f"val_{name}" for name in names)], curves, strict=True)),
        epochs_run=epochs_run,
        selected_epoch=state["best_epoch"] if selected else None,
        val=val if selected else None,
        test=test,
        model=batch.selected_model(run),
        calibration=calibration,
        predicted=predicted,
    )


class CapturedStep:
    """A step that is recorded as a CUDA graph at its third call and replayed from then on.

    The first two calls run as they are and count as real steps. The step must work in place on tensors that stay where
    they are, and must not wait for the device.

    Args:
        step: the function to capture; it takes nothing and returns nothing.
        device: where it runs; anything but a CUDA device means that every call runs as it is.
    """

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self._step, self._device = step, device
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Make one step."""
        if self._device.type != "cuda":
            self._step()
            return
        self._calls += 1
        if self._calls <= _WARM_UP_CALLS:  # on a side stream, which capture asks of its warm-up
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                self._step()
            torch.cuda.current_stream(self._device).wait_stream(stream)
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._step()
        self._graph.replay()


class StopRequest:
    """Whether somebody has asked the training to stop at the next epoch."""

    def __init__(self) -> None:
        self.requested = False
        self._asked_at = 0.0

    def request(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler: the first signal asks, one that comes later than its echo interrupts at once."""
        now = time.monotonic()
        if self.requested and now - self._asked_at > _ECHO_SECONDS:
            raise KeyboardInterrupt
        if not self.requested:
            self.requested, self._asked_at = True, now


def stop_signals() -> list[signal.Signals]:
    """The signals that ask a program to end; without SIGHUP where it is ignored, as under nohup."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    found = [signal.Signals[name] for name in names if name in signal.Signals.__members__]
    return [signum for signum in found if signal.getsignal(signum) is not signal.SIG_IGN]


@contextmanager
def deferred_interrupt() -> Iterator[StopRequest]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into a request that the epoch loop reads: no saved state is half an epoch.

    The command line uses it; `fit` in a program of the user's leaves the signals alone.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread alone
        yield request
        return
    signals = stop_signals()
    before = [signal.signal(signum, request.request) for signum in signals]
    try:
        yield request
    finally:
        for signum, handler in zip(signals, before, strict=True):
            signal.signal(signum, handler)


@torch.no_grad()
def describe_failure(batch: SeedBatch, run: int) -> str:
    """A sentence that names the epoch and the layer at which a failed run's loss stopped being finite.

    A run's parameters stay as they were when its loss broke, so the same forward pass can be made again and watched.
    """
    epoch = int(batch.selection.state["last_epoch"][run])
    model = batch.current_model(run).to(batch.task.targets.device)
    parameter = next((name for name, value in model.named_parameters() if not torch.isfinite(value).all()), None)
    layer = f"the parameter {parameter}" if parameter else _first_bad_output(batch, run, model, epoch) or "the loss"
    return f"seed {batch.seeds[run]}: the loss is not finite at epoch {epoch}; the first thing not finite is {layer}"


def _first_bad_output(batch: SeedBatch, run: int, model: nn.Module, epoch: int) -> str | None:
    """The first module to finish with an output that is not finite, in training or else in evaluation."""
    key = fold_in(batch.keys[run].to(batch.task.targets.device), epoch)
    for training in (True, False):
        seen: list[tuple[str, bool]] = []

        def note(name: str, module: nn.Module, inputs: Any, output: Any, seen: list[Any] = seen) -> None:
            seen.append((name, isinstance(output, Tensor) and not bool(torch.isfinite(output).all())))

        model.train(training)
        with ExitStack() as hooks, batch._random_numbers():
            for name, module in model.named_modules():
                if name:
                    hooks.enter_context(module.register_forward_hook(partial(note, name)))
            model(batch.features, batch.task.graph, key=key)
        # Modules finish in the same order on every part of a graph; rows that are not finite may be on one part alone.
        flags = torch.tensor([bad for _, bad in seen], dtype=torch.float64, device=batch.task.targets.device)
        is_bad = batch._total(flags).tolist()
        if first := next((name for (name, _), bad in zip(seen, is_bad, strict=True) if bad), None):
            return f"the output of layer {first}"
    return None
