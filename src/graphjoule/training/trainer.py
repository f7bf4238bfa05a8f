"""All seeds of one call of `fit`: which train together, what has come of them, and what is left to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph.group import Group
from graphjoule.nn import GraphModel
from graphjoule.parallel.cluster_batch import cut_clusters
from graphjoule.parallel.cluster_runs import ClusterRuns
from graphjoule.tasks import NodeTask, Split
from graphjoule.training.environment import describe_device
from graphjoule.training.folder import RunFolder
from graphjoule.training.interrupt import StopRequest, deferred_interrupt
from graphjoule.training.loop import Progress, RunResult, train
from graphjoule.training.memory import is_out_of_memory, peak_bytes, runs_that_fit
from graphjoule.training.objective import build_model
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record
from graphjoule.training.seed_batch import Runs

logger = logging.getLogger("graphjoule")


@dataclass
class Campaign:
    """One call of `fit`: the groups of seeds still to train and what has come of the others.

    Attributes:
        recipe: what to train.
        task: on which graph, where it is to stay: on the device, or for clusters in host memory.
        device: where steps are computed.
        group: the processes that train together.
        seeds: one run each.
        checkpoint_every: epochs between two checkpoints.
        on_progress: called about once an epoch.
        folder: where records, models and checkpoints go; None writes nothing.
        groups: seeds that train together.
        records: what is done, by seed.
        models: of the runs of this call, by seed.
    """

    recipe: Recipe
    task: NodeTask
    device: torch.device
    group: Group
    seeds: list[int]
    checkpoint_every: int
    on_progress: Callable[[Progress], None] = lambda progress: None
    folder: RunFolder | None = None
    groups: list[list[int]] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)
    models: dict[int, GraphModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        recipe = self.recipe
        _check_group(recipe, self.task, self.group)
        self.facts = self.task.facts()
        self.split_of: dict[int, Split] = {seed: self.draw_split(seed) for seed in self.seeds}
        if any(not split.sizes[1] for split in self.split_of.values()):
            raise GraphjouleError(
                f"The split {recipe.split!r} of {self.task.name} has no validation nodes to select by."
            )
        self.clusters = None if recipe.clusters is None else cut_clusters(self.task.graph, recipe.clusters)
        # Settings that a model refuses are refused here, before the output folder is made.
        self._runs(self.seeds[:1])

    def draw_split(self, seed: int) -> Split:
        """The split of any seed, one of this call or not."""
        return self.task.split(self.recipe.split, seed if self.recipe.split_seed is None else self.recipe.split_seed)

    def _runs(self, seeds: list[int]) -> Runs:
        """The state of some runs before their first epoch."""
        splits = [self.split_of[seed] for seed in seeds]
        if self.clusters is None:
            return Runs(self.recipe, self.task, seeds, splits)
        return ClusterRuns(self.recipe, self.task, seeds, splits, self.clusters, device=self.device, group=self.group)

    def run(self, runs_at_once: int | None) -> None:
        """Train every group of seeds that has a seed without a record."""
        if self.folder is not None and self.folder.is_taken:
            self.records = {seed: r for seed, r in self.folder.records().items() if seed in self.split_of}
            # A group is taken up as it was, with its checkpoint, unless a seed of it is no longer asked for.
            self.groups = [group for group in self.folder.about().groups if self.split_of.keys() >= set(group)]
        planned = {*self.records, *(seed for group in self.groups for seed in group)}
        new = [seed for seed in self.seeds if seed not in planned]
        at_once = self._at_once(runs_at_once)
        self._plan([*self.groups, *(c for alike in self._alike(new) for c in _chunks(alike, at_once))])
        with deferred_interrupt() as stop:
            while group := next((g for g in self.groups if not self.records.keys() >= set(g)), None):
                self._train_or_halve(group, stop)
        if self.folder is not None:
            self.folder.drop_checkpoint()
            self.folder.write_card()

    def _at_once(self, asked: int | None) -> int:
        """How many runs train together; on clusters each by itself, for each goes over them in an order of its own."""
        if self.clusters is None:
            return asked or runs_that_fit(self.recipe, self.task, len(self.seeds))
        return 1

    def _alike(self, seeds: list[int]) -> list[list[int]]:
        """Seeds whose splits have the same sizes, together: only they can be rows of one matrix."""
        by_size: dict[tuple[int, int], list[int]] = {}
        for seed in seeds:
            by_size.setdefault(self.split_of[seed].sizes[:2], []).append(seed)
        return list(by_size.values())

    def _plan(self, groups: list[list[int]]) -> None:
        """Say which seeds train together, in the folder too: after a kill they must be the same."""
        self.groups = groups
        if self.folder is not None:
            splits = {seed: self.split_of[seed].sha256 for group in groups for seed in group}
            self.folder.begin(self.recipe, groups, self.facts, splits)

    def _train_or_halve(self, group: list[int], stop: StopRequest) -> None:
        """Train one group, or if it does not fit in memory, make no group larger than half of it."""
        try:
            self._train(group, stop)
            return
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self.group.size > 1:  # the others wait in the middle of an epoch
                raise GraphjouleError(
                    f"Process {self.group.rank} of {self.group.size} has not enough memory on {self.device}; "
                    "use more processes, fewer layers or a smaller hidden_channels."
                ) from error
            if len(group) == 1:
                raise GraphjouleError(
                    f"One run of {self.recipe.model} with {self.recipe.num_layers} layers and width "
                    f"{self.recipe.hidden_channels} does not fit in the memory of {self.device}; "
                    "use fewer layers, a smaller hidden_channels, another device or more clusters of nodes."
                ) from error
        half = len(group) // 2
        logger.warning("%d runs at once do not fit in memory: going on with %d at once", len(group), half)
        torch.cuda.empty_cache()
        if self.folder is not None:
            self.folder.drop_checkpoint()
        self._plan([part for planned in self.groups for part in _chunks(planned, half)])

    def _train(self, group: list[int], stop: StopRequest) -> None:
        runs = self._runs(group)
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
            device=self._describe_device(),
            runs_at_once=runs_at_once,
            seconds=seconds,
            peak_bytes=self.group.largest(peak_bytes(self.device)),
            curve=result.curve,
            epochs_run=result.epochs_run,
            selected_epoch=result.selected_epoch,
            val_loss=result.val_loss,
            val_accuracy=result.val_accuracy,
            test_accuracy=result.test_accuracy if result.split.sizes[2] else None,
        )
        if self.folder is not None:
            self.folder.add(result, record, self.recipe, self.facts)
        self.records[result.seed] = record
        self.models[result.seed] = result.model.eval()

    def _describe_device(self) -> str:
        size = self.group.size
        return describe_device(self.device) + (f", {size} processes" if size > 1 else "")

    def all_models(self) -> list[GraphModel]:
        """The models in the order of the seeds; those of an earlier call are read from the folder."""
        return [self.models.get(seed) or self._model_before(seed) for seed in self.seeds]

    def _model_before(self, seed: int) -> GraphModel:
        assert self.folder is not None  # only a folder has runs of an earlier call
        return self.folder.load_model(seed, build_model(self.recipe, self.task, seed))


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


def _check_group(recipe: Recipe, task: NodeTask, group: Group) -> None:
    """Refuse what needs the whole graph in one process, processes that would all do the same, and empty clusters."""
    for name, setting in (("constraint", recipe.constraint), ("clusters", recipe.clusters)):
        if setting is not None and task.graph.part is not None:
            raise GraphjouleError(
                f"The recipe has {name}, which needs the whole graph in one process, but the graph is in "
                f"{task.graph.group.size} parts; leave one of the two out."
            )
    if group.size > 1 and task.graph.part is None and recipe.clusters is None:
        raise GraphjouleError(
            f"There are {group.size} processes, each with the whole graph of {task.name}, and they have nothing to "
            "share; give each its part of the graph (`load_part`), or a recipe with clusters."
        )
    if recipe.clusters is not None and recipe.clusters.parts > (nodes := task.num_nodes):
        many = recipe.clusters.parts
        raise GraphjouleError(f"clusters is {many}; for a graph of {nodes} nodes it must be from 1 to {nodes}.")


def _chunks(seeds: list[int], size: int) -> list[list[int]]:
    return [seeds[start : start + size] for start in range(0, len(seeds), size)]
