"""``graphjoule predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphjoule.cli.terminal import DataRoot, Device
from graphjoule.errors import GraphjouleError, counted
from graphjoule.files import json_text

if TYPE_CHECKING:
    from graphjoule.fitting import TrainedRuns
    from graphjoule.tasks.inputs import ModelInput


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
    data_root: DataRoot = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was done as one JSON object.")] = False,
) -> None:
    """Write what is predicted for every node, and whether it was known before, as CSV.

    Examples:

    - `graphjoule predict runs/nodes-egnn-32` predicts on the training graph

    - `graphjoule predict runs/nodes-egnn-32 --nodes new-nodes.csv --edges new-edges.csv --out new.csv`

    - `graphjoule predict runs/cora-egnn-64 --seed 3 --out cora.csv`
    """
    if not run.exists():
        raise GraphjouleError(f"There is no run {run}; expected a folder that graphjoule train made, or a model file.")
    # Refused before the graph is read and anything computed.
    if not out.absolute().parent.is_dir():
        raise GraphjouleError(f"--out is {out}, but there is no folder {out.absolute().parent}.")
    if out.is_dir():
        raise GraphjouleError(f"--out is {out}, which is a folder; name a file, such as {out / 'predictions.csv'}.")
    if out.exists() and not force:
        raise GraphjouleError(f"{out} is there already; add --force to replace it, or name another file with --out.")
    if nodes is not None and npz is not None:
        raise GraphjouleError("--nodes and --npz contradict each other: give one.")
    if edges is not None and nodes is None:
        raise GraphjouleError(f"--edges is {edges}, but --nodes is missing: give the nodes that the edges are between.")

    from graphjoule.fitting import read_runs
    from graphjoule.tasks.archive import load_npz_like
    from graphjoule.tasks.tables import load_tables_like
    from graphjoule.training.predictions import write_predictions

    runs = read_runs(run, seed=seed)
    data, objective = runs.data, runs.objective
    if npz is not None:
        if data is None or data.source is None or data.source.file("npz") is None:
            raise GraphjouleError(f"--npz is {npz}, but the model of {run} was not trained on an archive.")
        given = load_npz_like(npz, data.num_features, objective)
    elif nodes is not None:
        if data is None or data.source is None or data.source.columns is None:
            raise GraphjouleError(f"--nodes is {nodes}, but the model of {run} was not trained on a table of nodes.")
        given = load_tables_like(data.source.columns, objective, nodes, edges)
    else:
        given = training_graph(runs, data_root)
    predicted = runs.predict(given, device)
    write_predictions(out, given.node_ids, predicted, given.targets, objective)

    known, metric, score = objective.is_known(given.targets), objective.headline, None
    num_known, num_nodes = int(known.sum()), len(given.node_ids)
    if num_known:
        score = float(metric.value(*objective.scored(predicted[known], given.targets[known])))
    if json:
        fields = {"num_nodes": num_nodes, "num_given": num_known, metric.name: score, "seeds": list(runs.models)}
        typer.echo(json_text(fields | {"predictions": str(out)}))
        return
    scored = f", {metric.name} on these {metric.text(score)}" if score is not None else ""
    typer.echo(
        f"{counted(num_nodes, 'node')} predicted by {counted(len(runs.models), 'run')}, "
        f"{num_known:,} of them had a known target{scored}\npredictions: {out}"
    )


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
