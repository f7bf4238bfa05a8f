"""``graphjoule trace``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphjoule.cli.predict import training_graph
from graphjoule.cli.source import GraphSource, split_names, takes_a_graph
from graphjoule.cli.usage import Device
from graphjoule.errors import GraphjouleError, choices
from graphjoule.files import json_text
from graphjoule.training.recipe import Recipe, load_recipe, parse_overrides

if TYPE_CHECKING:
    from graphjoule.nn import GraphModel
    from graphjoule.tasks.inputs import ModelInput
    from graphjoule.trace.limits import Limits
    from graphjoule.trace.plots import Band, Panel
    from graphjoule.training.examine import Examination

_EPILOG = """
Examples:

- `graphjoule trace egnn:cora:64` traces the initialised network of a recipe

- `graphjoule trace runs/cora-egnn-64 --plot energy.png` traces a training before and after

- `graphjoule trace gcn:32 --nodes nodes.csv --edges edges.csv --measures energy,mad --json`
"""
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
    seed: Annotated[
        int | None, typer.Option(min=0, help="Which seed; by default 0, or the lowest that has finished.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of a recipe; repeatable."),
    ] = None,
    device: Device = "auto",
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the measures over the layers.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object instead.")] = False,
) -> None:
    """Print and draw the energy of every layer, its limits and a diagnosis, at initialisation and after training."""
    if plot is not None and not plot.absolute().parent.is_dir():
        raise GraphjouleError(f"--plot is {plot}, but there is no folder {plot.absolute().parent}.")
    wanted = MEASURE_NAMES if measures == "all" else tuple(dict.fromkeys(split_names(measures) or ()))
    for name in wanted:
        if name not in MEASURE_NAMES:
            raise GraphjouleError(f"There is no measure {name!r}; choose from {choices(MEASURE_NAMES)}.")
    overrides = parse_overrides(set_ or [])
    found_recipe = None if Path(run_or_recipe).exists() else find_recipe(run_or_recipe, source, overrides)

    from graphjoule.trace.plots import check_picture_path, draw_panels, save_figure
    from graphjoule.training import describe_device, resolve_device, versions
    from graphjoule.training.examine import examine

    if plot is not None:  # said now, not after minutes
        check_picture_path(plot)
    where = resolve_device(device)
    if found_recipe is None:
        subject = _of_run(Path(run_or_recipe), source, overrides, seed)
    else:
        subject = _of_recipe(*found_recipe, seed or 0)
    found = {
        state: examine(
            model,
            subject.recipe,
            subject.given,
            measures=wanted,
            watch=split_names(watch),
            gradients=gradients,
            device=where,
        )
        for state, model in subject.models.items()
    }
    if plot is not None:
        save_figure(draw_panels(panels(found, wanted), title=subject.title), plot)
    if json:
        about = {"device": describe_device(where), "versions": versions(), "plot": None if plot is None else str(plot)}
        states = {state: one.fields() for state, one in found.items()}
        typer.echo(json_text({**subject.fields(), **about, "states": states}))
        return
    typer.echo("\n\n".join(describe(subject.title, state, one) for state, one in found.items()))
    if plot is not None:
        typer.echo(f"\npicture: {plot}")


trace.__doc__ = f"{trace.__doc__}\n{_EPILOG}"


@dataclass(frozen=True, eq=False)
class Subject:
    """What is traced: a network in one or two states, and what it is fed."""

    recipe: Recipe
    seed: int
    given: ModelInput
    models: Mapping[str, GraphModel]

    @property
    def title(self) -> str:
        """What it is, in words."""
        model = self.recipe.model
        return f"{model.name}, {model.num_layers} layers, {self.recipe.data.name}, seed {self.seed}"

    def fields(self) -> dict[str, Any]:
        """What ``--json`` says about it."""
        return {"recipe": self.recipe.settings(), "seed": self.seed, "num_nodes": self.given.graph.num_nodes}


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


def _of_recipe(recipe: Recipe, source: GraphSource, seed: int) -> Subject:
    from graphjoule.report import BEFORE
    from graphjoule.tasks.inputs import ModelInput
    from graphjoule.training.build import initialised

    task = source.load()
    network = initialised(recipe, task.num_features, task.out_channels, seed)
    return Subject(recipe, seed, ModelInput.of(task), {BEFORE: network})


def _of_run(path: Path, source: GraphSource, overrides: dict[str, Any], seed: int | None) -> Subject:
    if overrides:
        raise GraphjouleError(f"--set changes a recipe, but {path} is trained already: its settings are what they are.")
    if source.is_own or source.dataset is not None:
        raise GraphjouleError(f"{path} says itself which graph it was trained on; leave out the options for one.")

    from graphjoule.fitting import read_runs
    from graphjoule.report import AFTER, BEFORE
    from graphjoule.training.build import initialised

    runs = read_runs(path, seed=seed)
    chosen = min(runs.models)
    model = runs.models[chosen]
    first = initialised(runs.recipe, model.in_channels, model.out_channels, chosen)
    given = training_graph(runs, source.data_root)
    return Subject(runs.recipe, chosen, given, {BEFORE: first, AFTER: model})


def describe(title: str, state: str, found: Examination) -> str:
    """One state of a network as text: the table, the limits, the diagnosis."""
    parts = [f"{title}, {state}", found.trace.table()]
    if found.limits is not None:
        parts.append("\n".join([found.limits.summary(), *_broken(found.limits)]))
    if found.diagnosis is not None:
        parts.append(str(found.diagnosis).replace("`gradients=True` and a backward pass", "--gradients"))
    return "\n\n".join(parts)


def _broken(found: Limits) -> list[str]:
    """The first layers outside a limit, one line each."""
    lines = [
        f"  {layer.name}: energy {layer.energy:.3g}, limits {layer.lower:.3g} to {layer.upper:.3g}"
        for layer in found.broken[:_MOST_BROKEN]
    ]
    more = len(found.broken) - len(lines)
    return [*lines, f"  and {more} more"] if more else lines


def panels(found: Mapping[str, Examination], measures: tuple[str, ...]) -> list[Panel]:
    """A panel per measure with a line per state, and the limits as a band behind the last one's energy."""
    from graphjoule.trace.plots import Line, Panel
    from graphjoule.training.examine import graph_layers

    drawn = {state: graph_layers(one.trace).layers or one.trace.layers for state, one in found.items()}
    names = [row.name for row in next(iter(drawn.values()))]
    columns = [*measures, *(["gradient"] if all("gradient" in row for rows in drawn.values() for row in rows) else [])]
    return [
        Panel(
            title="",
            y_label=name.replace("_", " "),
            lines=[
                Line(state, [row[name] for row in rows], colour=_style(state)[0], style=_style(state)[1])
                for state, rows in drawn.items()
            ],
            bands=[band] if name == "energy" and (band := _band(found)) is not None else [],
            x_label="layer (0 is X_0)" if names and not names[0].startswith("convs.") else "layer",
            x_names=names,
        )
        for name in columns
    ]


def _band(found: Mapping[str, Examination]) -> Band | None:
    from graphjoule.trace.plots import Band

    state, last = list(found.items())[-1]
    if last.limits is None:
        return None
    layers = last.limits.layers
    return Band(
        f"limits {state}",
        range(1, len(layers) + 1),
        [layer.lower for layer in layers],
        [layer.upper for layer in layers],
        colour=_style(state)[0],
    )


def _style(state: str) -> tuple[str, str]:
    from graphjoule.report import BEFORE
    from graphjoule.trace.plots import BLUE, VERMILION

    return (VERMILION, "--") if state == BEFORE else (BLUE, "-")
