"""All seeds of one call of `fit`: which train together, what has come of them, and what is left to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.nn import GraphModel
from graphjoule.ops import backend_for, use_backend
from graphjoule.ops.backend import Backend, is_backend_chosen
from graphjoule.tasks import Split, Task
from graphjoule.tasks.objective import Classification
from graphjoule.training.budget import Budget
from graphjoule.training.build import Architecture, Draws
from graphjoule.training.folder import RunFolder
from graphjoule.training.loop import Progress, RunResult, train
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record
from graphjoule.training.seed_batch import SeedBatch, TermBuilder
from graphjoule.training.threads import ThreadWatch

logger = logging.getLogger("graphjoule")

_SHARE = 0.6  # of the memory that is free; the rest is for features, other programs and what a count forgets
_COPIES_OF_PARAMETERS = 8  # parameters, gradient, two moments, the best ones, and what a step makes in between


@dataclass
class Trainer:
    """One call of `fit`: the groups of seeds still to train and what has come of the others.

    Attributes:
        architecture: which network.
        recipe: how to train it.
        task: on which graph, where it is to stay.
        device: where steps are computed.
        seeds: one run each.
        terms: what is added to the loss, by name.
        checkpoint_every: epochs between two checkpoints.
        on_progress: called about once an epoch.
        should_stop: asked after every epoch.
        on_run_end: called when a run's model and record are written.
        folder: where records, models and checkpoints go; None writes nothing.
        groups: seeds that train together.
        records: what is done, by seed.
        models: of the runs of this call, by seed.
        budget: wall time after which runs end with what they have; groups that train one after the other share it.
        protocol: what the records name as the rules of the runs.
    """

    architecture: Architecture
    recipe: Recipe
    task: Task
    device: torch.device
    seeds: list[int]
    terms: Mapping[str, TermBuilder] = field(default_factory=dict)
    checkpoint_every: int = 50
    on_progress: Callable[[Progress], None] = lambda progress: None
    should_stop: Callable[[], bool] = lambda: False
    on_run_end: Callable[[Record], None] = lambda record: None
    folder: RunFolder | None = None
    groups: list[list[int]] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)
    models: dict[int, GraphModel] = field(default_factory=dict)
    budget: Budget | None = None
    protocol: str | None = None

    def __post_init__(self) -> None:
        self.check()
        self.facts = self.task.facts()
        self.split_of: dict[int, Split] = {seed: self.draw_split(seed) for seed in self.seeds}
        if any(not split.sizes[1] for split in self.split_of.values()):
            raise GraphjouleError(
                f"The split {self.recipe.data.split!r} of {self.task.name} has no validation nodes to select by."
            )
        self._check_selectable()
        self._built: dict[int, GraphModel] = {}
        self._has_warned = False
        self._next: SeedBatch | None = None
        self._num_threads: int | None = None
        self._backend: str | None = None  # of the group that trains; of one that went on elsewhere, two

    def check(self) -> None:
        """Refuse what cannot be trained together, and a term that does not fit the task."""
        self.task.objective.column(self.recipe.train.select_on)
        if "consistency" in self.terms:
            self.task.graph.require_whole("`terms.consistency`")
            if not isinstance(self.task.objective, Classification):
                raise GraphjouleError(
                    f"`terms.consistency` compares classes, and the objective of {self.task.name!r} is "
                    f"{self.task.objective.name}; leave it out."
                )

    def _check_selectable(self) -> None:
        """Refuse a metric that the validation targets do not define, whatever is predicted."""
        objective, select_on = self.task.objective, self.recipe.train.select_on
        for metric in objective.watched(select_on):
            for seed, split in self.split_of.items():
                if metric.finish is not None or split.val.numel() != split.sizes[1]:  # a part has not all of them
                    continue
                targets = self.task.targets[split.val]
                nothing = torch.zeros(len(targets), objective.out_channels, device=targets.device)
                if bool(metric.value(*objective.scored(objective.prediction(nothing), targets)).isnan()):
                    raise GraphjouleError(
                        f"`select_on` is {select_on!r}, which needs validation {self.task.unit}s of both kinds for a "
                        f"class or label; those of seed {seed} have none. Choose another split or metric."
                    )

    def make_batch(self, seeds: list[int]) -> SeedBatch:
        """The state of some runs before their first epoch."""
        splits = [self.split_of[seed] for seed in seeds]
        return SeedBatch(self.architecture, self.recipe, self.task, seeds, splits, self.terms, self._built)

    def draw_split(self, seed: int) -> Split:
        """The split of any seed, one of this call or not."""
        data = self.recipe.data
        return self.task.split(data.split, seed if data.split_seed is None else data.split_seed)

    def prepare(self, runs_at_once: int | None) -> None:
        """Plan which seeds train together, and build those that train first.

        So settings that a model or a term refuses are refused before the output folder is made.
        """
        if self.folder is not None and self.folder.is_taken:
            self.records = {seed: r for seed, r in self.folder.records().items() if seed in self.split_of}
            # A group is taken up as it was, with its checkpoint, unless a seed of it is no longer asked for.
            self.groups = [group for group in self.folder.about().groups if self.split_of.keys() >= set(group)]
        planned = {*self.records, *(seed for group in self.groups for seed in group)}
        new = [seed for seed in self.seeds if seed not in planned]
        at_once = self.most_at_once(runs_at_once, new[0]) if new else 1
        alike: dict[tuple[int, int], list[int]] = {}  # only seeds whose splits have the same sizes share a matrix
        for seed in new:
            alike.setdefault(self.split_of[seed].sizes[:2], []).append(seed)
        self.groups = [*self.groups, *(chunk for seeds in alike.values() for chunk in _chunks(seeds, at_once))]
        if (first := self._next_group()) is not None:
            self._next = self.make_batch(first)
            if not (model := self._next.model).is_stackable:  # only a call shows what a user's module returns
                with torch.no_grad(), Draws(0):
                    model.eval()(self._next.features, self.task.graph)
                model.train()

    def _next_group(self) -> list[int] | None:
        return next((group for group in self.groups if not self.records.keys() >= set(group)), None)

    def run(self) -> None:
        """Train every group of seeds that has a seed without a record."""
        self._plan(self.groups)
        while (group := self._next_group()) is not None:
            self._train_or_halve(group)
        if self.folder is not None:
            self.folder.drop_checkpoint()
            self.folder.write_card()

    def most_at_once(self, asked: int | None, seed: int) -> int:
        """How many runs train together: by default all that fit in free memory, each as large as that of `seed`."""
        if self.recipe.model.is_own:
            return 1
        if asked:
            return asked
        model = self.architecture.for_task(self.task.objective, self.task.num_features, seed)
        self._built[seed] = model
        like = next(model.parameters())
        is_held = "energy" in self.terms  # its hooks want to see every layer, and it keeps a product of each
        is_fused = not is_held and self.can_fuse(self.backend)
        kept = model.kept_activations(is_fused=is_fused) + is_held * model.num_layers
        activation = self.task.num_nodes * model.hidden_channels * like.itemsize
        parameters = sum(parameter.nbytes for parameter in model.parameters())
        kept *= max(getattr(term, "views", 1) for term in (None, *self.terms.values()))
        per_run = activation * kept + parameters * _COPIES_OF_PARAMETERS
        return max(1, min(len(self.seeds), int(_SHARE * free_bytes(self.task.targets.device) / per_run)))

    @property
    def backend(self) -> str:
        """Which implementation of the hot loops runs; a model of the user's own is computed by torch itself."""
        if self.recipe.model.is_own:
            return "torch"
        channels = self.recipe.model.hidden_channels or 1
        return backend_for(torch.empty(self.task.num_nodes, channels, device=self.device))

    def can_fuse(self, backend: str) -> bool:
        """Whether a backend fuses layers on this graph."""
        return backend != "reference"

    def _plan(self, groups: list[list[int]], members: Sequence[str] | None = None) -> None:
        """Note which seeds train together, in the folder too: after a kill they must be the same."""
        self.groups = groups
        if self.folder is not None:
            splits = {seed: self.split_of[seed].sha256 for group in groups for seed in group}
            self.folder.begin(self.recipe, groups, self.facts, splits, members)

    def _train_or_halve(self, group: list[int]) -> None:
        """Train one group, or if it does not fit in memory, make no group larger than half of it."""
        try:
            self._train(group)
            return
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(group) == 1 or not self.can_halve:
                raise self.out_of_memory() from error
        half = len(group) // 2
        logger.warning("%d runs at once do not fit in memory: going on with %d at once", len(group), half)
        torch.cuda.empty_cache()
        if self.folder is not None:
            self.folder.drop_checkpoint()
        self._plan([part for planned in self.groups for part in _chunks(planned, half)])

    can_halve = True

    def out_of_memory(self) -> GraphjouleError:
        """The error of a run that does not fit by itself."""
        model = self.recipe.model
        return GraphjouleError(
            f"One run of {model.name} with {model.num_layers} layers and width {model.hidden_channels} does not fit in "
            f"the memory of {self.device}; use fewer layers, a smaller hidden_channels, another device or more "
            "clusters of nodes."
        )

    def _train(self, group: list[int]) -> None:
        checkpoint = self.folder.load_checkpoint(self.recipe, group) if self.folder else None
        batch, self._next = self._next, None
        if batch is None or batch.seeds != group:
            batch = self.make_batch(group)
        clock, threads, backend = _ShareClock(), None, None
        if checkpoint is not None:
            state, clock.share = checkpoint
            assert self.folder is not None
            threads, backend = self.folder.checkpoint_threads, self.folder.checkpoint_backend
            self.folder.check_state(state, batch.snapshot())
            batch.restore(state)
            logger.info("resuming at epoch %d", int(batch.epoch))

        def save(batch: SeedBatch) -> None:
            clock.tick(len(batch.seeds))
            if self.folder is not None:
                self.folder.save_checkpoint(batch.snapshot(), self.recipe, group, clock.share)

        def should_stop() -> bool:
            if not (is_asked := self.should_stop()):
                watch.adapt()
            return is_asked

        share: Budget | None = None
        if self.budget is not None:
            num_left = sum(not self.records.keys() >= set(planned) for planned in self.groups)
            share = self.budget.part(self.budget.left / num_left)
        with self._going_on(backend), ThreadWatch(batch, threads, is_alone=self.can_halve) as watch:
            watch.adapt()
            self._num_threads = watch.number
            if self.folder is not None:
                self.folder.checkpoint_threads, self.folder.checkpoint_backend = watch.number, self._backend
            results = train(
                batch,
                {seed: self.split_of[seed] for seed in group},
                should_stop=should_stop,
                save=save,
                save_every=self.checkpoint_every,
                on_progress=self.on_progress,
                is_time_up=None if share is None else lambda: share.is_up,
            )
            for result in results:
                clock.tick(len(batch.seeds))
                self._evaluate(result, batch)
                clock.skip()  # the next run's time is its own
                self._warn_of_own(batch)
                self._finish(result, len(group), clock.share)

    @contextmanager
    def _going_on(self, before: str | None) -> Iterator[None]:
        """The backend that runs began with, unless it is not there or another one was asked for: then they had two."""
        is_here = before in get_args(Backend) and before != self.backend and not is_backend_chosen()
        if is_here:
            with use_backend(before):  # type: ignore[arg-type]
                is_here = self.backend == before
        with use_backend(before) if is_here else nullcontext():  # type: ignore[arg-type]
            self._backend = self.backend
            if before is not None and before.rpartition(", then ")[2] != self.backend:
                logger.warning(
                    "this training began with the backend %r and goes on with %r: from here on its numbers are rounded "
                    "in another way",
                    before,
                    self.backend,
                )
                self._backend = f"{before}, then {self.backend}"
            elif before is not None:
                self._backend = before
            yield

    def _warn_of_own(self, batch: SeedBatch) -> None:
        """Say once what a user's own module draws or changes that is no part of its run."""
        if self._has_warned or batch.model.is_stackable:
            return
        self._has_warned = True
        if changed := batch.changed_attributes():
            logger.warning(
                "%s changed in training; validation, checkpoints and the trained model have parameters and buffers "
                "alone: make it a buffer, with register_buffer",
                ", ".join(changed),
            )
        if batch.unseeded:
            logger.warning(
                "the random numbers of %s moved while %s ran: the same seed may give another training; see the part on "
                "random numbers in docs/own-model.md",
                " and ".join(batch.unseeded),
                self.recipe.model.name,
            )

    def adopt(self, runs: Sequence[tuple[Record, GraphModel]], members: Sequence[str] = ()) -> None:
        """Take over runs that were trained where no test target could be read: the test nodes are scored now, once.

        Args:
            runs: the record of each on the same training and validation nodes, and its selected model.
            members: see `graphjoule.training.folder.About`; their folders are there.
        """
        if self.folder is not None and self.folder.is_taken:
            self.records = {seed: r for seed, r in self.folder.records().items() if seed in self.split_of}
        self._plan([[record.seed for record, _ in runs]], members)
        for record, model in runs:
            if record.seed in self.records:
                continue
            self._backend = record.backend  # it was trained by that
            batch, split = self.make_batch([record.seed]), self.split_of[record.seed]
            batch.select(0, model)
            _, test, calibration, predicted = batch.final_scores(0, split)
            result = RunResult(
                seed=record.seed,
                split=split,
                failure=None,
                curve=record.curve,  # type: ignore[arg-type]  # None where a number was not finite, as a record has it
                epochs_run=record.epochs_run,
                selected_epoch=record.selected_epoch,
                val=record.val,  # type: ignore[arg-type]
                test=test,
                model=batch.selected_model(0),
                calibration=calibration,
                predicted=predicted,
            )
            self._evaluate(result, batch)
            self._finish(result, record.runs_at_once, record.seconds)
        if self.folder is not None:
            self.folder.write_card()

    def _evaluate(self, result: RunResult, batch: SeedBatch) -> None:
        """Keep what a report needs of the run, if it is the best of its folder on the validation nodes."""
        if self.folder is None or result.failure or result.val is None:
            return
        score = result.val[self.recipe.train.select_on]
        kept = self.folder.evaluated()
        if kept is None or self._is_better((result.seed, score), kept):
            found = batch.evaluation(result.seed, result.split, score, result.predicted, result.model)
            self.folder.write_evaluation(found)

    def _is_better(self, one: tuple[int, float], other: tuple[int, float]) -> bool:
        """Whether a seed's score is better than another's; of equal scores the first seed's."""
        _, is_higher_better = self.task.objective.column(self.recipe.train.select_on)
        mine, theirs = (one[1], other[1]) if is_higher_better else (-one[1], -other[1])
        return mine > theirs or (mine == theirs and one[0] <= other[0])

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
            objective=self.task.objective.name,
            failure=result.failure,
            protocol=self.protocol,
            device=self.describe_device(),
            backend=self._backend,
            runs_at_once=runs_at_once,
            seconds=seconds,
            peak_bytes=self.peak_bytes(),
            curve=result.curve,
            epochs_run=result.epochs_run,
            selected_epoch=result.selected_epoch,
            val=result.val or {},
            test=result.test or {},
        )
        if self.folder is not None:
            self.folder.add(result, record, self.recipe, self.facts)
        self.records[result.seed] = record
        self.models[result.seed] = result.model.eval()
        self.on_run_end(record)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that speaks for all."""
        return True

    def describe_device(self) -> str:
        """Where it was trained, in words."""
        return describe_device(self.device, self._num_threads)

    def peak_bytes(self) -> int:
        """The most memory used so far."""
        return peak_bytes(self.device)

    def all_models(self) -> list[GraphModel]:
        """The models in the order of the seeds; those of an earlier call are read from the folder."""
        models = dict(self.models)
        for seed in self.seeds:
            if seed not in models:
                assert self.folder is not None  # only a folder has runs of an earlier call
                like = self.architecture.for_task(self.task.objective, self.task.num_features, seed)
                models[seed] = self.folder.load_model(seed, like)
        return [models[seed] for seed in self.seeds]


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

    def skip(self) -> None:
        """Do not count the time since the last call."""
        self._last = time.perf_counter()


def _chunks(seeds: list[int], size: int) -> list[list[int]]:
    return [seeds[start : start + size] for start in range(0, len(seeds), size)]


def describe_device(device: torch.device, num_threads: int | None = None) -> str:
    """The device in words: the GPU's name, or "cpu (2 threads)", by default as many as torch has."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        threads = num_threads or torch.get_num_threads()
        return f"cpu ({threads} thread{'s' if threads != 1 else ''})"
    return str(device)


def resolve_device(device: str | torch.device) -> torch.device:
    """The device behind "auto", "cpu" or "cuda"; a CUDA device that is not there is refused."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise GraphjouleError(f"device is {device!r}; choose one of auto, cpu, cuda.") from error
    if resolved.type not in ("cpu", "cuda"):
        raise GraphjouleError(f"device is {str(device)!r}; choose one of auto, cpu, cuda.")
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise GraphjouleError("device is 'cuda', but torch finds no CUDA device here; choose cpu or auto.")
    return resolved


def free_bytes(device: torch.device) -> int:
    """Memory that can still be had on a device; of a CPU's also what a control group leaves of its limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = []
    with suppress(OSError):  # not Linux
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError):  # no control group
        folder = Path("/sys/fs/cgroup")
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        free += [] if limit == "max" else [max(0, int(limit) - int(used))]
    return min(free, default=4 * 2**30)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory could not be had: CUDA says so with a class of its own, the CPU only in words."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def peak_bytes(device: torch.device) -> int:
    """The most memory used so far: allocated tensors on a GPU, resident size of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
