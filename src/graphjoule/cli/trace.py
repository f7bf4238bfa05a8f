"""``graphjoule trace``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphjoule.cli.places import say_alone
from graphjoule.cli.predict import training_graph
from graphjoule.cli.source import GraphSource, split_names, takes_a_graph
from graphjoule.cli.terminal import Device, Overrides
from graphjoule.errors import GraphjouleError, choices
from graphjoule.files import json_text
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.settings import parse_overrides

if TYPE_CHECKING:
    from graphjoule.nn import GraphModel
    from graphjoule.trace.plots import Panel
    from graphjoule.training.examine import Examination

MEASURE_NAMES = (  # the keys of `graphjoule.MEASURES`, which needs torch
    "energy",
    "norm",
    "rayleigh",
    "kernel_distance",
    "mad",
    "pair_cosine",
    "effective_rank",
    "stable_rank",
    "correlation",
    "combinatorial_energy",
    "random_walk_energy",
    "rank_one_distance",
    "second_energy",
    "third_energy",
)
DEFAULT_MEASURES = "energy,norm,rayleigh,effective_rank"
_MOST_BROKEN = 5  # layers outside their limits that are named


@takes_a_graph
def trace(
    source: GraphSource,
    run_or_recipe: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_RECIPE",
            help="A run folder of `graphjoule train`, a model file, or MODEL:DATASET:LAYERS such as egnn:cora:64.",
        ),
    ],
    measures: Annotated[
        str, typer.Option(help=f"What to record, or all: {choices(MEASURE_NAMES)}.", metavar="NAMES")
    ] = DEFAULT_MEASURES,
    watch: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Modules to record, such as encoder,convs.*; by default all.")
    ] = None,
    gradients: Annotated[bool, typer.Option("--gradients", help="Record how far a gradient reaches, too.")] = False,
    reach: Annotated[
        bool, typer.Option("--reach", help="Measure how many hops away some layers still see, too.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Which seed; by default 0, or the lowest that has finished.")
    ] = None,
    set_: Overrides = None,
    device: Device = "auto",
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the measures over the layers.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the picture if it is there already.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object instead.")] = False,
) -> None:
    """Print and draw the energy of every layer, its limits and a diagnosis, at initialisation and after training.

    Examples:

    - `graphjoule trace egnn:cora:64` traces the initialised network of a recipe

    - `graphjoule trace runs/cora-egnn-64 --plot energy.png` traces a training before and after

    - `graphjoule trace egnn:cora:64 --reach` says how much of the depth is used

    - `graphjoule trace gcn:32 --nodes nodes.csv --edges edges.csv --measures energy,mad --json`
    """
    if plot is not None and not plot.absolute().parent.is_dir():
        raise GraphjouleError(f"--plot is {plot}, but there is no folder {plot.absolute().parent}.")
    if plot is not None and plot.is_dir():
        raise GraphjouleError(f"--plot is {plot}, which is a folder; name a file, such as {plot / 'energy.png'}.")
    if plot is not None and plot.exists() and not force:
        raise GraphjouleError(f"{plot} is there already; add --force to replace it, or name another file with --plot.")
    wanted = MEASURE_NAMES if measures == "all" else tuple(dict.fromkeys(split_names(measures) or ()))
    if "reach" in wanted:  # of a layer and what it comes from, not of its features alone, so no measure of the table
        wanted, reach = tuple(name for name in wanted if name != "reach"), True
    for name in wanted:
        if name not in MEASURE_NAMES:
            raise GraphjouleError(f"There is no measure {name!r}; choose from {choices(MEASURE_NAMES)}.")
    overrides, path = parse_overrides(set_ or []), Path(run_or_recipe)
    if path.exists():
        if overrides:
            raise GraphjouleError(
                f"--set changes a recipe, but {path} is trained already: its settings are what they are."
            )
        if source.is_own or source.dataset is not None:
            raise GraphjouleError(f"{path} says itself which graph it was trained on; leave out the options for one.")
    else:
        recipe, source = find_recipe(run_or_recipe, source, overrides)

    from graphjoule.fitting import read_runs
    from graphjoule.report import AFTER, BEFORE
    from graphjoule.tasks.task import ModelInput
    from graphjoule.trace.plots import check_picture_path, draw_panels, save_figure
    from graphjoule.training import describe_device, resolve_device, versions
    from graphjoule.training.build import initialised
    from graphjoule.training.examine import examine

    if plot is not None:  # said now, not after minutes
        check_picture_path(plot)
    where = resolve_device(device)
    models: dict[str, GraphModel]
    if path.exists():
        runs = read_runs(path, seed=seed)
        say_alone(path)
        recipe, seed = runs.recipe, min(runs.models)
        trained = runs.models[seed]
        inputs = training_graph(runs, source.data_root)
        models = {BEFORE: initialised(recipe, trained.in_channels, trained.out_channels, seed), AFTER: trained}
    else:
        task, seed = source.load(), seed or 0
        inputs = ModelInput.of(task)
        models = {BEFORE: initialised(recipe, task.num_features, task.out_channels, seed)}
    found = {
        state: examine(
            model,
            recipe,
            inputs,
            measures=wanted,
            watch=split_names(watch),
            gradients=gradients,
            reaches=reach,
            device=where,
        )
        for state, model in models.items()
    }
    heading = f"{recipe.title}, seed {seed}"
    if plot is not None:
        save_figure(draw_panels(panels(found, wanted), title=heading), plot)
    if json:
        about = {"recipe": recipe.settings(), "seed": seed, "num_nodes": inputs.graph.num_nodes}
        about |= {"device": describe_device(where), "versions": versions(), "plot": None if plot is None else str(plot)}
        typer.echo(json_text(about | {"states": {state: one.fields() for state, one in found.items()}}))
        return
    typer.echo("\n\n".join(describe(f"{heading}, {state}", one) for state, one in found.items()))
    if plot is not None:
        typer.echo(f"\npicture: {plot}")


def find_recipe(target: str, source: GraphSource, overrides: dict[str, Any]) -> tuple[Recipe, GraphSource]:
    """The recipe that is named by MODEL:DATASET:LAYERS or MODEL:LAYERS, and its graph."""
    model, *dataset, layers = target.split(":") if ":" in target else (target, "")
    if len(dataset) > 1 or not layers.isdigit():
        raise GraphjouleError(
            f"There is no run {target}; expected a folder that graphjoule train made, a model file, or a recipe "
            "MODEL:DATASET:LAYERS, such as egnn:cora:64."
        )
    if dataset:
        if source.is_own or source.dataset not in (None, *dataset):
            raise GraphjouleError(f"The recipe names the dataset {dataset[0]}, and an option another graph: give one.")
        source = replace(source, dataset=dataset[0])
    source.check()
    return load_recipe(model, source.name, int(layers), overrides), source


def describe(heading: str, found: Examination) -> str:
    """One state of a network as text: the table, the limits, the diagnosis."""
    parts = [heading, found.trace.table()]
    if found.limits is not None:
        broken = [
            f"  {layer.name}: energy {layer.energy:.3g}, limits {layer.lower:.3g} to {layer.upper:.3g}"
            for layer in found.limits.broken
        ]
        more = [f"  and {len(broken) - _MOST_BROKEN} more"] if len(broken) > _MOST_BROKEN else []
        parts.append("\n".join([found.limits.summary(), *broken[:_MOST_BROKEN], *more]))
    if found.reaches:
        parts.append("\n".join(found.reach_words()))
    if found.diagnosis is not None:
        parts.append(str(found.diagnosis).replace("`gradients=True` and a backward pass", "--gradients"))
    return "\n\n".join(parts)


def panels(found: Mapping[str, Examination], measures: tuple[str, ...]) -> list[Panel]:
    """A panel per measure with a line per state, and the limits as a band behind the last one's energy."""
    from graphjoule.report import AFTER, BEFORE
    from graphjoule.trace.plots import BLUE, VERMILION, Band, Line, Panel
    from graphjoule.training.examine import graph_layers

    styles = {BEFORE: (VERMILION, "--"), AFTER: (BLUE, "-")}
    drawn = {state: graph_layers(one.trace).layers or one.trace.layers for state, one in found.items()}
    names = [row.name for row in next(iter(drawn.values()))]
    columns = [*measures, *(["gradient"] if all("gradient" in row for rows in drawn.values() for row in rows) else [])]
    state, last = list(found.items())[-1]
    limits = last.limits.layers if last.limits is not None else []
    lower, upper = [layer.lower for layer in limits], [layer.upper for layer in limits]
    band = Band(f"limits {state}", range(1, len(limits) + 1), lower, upper, colour=styles[state][0])
    return [
        Panel(
            title="",
            y_label=name.replace("_", " "),
            lines=[
                Line(state, [row[name] for row in rows], colour=styles[state][0], style=styles[state][1])
                for state, rows in drawn.items()
            ],
            bands=[band] if name == "energy" and limits else [],
            x_label="layer (0 is X_0)" if names and not names[0].startswith("convs.") else "layer",
            x_names=names,
        )
        for name in columns
    ]
