"""``graphjoule train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphjoule.cli.beforehand import check_training
from graphjoule.cli.process_options import check_clustered, check_processes, source_beside_parts
from graphjoule.cli.processes import Job, start_processes, train_as_rank, train_in_processes
from graphjoule.cli.progress import show_progress
from graphjoule.cli.recipe_file import load_recipe_from
from graphjoule.cli.run_folders import run_name
from graphjoule.cli.source import GraphSource, takes_a_graph
from graphjoule.cli.train_text import tell
from graphjoule.errors import GraphjouleError, choices
from graphjoule.fitting import FitResult, fit
from graphjoule.nn import MODELS
from graphjoule.predicting import mean_probabilities
from graphjoule.tasks import Task
from graphjoule.tasks.inputs import ModelInput
from graphjoule.terms import METHODS
from graphjoule.training.folder import RunFolder
from graphjoule.training.predictions import write_predictions
from graphjoule.training.recipe import Recipe, parse_overrides

_EPILOG = """
Examples:

- `graphjoule train` trains 32 layers on the embedded digits

- `graphjoule train --dataset cora --layers 64 --seeds 10`

- `graphjoule train --dataset cora --set c_min=0.3 --set lr=0.01`

- `graphjoule train --dataset pubmed --model gcn --layers 2 --json`

- `graphjoule train --dataset cora --model gcn --layers 16 --constraint augmented_lagrangian --set c_min=0.2`

- `graphjoule train --dataset physics --layers 8 --clusters 50 --clusters-per-step 5`

- `graphjoule train --dataset pubmed --layers 64 --processes 2` trains the same, each process with half the graph

- `graphjoule train --nodes nodes.csv --edges edges.csv --seeds 5` trains on your own graph and predicts

- `graphjoule train --nodes people.csv --label segment --one-hot job,city --knn 15`
"""


@takes_a_graph
def train(
    source: GraphSource,
    model: Annotated[str, typer.Option(help=f"Model: {choices(MODELS)}.")] = "egnn",
    layers: Annotated[int, typer.Option(min=1, help="Number of graph layers.")] = 32,
    seeds: Annotated[str, typer.Option(help="How many seeds (10 means 0 to 9), or a list such as 3,7.")] = "1",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the recipe; repeatable."),
    ] = None,
    constraint: Annotated[
        str | None,
        typer.Option(help=f"Hold every layer's energy between c_min and c_max, by: {choices(METHODS)}."),
    ] = None,
    clusters: Annotated[
        int | None,
        typer.Option(min=1, help="Train on clusters of nodes, so many in all, where the graph does not fit in memory."),
    ] = None,
    clusters_per_step: Annotated[
        int | None, typer.Option(min=1, help="Clusters that one step joins; 1 by default.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="The most epochs a run may take; the recipe says by default.")
    ] = None,
    recipe_file: Annotated[
        Path | None,
        typer.Option(
            "--recipe", metavar="FILE", help="Recipe file to use, such as the best.toml of `graphjoule tune`."
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Train in so many processes here, each with a part of the graph."),
    ] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Be one of the processes of torchrun; needs --parts or --clusters.")
    ] = False,
    parts: Annotated[
        Path | None, typer.Option(help="Folder of `graphjoule partition`, for --distributed or --processes.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Folder for records and models; by default a new one under runs/.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a training that was interrupted or killed.")
    ] = False,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Epochs between two checkpoints.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")] = False,
) -> None:
    """Train a model on a dataset: all seeds in one program, validation selects, the test split is read once."""
    chosen = {
        "epochs": epochs,
        "constraint": constraint,
        "clusters": clusters,
        "clusters.per_step": clusters_per_step,
    }
    overrides = parse_overrides(
        [*(set_ or []), *(f"{key}={value}" for key, value in chosen.items() if value is not None)]
    )
    check_processes(processes, distributed, parts)
    source, name = source_beside_parts(source, distributed, parts)
    recipe = load_recipe_from(recipe_file, model, name, layers, overrides)
    check_clustered(recipe, processes, distributed, parts)
    numbers = parse_seeds(seeds)
    # Of many processes the first looks at the folder, for all.
    before = None if distributed else out
    check_training(recipe, device=device, test_fraction=source.test_fraction, out=before, resume=resume)
    job = Job(
        recipe=recipe,
        seeds=numbers,
        device=device,
        out=out,
        resume=resume,
        checkpoint_every=checkpoint_every,
        source=source,
        is_json=json,
    )
    if distributed:
        train_and_tell(job, parts)
        return
    if processes is not None and recipe.train.clusters is not None:
        if out is not None:
            RunFolder(out).check_unheld()
        start_processes(job, processes)
        return
    task = source.load()
    recipe = recipe.with_split_of(task)
    folder = out or default_folder(recipe, resume=resume)
    if processes is not None:
        job = job.model_copy(update={"recipe": recipe, "out": folder})
        result = train_in_processes(job, task, processes, parts)
    else:
        with show_progress(job.title) as on_progress:
            result = fit(
                recipe,
                task,
                numbers,
                device=device,
                out=folder,
                resume=resume,
                checkpoint_every=checkpoint_every,
                on_progress=on_progress,
            )
    predictions = predict_all(recipe, task, result, device) if source.is_own and result.summary.n else None
    tell(recipe, result, predictions, json=json)


train.__doc__ = f"{train.__doc__}\n{_EPILOG}"


def rank(job: Path, parts: Annotated[Path | None, typer.Argument()] = None) -> None:
    """Train as one of several processes: what `--processes` of `train` starts."""
    told = Job.model_validate_json(job.read_bytes())
    if parts is None:
        train_and_tell(told, None)
    else:  # the process that has cut the graph tells
        train_as_rank(told, parts, lambda recipe: default_folder(recipe, resume=told.resume))


def train_and_tell(job: Job, parts: Path | None) -> None:
    """Train as one of several processes, the first of which tells the result, and predicts a graph of one's own."""
    result, is_first = train_as_rank(job, parts, lambda recipe: default_folder(recipe, resume=job.resume))
    if is_first:
        is_own = job.source.is_own and result.summary.n > 0
        predictions = predict_all(job.recipe, job.source.load(), result, job.device) if is_own else None
        tell(job.recipe, result, predictions, json=job.is_json)


