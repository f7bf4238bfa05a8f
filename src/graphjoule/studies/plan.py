"""What a study still has to train: its cells as jobs in one folder, less what is recorded already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from graphjoule.errors import GraphjouleError
from graphjoule.files import file_lock
from graphjoule.studies.collection import Collection
from graphjoule.studies.energies import EnergyRecord
from graphjoule.studies.study import Cell
from graphjoule.tasks import Task
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import read_records

__all__ = ["CLAIMS", "Job", "Plan", "Tasks", "plan_study"]

CLAIMS: Final = ".claims"
"""The folder of the lock files in a study's folder, which is known as a study's by it."""


class Tasks:
    """Datasets, each read when it is first needed and not before.

    Args:
        load: makes the task of a dataset's name; a `GraphjouleError` says that it cannot be had.
    """

    def __init__(self, load: Callable[[str], Task]) -> None:
        self._load = load
        self._tasks: dict[str, Task] = {}

    def __getitem__(self, dataset: str) -> Task:
        if dataset not in self._tasks:
            self._tasks[dataset] = self._load(dataset)
        return self._tasks[dataset]


@dataclass(frozen=True)
class Job:
    """The runs of one recipe in one folder.

    Attributes:
        name: in words.
        recipe: what to train, its split by name.
        folder: where the runs are recorded.
        seeds: one run each.
        has_energies: whether the energies of the models are measured too.
    """

    name: str
    recipe: Recipe
    folder: RunFolder
    seeds: tuple[int, ...]
    has_energies: bool = False

    @property
    def energies_path(self) -> Path:
        """Where the energies of the models are."""
        return self.folder.path / "energies.json"

    @property
    def has_checkpoint(self) -> bool:
        """Whether a training of the folder is under way, or was when it ended."""
        return (self.folder.path / "checkpoint.safetensors").exists()

    def missing(self) -> list[int]:
        """Seeds without a record, by what the folder holds at this moment."""
        recorded = self._states()
        return [seed for seed in self.seeds if seed not in recorded]

    def lacks_energies(self) -> bool:
        """Whether there are runs whose energies are asked for and not measured."""
        if not self.has_energies:
            return False
        done = {seed for seed, status in self._states().items() if status == "done" and seed in self.seeds}
        try:
            return not done <= set(EnergyRecord.read(self.energies_path).seeds)
        except GraphjouleError:
            return bool(done)

    def lacks_results(self) -> bool:
        """Whether there is something left to compute."""
        return bool(self.missing()) or self.lacks_energies()

    def is_done(self) -> bool:
        """Whether nothing is left to do, not even to tidy up after a process that was killed at the very end."""
        is_tidy = self.folder.card_path.exists() and not self.has_checkpoint
        return not self.lacks_results() and (is_tidy or not self.seeds)

    def _states(self) -> dict[int, str]:
        path = self.folder.records_path
        try:
            stat = path.stat()
        except FileNotFoundError:
            return {}
        return _read_states(path, stat.st_size, stat.st_mtime_ns)

    def claim(self) -> AbstractContextManager[bool]:
        """Try to be the only process that works on it."""
        return file_lock(self.folder.path.parent / CLAIMS / f"{self.folder.path.name}.lock")


@lru_cache(maxsize=4096)
def _read_states(path: Path, size: int, changed: int) -> dict[int, str]:
    """The status of every recorded seed; read once for every size and time of change, because records are long."""
    return {record.seed: record.status for record in read_records(path)}


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        jobs: every recipe once, those of a dataset together.
        num_runs: how many runs the cells have, each counted once.
        num_recorded: how many of them have a record already.
        unavailable: why a dataset cannot be had, by name.
    """

    jobs: list[Job]
    num_runs: int
    num_recorded: int
    unavailable: dict[str, str] = field(default_factory=dict)


def plan_study(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    out: Path,
    tasks: Tasks,
    *,
    elsewhere: Collection | None = None,
    has_energies: bool = False,
) -> Plan:
    """Find out what is left to do.

    Args:
        cells: the study's cells; those that come to the same recipe share their runs.
        seeds: one run each.
        out: the folder of all cells, of any study.
        tasks: where to get datasets.
        elsewhere: runs that are recorded in other places and not repeated here.
        has_energies: whether energies are measured; that takes the models, so `elsewhere` does not count then.

    Raises:
        GraphjouleError: The one dataset that is asked for cannot be had, or a recipe cannot be made.
    """
    for cell in cells:
        cell.recipe  # noqa: B018 - a setting that cannot be used is said before anything is read or written
    recorded = Collection() if elsewhere is None or has_energies else elsewhere
    datasets = list(dict.fromkeys(cell.dataset for cell in cells))
    jobs: list[Job] = []
    unavailable: dict[str, str] = {}
    for dataset in datasets:
        try:
            recipes = _recipes([cell for cell in cells if cell.dataset == dataset], tasks)
            found = [_job(name, recipe, seeds, out, recorded, has_energies) for name, recipe in recipes]
            if any(job.lacks_results() for job in found):
                tasks[dataset]
        except GraphjouleError as error:
            if len(datasets) == 1:
                raise
            unavailable[dataset] = str(error)
        else:
            jobs += found
    num_runs = len(jobs) * len(seeds)
    return Plan(jobs, num_runs, num_runs - sum(len(job.missing()) for job in jobs), unavailable)


def _recipes(cells: Iterable[Cell], tasks: Tasks) -> list[tuple[str, Recipe]]:
    """Every recipe of the cells once, with the name of its first cell; only a split called "default" needs the data."""
    found: dict[str, tuple[str, Recipe]] = {}
    for cell in cells:
        recipe = cell.recipe.with_split_of(tasks[cell.dataset]) if cell.recipe.data.split == "default" else cell.recipe
        found.setdefault(recipe.fingerprint(), (cell.name, recipe))
    return list(found.values())


def _job(name: str, recipe: Recipe, seeds: Sequence[int], out: Path, recorded: Collection, has_energies: bool) -> Job:
    # The fingerprint in the folder's name makes one recipe one folder, whichever study asks for it.
    folder = out / f"{recipe.data.name}-{recipe.model.name}-{recipe.model.num_layers}-{recipe.fingerprint()[:10]}"
    job = Job(name, recipe, RunFolder(folder), tuple(seeds), has_energies)
    # What the folder itself holds stays among the job's seeds: runs that were killed go on with their neighbours.
    known = recorded.of(recipe).keys() & set(job.missing())
    return replace(job, seeds=tuple(seed for seed in seeds if seed not in known))
