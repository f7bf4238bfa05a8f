"""How our numbers stand against the paper's, counted and named, and what another reading of the paper changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from graphjoule.report import Evidence
from graphjoule.studies import LedgerRow, OtherProtocol, p_text
from reproduction.pages.phrases import counted

__all__ = ["Reading", "differing_cells", "find_readings", "readings_table", "verdict_counts"]

_COLUMNS: Final = ("equal", "better", "worse", "undecided", "not run")


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
        f"- {row.cell.name} ({name}): {o.mean:.2f} ± {o.std:.2f} against {row.cell.reference:.1f}, "
        f"{o.difference:+.2f} ± {o.half_width:.2f}, p {p_text(o.p_adjusted)}"
    )


# Other readings: what changes with a choice that the paper leaves open.


@dataclass(frozen=True)
class Reading:
    """A cell under another reading of the paper.

    Attributes:
        study: the name of the study that the cell is of.
        row: the cell as the recipe has it.
        other: the cell as the other reading has it.
    """

    study: str
    row: LedgerRow
    other: OtherProtocol

    @property
    def changes_verdict(self) -> bool:
        """Whether the other reading says another thing about the paper's number."""
        return self.other.outcome.verdict != self.row.outcome.verdict


def find_readings(evidence: Evidence) -> list[Reading]:
    """Every cell of a study that is recorded under another reading too."""
    return [Reading(evidence.study.name, row, other) for row in evidence.rows for other in row.readings]


def readings_table(readings: list[Reading]) -> str:
    """How many verdicts each reading changes, and under it each cell it was tried on."""
    if not readings:
        return "No cell is recorded under another reading."
    parts = []
    for settings in dict.fromkeys(reading.other.settings for reading in readings):
        found = [reading for reading in readings if reading.other.settings == settings]
        changed = sum(reading.changes_verdict for reading in found)
        parts.append(f"`{settings}`: {counted(len(found), 'cell')}, {changed} with another verdict.")
        parts.append(_readings_rows(found))
    return "\n\n".join(parts)


def _readings_rows(readings: list[Reading]) -> str:
    lines = ["| table | cell | paper | ours | verdict | so read | verdict then |", "|---|---|---|---|---|---|---|"]
    for reading in readings:
        row, other = reading.row, reading.other.outcome
        verdict = f"**{other.verdict}**" if reading.changes_verdict else other.verdict
        lines.append(
            f"| {reading.study} | {row.cell.name} | {_number(row.cell.reference, '.1f')} | "
            f"{_mean(row.outcome.mean, row.outcome.std)} | {row.outcome.verdict} | "
            f"{_mean(other.mean, other.std)}, n {other.n} | {verdict} |"
        )
    return "\n".join(lines)


def _mean(mean: float | None, std: float | None) -> str:
    return _number(mean, ".2f") + ("" if std is None else f" ± {std:.2f}")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
