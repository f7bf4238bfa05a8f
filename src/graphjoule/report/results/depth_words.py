"""The study of depth as tables: every accuracy, and who leads by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from graphjoule.report.drawings.evidence import Evidence
from graphjoule.report.results.missing import say_missing
from graphjoule.report.results.order import welch
from graphjoule.report.results.sides import accuracy_text
from graphjoule.studies.ledger_text import p_text
from graphjoule.studies.verdict import Outcome

__all__ = ["depth_words"]

_RIVALS: Final = ("egnn", "gcnii")  # those that depth does not kill

Outcomes = Mapping[tuple[str, str, int], Outcome]


def depth_words(evidence: Evidence) -> list[str]:
    """Accuracies by depth, the lead of EGNN over GCNII, and the commands for what is missing."""
    found = {(row.cell.dataset, row.cell.model, row.cell.num_layers): row.outcome for row in evidence.rows}
    if not any(outcome.n or outcome.num_failed for outcome in found.values()):
        return say_missing(evidence)
    depths = sorted({depth for _, _, depth in found})
    return [_accuracy_table(found, depths), *_lead_table(found, depths), *say_missing(evidence)]


def _accuracy_table(found: Outcomes, depths: Sequence[int]) -> str:
    """A column for every dataset and model."""
    columns = list(dict.fromkeys((dataset, model) for dataset, model, _ in found))
    lines = [f"| layers | {' | '.join(f'{d} {m}' for d, m in columns)} |", "|---|" + "---|" * len(columns)]
    for depth in depths:
        here = [found.get((*column, depth)) for column in columns]
        cells = ["" if outcome is None else accuracy_text(outcome) for outcome in here]
        lines.append(f"| {depth:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _lead_table(found: Outcomes, depths: Sequence[int]) -> list[str]:
    """A column for every dataset that has runs of both rivals."""
    first, second = _RIVALS
    leads = {(dataset, depth): _lead(found, dataset, depth) for dataset, _, depth in found}
    datasets = list(dict.fromkeys(dataset for (dataset, _), lead in leads.items() if lead))
    if not datasets:
        return []
    rows = [[f"{depth:,}", *(leads.get((dataset, depth), "") for dataset in datasets)] for depth in depths]
    lines = [f"| layers | {' | '.join(datasets)} |", "|---|" + "---|" * len(datasets)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    title = f"How far {first.upper()} is ahead of {second.upper()}, in points, with the p value of Welch's test:"
    return [title, "\n".join(lines)]


def _lead(found: Outcomes, dataset: str, depth: int) -> str:
    ahead, behind = (found.get((dataset, model, depth)) for model in _RIVALS)
    if ahead is None or behind is None or ahead.mean is None or behind.mean is None:
        return ""
    has_spread = ahead.std is not None and behind.std is not None
    p = f" (p {p_text(welch(ahead, behind))})" if has_spread else ""
    return f"{ahead.mean - behind.mean:+.2f}{p}"
