"""``graphjoule train`` over several processes: as one of them, or as the one that starts them."""

from __future__ import annotations

import importlib.util
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from graphjoule.cli.places import default_folder
from graphjoule.cli.source import GraphSource
from graphjoule.cli.train import Job, print_result
from graphjoule.errors import GraphjouleError, counted
from graphjoule.files import FLEETING, write_json
from graphjoule.tasks.datasets import DATASETS
from graphjoule.training.recipe import Recipe

if TYPE_CHECKING:
    from graphjoule.fitting import FitResult
    from graphjoule.parallel.partition import CutMethod
    from graphjoule.tasks import Task
    from graphjoule.training.folder import RunFolder
    from graphjoule.training.trainer import Trainer

RESUME = "the same command with --resume goes on from the last epoch saved"
_PARTS = f"{FLEETING}parts-"  # a user's own folder of parts may lie beside them
_PROCESSES_PER_CORE = 4  # more only wait for each other; each takes some hundred megabytes


def check_number(option: str, number: int, otherwise: str) -> None:
    """Refuse more processes than the cores of this machine can serve."""
    from graphjoule.training.threads import num_cores

    cores = num_cores()
    if number > _PROCESSES_PER_CORE * cores:
        raise GraphjouleError(
            f"{option} is {number}, but this machine has {counted(cores, 'core')}, and so many would wait for each "
            f"other; choose at most {_PROCESSES_PER_CORE * cores}, or {otherwise}."
        )


def check_options(
    source: GraphSource, processes: int | None, distributed: bool, parts: Path | None
) -> tuple[GraphSource, str]:
    """Which graph, and what its data are called; options that contradict each other are refused.

    With `distributed` the data are in the folder of the parts, so no other data may be asked for. Without, the whole
    graph is read too; where no option names it, the partition of a dataset does.
    """
    if distributed and processes is not None:
        raise GraphjouleError(
            f"--distributed and --processes {processes} contradict each other: the one is for processes that torchrun "
            "starts, the other starts them."
        )
    if not distributed and processes is None:
        raise GraphjouleError(f"--parts is {parts}, but it is for --distributed or --processes, which is not given.")
    if processes is not None:
        check_number("--processes", processes, "start them on several machines with torchrun and --distributed")
    given = [name for name in ("dataset", "nodes", "npz") if getattr(source, name) is not None]
    if parts is None or (given and not distributed):
        return source, source.name
    if given:
        raise GraphjouleError(
            f"--{given[0]} and --distributed contradict each other: the data are in the folder of --parts."
        )

    from graphjoule.parallel.partition import read_partition

    name = read_partition(parts).data.name
    if distributed:
        return source, name
    if name not in DATASETS:
        raise GraphjouleError(
            f"{parts} is a partition of {name}, which is no dataset; name its files too, with --nodes or --npz."
        )
    return replace(source, dataset=name), name


def check_recipe(recipe: Recipe, processes: int | None, distributed: bool, parts: Path | None) -> None:
    """Refuse parts of a graph where every process needs all of it, and none where it does not."""
    if processes is not None and "energy" in recipe.terms:
        raise GraphjouleError(
            f"--processes is {processes}, but the recipe has a constraint, which needs the whole graph in one process; "
            "leave one of the two out."
        )
    if recipe.train.clusters is None:
        if distributed and parts is None:
            raise GraphjouleError("--distributed needs --parts: the folder that `graphjoule partition` has made.")
        return
    if parts is not None:
        raise GraphjouleError(
            f"--parts is {parts}, but the recipe has clusters, for which every process reads the whole graph; leave "
            "one of the two out."
        )
    if processes is not None:
        from graphjoule.parallel.clusters import check_shares

        check_shares(recipe.train.clusters, processes)


def train_with_others(job: Job, processes: int | None, distributed: bool, parts: Path | None) -> None:
    """Train as one of the processes of torchrun, or start them; one process prints the result."""
    if distributed:
        _train_as_rank(job, parts, is_printed=True)
        return

    from graphjoule.training.folder import RunFolder

    assert processes is not None
    if job.recipe.train.clusters is None:
        task = job.source.load()
        job = job.for_task(task)
        print_result(job, task, train_in_processes(job, task, processes, parts))
        return
    if job.out is not None:
        RunFolder(job.out).check_unheld()
    _start_processes(job, processes)


# As one of the processes.


def rank(job: Path, parts: Annotated[Path | None, typer.Argument()] = None) -> None:
    """Train as one of several processes: what `--processes` of `train` starts."""
    # The process that has cut the graph prints.
    _train_as_rank(Job.model_validate_json(job.read_bytes()), parts, is_printed=parts is None)