def predict_all(recipe: Recipe, task: Task, result: FitResult, device: str) -> Path:
    """Write what the runs that are done say together about every node; the folder's own ``predictions.csv``."""
    done = [m for m, record in zip(result.models, result.records, strict=True) if record.status == "done"]
    given = ModelInput.of(task)
    path = (result.folder or Path()) / "predictions.csv"
    probabilities = mean_probabilities(done, recipe, given, device)
    write_predictions(path, given.node_ids, probabilities, given.targets, task.objective)
    return path


def parse_seeds(text: str) -> list[int]:
    """Seeds from a count or a list.

    >>> parse_seeds("3"), parse_seeds("3,7"), parse_seeds("3,")
    ([0, 1, 2], [3, 7], [3])
    """
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or (numbers[0] < 1 and "," not in text):
        raise GraphjouleError(f"--seeds is {text!r}; expected how many seeds, such as 10, or a list, such as 3,7.")
    if len(set(numbers)) != len(numbers) or min(numbers) < 0 or max(numbers) >= 2**32:
        raise GraphjouleError(f"--seeds is {text!r}; expected different numbers from 0 to {2**32 - 1}.")
    return numbers if "," in text else list(range(numbers[0]))


def default_folder(recipe: Recipe, *, resume: bool) -> Path:
    """A folder under ``runs/`` named after the recipe: a free one, or to `resume` the newest with its settings."""
    name = run_name(recipe)
    candidates = [Path("runs") / (name if number == 1 else f"{name}-{number}") for number in range(1, 10_000)]
    taken = [path for path in candidates if RunFolder(path).is_taken]
    if resume:
        same = [path for path in taken if not RunFolder(path).about().recipe.differences(recipe)]
        if same:
            return same[-1]
    return next(path for path in candidates if RunFolder(path).is_free)
