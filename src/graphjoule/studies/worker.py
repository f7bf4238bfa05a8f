"""What a study still has to train, how long that takes, and the worker who does it beside others who do the same."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Final

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.files import file_lock, write_json
from graphjoule.fitting import FitResult, fit
from graphjoule.studies.collection import Collection
from graphjoule.studies.energies import measure_energies, read_energies
from graphjoule.studies.study import Cell
from graphjoule.tasks import Task
from graphjoule.training import Progress, deferred_interrupt, describe_device, resolve_device
from graphjoule.training.budget import in_words
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record, read_records
from graphjoule.training.trainer import is_out_of_memory

LOCKS: Final = ".claims"
"""The folder of the lock files in a study's folder, which is known as a study's by it."""
_POLL_SECONDS = 0.5  # how soon the work of a process that died is taken over


# What is left to do.


Load = Callable[[str], Task]
"""Makes the task of a dataset's name; it is called once per job, so keep what it made (`functools.cache`)."""


@dataclass(frozen=True)
class Job:
    """The runs of one recipe in one folder.

    Attributes:
        name: in words.
        recipe: what to train, its split by name.
        folder: where the runs are recorded.
        seeds: one run each.
        has_energies: whether the energies of the models are measured too.
        protocol: the rules that the records cite.
    """

    name: str
    recipe: Recipe
    folder: RunFolder
    seeds: tuple[int, ...]
    has_energies: bool = False
    protocol: str | None = None

    @property
    def energies_path(self) -> Path:
        """Where the energies of the models are."""
        return self.folder.path / "energies.json"

    def missing(self) -> list[int]:
        """Seeds without a record, by what the folder holds at this moment."""
        recorded = _read_states(self.folder.records_path)
        return [seed for seed in self.seeds if seed not in recorded]

    def lacks_energies(self) -> bool:
        """Whether there are runs whose energies are asked for and not measured."""
        states = _read_states(self.folder.records_path) if self.has_energies else {}
        done = {seed for seed, status in states.items() if status == "done" and seed in self.seeds}
        try:
            records = read_energies([self.energies_path]) if done and self.energies_path.exists() else []
        except GraphjouleError:
            records = []
        return not done <= {seed for record in records for seed in record.seeds}

    def lacks_results(self) -> bool:
        """Whether there is something left to compute."""
        return bool(self.missing()) or self.lacks_energies()

    def is_done(self) -> bool:
        """Whether nothing is left to do, not even to tidy up after a process that was killed at the very end."""
        is_tidy = self.folder.card_path.exists() and not (self.folder.path / "checkpoint.safetensors").exists()
        return not self.lacks_results() and (is_tidy or not self.seeds)

    def lock(self) -> AbstractContextManager[bool]:
        """Try to be the only process that works on it; the context's value says whether we are."""
        return file_lock(self.folder.path.parent / LOCKS / f"{self.folder.path.name}.lock")


def _read_states(path: Path) -> dict[int, str]:
    """The status of every recorded seed; read once for every size and time of change, because records are long."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return {}
    return _read_states_of(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _read_states_of(path: Path, size: int, changed: int) -> dict[int, str]:
    return {record.seed: record.status for record in read_records(path)}


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        jobs: every recipe once, those of a dataset together.
        num_runs: how many runs the cells have, each counted once.
        num_recorded: how many of them have a record already.
        unavailable: why the data of a dataset cannot be loaded, by its name.
    """

    jobs: list[Job]
    num_runs: int
    num_recorded: int
    unavailable: dict[str, str] = field(default_factory=dict)


