"""A cell as the words and rows that the template shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphjoule.errors import counted
from graphjoule.report.cell import Cell, embeddings, first_layer
from graphjoule.report.curves import spread
from graphjoule.report.words import (
    Paper,
    about_energy,
    against_paper,
    duration,
    percent,
    repeat_command,
    result,
)
from graphjoule.training.examine import Examination
from graphjoule.training.records import Record

_MOST_CLASSES = 50


def cell_view(cell: Cell, variant: str, paper: Paper, most_rows: int) -> dict[str, Any]:
    """Everything the template shows of a cell, as text.

    Args:
        cell: the cell.
        variant: what tells it from others of its kind.
        paper: the paper's accuracies.
        most_rows: the most layers in its table of energies.
    """
    summary = cell.summary
    accuracy, kind = result(cell)
    published, difference = against_paper(cell, paper)
    return {
        "name": cell.name,
        "variant": variant,
        "recipe": cell.recipe,
        "accuracy": accuracy,
        "kind": kind,
        "validation": percent(summary.val_mean, summary.val_std),
        "test": percent(summary.test_mean, summary.test_std),
        "runs": counted(summary.n, "run"),
        "n": summary.n,
        "num_failed": summary.num_failed,
        "paper": published,
        "difference": difference,
        "time": duration(summary.seconds),
        "energy_words": about_energy(cell),
        "untraced": cell.untraced,
        "seed": cell.seed,
        "states": [state_view(state, found) for state, found in cell.states.items()],
        "energies": energy_rows(cell, most_rows),
        "records": [_run_row(record) for record in cell.records],
        "failures": [f"Seed {record.seed}: {record.failure}" for record in cell.records if record.failure],
        "settings": [
            (name, value, cell.recipe.sources.get(name, "chosen")) for name, value in cell.recipe.settings().items()
        ],
        "data": data_words(cell),
        "command": repeat_command(cell),
        "place": cell.place,
    }


def state_view(state: str, found: Examination) -> dict[str, Any]:
    """The diagnosis of one state, and whether its limits hold."""
    diagnosis = found.diagnosis
    return {
        "state": state,
        "verdict": "not judged" if diagnosis is None else diagnosis.verdict,
        "is_healthy": diagnosis is not None and diagnosis.is_healthy,
        "evidence": "" if diagnosis is None else diagnosis.evidence,
        "findings": () if diagnosis is None else diagnosis.findings,
        "limits": "" if found.limits is None else found.limits.summary(),
    }


def energy_rows(cell: Cell, most: int) -> list[list[str]]:
    """A row for every layer, or for some spread evenly: its number, its energy in every state, its limits at the end.

    Limits are those of the last state; the cells are empty where there are none.
    """
    if not cell.states:
        return []
    columns = [embeddings(found) for found in cell.states.values()]
    first, last = first_layer(columns[0]), list(cell.states.values())[-1]
    limits = {} if last.limits is None else dict(enumerate(last.limits.layers, start=1))
    rows = []
    for k in spread(min(map(len, columns)), most):
        bounds = limits.get(k + first)
        ends = ["", ""] if bounds is None else [f"{bounds.lower:.3g}", f"{bounds.upper:.3g}"]
        rows.append([str(k + first), *(f"{column[k].energy:.3g}" for column in columns), *ends])
    return rows


def data_words(cell: Cell) -> str:
    """What was trained on, in one sentence or two."""
    data = cell.data
    if data is None:
        return f"The dataset {cell.recipe.data.name}."
    more = f" and {data.num_classes - _MOST_CLASSES:,} more" if data.num_classes > _MOST_CLASSES else ""
    return (
        f"{data.name}: {counted(data.num_nodes, 'node')}, {counted(data.num_edges, 'edge')}, "
        f"{counted(data.num_features, 'feature')}; {counted(data.num_labels, 'labelled node')} of "
        f"{data.num_classes:,} classes: {', '.join(data.classes[:_MOST_CLASSES])}{more}."
    )


def environments(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The different devices and sets of versions, with how many runs each had and when the last one ended."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for cell in cells:
        for record in cell.records:
            found.setdefault((record.device, tuple(record.versions.items())), []).append(record.created)
    return [
        {
            "device": device,
            "versions": ", ".join(f"{name} {number}" for name, number in versions),
            "runs": counted(len(times), "run"),
            "last": max(times),
        }
        for (device, versions), times in found.items()
    ]


def _run_row(record: Record) -> list[str]:
    epoch = "" if record.selected_epoch is None else str(record.selected_epoch)
    shares = [percent(record.val_score), percent(record.test_score)]
    return [str(record.seed), record.status, epoch, str(record.epochs_run), *shares, f"{record.seconds:.1f}"]
