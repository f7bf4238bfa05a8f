"""The study of depth as tables: every accuracy, and who leads by how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graphjoule.report.drawings.evidence import Evidence
from graphjoule.report.results.missing import say_missing
from graphjoule.report.results.order import welch
from graphjoule.report.results.sides import accuracy_text
from graphjoule.studies.ledger_text import p_text
from graphjoule.studies.verdict import Outcome

__all__ = ["depth_words"]

_FIRST: Final = "egnn"
_SECOND: Final = "gcnii"  # the other one that depth does not kill

Outcomes = Mapping[tuple[int, str], Outcome]
"""Those of one dataset, by depth and model."""


def depth_words(evidence: Evidence) -> list[str]:
    """A table of accuracies for every dataset with a run, and the commands for what is missing."""
    found: dict[str, dict[tuple[int, str], Outcome]] = {}
    for row in evidence.rows:
        found.setdefault(row.cell.dataset, {})[row.cell.num_layers, row.cell.model] = row.outcome
    tables = [
        f"{dataset.capitalize()}:\n\n{_table(outcomes)}"
        for dataset, outcomes in found.items()
        if any(outcome.n or outcome.num_failed for outcome in outcomes.values())
    ]
    about = f"p: Welch's test between {_FIRST} and {_SECOND}."
    return [*tables, *([about] if tables else []), *say_missing(evidence)]


def _table(outcomes: Outcomes) -> str:
    """A column for every model, and one for the lead of the first over the second."""
    models = list(dict.fromkeys(model for _, model in outcomes))
    head = f"| layers | {' | '.join(models)} | {_FIRST} ahead of {_SECOND} |"
    lines = [head, "|---" * (2 + len(models)) + "|"]
    for depth in sorted({depth for depth, _ in outcomes}):
        here = [outcomes.get((depth, model)) for model in models]
        cells = ["" if outcome is None else accuracy_text(outcome) for outcome in here]
        lines.append(f"| {depth:,} | {' | '.join(cells)} | {_lead(outcomes, depth)} |")
    return "\n".join(lines)


def _lead(outcomes: Outcomes, depth: int) -> str:
    """In points, with a p value where both have several runs."""
    first, second = (outcomes.get((depth, model)) for model in (_FIRST, _SECOND))
    if first is None or second is None or first.mean is None or second.mean is None:
        return ""
    has_spread = first.std is not None and second.std is not None
    return f"{first.mean - second.mean:+.2f}" + (f" (p {p_text(welch(first, second))})" if has_spread else "")
