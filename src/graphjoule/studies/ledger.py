"""The ledger: every cell of a study beside the reference's value, from records alone, with a verdict by one rule.

Numbers are those of the metric that the objective of the runs shows first, as people read them: shares in percent.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Collection as AbstractCollection
from dataclasses import dataclass
from typing import Any, Final, Literal

from scipy.special import stdtr

from graphjoule.errors import GraphjouleError, unknown
from graphjoule.files import json_text
from graphjoule.studies.collection import Collection
from graphjoule.studies.study import Cell, Reference, Study
from graphjoule.tasks.metrics import ACCURACY, Metric
from graphjoule.training.records import Record, summarise

Verdict = Literal["matches", "better", "worse", "not run", "failed", "too few runs", "no reference"]

LEVEL: Final = 0.05
"""The level of the test, for each cell by itself."""
_BOLD: Final = {"worse": "**worse**", "failed": "**failed**"}  # what must not be overlooked in a long table


def rule(reference: Reference) -> str:
    """How a verdict is found, in words."""
    name, rounding = f"the {reference.name}", reference.rounding
    return (
        f"Two-sided t-test of the difference between our mean and {name}'s, at the level {LEVEL} for each cell by "
        f"itself. {name.capitalize()} gives no spread, so its mean of {reference.runs} runs is taken to scatter like "
        f"ours: t = (|difference| - {rounding:g}) / (s sqrt(1/n + 1/{reference.runs})) with n - 1 degrees of freedom, "
        f"where s is our sample standard deviation and {rounding:g} is what {name} may have rounded away. p < {LEVEL} "
        "is better or worse, anything else matches; so about one in twenty of the cells that do agree will be called "
        "different by chance. Failed runs are in no mean."
    )


@dataclass(frozen=True)
class Outcome:
    """What the runs of one cell come to.

    Attributes:
        mean: of the metric on the test nodes, a share in percent; None if no run is done.
        std: sample standard deviation; None for fewer than two runs.
        n: how many runs are done.
        num_failed: how many failed.
        difference: our mean less the reference's value.
        p_value: of the test; None where there is nothing to test.
        verdict: in a word; what is better, the metric says.
        metric: what is compared.
    """

    mean: float | None
    std: float | None
    n: int
    num_failed: int
    difference: float | None
    p_value: float | None
    verdict: Verdict
    metric: Metric = ACCURACY

    def text(self, value: float | None, sign: str = "") -> str:
        """One of the numbers as a table shows it."""
        return _number(value, f"{sign}.2f" if self.metric.is_share else f"{sign}.4g")


def judge(records: Sequence[Record], value: float | None, reference: Reference = Reference()) -> Outcome:  # noqa: B008 - frozen
    """Compare the runs of one cell with the reference's value.

    Args:
        records: the runs of the cell, each seed once.
        value: the reference's mean, a share in percent; None where it has none.
        reference: how many runs its means are of, and how they are rounded.

    Returns:
        The outcome by `rule`.
    """
    summary = summarise(records)
    n, num_failed, metric = summary.n, summary.num_failed, summary.metric
    scale = 100 if metric.is_share else 1
    mean = None if summary.test_mean is None else scale * summary.test_mean
    std = None if summary.test_std is None else scale * summary.test_std
    difference = None if mean is None or value is None else mean - value
    p_value = None
    if difference is not None and std is not None:
        # The probability of so large a difference if both means are of the same thing.
        excess = max(0.0, abs(difference) - reference.rounding)
        error = std * math.sqrt(1 / n + 1 / reference.runs)
        p_value = float(2 * stdtr(n - 1, -excess / error)) if error else float(excess <= 1e-9)  # all runs gave the same
    verdict: Verdict
    if n == 0:
        verdict = "failed" if num_failed else "not run"
    elif value is None:
        verdict = "no reference"
    elif difference is None or p_value is None:
        verdict = "too few runs"
    elif p_value >= LEVEL:
        verdict = "matches"
    else:
        verdict = "better" if (difference > 0) == metric.is_higher_better else "worse"
    return Outcome(mean, std, n, num_failed, difference, p_value, verdict, metric)


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
        others: other readings of the reference under which the verdict is another one.
        note: why it was not run, where it is known, or which kinds of device and backend its runs mix; else empty.
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
        outcome = judge(records, cell.reference, study.reference)
        others = other_protocols(study, cell, recorded, seeds)
        split, seed = records[0].split if records else cell.recipe.data.split, cell.recipe.data.split_seed
        rows.append(
            LedgerRow(
                cell,
                outcome,
                tuple(record.seed for record in records),
                split if seed is None else f"{split}, drawn from {seed} for all runs",
                cell.recipe.train.select_on,
                tuple(sorted({record.device for record in records})),
                tuple(other for other in others if other.outcome.verdict != outcome.verdict),
                _note(records, is_unavailable=cell.dataset in unavailable),
            )
        )
    return rows


def _note(records: Sequence[Record], *, is_unavailable: bool) -> str:
    if not records:
        return "data not available here" if is_unavailable else ""
    kinds = {f"{record.device_kind} ({record.backend or 'backend not recorded'})" for record in records}
    return f"runs of {len(kinds)} kinds: {', '.join(sorted(kinds))}" if len(kinds) > 1 else ""


def other_protocols(
    study: Study, cell: Cell, recorded: Collection, seeds: AbstractCollection[int] | None = None
) -> list[OtherProtocol]:
    """What a cell comes to under every recorded reading that differs only in what the reference leaves open.

    Args:
        study: whose reference leaves settings open.
        cell: one of its cells.
        recorded: any records.
        seeds: count only these seeds; None counts all that are recorded.
    """
    found, place = [], (cell.model, cell.dataset, cell.num_layers)
    for recipe in recorded.recipes() if study.leaves_open else ():
        if (recipe.model.name, recipe.data.name, recipe.model.num_layers) == place:
            changed = cell.recipe.changes(recipe)
            if changed and changed.keys() <= study.leaves_open:
                outcome = judge(recorded.runs(recipe, seeds), cell.reference, study.reference)
                settings = ", ".join(f"{key.rpartition('.')[2]} = {value}" for key, value in changed.items())
                found += [OtherProtocol(settings, outcome)] if outcome.n else []
    return sorted(found, key=lambda one: one.settings)


# Texts.


def ledger_text(study: Study, rows: Sequence[LedgerRow], form: str = "markdown", commands: Sequence[str] = ()) -> str:
    """A ledger as text; the same rows give the same text.

    Args:
        study: which study it is of.
        rows: from `make_ledger`.
        form: a key of `FORMATS`.
        commands: what trains the cells that are not run; Markdown has a line for each.

    Returns:
        The text, which ends with a line break.
    """
    if form not in FORMATS:
        raise GraphjouleError(unknown(form, FORMATS, "form of a ledger"))
    return FORMATS[form](study, rows, commands)


def _markdown(study: Study, rows: Sequence[LedgerRow], commands: Sequence[str]) -> str:
    counts = ", ".join(f"{number} {verdict}" for verdict, number in _count_verdicts(rows).items())
    metrics = ", ".join(f"test {m.name}{' in percent' if m.is_share else ''}" for m in _metrics(rows))
    about = f"Numbers: {metrics}, ± sample standard deviation." if metrics else ""
    if any(row.cell.reference is not None for row in rows):
        reference = study.reference
        source = f" {reference.name.capitalize()}: {reference.source}." if reference.source else ""
        about += f"{source} Verdict: {rule(reference)}"
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
            "difference": outcome.text(outcome.difference, "+") if has_reference else None,
            "p": p_text(outcome.p_value) if has_reference else None,
            "verdict": _BOLD.get(outcome.verdict, outcome.verdict) + (f": {row.note}" if row.note else ""),
            "split": row.split,
            "selected on": row.select_on,
            "under another protocol": "; ".join(others) if has_others else None,
        }
        shown = {head: text for head, text in columns.items() if text is not None}
        lines += [[*shown.values()]] if lines else [[*shown], ["---"] * len(shown), [*shown.values()]]
    return "\n".join(f"|{'|'.join(line)}|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)


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


def _csv(study: Study, rows: Sequence[LedgerRow], commands: Sequence[str]) -> str:
    text = io.StringIO()
    lines = [{"study": study.name, **row.fields()} for row in rows]
    writer = csv.DictWriter(text, list(lines[0]) if lines else ["study"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _json(study: Study, rows: Sequence[LedgerRow], commands: Sequence[str]) -> str:
    content = {
        "study": study.name,
        "title": study.title,
        "reference": study.reference.source,
        "rule": rule(study.reference),
        "verdicts": _count_verdicts(rows),
        "rows": [row.fields() for row in rows],
    }
    return json_text(content, indent=2) + "\n"


FORMATS: Final[dict[str, Callable[[Study, Sequence[LedgerRow], Sequence[str]], str]]] = {
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
}
"""What a ledger can be printed as."""
