"""``graphjoule train`` over several processes: as one of them, or as the one that starts them."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import typer
from pydantic import BaseModel

from graphjoule.cli.progress import show_progress
from graphjoule.cli.source import GraphSource
from graphjoule.distributed.launch import launch
from graphjoule.distributed.part_files import load_part, read_partition, write_partition
from graphjoule.distributed.start import joined_processes
from graphjoule.errors import GraphjouleError
from graphjoule.files import ensure_folder, write_json
from graphjoule.group import Group
from graphjoule.partition import CutMethod
from graphjoule.recipe import Recipe
from graphjoule.saving import load_model
from graphjoule.tasks import NodeTask
from graphjoule.training import FitResult, fit
from graphjoule.training.cluster_runs import check_shares
from graphjoule.training.folder import RunFolder

logger = logging.getLogger("graphjoule")


class Job(BaseModel):
    """What all processes of a training are told.

    Attributes:
        recipe: every setting.
        seeds: one run each.
        device: "auto", "cpu" or "cuda".
        out: the run folder.
        resume: whether to go on with what it holds.
        checkpoint_every: epochs between two checkpoints.
    """

    recipe: Recipe
    seeds: list[int]
    device: str
    out: Path | None
    resume: bool
    checkpoint_every: int

    @property
    def title(self) -> str:
        """What the progress bar says."""
        return f"{self.recipe.model}, {self.recipe.num_layers} layers, {self.recipe.dataset}"


def check_processes(processes: int | None, distributed: bool, parts: Path | None) -> bool:
    """Refuse options that contradict each other; returns whether the graph is in parts already, to be named by them.

    Whether processes without parts can train depends on the recipe, see `check_clustered`.
    """
    if distributed and processes is not None:
        raise GraphjouleError(
            f"--distributed and --processes {processes} contradict each other: the one is for processes that torchrun "
            "starts, the other starts them."
        )
    if parts is not None and not distributed and processes is None:
        raise GraphjouleError(f"--parts is {parts}, but it is for --distributed or --processes, which is not given.")
    return parts is not None and distributed


def check_clustered(recipe: Recipe, processes: int | None, distributed: bool, parts: Path | None) -> None:
    """Refuse parts of a graph where every process needs all of it to take clusters from, and none where it does not."""
    if recipe.clusters is not None and parts is not None:
        raise GraphjouleError(
            f"--parts is {parts}, but the recipe has clusters, for which every process reads the whole graph; leave "
            "one of the two out."
        )
    if recipe.clusters is not None and processes is not None:
        check_shares(recipe.clusters, processes)
    if recipe.clusters is None and distributed and parts is None:
        raise GraphjouleError("--distributed needs --parts: the folder that `graphjoule partition` has made.")


def data_of_parts(source: GraphSource, parts: Path | None) -> str:
    """What the data of a partition are called; they are in its folder, so no other data may be asked for."""
    given = [name for name in ("dataset", "nodes", "npz") if getattr(source, name) is not None]
    if given:
        raise GraphjouleError(
            f"--{given[0]} and --distributed contradict each other: the data are in the folder of --parts."
        )
    assert parts is not None
    return read_partition(parts).data.name


def default_method() -> CutMethod:
    """METIS where it is installed, else blocks."""
    return "blocks" if importlib.util.find_spec("pymetis") is None else "metis"


def train_as_rank(
    job: Job, load: Callable[[Group], NodeTask], name_folder: Callable[[Recipe], Path]
) -> tuple[FitResult, bool]:
    """Train as one of the processes that have been started already.

    Args:
        job: what to train; without an `out`, the first process names the folder.
        load: gives a process its task: its part of the graph, or the whole one if the recipe has clusters.
        name_folder: the folder for a recipe.

    Returns:
        The result, and whether this is the process that tells it.
    """
    with joined_processes(job.device) as (group, device):
        if not group.is_first:
            logger.setLevel(logging.ERROR)
        task = group.together(lambda: load(group))
        recipe = job.recipe.with_split_of(task)
        folder = Path(group.from_first(lambda: str(job.out or name_folder(recipe))))
        with show_progress(job.title) if group.is_first else nullcontext(lambda progress: None) as on_progress:
            result = fit(
                recipe,
                task,
                job.seeds,
                device=device,
                out=folder,
                resume=job.resume,
                checkpoint_every=job.checkpoint_every,
                on_progress=on_progress,
                group=group,
            )
        return result, group.is_first


def train_in_processes(job: Job, task: NodeTask, num_processes: int, parts: Path | None) -> FitResult:
    """Cut a task, train it in several processes on this machine, and read the result from the run folder.

    Args:
        job: what to train; it has an `out`.
        task: the whole task.
        num_processes: how many processes.
        parts: folder of a partition that is there already; None makes one in the run folder.
    """
    assert job.out is not None
    if job.recipe.constraint is not None:
        raise GraphjouleError(
            f"--processes is {num_processes}, but the recipe has a constraint, which needs the whole graph in one "
            "process; leave one of the two out."
        )
    folder, facts = RunFolder(job.out), task.facts()
    folder.check(job.recipe, facts, resume=job.resume)
    if parts is None:
        parts = job.out / f"parts-{num_processes}"
        if not (parts / "partition.json").exists() or read_partition(parts).data.sha256 != facts.sha256:
            write_partition(task, num_processes, parts, default_method())
    elif read_partition(parts).data.sha256 != facts.sha256:
        raise GraphjouleError(f"{parts} is a partition of other data than {task.name}; give one of it, or none.")
    ensure_folder(job.out)
    path = job.out / "job.json"
    write_json(path, job.model_dump(mode="json"))
    _launched(["rank", str(path), str(parts)], num_processes)
    path.unlink(missing_ok=True)
    records = folder.records()
    models = [load_model(folder.model_path(seed)) for seed in job.seeds]
    return FitResult([records[seed] for seed in job.seeds], models, job.out)


def train_clusters_in_processes(arguments: Sequence[str], num_processes: int) -> None:
    """Run a ``train`` command again in several processes, which share the steps on clusters; the first one tells.

    Args:
        arguments: of the command that was given, with its ``--processes``.
        num_processes: how many.
    """
    given = list(arguments)
    for at, word in enumerate(given):
        if word.partition("=")[0] == "--processes":
            given[at : at + (1 if "=" in word else 2)] = ["--distributed"]
            break
    _launched(given, num_processes)


def _launched(arguments: Sequence[str], num_processes: int) -> None:
    """Run ``graphjoule ARGUMENTS`` in several processes; if it fails, exit as it did."""
    outcome = launch([sys.executable, "-m", "graphjoule", *arguments], num_processes)
    if outcome.code in (2, 130) and not outcome.last_words:  # the first process has told why
        raise typer.Exit(outcome.code)
    if outcome.code:
        typer.echo(f"graphjoule: {outcome.sentence(num_processes)}.", err=True)
        raise typer.Exit(1)


def rank(job: Path, parts: Path) -> None:
    """Train as one of several processes: what `--processes` of `train` starts."""
    told = Job.model_validate_json(job.read_bytes())
    train_as_rank(told, lambda group: load_part(parts, group.rank, group), lambda recipe: told.out or Path())
