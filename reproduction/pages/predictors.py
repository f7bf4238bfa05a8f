"""Which measure predicts the final accuracy: rank correlations with intervals, from the records of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

__all__ = ["Predictor", "predictors", "predictors_table"]

STATES = {"initial": "at initialisation", "middle": "half-way"}
_DRAWS = 1000


@dataclass(frozen=True)
class Predictor:
    """How well one measure at one time goes with the final accuracy.

    Attributes:
        measure: its name.
        state: a key of `STATES`.
        value: Spearman's rank correlation within each graph, the mean over graphs.
        low: lower end of the 95 % interval, by a bootstrap over the trainings of each graph.
        high: upper end.
    """

    measure: str
    state: str
    value: float
    low: float
    high: float


def predictors(runs: Sequence[Mapping[str, Any]], draws: int = _DRAWS) -> list[Predictor]:
    """A row for each measure and time, the strongest correlation first.

    A value that is not finite, recorded as None, is the largest of all: features that blew up.

    Args:
        runs: trainings, each with ``dataset``, ``test_accuracy``, and the measures of ``initial`` and ``middle``.
        draws: how many samples of the bootstrap.
    """
    names = [(state, measure) for state in STATES for measure in runs[0][state]]
    graphs = []
    for dataset in sorted({run["dataset"] for run in runs}):
        here = [run for run in runs if run["dataset"] == dataset]
        values = [[np.inf if run[s][m] is None else run[s][m] for s, m in names] for run in here]
        graphs.append((np.array(values, dtype=float), np.array([run["test_accuracy"] for run in here])))
    random = np.random.default_rng(0)
    whole = np.mean([_spearman(values, accuracy) for values, accuracy in graphs], axis=0)
    drawn = []
    for _ in range(draws):
        picks = [random.integers(len(accuracy), size=len(accuracy)) for _, accuracy in graphs]
        found = [
            _spearman(values[pick], accuracy[pick]) for (values, accuracy), pick in zip(graphs, picks, strict=True)
        ]
        drawn.append(np.mean(found, axis=0))
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    rows = [Predictor(m, s, *map(float, ends)) for (s, m), *ends in zip(names, whole, low, high, strict=True)]
    return sorted(rows, key=lambda row: -abs(row.value))


def _spearman(values: NDArray[Any], accuracy: NDArray[Any]) -> NDArray[Any]:
    """Spearman's rank correlation of every column with the accuracy; 0 where one of the two is constant."""
    ranks = rankdata(values, axis=0) - (len(values) + 1) / 2
    order = rankdata(accuracy) - (len(values) + 1) / 2
    size = np.sqrt((ranks**2).sum(axis=0) * (order**2).sum())
    return np.divide(order @ ranks, size, out=np.zeros(ranks.shape[1]), where=size > 0)


def predictors_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """A row for each measure, the strongest at initialisation first: its correlations at both times."""
    rows = predictors(runs)
    by_state = {state: {row.measure: row for row in rows if row.state == state} for state in STATES}
    lines = ["| measure | " + " | ".join(STATES.values()) + " |", "|---" * (1 + len(STATES)) + "|"]
    for measure in by_state["initial"]:
        cells = [_cell(found[measure]) for found in by_state.values()]
        lines.append(f"| `{measure}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Predictor) -> str:
    return f"{row.value:+.2f} ({row.low:+.2f} to {row.high:+.2f})"
