"""The ledger: every cell of a study beside the paper's number, from records alone."""

from __future__ import annotations

from collections.abc import Collection as AbstractCollection
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from graphjoule.studies.collection import Collection
from graphjoule.studies.study import Cell
from graphjoule.studies.verdict import Outcome, judge
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record

__all__ = ["LedgerRow", "OtherProtocol", "make_ledger", "other_protocols"]

PROTOCOL: Final = frozenset({"hidden_channels", "split_seed", "freeze_last_shift", "select_on"})
"""Settings that the paper leaves open; see the recipes for what they are by default."""


@dataclass(frozen=True)
class OtherProtocol:
    """What a cell comes to under another reading of the paper.

    Attributes:
        settings: what is read otherwise, such as "hidden_channels = 256".
        outcome: what the runs then come to.
    """

    settings: str
    outcome: Outcome


@dataclass(frozen=True)
class LedgerRow:
    """One cell of the ledger.

    Attributes:
        cell: what was trained, and the paper's number.
        outcome: what our runs come to.
        seeds: those that count.
        split: the rule that divides the nodes, and whether every seed draws its own.
        select_on: the validation measure that chooses the epoch.
        devices: what the runs were trained on.
        others: other readings of the paper under which the verdict is another one.
        note: why it was not run, where it is known; else empty.
    """

    cell: Cell
    outcome: Outcome
    seeds: tuple[int, ...]
    split: str
    select_on: str
    devices: tuple[str, ...]
    others: tuple[OtherProtocol, ...] = ()
    note: str = ""

    def fields(self) -> dict[str, Any]:
        """The row as a flat dict: what CSV and JSON hold."""
        return {
            "dataset": self.cell.dataset,
            "model": self.cell.model,
            "num_layers": self.cell.num_layers,
            "component": self.cell.variant.component,
            "value": self.cell.variant.value,
            "paper": self.cell.paper,
            **{key: _rounded(value) for key, value in asdict(self.outcome).items()},
            "split": self.split,
            "select_on": self.select_on,
            "seeds": ",".join(map(str, self.seeds)),
            "devices": "; ".join(self.devices),
            "other_protocols": "; ".join(
                f"{o.settings}: {o.outcome.mean:.2f}, {o.outcome.verdict}" for o in self.others
            ),
            "note": self.note,
        }


def make_ledger(
    cells: Iterable[Cell],
    recorded: Collection,
    *,
    seeds: AbstractCollection[int] | None = None,
    unavailable: AbstractCollection[str] = (),
) -> list[LedgerRow]:
    """Every cell of a study beside the paper's number; a pure function of the records.

    Args:
        cells: the cells of the study.
        recorded: any records; those of other recipes are left aside.
        seeds: count only these seeds; None counts all that are recorded.
        unavailable: datasets whose data are not here, to say so in their rows.

    Returns:
        One row per cell, in order.
    """
    return [_row(cell, recorded, seeds, cell.dataset in unavailable) for cell in cells]


def _row(cell: Cell, recorded: Collection, seeds: AbstractCollection[int] | None, is_unavailable: bool) -> LedgerRow:
    records = _counted(recorded.of(cell.recipe), seeds)
    outcome = judge(records, cell.paper)
    split = records[0].split if records else cell.recipe.data.split
    return LedgerRow(
        cell,
        outcome,
        tuple(record.seed for record in records),
        _split_rule(cell.recipe, split),
        cell.recipe.train.select_on,
        tuple(sorted({record.device for record in records})),
        tuple(o for o in other_protocols(cell, recorded, seeds) if o.outcome.verdict != outcome.verdict),
        "data not available here" if is_unavailable and not records else "",
    )


def _counted(runs: dict[int, Record], seeds: AbstractCollection[int] | None) -> list[Record]:
    return [runs[seed] for seed in sorted(runs) if seeds is None or seed in seeds]


def _split_rule(recipe: Recipe, split: str) -> str:
    return split if recipe.data.split_seed is None else f"{split}, drawn from {recipe.data.split_seed} for all runs"


def other_protocols(
    cell: Cell, recorded: Collection, seeds: AbstractCollection[int] | None = None
) -> list[OtherProtocol]:
    """What a cell comes to under every recorded reading of the paper that differs in nothing but the protocol.

    Args:
        cell: the cell.
        recorded: any records.
        seeds: count only these seeds; None counts all that are recorded.
    """
    found = []
    for recipe in recorded.recipes():
        if _place(recipe) != _place(cell.recipe):
            continue
        changed = cell.recipe.changes(recipe)
        if not changed or not changed.keys() <= PROTOCOL:
            continue
        outcome = judge(_counted(recorded.of(recipe), seeds), cell.paper)
        if outcome.n:
            found.append(OtherProtocol(", ".join(f"{key} = {value}" for key, value in changed.items()), outcome))
    return sorted(found, key=lambda one: one.settings)


def _place(recipe: Recipe) -> tuple[str, str, int]:
    return recipe.model.name, recipe.data.name, recipe.model.num_layers


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def count_verdicts(rows: Sequence[LedgerRow]) -> dict[str, int]:
    """How often each verdict was given, the most frequent first."""
    verdicts = [row.outcome.verdict for row in rows]
    return {v: verdicts.count(v) for v in sorted(set(verdicts), key=lambda v: (-verdicts.count(v), v))}
