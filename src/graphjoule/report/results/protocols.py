"""Other readings of the paper: what changes with a choice that it leaves open."""

from __future__ import annotations

from dataclasses import dataclass

from graphjoule.errors import counted
from graphjoule.report.drawings.evidence import Evidence
from graphjoule.studies.ledger import LedgerRow, OtherProtocol, other_protocols

__all__ = ["Reading", "find_readings", "readings_table"]


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
    return [
        Reading(evidence.study.name, row, other)
        for row in evidence.rows
        for other in other_protocols(row.cell, evidence.recorded, evidence.seeds)
    ]


def readings_table(readings: list[Reading]) -> str:
    """How many verdicts each reading changes, and under it each cell it was tried on."""
    if not readings:
        return "No cell is recorded under another reading."
    parts = []
    for settings in dict.fromkeys(reading.other.settings for reading in readings):
        found = [reading for reading in readings if reading.other.settings == settings]
        changed = sum(reading.changes_verdict for reading in found)
        parts.append(f"`{settings}`: {counted(len(found), 'cell')}, {changed} with another verdict.")
        parts.append(_table(found))
    return "\n\n".join(parts)


def _table(readings: list[Reading]) -> str:
    lines = ["| table | cell | paper | ours | verdict | so read | verdict then |", "|---|---|---|---|---|---|---|"]
    for reading in readings:
        row, other = reading.row, reading.other.outcome
        verdict = f"**{other.verdict}**" if reading.changes_verdict else other.verdict
        lines.append(
            f"| {reading.study} | {row.cell.name} | {_number(row.cell.paper, '.1f')} | "
            f"{_mean(row.outcome.mean, row.outcome.std)} | {row.outcome.verdict} | "
            f"{_mean(other.mean, other.std)}, n {other.n} | {verdict} |"
        )
    return "\n".join(lines)


def _mean(mean: float | None, std: float | None) -> str:
    return _number(mean, ".2f") + ("" if std is None else f" ± {std:.2f}")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
