"""How our numbers stand against the paper's, counted and named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from graphjoule.errors import counted
from graphjoule.studies.ledger import LedgerRow
from graphjoule.studies.ledger_text import p_text

__all__ = ["differing_cells", "verdict_counts"]

_COLUMNS: Final = ("matches", "better", "worse", "not run")


def verdict_counts(rows: Sequence[LedgerRow], along: Callable[[LedgerRow], str], head: str) -> str:
    """How many cells have which verdict, a line for each kind of cell and one for all.

    Args:
        rows: of a ledger.
        along: the kind of a cell, such as its dataset.
        head: what the kinds are called.
    """
    others = {row.outcome.verdict: None for row in rows if row.outcome.verdict not in _COLUMNS}
    columns = [*_COLUMNS, *others]
    lines = [f"| {head} | cells | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    kinds = {kind: [row for row in rows if along(row) == kind] for kind in map(along, rows)}
    return "\n".join([*lines, *(_line(kind, of, columns) for kind, of in kinds.items()), _line("all", rows, columns)])


def _line(kind: str, rows: Sequence[LedgerRow], columns: Sequence[str]) -> str:
    found = [row.outcome.verdict for row in rows]
    numbers = " | ".join(str(sum(verdict == column for verdict in found)) for column in columns)
    return f"| {kind} | {len(rows)} | {numbers} |"


def differing_cells(ledgers: Mapping[str, Sequence[LedgerRow]], verdict: str) -> str:
    """Every cell of one verdict with its numbers, the largest difference first; a recipe in two tables counts once.

    Args:
        ledgers: rows by the name of their study.
        verdict: "worse" or "better".
    """
    found: dict[str, tuple[str, LedgerRow]] = {}
    for name, rows in ledgers.items():
        for row in rows:
            if row.outcome.verdict == verdict:
                found.setdefault(row.cell.recipe.fingerprint(), (name, row))
    if not found:
        return f"No cell is {verdict} than in the paper."
    lines = [f"{counted(len(found), 'cell')} {'is' if len(found) == 1 else 'are'} {verdict} than in the paper:", ""]
    ordered = sorted(found.values(), key=lambda pair: -abs(pair[1].outcome.difference or 0.0))
    return "\n".join([*lines, *(_cell(name, row) for name, row in ordered)])


def _cell(name: str, row: LedgerRow) -> str:
    o = row.outcome
    return (
        f"- {row.cell.name} ({name}): {o.mean:.2f} ± {o.std:.2f} against {row.cell.paper:.1f}, "
        f"{o.difference:+.2f}, p {p_text(o.p_value)}"
    )
