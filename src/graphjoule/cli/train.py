"""``graphjoule train``."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphjoule.cli.source import GraphSource, takes_a_graph
from graphjoule.cli.usage import Device, parse_seeds
from graphjoule.errors import GraphjouleError, choices
from graphjoule.files import foreign_names, json_text
from graphjoule.nn.table import MODELS
from graphjoule.terms.settings import METHOD_NAMES

if TYPE_CHECKING:
    from graphjoule.cli.processes import Job
    from graphjoule.fitting import FitResult
    from graphjoule.tasks import Task
    from graphjoule.training.recipe import Recipe

_EPILOG = """
Examples:

- `graphjoule train` trains 32 layers on the embedded digits

- `graphjoule train --dataset cora --layers 64 --seeds 10`

- `graphjoule train --dataset cora --set c_min=0.3 --set lr=0.01`

- `graphjoule train --dataset pubmed --model gcn --layers 2 --json`

- `graphjoule train --dataset cora --model gcn --layers 16 --constraint penalty --set terms.energy.c_min=0.2`

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
        typer.Option(help=f"Hold every layer's energy between c_min and c_max, by: {choices(METHOD_NAMES)}."),
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
    device: Device = "auto",
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
    from graphjoule.training.recipe import parse_overrides

    if constraint is not None and constraint not in METHOD_NAMES:
        raise GraphjouleError(f"--constraint is {constraint!r}; the choices are: {choices(METHOD_NAMES)}.")
    chosen = {
        "train.epochs": epochs,
        "terms.energy.method": constraint,
        "train.clusters.parts": clusters,
        "train.clusters.per_step": clusters_per_step,
    }
    overrides = parse_overrides(set_ or [])
    for key, value in chosen.items():
        if value is not None and overrides.setdefault(key, value) != value:
            raise GraphjouleError(f"{key} is set twice, to {overrides[key]!r} and to {value!r}: give it once.")
    if clusters_per_step is not None and not any(key.endswith("parts") for key in overrides) and recipe_file is None:
        raise GraphjouleError(
            f"--clusters-per-step is {clusters_per_step}, but there are no clusters: say how many with --clusters."
        )
    numbers = parse_seeds(seeds)

    source.check()
    from graphjoule.cli.processes import check_clustered, check_processes, source_beside_parts

    # What can be refused by names and numbers alone is refused before torch is imported.
    check_processes(processes, distributed, parts)
    source, name = source_beside_parts(source, distributed, parts)
    recipe = load_recipe_from(recipe_file, model, name, layers, overrides)
    check_clustered(recipe, processes, distributed, parts)

    from graphjoule.cli.preflight import check_training
    from graphjoule.cli.processes import Job, start_processes, train_in_processes
    from graphjoule.cli.progress import show_progress
    from graphjoule.fitting import fit
    from graphjoule.training import deferred_interrupt
    from graphjoule.training.folder import RunFolder

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
        if resume and out is not None and not out.exists() and os.environ.get("RANK", "0") == "0":
            # Not refused: a cluster starts a job again with the line it was first started with.
            typer.echo(f"graphjoule: there is no folder {out} to resume; the training begins.", err=True)
        train_and_print(job, parts)
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
        with show_progress(job.title) as on_progress, deferred_interrupt() as stop:
            result = fit(
                recipe,
                task,
                numbers,
                device=device,
                out=folder,
                resume=resume,
                checkpoint_every=checkpoint_every,
                on_progress=on_progress,
                should_stop=lambda: stop.requested,
            )
    predictions = predict_all(recipe, task, result, device) if source.is_own and result.summary.n else None
    print_result(recipe, result, predictions, json=json)


train.__doc__ = f"{train.__doc__}\n{_EPILOG}"


def rank(job: Path, parts: Annotated[Path | None, typer.Argument()] = None) -> None:
    """Train as one of several processes: what `--processes` of `train` starts."""
    from graphjoule.cli.processes import Job, train_as_rank

    shared = Job.model_validate_json(job.read_bytes())
    if parts is None:
        train_and_print(shared, None)
    else:  # the process that has cut the graph prints
        train_as_rank(shared, parts, lambda recipe: default_folder(recipe, resume=shared.resume))


def train_and_print(job: Job, parts: Path | None) -> None:
    """Train as one of several processes, the first of which prints the result, and predicts a graph of one's own."""
    from graphjoule.cli.processes import train_as_rank

    result, is_first = train_as_rank(job, parts, lambda recipe: default_folder(recipe, resume=job.resume))
    if is_first:
        is_own = job.source.is_own and result.summary.n > 0
        predictions = predict_all(job.recipe, job.source.load(), result, job.device) if is_own else None
        print_result(job.recipe, result, predictions, json=job.is_json)


