"""The numbers behind the figures as tables: for those who cannot see them, and for those who want the digits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from graphjoule.report.drawings.chart import Range
from graphjoule.report.drawings.evidence import Evidence
from graphjoule.report.drawings.sweeps import RANGES, Sweep, find_sweeps, say
from graphjoule.report.results.depth_words import depth_words
from graphjoule.report.results.missing import say_missing
from graphjoule.report.results.side_words import side_words
from graphjoule.studies.command import study_commands

__all__ = ["WORDS"]


def sweep_words(evidence: Evidence) -> list[str]:
    """What the sweeps of a study say, a table for every dataset, and the commands for what is missing."""
    parts = []
    for sweeps in find_sweeps(evidence).values():
        if any(len(sweep.series.x) > 1 for sweep in sweeps):
            parts += [say(sweeps), _sweep_table(sweeps)]
    return [*(part for part in parts if part), *say_missing(evidence)]


def _sweep_table(sweeps: Sequence[Sweep]) -> str:
    lines = ["| setting | the paper's range | means within | means outside | all means (n) |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_sweep_line, sweeps)])


def _sweep_line(sweep: Sweep) -> str:
    inside, outside = (_span(sweep.means(inside=side)) for side in (True, False))
    recommended = _range_text(RANGES.get(sweep.component))
    return f"| {sweep.component} | {recommended} | {inside} | {outside} | {_points(sweep)} |"


def _range_text(found: Range | None) -> str:
    """A range in words.

    >>> _range_text(Range(None, 0.0)), _range_text(Range(0.1, 0.75)), _range_text(Range(1.0, None))
    ('up to 0', '0.1 to 0.75', 'from 1')
    """
    if found is None or (found.low is None and found.high is None):
        return "any"
    if found.low is None:
        return f"up to {found.high:g}"
    return f"from {found.low:g}" if found.high is None else f"{found.low:g} to {found.high:g}"


def _span(means: Sequence[float]) -> str:
    return f"{min(means):.2f} to {max(means):.2f}" if means else "none"


def _points(sweep: Sweep) -> str:
    own = None if sweep.own is None else sweep.own.x
    points = zip(sweep.series.x, sweep.series.mean, sweep.series.std, sweep.series.n, strict=True)
    texts = [(x, f"{x:g}: {mean:.2f} ± {std:.2f} ({n})") for x, mean, std, n in points]
    return ", ".join(f"**{text}** (the recipe's)" if x == own else text for x, text in texts)


def energy_words(evidence: Evidence) -> list[str]:
    """The commands for energies that are missing."""
    missing = [cell for cell in evidence.cells if evidence.energies_of(cell) is None]
    return [f"Not run: `{command}`." for command in study_commands(evidence.study, missing)]


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
