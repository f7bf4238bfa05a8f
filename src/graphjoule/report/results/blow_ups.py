"""Runs that blew up in training, and what became of the same seeds under other settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from graphjoule.errors import counted
from graphjoule.report.drawings.evidence import Evidence
from graphjoule.report.results.sides import short_number
from graphjoule.studies.study import Cell
from graphjoule.training.records import Record

__all__ = ["blow_up_table"]

_FACTOR: Final = 100
_HEAD: Final = (
    "| dataset | model | layers | seed | changed | epochs | blows up in | highest loss | validation accuracy, % |",
    "|---|---|---|---|---|---|---|---|---|",
)


def blow_up_table(evidence: Evidence) -> str:
    """How many runs of a study blew up, and a row for each, followed by its seed under other settings."""
    runs = [(cell, run) for cell in evidence.cells for run in _with_losses(evidence.recorded.of(cell.recipe))]
    blown = [(cell, run) for cell, run in runs if _epoch_of_blow_up(run) is not None]
    told = (
        f"{len(blown)} of {counted(len(runs), 'run')} with a recorded curve blew up: the validation loss rose above "
        f"{_FACTOR} times what it was after the first epoch."
    )
    rows = [_row(run, changes) for cell, bad in blown for run, changes in _of_the_seed(evidence, cell, bad)]
    return "\n".join([told, "", *_HEAD, *rows]) if rows else told


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
        if (recipe.model.name, recipe.data.name, recipe.model.num_layers) == place and (
            changes := cell.recipe.changes(recipe)
        ):
            others = _with_losses(evidence.recorded.of(recipe))
            yield from ((other, changes) for other in others if other.seed == blown.seed)


def _row(record: Record, changes: dict[str, Any]) -> str:
    epoch = _epoch_of_blow_up(record)
    words = [
        *[record.dataset, record.model, f"{record.num_layers:,}", str(record.seed)],
        ", ".join(f"{key} = {value}" for key, value in changes.items()),
        str(record.epochs_run),
        "none" if epoch is None else f"epoch {epoch}",
        short_number(max(_losses(record))),
        f"{100 * (record.val_score or 0.0):.1f}",
    ]
    return f"| {' | '.join(words)} |"
