"""``graphjoule predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphjoule.cli.usage import Device
from graphjoule.errors import GraphjouleError, counted
from graphjoule.files import json_text

if TYPE_CHECKING:
    from torch import Tensor

    from graphjoule.fitting import TrainedRuns
    from graphjoule.tasks.inputs import ModelInput

_EPILOG = """
Examples:

- `graphjoule predict runs/nodes-egnn-32` predicts on the training graph

- `graphjoule predict runs/nodes-egnn-32 --nodes new-nodes.csv --edges new-edges.csv --out new.csv`

- `graphjoule predict runs/cora-egnn-64 --seed 3 --out cora.csv`
"""


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `graphjoule train`, or a model file.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
    nodes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another table of nodes with the same columns.")
    ] = None,
    edges: Annotated[Path | None, typer.Option(metavar="FILE", help="The edges between them.")] = None,
    npz: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another archive, if the model was trained on one.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="One run alone; by default the mean probability of all finished runs.")
    ] = None,
    device: Device = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there already.")] = False,
    data_root: Annotated[
        Path | None, typer.Option(help="Where datasets are; by default GRAPHJOULE_DATA, else a cache folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was done as one JSON object.")] = False,
) -> None:
    """Write what is predicted for every node, and whether it was known before, as CSV."""
    if not run.exists():
        raise GraphjouleError(f"There is no run {run}; expected a folder that graphjoule train made, or a model file.")
    _check_out(out, force=force)

    from graphjoule.fitting import read_runs
    from graphjoule.training.predictions import write_predictions

    runs = read_runs(run, seed=seed)
    given = _input(runs, run, nodes, edges, npz, data_root)
    predicted = runs.predict(given, device)
    write_predictions(out, given.node_ids, predicted, given.targets, runs.objective)
    fields = describe_predictions(runs, given, predicted)
    if json:
        typer.echo(json_text(fields | {"predictions": str(out)}))
        return
    metric, score = runs.objective.headline, fields[runs.objective.headline.name]
    known = f", {metric.name} on these {metric.text(score)}" if score is not None else ""
    typer.echo(
        f"{counted(len(given.node_ids), 'node')} predicted by {counted(len(runs.models), 'run')}, "
        f"{fields['num_given']:,} of them had a known target{known}\npredictions: {out}"
    )


predict.__doc__ = f"{predict.__doc__}\n{_EPILOG}"


def _check_out(out: Path, *, force: bool) -> None:
    """Refuse a place for the result before the graph is read and anything computed."""
    if not out.absolute().parent.is_dir():
        raise GraphjouleError(f"--out is {out}, but there is no folder {out.absolute().parent}.")
    if out.is_dir():
        raise GraphjouleError(f"--out is {out}, which is a folder; name a file, such as {out / 'predictions.csv'}.")
    if out.exists() and not force:
        raise GraphjouleError(f"{out} is there already; add --force to replace it, or name another file with --out.")


def _input(
    runs: TrainedRuns, run: Path, nodes: Path | None, edges: Path | None, npz: Path | None, data_root: Path | None
) -> ModelInput:
    """The graph to predict on: the files that were named, else the training graph once more."""
    from graphjoule.tasks.archive import load_npz_like
    from graphjoule.tasks.tables import load_tables_like

    source = runs.data.source if runs.data else None
    columns = source.columns if source else None
    if runs.data is not None and npz is not None:
        if source is None or source.file("npz") is None:
            raise GraphjouleError(f"--npz is {npz}, but the model of {run} was not trained on an archive.")
        return load_npz_like(npz, runs.data.num_features, runs.objective)
    if nodes is not None:
        if runs.data is None or columns is None:
            raise GraphjouleError(f"--nodes is {nodes}, but the model of {run} was not trained on a table of nodes.")
        return load_tables_like(columns, runs.objective, nodes, edges)
    if edges is not None:
        raise GraphjouleError(f"--edges is {edges}, but --nodes is missing: give the nodes that the edges are between.")
    return training_graph(runs, data_root)


def training_graph(runs: TrainedRuns, data_root: Path | None) -> ModelInput:
    """What the runs were trained on: the user's own files if they are unchanged, else the dataset by its name."""
    from graphjoule.tasks.archive import load_npz_like
    from graphjoule.tasks.datasets import DATASETS, load_task
    from graphjoule.tasks.inputs import ModelInput
    from graphjoule.tasks.tables import load_tables_like, unchanged

    data = runs.data
    if data is None or data.source is None:
        if runs.recipe.data.name not in DATASETS:
            raise GraphjouleError(
                f"The model was trained on {runs.recipe.data.name!r}, a graph that was given in Python and is in "
                "no file; use graphjoule.load there, and call the model."
            )
        task = load_task(runs.recipe.data.name, data_root)
        if data is not None and task.facts().sha256 != data.sha256:
            raise GraphjouleError(f"The dataset {task.name} is not what the model was trained on: its hash differs.")
        return ModelInput.of(task)
    paths = {file.role: unchanged(file) for file in data.source.files}
    if data.source.columns is None:
        return load_npz_like(paths["npz"], data.num_features, data.objective)
    return load_tables_like(data.source.columns, data.objective, paths["nodes"], paths.get("edges"))


def describe_predictions(runs: TrainedRuns, given: ModelInput, predicted: Tensor) -> dict[str, Any]:
    """What ``--json`` prints: how many nodes, how many had a known target, and the metric on these."""
    objective = runs.objective
    known = objective.is_known(given.targets)
    metric = objective.headline
    score = None
    if bool(known.any()):
        score = float(metric.value(*objective.scored(predicted[known], given.targets[known])))
    return {
        "num_nodes": len(given.node_ids),
        "num_given": int(known.sum()),
        metric.name: score,
        "seeds": list(runs.models),
    }