def predict_all(recipe: Recipe, task: Task, result: FitResult, device: str) -> Path:
    """Write what the runs that are done say together about every node; the folder's own ``predictions.csv``."""
    from graphjoule.fitting import mean_prediction
    from graphjoule.tasks.inputs import ModelInput
    from graphjoule.training.predictions import write_predictions

    done: Any = [m for m, record in zip(result.models, result.records, strict=True) if record.status == "done"]
    given = ModelInput.of(task)
    path = (result.folder or Path()) / "predictions.csv"
    predicted = mean_prediction(done, recipe, task.objective, given, device)
    write_predictions(path, given.node_ids, predicted, given.targets, task.objective)
    return path


def load_recipe_from(file: Path | None, model: str, dataset: str, num_layers: int, overrides: dict[str, Any]) -> Recipe:
    """The recipe of a file of the user's, such as the winner of ``graphjoule tune``; else ours.

    What a file changes against the recipe that comes with graphjoule counts as overridden, so that a report does not
    take it for the paper's experiment and its command repeats the training without the file.
    """
    from graphjoule.training.recipe import load_recipe

    found = load_recipe(model, dataset, num_layers, overrides, file=file)
    if file is None:
        return found
    usual = load_recipe(model, dataset, num_layers).settings()
    changed = [key for key, value in found.settings().items() if key not in usual or usual[key] != value]
    return found.model_copy(update={"sources": found.sources | dict.fromkeys(changed, "override")})


def run_name(recipe: Recipe) -> str:
    """A name after the data, the model and the depth, fit for a folder.

    >>> from graphjoule.training.recipe import load_recipe
    >>> run_name(load_recipe("egnn", "cora", 64)), run_name(load_recipe("gcn", "data/my nodes.csv", 2))
    ('cora-egnn-64', 'my-nodes-gcn-2')
    """
    data = re.sub(r"[^\w-]+", "-", Path(recipe.data.name).stem)
    return f"{data}-{recipe.model.name}-{recipe.model.num_layers}"


def default_folder(recipe: Recipe, *, resume: bool) -> Path:
    """A folder under ``runs/`` named after the recipe: a free one, or to `resume` the newest with its settings.

    A folder that was killed before it could say its settings counts as one with them.
    """
    from graphjoule.training.folder import RunFolder

    name, runs = run_name(recipe), Path("runs")
    pattern = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    there = {
        int(match[1] or 1): path
        for path in (runs.iterdir() if runs.is_dir() else ())
        if (match := pattern.fullmatch(path.name)) and foreign_names(path)
    }
    if resume:
        for _, path in sorted(there.items(), reverse=True):
            folder = RunFolder(path)
            if folder.is_free or (folder.is_taken and not folder.about().recipe.differences(recipe)):
                return path
        raise GraphjouleError(
            f"There is no training of {name} with these settings under {runs}/, so there is nothing to resume; name "
            "its folder with --out, or leave out --resume to begin one."
        )
    number = next(number for number in range(1, len(there) + 2) if number not in there)
    return runs / (name if number == 1 else f"{name}-{number}")


# What it prints when it is done.


def print_result(recipe: Recipe, result: FitResult, predictions: Path | None = None, *, json: bool) -> None:
    """Print what came out; exit code 1 if no run finished."""
    summary, folder = result.summary, result.folder or Path()
    lines = [describe(recipe, result), f"records and models: {folder}"]
    fields: dict[str, Any] = {
        "metric": summary.metric.name,
        "test_mean": summary.test_mean,
        "test_std": summary.test_std,
        "n": summary.n,
        "num_failed": summary.num_failed,
        "val_mean": summary.val_mean,
        "seconds": round(summary.seconds, 3),
        "records": str(folder / "records.jsonl"),
    }
    if predictions is not None:
        fields["predictions"] = str(predictions)
        lines.append(f"predictions: {predictions}")
    typer.echo("\n".join(lines), err=json)
    if json:
        typer.echo(json_text(fields))
    if summary.n == 0:
        sys.exit(1)


def describe(recipe: Recipe, result: FitResult) -> str:
    """The result in words."""
    summary = result.summary
    name, text = summary.metric.name, summary.metric.text
    failed = f", {summary.num_failed} failed" if summary.num_failed else ""
    runs = f"(n = {summary.n}{failed})"
    if summary.val_mean is None:
        said = f"no run finished{failed}"
    elif summary.test_mean is None:  # a split without test nodes
        validation = text(summary.val_mean, summary.val_std)
        said = f"validation {name} {validation} {runs}, no test nodes, {summary.seconds:.0f} s"
    else:
        said = (
            f"test {name} {text(summary.test_mean, summary.test_std)} {runs}, "
            f"validation {text(summary.val_mean)}, {summary.seconds:.0f} s"
        )
    return f"{recipe.model.name}, {recipe.model.num_layers} layers, {recipe.data.name}: {said}"
