"""What fewer epochs cost: validation curves of whole runs, read as if they had ended earlier."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import inf
from typing import Final

from graphjoule.report.drawings.evidence import Evidence
from graphjoule.studies.study import Cell
from graphjoule.training.records import Record

__all__ = ["budget_table"]

_HEAD: Final = (
    "| dataset | model | layers | epochs of its runs (n) | validation accuracy, % | within | validation accuracy, % |",
    "|---|---|---|---|---|---|---|",
)


def budget_table(evidence: Evidence) -> str:
    """The deepest networks that a study trains for as long as their recipes say, had they the epochs of deeper ones."""
    lines = []
    for (dataset, model), cells in _by_network(evidence.cells).items():
        capped = [cell.recipe.train.epochs for cell in cells if cell.base]
        whole = [(cell, runs) for cell in cells if not cell.base and (runs := _with_curves(evidence, cell))]
        if capped and whole:
            deepest, runs = whole[-1]
            lines.append(f"| {dataset} | {model} | {deepest.num_layers} | {_as_if(runs, min(capped))} |")
    return "\n".join([*_HEAD, *lines]) if lines else "No run with a curve is recorded."


def _as_if(runs: Sequence[Record], epochs: int) -> str:
    last = [run.epochs_run for run in runs]
    at_end, earlier = (statistics.fmean(_accuracy(run, limit) for run in runs) for limit in (max(last), epochs))
    whole = f"{min(last):,} to {max(last):,} ({len(runs)}) | {100 * at_end:.2f}"
    return f"{whole} | {epochs} | {100 * earlier:.2f}"


def _with_curves(evidence: Evidence, cell: Cell) -> list[Record]:
    runs = evidence.recorded.of(cell.recipe)
    return [runs[seed] for seed in sorted(runs) if runs[seed].status == "done" and runs[seed].curve]


def _by_network(cells: Sequence[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """The cells of every dataset and model, from the fewest layers to the most."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.num_layers):
        found.setdefault((cell.dataset, cell.model), []).append(cell)
    return {network: found[network] for network in dict.fromkeys((cell.dataset, cell.model) for cell in cells)}


def _accuracy(record: Record, epochs: int) -> float:
    """The validation accuracy of the epoch that a run would have chosen among its first ones."""
    losses, accuracies = (record.curve[name][:epochs] for name in ("val_loss", "val_accuracy"))
    by_loss = record.recipe["select_on"] == "val_loss"
    scores = [
        inf if loss is None else loss if by_loss else -(accuracy or 0.0)
        for loss, accuracy in zip(losses, accuracies, strict=True)
    ]
    return accuracies[scores.index(min(scores))] or 0.0
