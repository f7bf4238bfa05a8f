"""Whether our runs and the paper's mean tell the same: a stated rule, and one word for what it says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from scipy.special import stdtr

from graphjoule.studies.paper_tables import PAPER_RUNS
from graphjoule.training.records import Record, summarise

__all__ = ["LEVEL", "ROUNDING", "RULE", "Outcome", "Verdict", "judge"]

Verdict = Literal["matches", "better", "worse", "not run", "failed", "too few runs", "no number in the paper"]

LEVEL: Final = 0.05
ROUNDING: Final = 0.05  # percent: the paper rounds to one decimal
RULE: Final = (
    "Two-sided t-test of the difference between our mean and the paper's, at the level 0.05 for each cell by itself. "
    "The paper gives no spread, so its mean of 10 runs is taken to scatter like ours: t = (|difference| - 0.05) / "
    "(s sqrt(1/n + 1/10)) with n - 1 degrees of freedom, where s is our sample standard deviation and 0.05 is what the "
    "paper may have rounded away. p < 0.05 is better or worse, anything else matches; so about one in twenty of the "
    "cells that do agree will be called different by chance. Failed runs are in no mean."
)


@dataclass(frozen=True)
class Outcome:
    """What the runs of one cell come to, accuracies in percent.

    Attributes:
        mean: of the test accuracies; None if no run is done.
        std: sample standard deviation; None for fewer than two runs.
        n: how many runs are done.
        num_failed: how many failed.
        difference: our mean less the paper's.
        p_value: of the test, None where there is none to make.
        verdict: in a word.
    """

    mean: float | None
    std: float | None
    n: int
    num_failed: int
    difference: float | None
    p_value: float | None
    verdict: Verdict


def judge(records: Sequence[Record], paper: float | None) -> Outcome:
    """Hold the runs of one cell against the paper's number.

    Args:
        records: the runs of the cell, each seed once.
        paper: the paper's test accuracy in percent; None where it gives none.

    Returns:
        The outcome by `RULE`.
    """
    summary = summarise(records)
    mean = None if summary.test_mean is None else 100 * summary.test_mean
    std = None if summary.test_std is None else 100 * summary.test_std
    difference = None if mean is None or paper is None else mean - paper
    p_value = None if difference is None or std is None else _p_value(difference, std, summary.n)
    verdict = _verdict(summary.n, summary.num_failed, paper, difference, p_value)
    return Outcome(mean, std, summary.n, summary.num_failed, difference, p_value, verdict)


def _p_value(difference: float, std: float, n: int) -> float:
    """Probability of so large a difference if both means are of the same thing.

    >>> round(_p_value(-0.5, 0.4, 10), 4), _p_value(0.04, 0.0, 10), _p_value(0.3, 0.0, 10)
    (0.033, 1.0, 0.0)
    """
    excess = max(0.0, abs(difference) - ROUNDING)
    error = std * math.sqrt(1 / n + 1 / PAPER_RUNS)
    if error == 0.0:  # every run gave the same, as collapsed networks do
        return 0.0 if excess > 1e-9 else 1.0
    return float(2 * stdtr(n - 1, -excess / error))


def _verdict(n: int, num_failed: int, paper: float | None, difference: float | None, p_value: float | None) -> Verdict:
    if n == 0:
        return "failed" if num_failed else "not run"
    if paper is None:
        return "no number in the paper"
    if difference is None or p_value is None:
        return "too few runs"
    if p_value >= LEVEL:
        return "matches"
    return "better" if difference > 0 else "worse"
