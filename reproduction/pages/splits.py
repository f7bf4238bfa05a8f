"""How much of a difference from the paper is the split's: where every seed draws its own, and the paper had one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scipy.special import stdtr

from graphjoule.report import Evidence
from graphjoule.studies import LEVEL, Cell, p_text

__all__ = ["split_words"]

_STEADY: Final = 1.0  # percent: cells that scatter more, half dead ones, would hide what the split does
_HEAD: Final = (
    "| dataset | model | layers | paper | mean | worst split | best split | correlation with the other cells |",
    "|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class _Row:
    """A cell and its accuracies in percent, in the order of the seeds."""

    cell: Cell
    accuracies: Sequence[float]

    @property
    def over_paper(self) -> list[float]:
        """Accuracies less the paper's."""
        assert self.cell.reference is not None
        return [accuracy - self.cell.reference for accuracy in self.accuracies]


def split_words(evidence: Evidence) -> str:
    """Every steady cell with its worst and its best split, and how far one split moves all cells of a dataset."""
    parts = []
    for dataset in dict.fromkeys(cell.dataset for cell in evidence.cells):
        seeds, rows = _rows(evidence, dataset)
        if len(rows) > 1:
            parts += ["\n".join([*_HEAD, *(_line(row, rows) for row in rows)]), _say(seeds, rows)]
    return "\n\n".join(parts) or "No cells with a split of their own for every seed are recorded."


def _rows(evidence: Evidence, dataset: str) -> tuple[list[int], list[_Row]]:
    """The steady cells of a dataset, and the seeds that all of them were run with."""
    found: list[tuple[Cell, Mapping[int, float]]] = []
    for cell in evidence.cells:
        has_own_splits = cell.recipe.data.split_seed is None and cell.recipe.data.split.startswith("per-class")
        if cell.dataset == dataset and cell.reference is not None and has_own_splits:
            runs = evidence.recorded.of(cell.recipe)
            tested = {seed: 100 * run.test_score for seed, run in runs.items() if run.test_score is not None}
            if len(tested) > 2 and statistics.stdev(tested.values()) < _STEADY:
                found.append((cell, tested))
    seeds = sorted(set.intersection(*(set(tested) for _, tested in found))) if found else []
    return seeds, [_Row(cell, [tested[seed] for seed in seeds]) for cell, tested in found] if len(seeds) > 2 else []


def _line(row: _Row, rows: Sequence[_Row]) -> str:
    others = [statistics.fmean(values) for values in zip(*(r.over_paper for r in rows if r is not row), strict=True)]
    try:
        correlation = f"{statistics.correlation(row.accuracies, others):.2f}"
    except statistics.StatisticsError:  # one of them is the same on all splits
        correlation = ""
    cell, mean = row.cell, statistics.fmean(row.accuracies)
    named = f"{cell.dataset} | {cell.model} | {cell.num_layers} | {cell.reference}"
    return f"| {named} | {mean:.2f} | {min(row.accuracies):.2f} | {max(row.accuracies):.2f} | {correlation} |"


def _say(seeds: Sequence[int], rows: Sequence[_Row]) -> str:
    by_seed = [statistics.fmean(values) for values in zip(*(row.over_paper for row in rows), strict=True)]
    low, high, mean = min(by_seed), max(by_seed), statistics.fmean(by_seed)
    # The paper's one split is a draw like each of ours, so its error is that of a split and not of a mean over splits.
    error = statistics.stdev(by_seed) * math.sqrt(1 / len(by_seed) + 1)
    p = 2 * float(stdtr(len(by_seed) - 1, -abs(mean) / error)) if error else 0.0
    return (
        f"These are the cells whose {len(seeds)} runs scatter by less than {_STEADY:g} point. On average over them "
        f"ours are {mean:+.2f} points from the paper; on the split of seed "
        f"{seeds[by_seed.index(low)]} alone it would be {low:+.2f}, on that of seed {seeds[by_seed.index(high)]} "
        f"{high:+.2f}. All cells share their splits, so this is one finding: against the scatter of a split "
        f"it has p {p_text(p)}{'' if p < LEVEL else ' and is undecided'}."
    )
