"""A ledger as Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Final

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.recipes import unknown
from graphjoule.studies.ledger import LedgerRow, count_verdicts
from graphjoule.studies.study import Study
from graphjoule.studies.verdict import RULE

__all__ = ["FORMATS", "ledger_text"]

_PAPER: Final = "Zhou et al., Dirichlet Energy Constrained Learning for Deep Graph Neural Networks, NeurIPS 2021"


def ledger_text(study: Study, rows: Sequence[LedgerRow], form: str = "markdown") -> str:
    """A ledger as text; the same rows give the same text.

    Args:
        study: which study it is of.
        rows: from `make_ledger`.
        form: a key of `FORMATS`.

    Returns:
        The text, which ends with a line break.
    """
    if form not in FORMATS:
        raise GraphjouleError(unknown(form, FORMATS, "form of a ledger"))
    return FORMATS[form](study, rows)


def _markdown(study: Study, rows: Sequence[LedgerRow]) -> str:
    has_variants = any(row.cell.variant.component for row in rows)
    has_others = any(row.others for row in rows)
    head = ["dataset", "model", "layers", *(["changed"] if has_variants else []), "paper", "ours", "n", "difference"]
    head += ["p", "verdict", "split", "selected on", *(["under another protocol"] if has_others else [])]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(_markdown_cells(row, has_variants, has_others))} |" for row in rows]
    counts = ", ".join(f"{number} {verdict}" for verdict, number in count_verdicts(rows).items())
    about = f"Accuracies in percent, ± sample standard deviation. Paper: {_PAPER}. Verdict: {RULE}"
    missing = _commands(study, rows)
    parts = [f"**{study.title}.** {counts}.", "\n".join(lines), *([missing] if missing else []), about]
    return "\n\n".join(parts) + "\n"


def _markdown_cells(row: LedgerRow, has_variants: bool, has_others: bool) -> list[str]:
    cell, outcome = row.cell, row.outcome
    changed = f"{cell.variant.component} {cell.variant.value}".strip()
    ours = _number(outcome.mean, ".2f") + (f" ± {outcome.std:.2f}" if outcome.std is not None else "")
    n = f"{outcome.n}" + (f" ({outcome.num_failed} failed)" if outcome.num_failed else "")
    verdict = outcome.verdict + (f": {row.note}" if row.note else "")
    others = "; ".join(f"{one.settings}: {one.outcome.mean:.2f} ({one.outcome.verdict})" for one in row.others)
    return [
        cell.dataset,
        cell.model,
        str(cell.num_layers),
        *([changed] if has_variants else []),
        _number(cell.paper, ".1f"),
        ours,
        n,
        _number(outcome.difference, "+.2f"),
        _number(outcome.p_value, ".3f"),
        verdict,
        row.split,
        row.select_on,
        *([others] if has_others else []),
    ]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _commands(study: Study, rows: Sequence[LedgerRow]) -> str:
    """The commands that fill in what was not run."""
    datasets = dict.fromkeys(row.cell.dataset for row in rows if row.outcome.verdict == "not run")
    return "\n".join(f"What is not run on {d}: `graphjoule study {study.name} --datasets {d}`." for d in datasets)


def _csv(study: Study, rows: Sequence[LedgerRow]) -> str:
    text = io.StringIO()
    lines = [{"study": study.name, **row.fields()} for row in rows]
    writer = csv.DictWriter(text, list(lines[0]) if lines else ["study"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _json(study: Study, rows: Sequence[LedgerRow]) -> str:
    content = {
        "study": study.name,
        "title": study.title,
        "paper": _PAPER,
        "rule": RULE,
        "verdicts": count_verdicts(rows),
        "rows": [row.fields() for row in rows],
    }
    return json_text(content, indent=2) + "\n"


FORMATS: Final[dict[str, Callable[[Study, Sequence[LedgerRow]], str]]] = {
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
}