def _train_as_rank(job: Job, parts: Path | None, *, is_printed: bool) -> None:
    """Train as one of the processes that have been started already; the first one may print the result.

    Without `parts`, the folder of the graph's parts, every process reads the whole graph, for clusters of it. Without a
    `job.out` the first process names the folder.
    """
    from graphjoule.parallel.partition import load_part
    from graphjoule.parallel.ranks import joined_processes, say_ready

    with joined_processes(job.device) as (group, device):
        if not group.is_first:
            logging.getLogger("graphjoule").setLevel(logging.ERROR)
        task = group.together(lambda: job.source.load() if parts is None else load_part(parts, group.rank, group))
        if parts is None:
            job = job.for_task(task, is_first=group.is_first)
        result = job.train(task, group, device, on_epoch=say_ready)
    if is_printed and group.is_first:
        print_result(job, task, result)


# As the one that starts them.


def train_in_processes(job: Job, task: Task, num_processes: int, parts: Path | None) -> FitResult:
    """Cut a task, train it in several processes on this machine, and read the result from the run folder.

    What `fit` would refuse in every process is refused before anything is written. Without `parts`, a partition that is
    there already, one is made in the run folder for as long as it trains.
    """
    import torch

    from graphjoule.fitting import FitResult
    from graphjoule.parallel.partition import read_partition
    from graphjoule.training.build import architecture_of
    from graphjoule.training.folder import RunFolder
    from graphjoule.training.saving import load_model
    from graphjoule.training.trainer import Trainer

    recipe = job.recipe.with_split_of(task)
    folder = RunFolder(job.out or default_folder(recipe, resume=job.resume))
    job = job.model_copy(update={"recipe": recipe, "out": folder.path})
    training = Trainer(architecture_of(recipe), recipe, task.to("cpu"), torch.device("cpu"), job.seeds)
    folder.check(recipe, training.facts, training.draw_split, resume=job.resume)
    folder.check_unheld()
    if parts is not None:
        partition = read_partition(parts)
        if not partition.is_of(training.facts, task):  # the processes would train on it without complaint
            raise GraphjouleError(
                f"{parts} is not a partition of {task.name} as it is now: its data or its splits are others; cut it "
                "anew with `graphjoule partition`, or leave --parts out."
            )
        partition.check_size(parts, num_processes)
        _start_processes(job, num_processes, parts)
    else:
        with _own_parts(folder, training, num_processes) as parts:
            _start_processes(job, num_processes, parts)
    records = folder.records()
    models = [load_model(folder.model_path(seed)) for seed in job.seeds]
    return FitResult([records[seed] for seed in job.seeds], models, folder.path)


@contextmanager
def _own_parts(folder: RunFolder, training: Trainer, num_parts: int) -> Iterator[Path]:
    """A partition in the run folder, until the training is done; `--resume` finds it if that broke off."""
    from graphjoule.parallel.partition import is_partition_of, remove_partition, write_partition

    path = folder.path / f"{_PARTS}{num_parts}"
    missing = [place for place in (folder.path, *folder.path.parents) if not place.exists()]
    is_found, is_done = is_partition_of(path, training.facts, training.task), False
    try:
        if not is_found:
            remove_partition(path)
            write_partition(training.task, num_parts, path, default_method())
        yield path
        is_done = True
    finally:
        if not is_done and not (is_found or folder.is_taken):  # a training that has not begun leaves nothing
            remove_partition(path)
        for left in folder.path.glob(f"{_PARTS}*") if is_done else ():  # of other numbers, if those broke off before
            remove_partition(left)
        for place in missing:  # only those that are empty can be removed
            with suppress(OSError):
                place.rmdir()


def default_method() -> CutMethod:
    """METIS where it is installed, else blocks."""
    return "blocks" if importlib.util.find_spec("pymetis") is None else "metis"


def _start_processes(job: Job, num_processes: int, parts: Path | None = None) -> None:
    """Run a training in several processes and wait for them; if it fails, exit as it did.

    Without `parts` every process reads the whole graph, and the first one prints.
    """
    from graphjoule.parallel.ranks import STOPPED, launch

    stopped = ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.json")
        write_json(path, job.model_dump(mode="json"))
        arguments = ["rank", str(path), *([] if parts is None else [str(parts)])]
        try:
            ending = launch([sys.executable, "-m", "graphjoule", *arguments], num_processes)
            stopped = "before the first epoch was over" if ending.is_early else ""
        except KeyboardInterrupt:  # the first one waits for the epoch
            stopped = "at once, without saving the last epochs"
    if stopped:  # no process could say it
        Console(stderr=True).show_cursor()  # a progress bar that was ended has left it hidden
        typer.echo(f"graphjoule: stopped {stopped}.", err=True)
        raise typer.Exit(STOPPED)
    if ending.code in (2, STOPPED) and not ending.last_words:  # the first process has said why
        raise typer.Exit(ending.code)
    if ending.code:
        typer.echo(f"graphjoule: {ending.sentence(num_processes)}; {RESUME}.", err=True)
        raise typer.Exit(1)
