"""A ledger as Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Final

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.studies.command import study_commands
from graphjoule.studies.ledger import LedgerRow, count_verdicts
from graphjoule.studies.study import Study
from graphjoule.studies.verdict import RULE
from graphjoule.training.recipe import unknown

__all__ = ["FORMATS", "ledger_table", "ledger_text", "missing_commands", "p_text"]

_BOLD: Final = {"worse": "**worse**", "failed": "**failed**"}  # what must not be overlooked in a long table
_PAPER: Final = "Zhou et al., Dirichlet Energy Constrained Learning for Deep Graph Neural Networks, NeurIPS 2021"


def ledger_text(
    study: Study, rows: Sequence[LedgerRow], form: str = "markdown", seeds: Sequence[int] = tuple(range(10))
) -> str:
    """A ledger as text; the same rows give the same text.

    Args:
        study: which study it is of.
        rows: from `make_ledger`.
        form: a key of `FORMATS`.
        seeds: those that were asked for: the commands for what is missing name them.

    Returns:
        The text, which ends with a line break.
    """
    if form not in FORMATS:
        raise GraphjouleError(unknown(form, FORMATS, "form of a ledger"))
    return FORMATS[form](study, rows, seeds)


def _markdown(study: Study, rows: Sequence[LedgerRow], seeds: Sequence[int]) -> str:
    counts = ", ".join(f"{number} {verdict}" for verdict, number in count_verdicts(rows).items())
    about = f"Accuracies in percent, ± sample standard deviation. Paper: {_PAPER}. Verdict: {RULE}"
    missing = missing_commands(study, rows, seeds)
    parts = [f"**{study.title}.** {counts}.", ledger_table(rows), *([missing] if missing else []), about]
    return "\n\n".join(parts) + "\n"


def ledger_table(rows: Sequence[LedgerRow], *, has_dataset: bool = True) -> str:
    """The rows of a ledger as a Markdown table; what nothing is said about has no column.

    Args:
        rows: from `make_ledger`.
        has_dataset: whether the dataset has a column; without one it has to stand above.
    """
    has_variants = any(row.cell.variant.component for row in rows)
    has_others = any(row.others for row in rows)
    head = ["dataset", "model", "layers", *(["changed"] if has_variants else []), "paper", "ours", "n", "difference"]
    head += ["p", "verdict", "split", "selected on", *(["under another protocol"] if has_others else [])]
    table = [head, *(_markdown_cells(row, has_variants, has_others) for row in rows)]
    first, *lines = (f"| {' | '.join(line if has_dataset else line[1:])} |" for line in table)
    return "\n".join([first, "|" + "---|" * (len(head) - (not has_dataset)), *lines])


def _markdown_cells(row: LedgerRow, has_variants: bool, has_others: bool) -> list[str]:
    cell, outcome = row.cell, row.outcome
    changed = f"{cell.variant.component} {cell.variant.value}".strip()
    ours = _number(outcome.mean, ".2f") + (f" ± {outcome.std:.2f}" if outcome.std is not None else "")
    n = f"{outcome.n}" + (f" ({outcome.num_failed} failed)" if outcome.num_failed else "")
    verdict = _BOLD.get(outcome.verdict, outcome.verdict) + (f": {row.note}" if row.note else "")
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
        p_text(outcome.p_value),
        verdict,
        row.split,
        row.select_on,
        *([others] if has_others else []),
    ]


def p_text(p: float | None) -> str:
    """A p value as people write it.

    >>> p_text(0.0004), p_text(0.0312), p_text(None)
    ('< 0.001', '0.031', '')
    """
    return "< 0.001" if p is not None and p < 0.001 else _number(p, ".3f")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def missing_commands(study: Study, rows: Sequence[LedgerRow], seeds: Sequence[int] = tuple(range(10))) -> str:
    """The commands that fill in what was not run, a line each."""
    commands = study_commands(study, (row.cell for row in rows if row.outcome.verdict == "not run"), seeds)
    # Two blanks: without them Markdown would draw the lines together.
    return "  \n".join(f"What is not run: `{command}`." for command in commands)


def _csv(study: Study, rows: Sequence[LedgerRow], seeds: Sequence[int]) -> str:
    text = io.StringIO()
    lines = [{"study": study.name, **row.fields()} for row in rows]
    writer = csv.DictWriter(text, list(lines[0]) if lines else ["study"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _json(study: Study, rows: Sequence[LedgerRow], seeds: Sequence[int]) -> str:
    content = {
        "study": study.name,
        "title": study.title,
        "paper": _PAPER,
        "rule": RULE,
        "verdicts": count_verdicts(rows),
        "rows": [row.fields() for row in rows],
    }
    return json_text(content, indent=2) + "\n"


FORMATS: Final[dict[str, Callable[[Study, Sequence[LedgerRow], Sequence[int]], str]]] = {
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
}
