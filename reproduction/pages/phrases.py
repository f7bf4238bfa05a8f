"""Phrases that several pages share: numbers in few characters, and what of a study is not run."""

from __future__ import annotations

from graphjoule.cli import study_commands
from graphjoule.report import Evidence
from graphjoule.studies import Outcome

__all__ = ["accuracy_text", "counted", "say_missing", "short_number"]


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun in the singular or the plural.

    >>> counted(1, "node"), counted(2000, "node"), counted(0, "class", "classes")
    ('1 node', '2,000 nodes', '0 classes')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def short_number(value: float) -> str:
    """A number that may be anything, in few characters.

    >>> [short_number(value) for value in (1.6643, 9.1, 196.4, 9071.0, 1.27e28, 2.1e-7, float("inf"), 0.0)]
    ['1.66', '9.1', '196', '9e+03', '1e+28', '2e-07', 'inf', '0']
    """
    return f"{value:.3g}" if value == 0 or 0.01 <= value < 1000 else f"{value:.0e}"


def accuracy_text(outcome: Outcome) -> str:
    """Mean, standard deviation and number of runs, or why there are none.

    >>> accuracy_text(Outcome(81.284, 0.887, 9, 1, None, None, ""))
    '81.28 ± 0.89 (9, 1 failed)'
    >>> accuracy_text(Outcome(None, None, 0, 0, None, None, "not run"))
    'not run'
    """
    if outcome.mean is None:
        return outcome.verdict
    failed = f", {outcome.num_failed} failed" if outcome.num_failed else ""
    return f"{outcome.mean:.2f}{'' if outcome.std is None else f' ± {outcome.std:.2f}'} ({outcome.n}{failed})"


def say_missing(evidence: Evidence) -> list[str]:
    """How many cells are not run, and why if that is known; how many lack seeds; and the commands that run them."""
    return [*_say_not_run(evidence), *_say_short(evidence)]


def _say_not_run(evidence: Evidence) -> list[str]:
    missing = [row for row in evidence.rows if row.outcome.verdict == "not run"]
    if not missing:
        return []
    why = {row.cell.dataset: row.note for row in missing if row.note}
    reason = f": {'; '.join(f'{note} ({dataset})' for dataset, note in why.items())}" if why else ""
    commands = study_commands(evidence.study, (row.cell for row in missing))
    commands_text = "  \n".join(f"`{command}`" for command in commands)
    return [
        f"{counted(len(missing), 'cell')} of {len(evidence.cells)} not run{reason}. What runs them:  \n{commands_text}"
    ]


def _say_short(evidence: Evidence) -> list[str]:
    num_runs = [row.outcome.n + row.outcome.num_failed for row in evidence.rows]
    most = max(num_runs, default=0)
    short = [row.cell for row, runs in zip(evidence.rows, num_runs, strict=True) if 0 < runs < most]
    if not short:
        return []
    commands_text = "  \n".join(f"`{command}`" for command in study_commands(evidence.study, short, range(most)))
    has = "has" if len(short) == 1 else "have"
    return [
        f"{counted(len(short), 'cell')} of {len(evidence.cells)} {has} fewer runs than the others. "
        f"What runs the rest:  \n{commands_text}"
    ]