def plan_study(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    out: Path,
    load: Load,
    *,
    elsewhere: Collection | None = None,
    has_energies: bool = False,
    protocol: str | None = None,
) -> Plan:
    """Find out what is left to do.

    Args:
        cells: the study's cells; those that come to the same recipe share their runs.
        seeds: one run each.
        out: the folder of all cells, of any study.
        load: makes the task of a dataset; a `GraphjouleError` says that its data cannot be loaded.
        elsewhere: runs that are recorded in other places and not repeated here.
        has_energies: whether energies are measured; that takes the models, so `elsewhere` does not count then.
        protocol: the rules that the records cite, see `Protocol.cited`.

    Raises:
        GraphjouleError: The data of the only dataset cannot be loaded, or a recipe cannot be made.
    """
    for cell in cells:
        cell.recipe  # noqa: B018 - a setting that cannot be used is an error before anything is read or written
    recorded = Collection() if elsewhere is None or has_energies else elsewhere
    datasets = list(dict.fromkeys(cell.dataset for cell in cells))
    jobs: list[Job] = []
    unavailable: dict[str, str] = {}
    for dataset in datasets:
        found: dict[str, Job] = {}
        try:
            for cell in (cell for cell in cells if cell.dataset == dataset):
                recipe = cell.recipe  # only a split called "default" needs the data
                recipe = recipe.with_split_of(load(dataset)) if recipe.data.split == "default" else recipe
                key = recipe.fingerprint()
                if key not in found:
                    # The fingerprint in the name makes one recipe one folder, whichever study asks for it.
                    folder = RunFolder(out / f"{dataset}-{cell.model}-{cell.num_layers}-{key[:10]}")
                    job = Job(cell.name, recipe, folder, tuple(seeds), has_energies, protocol)
                    # What the folder itself holds stays among the seeds: runs that were killed go on together.
                    known = recorded.of(recipe).keys() & set(job.missing())
                    found[key] = replace(job, seeds=tuple(seed for seed in seeds if seed not in known))
            if any(job.lacks_results() for job in found.values()):
                load(dataset)
        except GraphjouleError as error:
            if len(datasets) == 1:
                raise
            unavailable[dataset] = str(error)
        else:
            jobs += found.values()
    num_runs = len(jobs) * len(seeds)
    return Plan(jobs, num_runs, num_runs - sum(len(job.missing()) for job in jobs), unavailable)


# How long it takes.


@dataclass(frozen=True)
class Estimate:
    """What is known about the time of some runs.

    Attributes:
        seconds: of the runs that can be judged.
        num_runs: how many runs there are.
        num_judged: for how many of them there is a record to judge by.
    """

    seconds: float
    num_runs: int
    num_judged: int

    def __str__(self) -> str:
        if not self.num_judged:
            return "how long it takes is not known: no run like these is recorded on this device"
        rest = (
            ""
            if self.num_judged == self.num_runs
            else f" for {self.num_judged} of them; no run like the others is recorded"
        )
        return f"about {in_words(self.seconds)}{rest}"


class Pace:
    """The time that runs took on one device.

    Args:
        device: the device in words, as records call it.
        records: runs so far; those on other devices say nothing.
    """

    def __init__(self, device: str, records: Iterable[Record] = ()) -> None:
        self._device = device
        self._known: list[Record] = []
        self.add(*records)

    def add(self, *records: Record) -> None:
        """Learn from more runs."""
        self._known += [record for record in records if record.device == self._device and record.epochs_run]

    def seconds(self, recipe: Recipe) -> float | None:
        """Seconds of one run of a recipe; None if no run was like it.

        The nearest runs count: those of the same model and dataset, else of the same dataset, and of these the ones of
        the most similar depth. Time grows with layers and with epochs, which a run may stop before the recipe's last.
        """
        on_dataset = [record for record in self._known if record.dataset == recipe.data.name]
        like = [record for record in on_dataset if record.model == recipe.model.name] or on_dataset
        if not like:
            return None
        num_layers = recipe.model.num_layers
        nearest = min((record.num_layers for record in like), key=lambda depth: abs(log(depth / num_layers)))
        found = [record for record in like if record.num_layers == nearest]
        epochs = min(recipe.train.epochs, statistics.fmean(record.epochs_run for record in found))
        per_step = statistics.fmean(r.seconds / (r.epochs_run * r.num_layers) for r in found)
        return per_step * num_layers * epochs

    def estimate(self, jobs: Sequence[Job]) -> Estimate:
        """The time of all runs of the jobs that are still missing."""
        left = [(len(job.missing()), self.seconds(job.recipe)) for job in jobs]
        judged = [(runs, seconds) for runs, seconds in left if seconds is not None]
        seconds = sum(runs * each for runs, each in judged)
        return Estimate(seconds, sum(runs for runs, _ in left), sum(runs for runs, _ in judged))


# Doing it.


