"""The ledger: every cell of a study beside the reference's value, from records alone, with a verdict by one rule.

Numbers are those of the metric that the objective of the runs shows first, as people read them: shares in percent.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Collection as AbstractCollection
from dataclasses import dataclass, replace
from typing import Any, Final

from graphjoule.errors import GraphjouleError, unknown
from graphjoule.files import json_text
from graphjoule.studies.collection import Collection
from graphjoule.studies.study import Cell, Study
from graphjoule.studies.verdict import Outcome, correct, judge, rule
from graphjoule.tasks.metrics import Metric
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record

_BOLD: Final = {"worse": "**worse**", "failed": "**failed**"}  # what must not be overlooked in a long table


@dataclass(frozen=True)
class OtherProtocol:
    """What a cell comes to under another reading of the reference.

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
        cell: what was trained, and the reference's value.
        outcome: what our runs come to.
        seeds: those that count.
        split: the rule that divides the nodes, and whether every seed draws its own.
        select_on: the validation measure that chooses the epoch.
        devices: what the runs were trained on.
        readings: the cell under every recorded reading that differs only in what the reference leaves open.
        note: why it was not run, where it is known, or which kinds of device and backend its runs mix; else empty.
    """

    cell: Cell
    outcome: Outcome
    seeds: tuple[int, ...]
    split: str
    select_on: str
    devices: tuple[str, ...]
    readings: tuple[OtherProtocol, ...] = ()
    note: str = ""

    @property
    def others(self) -> tuple[OtherProtocol, ...]:
        """The readings under which the verdict is another one."""
        return tuple(one for one in self.readings if one.outcome.verdict != self.outcome.verdict)

    def fields(self) -> dict[str, Any]:
        """The row as a flat dict: what CSV and JSON hold."""
        numbers = {key: value for key, value in vars(self.outcome).items() if key != "metric"}
        others = (f"{one.settings}: {one.outcome.text(one.outcome.mean)}, {one.outcome.verdict}" for one in self.others)
        return {
            "dataset": self.cell.dataset,
            "model": self.cell.model,
            "num_layers": self.cell.num_layers,
            "component": self.cell.variant.component,
            "value": self.cell.variant.value,
            "metric": self.outcome.metric.name if self.seeds else None,
            "reference": self.cell.reference,
            **{key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in numbers.items()},
            "split": self.split,
            "select_on": self.select_on,
            "seeds": ",".join(map(str, self.seeds)),
            "devices": "; ".join(self.devices),
            "other_protocols": "; ".join(others),
            "note": self.note,
        }


def make_ledger(
    study: Study,
    cells: Iterable[Cell],
    recorded: Collection,
    *,
    seeds: AbstractCollection[int] | None = None,
    unavailable: AbstractCollection[str] = (),
) -> list[LedgerRow]:
    """Every cell of a study beside the reference's value; a pure function of the records.

    Args:
        study: which study.
        cells: those of its cells that are asked for.
        recorded: any records; those of other recipes are ignored.
        seeds: count only these seeds; None counts all that are recorded.
        unavailable: datasets whose data are not here, to say so in their rows.

    Returns:
        One row per cell, in order.
    """
    rows = []
    for cell in cells:
        records = recorded.runs(cell.recipe, seeds)
        outcome = _judged(study, cell, cell.recipe, records)
        split, seed = records[0].split if records else cell.recipe.data.split, cell.recipe.data.split_seed
        rows.append(
            LedgerRow(
                cell,
                outcome,
                tuple(record.seed for record in records),
                split if seed is None else f"{split}, drawn from {seed} for all runs",
                cell.recipe.train.select_on,
                tuple(sorted({record.device for record in records})),
                tuple(_readings(study, cell, recorded, seeds, outcome.std)),
                _note(records, is_unavailable=cell.dataset in unavailable),
            )
        )
    return _corrected(study, rows)


def _corrected(study: Study, rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """The rows with verdicts for all cells at once; a recipe that has several rows is one test.

    Other readings are corrected as if each stood in the place of its cell.
    """
    keys = [(row.cell.recipe.fingerprint(), row.cell.reference) for row in rows]
    family = {key: row.outcome for key, row in zip(keys, rows, strict=True)}
    verdicts = dict(zip(family, correct(list(family.values()), study.protocol), strict=True))
    found = []
    for key, row in zip(keys, rows, strict=True):
        outcome, rest = verdicts[key], [other for theirs, other in family.items() if theirs != key]
        readings = (replace(one, outcome=correct([one.outcome, *rest], study.protocol)[0]) for one in row.readings)
        found.append(replace(row, outcome=outcome, readings=tuple(readings)))
    return found


def _note(records: Sequence[Record], *, is_unavailable: bool) -> str:
    if not records:
        return "data not available here" if is_unavailable else ""
    kinds = {f"{record.device_kind} ({record.backend or 'backend not recorded'})" for record in records}
    return f"runs of {len(kinds)} kinds: {', '.join(sorted(kinds))}" if len(kinds) > 1 else ""


def _judged(
    study: Study, cell: Cell, recipe: Recipe, records: Sequence[Record], between: float | None = None
) -> Outcome:
    options: dict[str, Any] = {"one_split": recipe.data.split_seed is not None, "between": between}
    return judge(records, cell.reference, study.reference, study.protocol, dataset=cell.dataset, **options)


def _readings(
    study: Study, cell: Cell, recorded: Collection, seeds: AbstractCollection[int] | None, between: float | None
) -> list[OtherProtocol]:
    found, place = [], (cell.model, cell.dataset, cell.num_layers)
    for recipe in recorded.recipes() if study.leaves_open else ():
        if (recipe.model.name, recipe.data.name, recipe.model.num_layers) == place:
            changed = cell.recipe.changes(recipe)
            if changed and changed.keys() <= study.leaves_open:
                outcome = _judged(study, cell, recipe, recorded.runs(recipe, seeds), between)
                settings = ", ".join(f"{key.rpartition('.')[2]} = {value}" for key, value in changed.items())
                found += [OtherProtocol(settings, outcome)] if outcome.n else []
    return sorted(found, key=lambda one: one.settings)


# Texts.


def ledger_text(
    study: Study,
    rows: Sequence[LedgerRow],
    form: str = "markdown",
    commands: Sequence[str] = (),
    asked: Mapping[str, Any] | None = None,
) -> str:
    """A ledger as text; the same rows give the same text.

    Args:
        study: which study it is of.
        rows: from `make_ledger`.
        form: a key of `FORMATS`.
        commands: what trains the cells that are not run; Markdown has a line for each.
        asked: which part of the study it is of, so that it can be written again; JSON has it.

    Returns:
        The text, which ends with a line break.
    """
    if form not in FORMATS:
        raise GraphjouleError(unknown(form, FORMATS, "form of a ledger"))
    return FORMATS[form](study, rows, commands, asked or {})


def _markdown(study: Study, rows: Sequence[LedgerRow], commands: Sequence[str], asked: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{number} {verdict}" for verdict, number in _count_verdicts(rows).items())
    metrics = ", ".join(f"test {m.name}{' in percent' if m.is_share else ''}" for m in _metrics(rows))
    about = f"Numbers: {metrics}, ± sample standard deviation." if metrics else ""
    if any(row.cell.reference is not None for row in rows):
        reference = study.reference
        source = f" {reference.name.capitalize()}: {reference.source}." if reference.source else ""
        about += f"{source} Verdict: {rule(reference, study.protocol)}"
    parts = [f"**{study.title}.** {counts}.", ledger_table(study, rows), missing_text(commands), about.strip()]
    return "\n\n".join(part for part in parts if part) + "\n"


def missing_text(commands: Sequence[str]) -> str:
    """A line for each command that trains something that is not run."""
    # Two blanks: without them Markdown would draw the lines together.
    return "  \n".join(f"What is not run: `{command}`." for command in commands)


def ledger_table(study: Study, rows: Sequence[LedgerRow], *, has_dataset: bool = True) -> str:
    """The rows of a ledger as a Markdown table, without the columns that would be empty.

    Args:
        study: which study it is of.
        rows: from `make_ledger`.
        has_dataset: whether the dataset has a column; without one it has to stand above.
    """
    has_reference = any(row.cell.reference is not None for row in rows)
    has_variants = any(row.cell.variant.component for row in rows)
    has_others = any(row.others for row in rows)
    has_metrics = len(_metrics(rows)) > 1
    lines: list[list[str]] = []
    for row in rows:
        cell, outcome = row.cell, row.outcome
        others = (f"{one.settings}: {one.outcome.text(one.outcome.mean)} ({one.outcome.verdict})" for one in row.others)
        columns = {
            "dataset": cell.dataset if has_dataset else None,
            "model": cell.model,
            "layers": str(cell.num_layers),
            "changed": f"{cell.variant.component} {cell.variant.value}".strip() if has_variants else None,
            "metric": (outcome.metric.name if row.seeds else "") if has_metrics else None,
            study.reference.name: _number(cell.reference, f".{study.reference.places}f") if has_reference else None,
            "ours": outcome.text(outcome.mean) + (f" ± {outcome.text(outcome.std)}" if outcome.std is not None else ""),
            "n": f"{outcome.n}" + (f" ({outcome.num_failed} failed)" if outcome.num_failed else ""),
            "difference (95 %)": (outcome.text(outcome.difference, "+") + _width(outcome)) if has_reference else None,
            "p (Holm)": p_text(outcome.p_adjusted) if has_reference else None,
            "verdict": _BOLD.get(outcome.verdict, outcome.verdict) + (f": {row.note}" if row.note else ""),
            "split": row.split,
            "selected on": row.select_on,
            "under another protocol": "; ".join(others) if has_others else None,
        }
        shown = {head: text for head, text in columns.items() if text is not None}
        lines += [[*shown.values()]] if lines else [[*shown], ["---"] * len(shown), [*shown.values()]]
    return "\n".join(f"|{'|'.join(line)}|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)


def _width(outcome: Outcome) -> str:
    return "" if outcome.half_width is None else f" ± {outcome.text(outcome.half_width)}"


def p_text(p: float | None) -> str:
    """A p value as people write it.

    >>> p_text(0.0004), p_text(0.0312), p_text(None)
    ('< 0.001', '0.031', '')
    """
    return "< 0.001" if p is not None and p < 0.001 else _number(p, ".3f")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _metrics(rows: Sequence[LedgerRow]) -> list[Metric]:
    """What the runs of some rows are compared by."""
    return list({row.outcome.metric.name: row.outcome.metric for row in rows if row.seeds}.values())


def _count_verdicts(rows: Sequence[LedgerRow]) -> dict[str, int]:
    """How often each verdict was given, the most frequent first."""
    return dict(Counter(sorted(row.outcome.verdict for row in rows)).most_common())


def _csv(study: Study, rows: Sequence[LedgerRow], commands: Sequence[str], asked: Mapping[str, Any]) -> str:
    text = io.StringIO()
    lines = [{"study": study.name, **row.fields()} for row in rows]
    writer = csv.DictWriter(text, list(lines[0]) if lines else ["study"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _json(study: Study, rows: Sequence[LedgerRow], commands: Sequence[str], asked: Mapping[str, Any]) -> str:
    content = {
        "study": study.name,
        "title": study.title,
        "reference": study.reference.source,
        "rule": rule(study.reference, study.protocol),
        "protocol": study.protocol.cited(study.name, {}),
        **({"asked": asked} if asked else {}),
        "verdicts": _count_verdicts(rows),
        "rows": [row.fields() for row in rows],
    }
    return json_text(content, indent=2) + "\n"


FORMATS: Final[dict[str, Callable[[Study, Sequence[LedgerRow], Sequence[str], Mapping[str, Any]], str]]] = {
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
}
"""What a ledger can be printed as."""
