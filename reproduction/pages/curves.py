"""What the validation curves of runs say: what fewer epochs would have cost, and which runs blew up."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Final

from graphjoule import Recipe, Record
from graphjoule.report import Evidence
from graphjoule.studies import Cell
from reproduction.pages.phrases import counted, short_number

__all__ = ["blow_up_table", "budget_table"]

_BUDGET_HEAD: Final = (
    "| dataset | model | layers | epochs of its runs (n) | validation accuracy, % | within | validation accuracy, % |",
    "|---|---|---|---|---|---|---|",
)
_FACTOR: Final = 100
_BLOW_UP_HEAD: Final = (
    "| dataset | model | layers | seed | changed | epochs | blows up in | highest loss | validation accuracy, % |",
    "|---|---|---|---|---|---|---|---|---|",
)


# Fewer epochs: the curves of whole runs, read as if they had ended earlier.


def budget_table(evidence: Evidence) -> str:
    """The deepest networks that a study trains for as long as their recipes say, had they the epochs of deeper ones."""
    lines = []
    for (dataset, model), cells in _by_network(evidence.cells).items():
        capped = [cell.recipe.train.epochs for cell in cells if cell.base]
        whole = [(cell, runs) for cell in cells if not cell.base and (runs := _with_curves(evidence, cell))]
        if capped and whole:
            deepest, runs = whole[-1]
            lines.append(f"| {dataset} | {model} | {deepest.num_layers} | {_as_if(runs, min(capped))} |")
    return "\n".join([*_BUDGET_HEAD, *lines]) if lines else "No run with a curve is recorded."


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
    by_loss = Recipe.from_fields(record.recipe).train.select_on == "loss"
    scores = [
        inf if loss is None else loss if by_loss else -(accuracy or 0.0)
        for loss, accuracy in zip(losses, accuracies, strict=True)
    ]
    return accuracies[scores.index(min(scores))] or 0.0


# Runs that blew up in training, and the same seeds under other settings.


def blow_up_table(evidence: Evidence) -> str:
    """How many runs of a study blew up, and a row for each, followed by its seed under other settings."""
    runs = [(cell, run) for cell in evidence.cells for run in _with_losses(evidence.recorded.of(cell.recipe))]
    blown = [(cell, run) for cell, run in runs if _epoch_of_blow_up(run) is not None]
    summary = (
        f"{len(blown)} of {counted(len(runs), 'run')} with a recorded curve blew up: the validation loss rose above "
        f"{_FACTOR} times what it was after the first epoch."
    )
    rows = [_row(run, changes) for cell, bad in blown for run, changes in _of_the_seed(evidence, cell, bad)]
    return "\n".join([summary, "", *_BLOW_UP_HEAD, *rows]) if rows else summary


def _with_losses(runs: dict[int, Record]) -> list[Record]:
    return [runs[seed] for seed in sorted(runs) if runs[seed].status == "done" and _losses(runs[seed])]


def _losses(record: Record) -> list[float]:
    return [loss for loss in record.curve.get("val_loss", []) if loss is not None]


def _epoch_of_blow_up(record: Record) -> int | None:
    limit = _FACTOR * _losses(record)[0]
    losses = enumerate(record.curve["val_loss"], start=1)
    return next((epoch for epoch, loss in losses if loss is not None and loss > limit), None)


def _of_the_seed(evidence: Evidence, cell: Cell, blown: Record) -> Iterator[tuple[Record, dict[str, Any]]]:
    """The run itself, and those of its model, dataset, depth and seed with other settings."""
    yield blown, {}
    place = cell.model, cell.dataset, cell.num_layers
    for recipe in evidence.recorded.recipes():
        found = recipe.model.name, recipe.data.name, recipe.model.num_layers
        if found == place and (changes := cell.recipe.changes(recipe)):
            others = _with_losses(evidence.recorded.of(recipe))
            yield from ((other, changes) for other in others if other.seed == blown.seed)


def _row(record: Record, changes: dict[str, Any]) -> str:
    epoch = _epoch_of_blow_up(record)
    words = [
        *[record.dataset, record.model, f"{record.num_layers:,}", str(record.seed)],
        ", ".join(f"{key.rpartition('.')[2]} = {value}" for key, value in changes.items()),
        str(record.epochs_run),
        "none" if epoch is None else f"epoch {epoch}",
        short_number(max(_losses(record))),
        f"{100 * (record.val_score or 0.0):.1f}",
    ]
    return f"| {' | '.join(words)} |"
