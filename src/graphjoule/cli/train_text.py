"""What ``graphjoule train`` says when it is done."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from graphjoule.files import json_text
from graphjoule.fitting import FitResult
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Summary


def tell(recipe: Recipe, result: FitResult, predictions: Path | None = None, *, json: bool) -> None:
    """Print what came out; exit code 1 if no run finished."""
    folder = result.folder or Path()
    told = [describe(recipe, result.summary, folder)]
    fields = summary_fields(result, folder)
    if predictions is not None:
        fields["predictions"] = str(predictions)
        told.append(f"predictions: {predictions}")
    typer.echo("\n".join(told), err=json)
    if json:
        typer.echo(json_text(fields))
    if result.summary.n == 0:
        sys.exit(1)


def describe(recipe: Recipe, summary: Summary, folder: Path) -> str:
    """The result in words."""
    what = f"{recipe.model.name}, {recipe.model.num_layers} layers, {recipe.data.name}"
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
