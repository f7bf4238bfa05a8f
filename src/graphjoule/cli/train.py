"""``graphjoule train``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from graphjoule.cli.beforehand import check_training
from graphjoule.cli.progress import show_progress
from graphjoule.cli.source import GraphSource, takes_a_graph
from graphjoule.constraint import METHODS
from graphjoule.errors import GraphjouleError, choices
from graphjoule.files import json_text
from graphjoule.nn import MODELS
from graphjoule.predictions import write_predictions
from graphjoule.recipe import Recipe, load_recipe, parse_overrides
from graphjoule.records import Summary
from graphjoule.tasks import NodeTask
from graphjoule.tasks.inputs import ModelInput
from graphjoule.trained import mean_probabilities
from graphjoule.training import FitResult, fit
from graphjoule.training.folder import RunFolder

_EPILOG = """
Examples:

- `graphjoule train` trains 32 layers on the embedded digits

- `graphjoule train --dataset cora --layers 64 --seeds 10`

- `graphjoule train --dataset cora --set c_min=0.3 --set lr=0.01`

- `graphjoule train --dataset pubmed --model gcn --layers 2 --json`

- `graphjoule train --dataset cora --model gcn --layers 16 --constraint augmented_lagrangian --set c_min=0.2`

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
    epochs: Annotated[
        int | None, typer.Option(help="The most epochs a run may take; the recipe says by default.")
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
    chosen = {"epochs": epochs, "constraint": constraint}
    overrides = parse_overrides(
        [*(set_ or []), *(f"{key}={value}" for key, value in chosen.items() if value is not None)]
    )
    recipe = load_recipe(model, source.name, layers, overrides)
    numbers = parse_seeds(seeds)
    check_training(recipe, device=device, test_fraction=source.test_fraction, out=out, resume=resume)
    task = source.load()
    recipe = recipe.with_split_of(task)
    folder = out or default_folder(recipe, resume=resume)
    with show_progress(f"{model}, {layers} layers, {source.name}") as on_progress:
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
    told = [describe(recipe, result.summary, folder)]
    fields = summary_fields(result, folder)
    if source.is_own and result.summary.n:
        fields["predictions"] = str(predict_all(recipe, task, result, folder, device))
        told.append(f"predictions: {fields['predictions']}")
    typer.echo("\n".join(told), err=json)
    if json:
        typer.echo(json_text(fields))
    if result.summary.n == 0:
        sys.exit(1)


train.__doc__ = f"{train.__doc__}\n{_EPILOG}"


def predict_all(recipe: Recipe, task: NodeTask, result: FitResult, folder: Path, device: str) -> Path:
    """Write what the runs that are done say together about every node; the folder's own ``predictions.csv``."""
    done = [m for m, record in zip(result.models, result.records, strict=True) if record.status == "done"]
    given = ModelInput.of(task)
    path = folder / "predictions.csv"
    probabilities = mean_probabilities(done, recipe, given, device)
    write_predictions(path, given.node_ids, probabilities, given.labels, task.facts().classes)
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
    data = re.sub(r"[^\w-]+", "-", Path(recipe.dataset).stem)
    name = f"{data}-{recipe.model}-{recipe.num_layers}"
    candidates = [Path("runs") / (name if number == 1 else f"{name}-{number}") for number in range(1, 10_000)]
    taken = [path for path in candidates if RunFolder(path).is_taken]
    if resume:
        same = [path for path in taken if not RunFolder(path).about().recipe.differences(recipe)]
        if same:
            return same[-1]
    return next(path for path in candidates if path not in taken)


def describe(recipe: Recipe, summary: Summary, folder: Path) -> str:
    """The result in words."""
    what = f"{recipe.model}, {recipe.num_layers} layers, {recipe.dataset}"
    failed = f", {summary.num_failed} failed" if summary.num_failed else ""
    runs = f"(n = {summary.n}{failed})"
    if summary.val_mean is None:
        result = f"no run finished{failed}"
    elif summary.test_mean is None:  # a split without test nodes
        validation = _percent(summary.val_mean, summary.val_std)
        result = f"validation accuracy {validation} {runs}, no test nodes, {summary.seconds:.0f} s"
    else:
        result = (
            f"test accuracy {_percent(summary.test_mean, summary.test_std)} {runs}, "
            f"validation {_percent(summary.val_mean)}, {summary.seconds:.0f} s"
        )
    return f"{what}: {result}\nrecords and models: {folder}"


def _percent(mean: float, std: float | None = None) -> str:
    spread = f" ± {100 * std:.2f}" if std is not None else ""
    return f"{100 * mean:.2f}{spread} %"


def summary_fields(result: FitResult, folder: Path) -> dict[str, object]:
    """What ``--json`` prints; accuracies are fractions."""
    summary = result.summary
    return {
        "test_mean": summary.test_mean,
        "test_std": summary.test_std,
        "n": summary.n,
        "num_failed": summary.num_failed,
        "val_mean": summary.val_mean,
        "seconds": round(summary.seconds, 3),
        "records": str(RunFolder(folder).records_path),
    }
