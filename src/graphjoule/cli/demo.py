"""``graphjoule demo``: two deep networks on the embedded digits, one alive, one dead, and the energy that shows why."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from graphjoule.cli.report import repeat_command
from graphjoule.cli.terminal import show_progress
from graphjoule.files import ensure_folder
from graphjoule.training.recipe import load_recipe

if TYPE_CHECKING:
    from graphjoule.nn import GraphModel
    from graphjoule.tasks import Task

_MODELS = ("egnn", "gcn")
_BAR_WIDTH = 16


def demo(
    layers: Annotated[int, typer.Option(min=1, help="Number of graph layers of both networks.")] = 32,
    epochs: Annotated[int, typer.Option(min=1, help="The most epochs each may take.")] = 150,
    report: Annotated[Path, typer.Option(metavar="FILE", help="The report to write.")] = Path("runs/demo.html"),
) -> None:
    """Train a deep EGNN and a deep GCN on the embedded digits; print accuracies and energies, write a report."""
    from graphjoule.fitting import fit
    from graphjoule.report import Cell, check_report_path, report_page, states_of, write_report
    from graphjoule.tasks import load_task
    from graphjoule.tasks.task import ModelInput

    ensure_folder(report.parent)
    check_report_path(report)  # said now, not after the training
    task = load_task("digits")
    typer.echo(
        f"Handwritten digits: {task.num_nodes} images, each linked with its most similar ones, "
        f"5 labels per class to learn from.\nTraining two networks of {layers} layers ..."
    )
    energies: dict[str, list[float]] = {}
    changes, cells = [], []
    for name in _MODELS:
        recipe = load_recipe(name, "digits", layers, {"epochs": epochs})
        with show_progress(name) as on_progress:
            result = fit(recipe, task, seeds=[0], device="cpu", on_progress=on_progress)
        record = result.records[0]
        accuracy = "failed" if record.test_score is None else f"{100 * record.test_score:.1f} % of test images right"
        typer.echo(
            f"  {name.upper():<4} {layers} layers: {accuracy}  ({record.epochs_run} epochs, {record.seconds:.0f} s)"
        )
        model: Any = result.models[0]
        cell = Cell(recipe.with_split_of(task), result.records, task.facts(), seed=0)
        if record.status == "failed":
            cells.append(replace(cell, untraced="The training failed; there is no trained network."))
        else:
            cells.append(replace(cell, states=states_of(model, cell.recipe, ModelInput.of(task), seed=0)))
        energies[name] = layer_energies(model, task)
        changes.append(f"those of {name.upper()} by {100 * change_when_shuffled(model, task):.0f} %")
    Console().print(energy_table(energies, layers))
    typer.echo(
        "The energy says how different neighbouring nodes still are. At zero all nodes look alike: nothing is left\n"
        "to classify. Shuffle the images among the nodes, and the scores change,\n"
        f"{' and '.join(changes)}.\n"
        "Scores that do not change no longer see the input: what energy is left is made of biases and node degrees."
    )
    title = f"Two networks of {layers} layers on handwritten digits"
    write_report(report, report_page(cells, title=title, command=repeat_command))
    typer.echo(f"report: {report}\nNext: graphjoule train --help")


def layer_energies(model: GraphModel, task: Task) -> list[float]:
    """Dirichlet energy of every graph layer's output, in evaluation mode."""
    import torch

    from graphjoule.trace import Trace

    model.eval()
    with torch.no_grad(), Trace(model, task.graph, ["energy"], watch=["convs.*"]) as trace:
        model(task.features, task.graph)
    return [layer.energy for layer in trace.layers]


def change_when_shuffled(model: GraphModel, task: Task) -> float:
    """How much of the scores depends on which features a node has: ``||scores - scores'|| / ||scores||``."""
    import torch

    assert isinstance(task.features, torch.Tensor)  # the digits are dense
    shuffled = task.features[torch.randperm(task.num_nodes, generator=torch.Generator().manual_seed(0))]
    with torch.no_grad():
        before, after = model(task.features, task.graph), model(shuffled, task.graph)
    return float((before - after).norm() / before.norm())


def energy_table(energies: dict[str, list[float]], layers: int) -> Table:
    """Energies of the trained networks side by side at some of the layers, with a bar on a logarithmic scale.

    The last layer of GCN gives the class scores; whatever energy they have, it is made from what the one before left.
    """
    table = Table(title="Dirichlet energy after the layer")
    table.add_column("layer", justify="right")
    for name in energies:
        table.add_column(name.upper(), justify="right")
        table.add_column("log scale", min_width=_BAR_WIDTH, no_wrap=True)
    top = max(energy for values in energies.values() for energy in values)
    shown = {1, 2, layers - 1, layers, *range(0, layers, max(4, layers // 8))}
    for layer in sorted(layer for layer in shown if 1 <= layer <= layers):
        row = [str(layer)]
        for values in energies.values():
            energy = values[layer - 1]
            # A bar loses half its length where the energy has fallen by eight orders of magnitude.
            filled = math.log10(max(energy / top, 1e-16)) / 16 + 1
            row += [f"{energy:.2e}", "█" * round(filled * _BAR_WIDTH)]
        table.add_row(*row)
    return table
