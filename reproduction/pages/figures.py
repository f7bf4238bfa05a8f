"""The numbers behind the figures as tables: for those who cannot see them, and for those who want the digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from graphjoule.cli import study_commands
from graphjoule.report import Evidence, SweepResult, find_sweeps
from graphjoule.studies import Outcome, p_text
from reproduction.pages.drawings import describe_sweeps, means
from reproduction.pages.order import welch
from reproduction.pages.phrases import accuracy_text, say_missing
from reproduction.pages.sides import side_words

__all__ = ["WORDS"]

_FIRST: Final = "egnn"
_SECOND: Final = "gcnii"  # the other one that depth does not kill

Outcomes = Mapping[tuple[int, str], Outcome]
"""Those of one dataset, by depth and model."""


# Figures 1 to 5.


def sweep_words(evidence: Evidence) -> list[str]:
    """What the sweeps of a study say, a table for every dataset, and the commands for what is missing."""
    parts = []
    for sweeps in find_sweeps(evidence).values():
        if any(len(sweep.series.x) > 1 for sweep in sweeps):
            parts += [describe_sweeps(sweeps, "the paper"), _sweep_table(sweeps)]
    return [*(part for part in parts if part), *say_missing(evidence)]


def _sweep_table(sweeps: Sequence[SweepResult]) -> str:
    lines = ["| setting | the paper's range | means within | means outside | all means (n) |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_sweep_line, sweeps)])


def _sweep_line(sweep: SweepResult) -> str:
    inside, outside = (_span(means(sweep, inside=side)) for side in (True, False))
    recommended = _range_text(sweep.recommended)
    return f"| {sweep.sweep.component} | {recommended} | {inside} | {outside} | {_points(sweep)} |"


def _range_text(found: tuple[float | None, float | None] | None) -> str:
    """A range in words.

    >>> _range_text((None, 0.0)), _range_text((0.1, 0.75)), _range_text((1.0, None))
    ('up to 0', '0.1 to 0.75', 'from 1')
    """
    low, high = found or (None, None)
    if low is None:
        return "any" if high is None else f"up to {high:g}"
    return f"from {low:g}" if high is None else f"{low:g} to {high:g}"


def _span(means: Sequence[float]) -> str:
    return f"{min(means):.2f} to {max(means):.2f}" if means else "none"


def _points(sweep: SweepResult) -> str:
    own = None if sweep.own is None else sweep.own[0]
    points = zip(sweep.series.x, sweep.series.mean, sweep.series.std, sweep.series.n, strict=True)
    texts = [(x, f"{x:g}: {mean:.2f} ± {std:.2f} ({n})") for x, mean, std, n in points]
    return ", ".join(f"**{text}** (the recipe's)" if x == own else text for x, text in texts)


def energy_words(evidence: Evidence) -> list[str]:
    """The commands for energies that are missing."""
    missing = [cell for cell in evidence.cells if evidence.energies_of(cell) is None]
    return [f"Not run: `{command}`." for command in study_commands(evidence.study, missing)]


# The study of depth: every accuracy, and who leads by how much.


def depth_words(evidence: Evidence) -> list[str]:
    """A table of accuracies for every dataset with a run, and the commands for what is missing."""
    found: dict[str, dict[tuple[int, str], Outcome]] = {}
    for row in evidence.rows:
        found.setdefault(row.cell.dataset, {})[row.cell.num_layers, row.cell.model] = row.outcome
    tables = [
        f"{dataset.capitalize()}:\n\n{_depth_table(outcomes)}"
        for dataset, outcomes in found.items()
        if any(outcome.n or outcome.num_failed for outcome in outcomes.values())
    ]
    about = f"p: Welch's test between {_FIRST} and {_SECOND}."
    return [*tables, *([about] if tables else []), *say_missing(evidence)]


def _depth_table(outcomes: Outcomes) -> str:
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


WORDS: Final[dict[str, Callable[[Evidence], list[str]]]] = {
    "figure1": energy_words,
    "figure2": sweep_words,
    "figure3": sweep_words,
    "figure4": sweep_words,
    "figure5": sweep_words,
    "depth": depth_words,
    "constraint": side_words,
}
"""What stands under a study's drawings, by its name."""