@dataclass(frozen=True)
class StudyProgress:
    """How far a study is: what a progress display shows.

    Attributes:
        job: what is trained now; None while other processes train all that is left.
        num_done: runs that are recorded, by any process.
        num_runs: runs of the whole study.
        seconds_left: an estimate; None while there is no run to judge by.
        training: how far the job's runs are; None at its beginning and at its end.
    """

    job: str | None
    num_done: int
    num_runs: int
    seconds_left: float | None
    training: Progress | None = None


def work(
    plan: Plan,
    load: Load,
    *,
    device: str = "auto",
    pace: Pace | None = None,
    checkpoint_every: int = 50,
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """Train what the plan lacks; safe to kill at any moment and to run in several processes at once.

    Each job is locked before it is trained, so no two processes train one. When others hold all that is left, this one
    waits: should one of them die, its lock is free and its runs go on from their last checkpoint.

    Args:
        plan: what to do.
        load: makes the task of a dataset.
        device: "auto", "cpu" or "cuda".
        pace: what is known about the time of runs; it learns from the runs trained here.
        checkpoint_every: epochs between two checkpoints.
        on_progress: called at the beginning and end of every job and about once an epoch.
        should_stop: asked after every epoch; once it says yes, the state is saved and `TrainingInterrupted` raised.
            Between two jobs it ends the call.

    Returns:
        The sentence of every job that could not be finished, by its name.

    Raises:
        GraphjouleError: A file could not be written.
        TrainingInterrupted: Ctrl-C, or `should_stop` said so; the state is saved.
    """
    pace = pace or Pace(describe_device(resolve_device(device)))
    refused: dict[str, str] = {}

    def report(job: Job | None) -> StudyProgress:
        """Call `on_progress` with how far all is, by what the folders hold."""
        left = pace.estimate(pending)
        seconds = left.seconds if left.num_judged == left.num_runs else None
        progress = StudyProgress(job.name if job else None, plan.num_runs - left.num_runs, plan.num_runs, seconds)
        on_progress(progress)
        return progress

    def train(job: Job) -> None:
        clock, begin, missing = time.monotonic(), report(job), set(job.missing())

        def on_epoch(training: Progress) -> None:
            left = None if begin.seconds_left is None else max(0.0, begin.seconds_left - (time.monotonic() - clock))
            done = begin.num_done + training.num_runs - training.num_active
            on_progress(replace(begin, num_done=done, seconds_left=left, training=training))

        try:
            task = load(job.recipe.data.name)
            with deferred_interrupt() as stop:  # else, while it waits or measures, there is nothing to save
                result = fit(
                    job.recipe,
                    task,
                    job.seeds,
                    device=device,
                    out=job.folder.path,
                    resume=True,
                    checkpoint_every=checkpoint_every,
                    on_progress=on_epoch,
                    should_stop=lambda: stop.requested or should_stop(),
                    protocol=job.protocol,
                )
            if job.lacks_energies():
                _write_energies(job, task, result, device)
        except GraphjouleError as error:
            if isinstance(error.__cause__, OSError):  # a full disk stops every job
                raise
            refused[job.name] = str(error)
            return
        finally:
            # Leave a GPU as the job found it: no memory kept from other workers, no peak that the next would report.
            torch.cuda.empty_cache()
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.reset_peak_memory_stats()
        pace.add(*(record for record in result.records if record.seed in missing))
        report(job)

    pending = [job for job in plan.jobs if not job.is_done()]
    while pending:
        held = []
        for job in pending:
            if should_stop():
                return refused
            with job.lock() as is_ours:
                if not is_ours:
                    held.append(job)
                elif not job.is_done():  # another may have done it since we looked
                    train(job)
        pending = [job for job in held if not job.is_done()]
        if pending:
            report(None)
            time.sleep(_POLL_SECONDS)
    return refused


def _write_energies(job: Job, task: Task, result: FitResult, device: str) -> None:
    done = [(r, m) for r, m in zip(result.records, result.models, strict=True) if r.status == "done"]
    records, models = zip(*done, strict=True)
    try:
        found = measure_energies(job.recipe, task, records, models, device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise GraphjouleError(
            f"The energies of its layers do not fit in the memory of {describe_device(resolve_device(device))}; its "
            "runs are recorded, and the same command measures them when there is more."
        ) from error
    write_json(job.energies_path, found.model_dump())
