"""What of a study is not run, and the commands that run it."""

from __future__ import annotations

from graphjoule.errors import counted
from graphjoule.report.drawings.evidence import Evidence
from graphjoule.studies.command import study_commands

__all__ = ["say_missing"]


def say_missing(evidence: Evidence) -> list[str]:
    """How many cells are not run, why where it is known, and how many lack seeds; each with what runs them."""
    return [*_say_not_run(evidence), *_say_short(evidence)]


def _say_not_run(evidence: Evidence) -> list[str]:
    missing = [row for row in evidence.rows if row.outcome.verdict == "not run"]
    if not missing:
        return []
    why = {row.cell.dataset: row.note for row in missing if row.note}
    reason = f": {'; '.join(f'{note} ({dataset})' for dataset, note in why.items())}" if why else ""
    commands = study_commands(evidence.study, (row.cell for row in missing))
    told = "  \n".join(f"`{command}`" for command in commands)
    return [f"{counted(len(missing), 'cell')} of {len(evidence.cells)} not run{reason}. What runs them:  \n{told}"]


def _say_short(evidence: Evidence) -> list[str]:
    num_runs = [row.outcome.n + row.outcome.num_failed for row in evidence.rows]
    most = max(num_runs, default=0)
    short = [row.cell for row, runs in zip(evidence.rows, num_runs, strict=True) if 0 < runs < most]
    if not short:
        return []
    told = "  \n".join(f"`{command}`" for command in study_commands(evidence.study, short, range(most)))
    has = "has" if len(short) == 1 else "have"
    return [
        f"{counted(len(short), 'cell')} of {len(evidence.cells)} {has} fewer runs than the others. "
        f"What runs the rest:  \n{told}"
    ]
