"""`fit`: train a recipe on a task with one or many seeds, and tell the result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from graphjoule.environment import describe_device, resolve_device
from graphjoule.errors import GraphjouleError
from graphjoule.nn import GraphModel
from graphjoule.ops import describe_body
from graphjoule.recipe import Recipe
from graphjoule.records import Record, Summary, summarise
from graphjoule.saving import load_model
from graphjoule.tasks import NodeTask, Split
from graphjoule.training.folder import RunFolder
from graphjoule.training.interrupt import StopRequest, deferred_interrupt
from graphjoule.training.loop import Progress, RunResult, train
from graphjoule.training.memory import is_out_of_memory, peak_bytes, runs_that_fit
from graphjoule.training.runs import Runs

logger = logging.getLogger("graphjoule")


@dataclass(frozen=True)
class FitResult:
    """The records of all runs in the order of their seeds, and their models."""

    records: list[Record]
    models: list[GraphModel]
    folder: Path | None = None

    @property
    def summary(self) -> Summary:
        """Mean and spread over the runs."""
        return summarise(self.records)


def fit(
    recipe: Recipe,
    task: NodeTask,
    seeds: Sequence[int] = (0,),
    *,
    device: str | torch.device = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    runs_at_once: int | None = None,
    checkpoint_every: int = 50,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> FitResult:
    """Train a recipe on a task, all seeds in one program, by the paper's protocol.

    Validation chooses each run's epoch and when it stops; test labels are read once per run, after that. A split may
    have no test nodes; then a record has no test accuracy. The same seed gives the same run alone or among others up to
    rounding, and to the bit on a CPU if the same seeds train together.

    Args:
        recipe: every setting, see `load_recipe`.
        task: the graph, features, labels and splits.
        seeds: one run each.
        device: "auto" (CUDA if there is one), "cpu" or "cuda".
        out: folder for records, models and checkpoints; None writes nothing.
        resume: go on with what `out` holds, where another call was killed or interrupted.
        runs_at_once: how many runs to train together; by default as many as fit in memory. What `resume` goes on with
            stays together as it was.
        checkpoint_every: epochs between two checkpoints.
        on_progress: called about once an epoch with the mean losses.

    Returns:
        Records and models of all seeds.

    Raises:
        GraphjouleError: something given cannot be used; nothing has been written then.
        TrainingInterrupted: Ctrl-C; the state is saved if there is an `out`.
    """
    _check_positive(runs_at_once=runs_at_once, checkpoint_every=checkpoint_every)
    where = resolve_device(device)
    recipe = recipe.with_split_of(task)
    training = _Training(recipe, task.to(where), _check_seeds(seeds), checkpoint_every, on_progress)
    logger.info("%s", describe_body(where))
    if out is None:
        training.run(runs_at_once)
    else:
        folder = training.folder = RunFolder(out)
        folder.check(recipe, training.facts, resume=resume)
        with folder.open():
            training.run(runs_at_once)
    return training.result()


@dataclass
class _Training:
    """One call of `fit`: the groups of seeds still to train and what has come of the others."""

    recipe: Recipe
    task: NodeTask
    seeds: list[int]
    checkpoint_every: int
    on_progress: Callable[[Progress], None]
    folder: RunFolder | None = None
    groups: list[list[int]] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)
    models: dict[int, GraphModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        recipe = self.recipe
        self.facts = self.task.facts()
        self.split_of: dict[int, Split] = {
            seed: self.task.split(recipe.split, seed if recipe.split_seed is None else recipe.split_seed)
            for seed in self.seeds
        }
        if any(not split.val.numel() for split in self.split_of.values()):
            raise GraphjouleError(
                f"The split {recipe.split!r} of {self.task.name} has no validation nodes to select by."
            )
        # Settings that a model refuses are refused here, before the output folder is made.
        Runs(recipe, self.task, self.seeds[:1], [self.split_of[self.seeds[0]]])

    def run(self, runs_at_once: int | None) -> None:
        """Train every group of seeds that has a seed without a record."""
        if self.folder is not None and self.folder.is_taken:
            self.records = {seed: r for seed, r in self.folder.records().items() if seed in self.split_of}
            # A group is taken up as it was, with its checkpoint, unless a seed of it is no longer asked for.
            self.groups = [group for group in self.folder.about().groups if self.split_of.keys() >= set(group)]
        planned = {*self.records, *(seed for group in self.groups for seed in group)}
        new = [seed for seed in self.seeds if seed not in planned]
        at_once = runs_at_once or runs_that_fit(self.recipe, self.task, len(self.seeds))
        self._plan([*self.groups, *(c for alike in self._alike(new) for c in _chunks(alike, at_once))])
        with deferred_interrupt() as stop:
            while group := next((g for g in self.groups if not self.records.keys() >= set(g)), None):
                self._train_or_halve(group, stop)
        if self.folder is not None:
            self.folder.drop_checkpoint()
            self.folder.write_card()

    def _alike(self, seeds: list[int]) -> list[list[int]]:
        """Seeds whose splits have the same sizes, together: only they can be rows of one matrix."""
        by_size: dict[tuple[int, int], list[int]] = {}
        for seed in seeds:
            split = self.split_of[seed]
            by_size.setdefault((split.train.numel(), split.val.numel()), []).append(seed)
        return list(by_size.values())

    def _plan(self, groups: list[list[int]]) -> None:
        """Say which seeds train together, in the folder too: after a kill they must be the same."""
        self.groups = groups
        if self.folder is not None:
            self.folder.begin(self.recipe, groups, self.facts)

    def _train_or_halve(self, group: list[int], stop: StopRequest) -> None:
        """Train one group, or if it does not fit in memory, make no group larger than half of it."""
        try:
            self._train(group, stop)
            return
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(group) == 1:
                raise GraphjouleError(
                    f"One run of {self.recipe.model} with {self.recipe.num_layers} layers and width "
                    f"{self.recipe.hidden_channels} does not fit in the memory of {self.task.labels.device}; "
                    "use fewer layers, a smaller hidden_channels or another device."
                ) from error
        half = len(group) // 2
        logger.warning("%d runs at once do not fit in memory: going on with %d at once", len(group), half)
        torch.cuda.empty_cache()
        if self.folder is not None:
            self.folder.drop_checkpoint()
        self._plan([part for planned in self.groups for part in _chunks(planned, half)])

    def _train(self, group: list[int], stop: StopRequest) -> None:
        runs = Runs(self.recipe, self.task, group, [self.split_of[seed] for seed in group])
        clock = _ShareClock()
        checkpoint = self.folder.load_checkpoint(self.recipe, group) if self.folder else None
        if checkpoint is not None:
            state, clock.share = checkpoint
            runs.restore(state)
            logger.info("resuming at epoch %d", int(runs.epoch))

        def save(runs: Runs) -> None:
            clock.tick(len(runs.seeds))
            if self.folder is not None:
                self.folder.save_checkpoint(runs.snapshot(), self.recipe, group, clock.share)

        results = train(
            runs,
            {seed: self.split_of[seed] for seed in group},
            stop=stop,
            save=save,
            save_every=self.checkpoint_every,
            on_progress=self.on_progress,
        )
        for result in results:
            clock.tick(len(runs.seeds))
            self._finish(result, len(group), clock.share)

    def _finish(self, result: RunResult, runs_at_once: int, seconds: float) -> None:
        if result.seed in self.records:  # its record was written just before an earlier call was killed
            return
        if result.failure:
            logger.warning("%s", result.failure)
        record = Record.of(
            self.recipe,
            seed=result.seed,
            split_sha256=result.split.sha256,
            task_sha256=self.facts.sha256,
            failure=result.failure,
            device=describe_device(self.task.labels.device),
            runs_at_once=runs_at_once,
            seconds=seconds,
            peak_bytes=peak_bytes(self.task.labels.device),
            curve=result.curve,
            epochs_run=result.epochs_run,
            selected_epoch=result.selected_epoch,
            val_loss=result.val_loss,
            val_accuracy=result.val_accuracy,
            test_accuracy=result.test_accuracy if result.split.test.numel() else None,
        )
        if self.folder is not None:
            self.folder.add(result, record, self.recipe, self.facts)
        self.records[result.seed] = record
        self.models[result.seed] = result.model.eval()

    def result(self) -> FitResult:
        """All records and models; those of an earlier call are read from the folder."""
        models = [self.models.get(seed) or self._model_before(seed) for seed in self.seeds]
        path = self.folder.path if self.folder else None
        return FitResult([self.records[seed] for seed in self.seeds], models, path)

    def _model_before(self, seed: int) -> GraphModel:
        assert self.folder is not None  # only a folder has runs of an earlier call
        return load_model(self.folder.model_path(seed))


class _ShareClock:
    """Wall-clock seconds of one run: those of the program, divided by the runs it was training."""

    def __init__(self) -> None:
        self.share = 0.0
        self._last = time.perf_counter()

    def tick(self, num_runs: int) -> None:
        """Count the time since the last call for `num_runs` runs."""
        now = time.perf_counter()
        self.share += (now - self._last) / num_runs
        self._last = now


def _check_seeds(seeds: Sequence[int]) -> list[int]:
    seeds = list(seeds)
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0 or max(seeds) >= 2**32:
        raise GraphjouleError(f"seeds are {seeds}; expected one or more different numbers from 0 to {2**32 - 1}.")
    return seeds


def _check_positive(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise GraphjouleError(f"{name} is {count}; it must be at least 1.")


def _chunks(seeds: list[int], size: int) -> list[list[int]]:
    return [seeds[start : start + size] for start in range(0, len(seeds), size)]
