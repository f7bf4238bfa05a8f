"""``graphjoule report``."""

from __future__ import annotations

import shlex
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphjoule.cli.predict import training_graph
from graphjoule.cli.terminal import DataRoot, Device, seeds_text, value_text
from graphjoule.errors import GraphjouleError
from graphjoule.tasks.encoders import MOST_CATEGORIES, Encoder

if TYPE_CHECKING:
    from graphjoule.fitting import TrainedRuns
    from graphjoule.report import Cell, Reference
    from graphjoule.tasks.facts import TaskFacts
    from graphjoule.tasks.task import ModelInput

_MOST_NAMED = 30  # columns that a command names; more are those of embeddings, which nobody types


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A run folder of `graphjoule train`, a folder of such, or one of records."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The HTML file to write; by default DIR/report.html.")
    ] = None,
    energy: Annotated[
        bool,
        typer.Option("--energy/--no-energy", help="Measure the energies; needs the data the runs were trained on."),
    ] = True,
    reach: Annotated[
        bool, typer.Option("--reach", help="Measure how many hops away some layers still see, too.")
    ] = False,
    device: Device = "auto",
    data_root: DataRoot = None,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Write one HTML page on a run or a study: scores, predictions, energies, curves, diagnosis; it loads nothing.

    Examples:

    - `graphjoule report runs/cora-egnn-64 --open`

    - `graphjoule report runs --out runs.html` reports on all trainings in a folder, side by side

    - `graphjoule report reproduction/results/table1 --out records.html` makes do with records alone
    """
    if reach and not energy:
        raise GraphjouleError("--reach measures networks, and --no-energy says not to; leave out one of them.")
    from graphjoule.report import check_report_path, read_cells, report_page, write_report
    from graphjoule.training import resolve_device

    path = out or folder / "report.html"
    if folder.is_dir():
        check_report_path(path)  # said now, not after minutes
    graphs: dict[str, ModelInput] = {}  # of a study, each read once

    def load(runs: TrainedRuns) -> ModelInput:
        if runs.data is None:  # an old folder: nothing says whether two of its kind are the same data
            return training_graph(runs, data_root)
        if runs.data.sha256 not in graphs:
            graphs[runs.data.sha256] = training_graph(runs, data_root)
        return graphs[runs.data.sha256]

    def show(done: int, total: int) -> None:
        if total > 1:
            typer.echo(f"traced {done} of {total} networks", err=True)

    cells = read_cells(folder, load, trace=energy, reaches=reach, device=resolve_device(device), on_cell=show)
    page = report_page(cells, title=folder.absolute().name, reference=paper_table(), command=repeat_command)
    write_report(path, page)
    typer.echo(f"report: {path}")
    if open_ and not webbrowser.open(path.absolute().as_uri()):
        raise GraphjouleError(f"No browser could be started; open {path} yourself.")


def paper_table() -> Reference:
    """Table 1 of the paper.

    >>> paper_table().values["cora", "egnn", 64]
    85.7
    """
    from graphjoule.report import Reference
    from graphjoule.studies import find_study

    values = {
        (dataset, model, layers): value
        for (model, _, _), columns in find_study("table1").reference.values.items()
        for (dataset, layers), value in columns.items()
    }
    title = "Dirichlet Energy Constrained Learning for Deep Graph Neural Networks"
    return Reference("paper", f"Table 1 of Zhou et al., {title}, NeurIPS 2021", "accuracy", values)


def repeat_command(cell: Cell) -> str:
    """The command that trains a cell once more; empty for a model of the user's own, which no command can train.

    >>> from graphjoule.report import Cell
    >>> from graphjoule.training.recipe import load_recipe
    >>> repeat_command(Cell(load_recipe("egnn", "cora", 64, {"c_min": 0.3}), []))
    'graphjoule train --dataset cora --model egnn --layers 64 --seeds 1 --set model.c_min=0.3'
    """
    if cell.is_own_model:
        return ""
    dataset, model, layers = cell.key
    own_split = cell.data is not None and cell.data.source is not None  # the one its files suggested, now by name
    settings = cell.recipe.settings()
    changed = dict.fromkeys([*cell.changed_settings, *(["data.split"] if own_split else [])])
    words = [
        *["graphjoule", "train", *_data_options(cell.data, dataset)],
        *_objective_options(cell.data),
        *["--model", model, "--layers", str(layers)],
        *["--seeds", seeds_text(sorted(record.seed for record in cell.records) or [0])],
        *(word for key in changed for word in ("--set", f"{key}={value_text(settings[key])}")),
    ]
    return shlex.join(words)


def _objective_options(data: TaskFacts | None) -> list[str]:
    """What the labels of the user's files are."""
    if data is None or data.source is None:
        return []
    asked, error = data.objective, getattr(data.objective, "error", None)
    classes: tuple[str, ...] = getattr(asked, "classes", ())
    more = [] if error is None else ["--loss", str(error)]
    if (positive := getattr(asked, "positive", None)) is not None:
        more += ["--positive", classes[positive]]
    if asked.name == "ordinal" and data.source.columns is not None and not any("," in name for name in classes):
        more += ["--order", ",".join(classes)]
    return ["--objective", asked.name, *more]


def _data_options(data: TaskFacts | None, dataset: str) -> list[str]:
    if data is None or data.source is None:
        return ["--dataset", dataset]
    named: dict[str, Any] = {file.role: file.path for file in data.source.files}
    if columns := data.source.columns:
        # Of a column with more categories the most frequent were kept, which --one-hot would not do.
        one_hot = [column.name for column in columns.categories if len(column.categories) != MOST_CATEGORIES]
        every: list[Encoder] = [*columns.numbers, *columns.categories, *columns.texts]
        features = [column.name for column in every]
        can_be_named = len(features) <= _MOST_NAMED and not any("," in name for name in features)
        named |= {
            "id": columns.id,
            "label": ",".join(columns.labels),
            "features": ",".join(features) if can_be_named else None,  # else all, the default
            "one-hot": ",".join(one_hot) or None,
            "source": columns.source,
            "target": columns.target,
            "weight": columns.weight,
            "edge-type": columns.edge_type,
            "types": None if columns.types is None else "separate",
            "direction": columns.direction if columns.direction != "both" else None,
            "knn": columns.knn,
        }
        if columns.graphs is not None:
            named |= {"graph-column": columns.graphs.node, "pooling": columns.graphs.pooling}
    return [word for name, value in named.items() if value is not None for word in (f"--{name}", str(value))]
