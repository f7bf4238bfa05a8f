"""``graphjoule predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphjoule.cli.places import check_output, refuse_inputs
from graphjoule.cli.terminal import DataRoot, Device
from graphjoule.errors import GraphjouleError, counted
from graphjoule.files import json_text

if TYPE_CHECKING:
    from graphjoule.fitting import TrainedRuns
    from graphjoule.tasks.task import ModelInput


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `graphjoule train`, or a model file.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
    nodes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Another table with the same columns: new nodes, or those of another graph."),
    ] = None,
    edges: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The edges between them, or of new nodes with the training graph."),
    ] = None,
    knn: Annotated[
        int | None,
        typer.Option(help="Nearest nodes of the training graph that a new one reads from, without --edges; else 10."),
    ] = None,
    update_old: Annotated[
        bool, typer.Option("--update-old", help="Let the nodes of the training graph read from new ones too.")
    ] = False,
    write_all: Annotated[
        bool, typer.Option("--all", help="Write the nodes of the training graph too, not the new ones alone.")
    ] = False,
    graphs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The graphs that --nodes and --edges are of, if the model predicts graphs."),
    ] = None,
    npz: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another archive, if the model was trained on one.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="One run alone; by default the mean probability of all that is in the folder.")
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option(help="Add a `set` of classes, or `lower` and `upper`, that hold the truth so often, such as 0.9."),
    ] = None,
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Divide the outputs of each run by its temperature.")
    ] = False,
    device: Device = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there already.")] = False,
    data_root: DataRoot = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was done as one JSON object.")] = False,
) -> None:
    """Write what is predicted for every node, or every graph, and whether it was known before, as CSV.

    Examples:

    - `graphjoule predict runs/nodes-egnn-32` predicts on the training graph

    - `graphjoule predict runs/nodes-egnn-32 --nodes new-nodes.csv --edges new-edges.csv --out new.csv`

    - `graphjoule predict runs/nodes-egnn-32 --nodes one-more.csv` reads from its 10 nearest nodes of the training graph

    - `graphjoule predict runs/molecules-egnn-8 --graphs new.csv --nodes new-atoms.csv --edges new-bonds.csv`

    - `graphjoule predict runs/cora-egnn-64 --seed 3 --out cora.csv`

    - `graphjoule predict runs/cora-egnn-64 --coverage 0.9` adds sets of classes that hold the truth nine times in ten
    """
    if not run.exists():
        raise GraphjouleError(f"There is no run {run}; expected a folder that graphjoule train made, or a model file.")
    # Refused before the graph is read and anything computed.
    check_output(out, run, (nodes, edges, graphs, npz), force=force, example="predictions.csv")
    if nodes is not None and npz is not None:
        raise GraphjouleError("--nodes and --npz contradict each other: give one.")
    if edges is not None and nodes is None:
        raise GraphjouleError(f"--edges is {edges}, but --nodes is missing: give the nodes that the edges are between.")
    if graphs is not None and (nodes is None or edges is None):
        missing = "--nodes" if nodes is None else "--edges"
        raise GraphjouleError(f"--graphs is {graphs}, but {missing} is missing: new graphs are three tables.")
    is_asked = {"--knn": knn is not None, "--update-old": update_old, "--all": write_all}
    about_new = [option for option, is_given in is_asked.items() if is_given]
    if nodes is None and about_new:
        raise GraphjouleError(f"{about_new[0]} is about new nodes; give these with --nodes, or leave it out.")

    from graphjoule.fitting import read_runs
    from graphjoule.tasks.archive import load_npz_like
    from graphjoule.tasks.new_nodes import load_new_nodes
    from graphjoule.tasks.reading import file_sha256
    from graphjoule.tasks.tables import load_tables_like
    from graphjoule.training.predictions import coverage_columns, write_predictions

    runs = read_runs(run, seed=seed)
    threshold = None if coverage is None else runs.threshold(coverage)
    data, objective = runs.data, runs.objective
    if data is not None and data.source is not None:
        refuse_inputs(out, [Path(file.path) for file in data.source.files], "which the model was trained on")
    if npz is not None:
        if data is None or data.source is None or data.source.file("npz") is None:
            raise GraphjouleError(f"--npz is {npz}, but the model of {run} was not trained on an archive.")
        inputs = load_npz_like(npz, data.num_features, objective)
    elif nodes is not None:
        if data is None or data.source is None or data.source.columns is None:
            raise GraphjouleError(f"--nodes is {nodes}, but the model of {run} was not trained on a table of nodes.")
        columns = data.source.columns
        if columns.graphs is None and graphs is None:
            inputs = load_new_nodes(data.source, objective, nodes, edges, knn=knn, update_old=update_old)
            if not inputs.num_old and (update_old or write_all):
                option = "--update-old" if update_old else "--all"
                raise GraphjouleError(
                    f"{option} is about nodes of the training graph, but {nodes} is a graph of its own; leave it out."
                )
        elif about_new:
            raise GraphjouleError(f"{about_new[0]} is about new nodes, but the model of {run} predicts graphs.")
        else:
            inputs = load_tables_like(columns, objective, nodes, edges, graphs)
    else:
        inputs = training_graph(runs, data_root)
    if write_all and len(set(inputs.node_ids)) < len(inputs.node_ids):
        raise GraphjouleError("--all needs a column of ids: the rows of both tables are called 1, 2, and so on.")
    predicted = runs.predict(inputs, device, is_calibrated=calibrated)
    plain = runs.predict(inputs, device) if calibrated and threshold is not None else predicted
    first = 0 if write_all else inputs.num_old
    predicted, plain, targets = (each[first:] for each in (predicted, plain, inputs.targets))
    ids = inputs.node_ids[first:]
    more = {} if threshold is None else coverage_columns(plain, objective, threshold)
    write_predictions(out, ids, predicted, targets, objective, more)

    known, score = objective.is_known(targets), None
    metric = objective.watched(runs.recipe.train.select_on)[-1]  # what selected; the headline where the loss did
    num_known, num_nodes, unit = int(known.sum()), len(ids), inputs.unit
    if num_known:
        score = float(metric.value(*objective.scored(predicted[known], targets[known])))
    if json:
        fields = {f"num_{unit}s": num_nodes, "num_given": num_known, metric.name: score, "seeds": list(runs.models)}
        typer.echo(json_text(fields | {"members": list(runs.members), "predictions": str(out)}))
        return
    scored = f", {metric.name} on these {metric.text(score)}" if score is not None else ""
    given, known_files = npz or nodes, () if data is None or data.source is None else data.source.files
    is_old = write_all or given is None or file_sha256(given) in {file.sha256 for file in known_files}
    if scored and is_old:  # the training graph, whose splits differ by run
        scored += "; some of them trained the model, so that is too good"
    models = f" of {len(runs.members) + 1} models" if runs.members else ""
    typer.echo(
        f"{counted(num_nodes, unit)} predicted by {counted(runs.num_runs, 'run')}{models}, "
        f"{num_known:,} of them had a known target{scored}\npredictions: {out}"
    )


def training_graph(runs: TrainedRuns, data_root: Path | None) -> ModelInput:
    """What the runs were trained on: the user's own files if they are unchanged, else the dataset by its name."""
    from graphjoule.tasks.archive import load_npz_like
    from graphjoule.tasks.datasets import DATASETS, load_task
    from graphjoule.tasks.tables import load_tables_like, unchanged
    from graphjoule.tasks.task import ModelInput

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
    return load_tables_like(
        data.source.columns, data.objective, paths["nodes"], paths.get("edges"), paths.get("graphs")
    )
