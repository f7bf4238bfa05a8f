"""What the page says: numbers, the headline, and the command that repeats a training."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from graphjoule.report.cell import AFTER, Cell
from graphjoule.studies import find_study
from graphjoule.tasks.facts import TableColumns, TaskFacts
from graphjoule.training.recipe import Recipe, load_recipe

_MOST_NAMED = 30  # columns that a command names; more are those of embeddings, which nobody types

Paper = Mapping[tuple[str, str, int], float]
"""The paper's accuracies in percent, by dataset, model and depth."""


def paper_table() -> dict[tuple[str, str, int], float]:
    """Table 1 of the paper.

    >>> paper_table()["cora", "egnn", 64]
    85.7
    """
    return {
        (dataset, model, layers): value
        for (model, _, _), columns in find_study("table1").reference.values.items()
        for (dataset, layers), value in columns.items()
    }


def percent(value: float | None, std: float | None = None) -> str:
    """A share in percent with its spread.

    >>> percent(0.857, 0.0041), percent(0.5), percent(None)
    ('85.70 ± 0.41', '50.00', '')
    """
    if value is None:
        return ""
    return f"{100 * value:.2f}{'' if std is None else f' ± {100 * std:.2f}'}"


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(0.42), duration(75), duration(7300)
    ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def result(cell: Cell) -> tuple[str, str]:
    """A cell's accuracy in percent with its spread, and what it is; the first is empty if no run finished."""
    summary = cell.summary
    if summary.test_mean is not None:
        return percent(summary.test_mean, summary.test_std), "test accuracy"
    return percent(summary.val_mean, summary.val_std), "validation accuracy, no test nodes"


def headline_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Of every dataset the cell with the best validation accuracy: the test nodes choose nothing."""
    best: dict[str, Cell] = {}
    for cell in cells:
        before = best.get(cell.recipe.data.name)
        if before is None or (cell.summary.val_mean or 0.0) > (before.summary.val_mean or 0.0):
            best[cell.recipe.data.name] = cell
    return list(best.values())


def about_energy(cell: Cell) -> str:
    """What happened to the energy, in one sentence; the reason where nothing was traced."""
    found = cell.states.get(AFTER)
    if found is None or found.diagnosis is None:
        return cell.untraced
    parts = [f"Diagnosis after training: {found.diagnosis.verdict}."]
    if found.limits is not None:
        parts.append(found.limits.summary())
    return " ".join(parts)


def against_paper(cell: Cell, paper: Paper) -> tuple[str, str]:
    """The paper's accuracy for the cell's dataset, model and depth, and ours minus it; empty where there is none.

    A cell that is not as our recipes have it is another experiment than the paper's and has none.
    """
    theirs, ours = paper.get(cell.key), cell.summary.test_mean
    if theirs is None or _changed(cell.recipe):
        return "", ""
    return f"{theirs:.1f}", "" if ours is None else f"{100 * ours - theirs:+.2f}"


def repeat_command(cell: Cell) -> str:
    """The command that trains the cell once more; empty where its graph is in no file.

    >>> repeat_command(Cell(load_recipe("egnn", "cora", 64, {"c_min": 0.3}), []))
    'graphjoule train --dataset cora --model egnn --layers 64 --seeds 1 --set c_min=0.3'
    """
    recipe = cell.recipe
    own_split = cell.data is not None and cell.data.source is not None  # the one its files suggested, now by name
    settings = recipe.settings()
    changed = dict.fromkeys([*_changed(recipe), *(["split"] if own_split else [])])
    words = [
        *["graphjoule", "train", *_data_options(cell.data, recipe.data.name)],
        *["--model", recipe.model.name, "--layers", str(recipe.model.num_layers)],
        *["--seeds", seeds_text(sorted(record.seed for record in cell.records) or [0])],
        *(word for key in changed for word in ("--set", f"{key}={value_text(settings[key])}")),
    ]
    return shlex.join(words)


def _changed(recipe: Recipe) -> list[str]:
    """Settings that are not what the recipe's file says today: overridden, or the file was another one then.

    >>> _changed(load_recipe("gcn", "cora", 2, {"lr": 0.1})), _changed(load_recipe("gcn", "cora", 2))
    (['lr'], [])
    """
    mine, today = (
        recipe.settings(),
        load_recipe(recipe.model.name, recipe.data.name, recipe.model.num_layers).settings(),
    )
    if today["split"] == "default":  # the data say which, and the cell has its name
        today["split"] = mine["split"]
    return [key for key in mine if today.get(key) != mine[key]]


def _data_options(data: TaskFacts | None, dataset: str) -> list[str]:
    if data is None or data.source is None:
        return ["--dataset", dataset]
    files = [word for file in data.source.files for word in (f"--{file.role}", file.path)]
    return files + (_column_options(data.source.columns) if data.source.columns else [])


def _feature_option(columns: TableColumns) -> str | None:
    """The columns for ``--features``; None, which means all, where the option could not name them or nobody would."""
    names = [*(column.name for column in columns.numbers), *(column.name for column in columns.categories)]
    return None if len(names) > _MOST_NAMED or any("," in name for name in names) else ",".join(names)


def _column_options(columns: TableColumns) -> list[str]:
    one_hot = ",".join(column.name for column in columns.categories)
    named = {
        "id": columns.id,
        "label": columns.label,
        "features": _feature_option(columns),
        "one-hot": one_hot or None,
        "source": columns.source,
        "target": columns.target,
        "weight": columns.weight,
        "knn": columns.knn,
    }
    return [word for name, value in named.items() if value is not None for word in (f"--{name}", str(value))]


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds as the command line reads them: a number alone means how many.

    >>> seeds_text([0, 1, 2]), seeds_text([3, 7]), seeds_text([7])
    ('3', '3,7', '7,')
    """
    if tuple(seeds) == tuple(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")


def value_text(value: Any) -> str:
    """A setting as the command line reads it.

    >>> value_text(None), value_text("relu"), value_text(True), value_text(0.5)
    ('none', 'relu', 'true', '0.5')
    """
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
