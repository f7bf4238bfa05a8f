"""One rule for all verdicts: equal, better, worse or undecided, by tests of equivalence and of difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from scipy.special import stdtr, stdtrit

from graphjoule.studies.protocol import Protocol
from graphjoule.studies.study import Reference
from graphjoule.tasks.metrics import ACCURACY, Metric
from graphjoule.training.records import Record, summarise

Verdict = Literal["equal", "better", "worse", "undecided", "not run", "failed", "too few runs", "no reference"]

LEVEL: Final = 0.05
"""The level of tests where no protocol states another."""


def rule(reference: Reference, protocol: Protocol = Protocol()) -> str:  # noqa: B008 - frozen
    """How a verdict is found, in words."""
    name, level, runs = f"the {reference.name}", f"{protocol.level:g}", reference.runs
    split = (
        f" On {', '.join(reference.one_split)} all runs of {name} had one split, so its mean scatters like that of one "
        "split: there the error is s sqrt(1/n + 1), with the spread between our splits as the estimate of it; where "
        "ours had one split too, both splits count."
        if reference.one_split
        else ""
    )
    margin = "1 point (of other metrics none)" if protocol.margin is None else f"{protocol.margin:g}"
    return (
        f"Equal: the difference of the means is within the margin of {margin} by two one-sided t-tests (TOST) at the "
        f"level {level}, for each cell by itself. Better or worse: not equal, and the means differ by a two-sided "
        f"t-test at the level {level} after Holm's correction for the number of cells of the ledger. Undecided: "
        "neither. "
        f"{name.capitalize()} gives no spread, so its mean of {runs} runs is taken to scatter like ours: the error is "
        f"s sqrt(1/n + 1/{runs}) with n - 1 degrees of freedom, where s is our sample standard deviation.{split} "
        f"{reference.rounding:g}, which {name} may have rounded away, counts against either verdict. The p value is "
        "that of the difference after the correction, the interval that of the difference without it. Failed runs are "
        "in no mean."
    )


@dataclass(frozen=True)
class Outcome:
    """What the runs of one cell come to.

    Attributes:
        mean: of the metric on the test nodes, a share in percent; None if no run is done.
        std: sample standard deviation; None for fewer than two runs.
        n: how many runs are done.
        num_failed: how many failed.
        difference: our mean less the reference's value.
        p_value: of the difference, before any correction; None where there is nothing to test.
        verdict: in a word; what is better, the metric says.
        metric: what is compared.
        half_width: of the 95 % interval around the difference; None where there is nothing to test.
        p_equal: of the test of equivalence; None where there is nothing to test or no margin.
        p_adjusted: the p value after the correction for the number of tests.
    """

    mean: float | None
    std: float | None
    n: int
    num_failed: int
    difference: float | None
    p_value: float | None
    verdict: Verdict
    metric: Metric = ACCURACY
    half_width: float | None = None
    p_equal: float | None = None
    p_adjusted: float | None = None

    def text(self, value: float | None, sign: str = "") -> str:
        """One of the numbers as a table shows it."""
        return "" if value is None else format(value, f"{sign}.2f" if self.metric.is_share else f"{sign}.4g")


def judge(
    records: Sequence[Record],
    value: float | None,
    reference: Reference = Reference(),  # noqa: B008 - frozen
    protocol: Protocol = Protocol(),  # noqa: B008 - frozen
    *,
    dataset: str = "",
    one_split: bool = False,
    between: float | None = None,
) -> Outcome:
    """Compare the runs of one cell with the reference's value, as the only cell there is; see `correct` for several.

    Args:
        records: the runs of the cell, each seed once.
        value: the reference's mean, a share in percent; None where it has none.
        reference: how many runs its means are of, on which splits, and how they are rounded.
        protocol: margin and level.
        dataset: of the cell, to know whether the reference had one split.
        one_split: whether all our runs had one split too. It is another one than the reference's, so nothing is tested
            unless `between` is known.
        between: the standard deviation between splits, in the unit of the ledger.

    Returns:
        The outcome by `rule`.
    """
    summary = summarise(records)
    n, metric = summary.n, summary.metric
    scale = 100 if metric.is_share else 1
    mean = None if summary.test_mean is None else scale * summary.test_mean
    std = None if summary.test_std is None else scale * summary.test_std
    plain = Outcome(mean, std, n, summary.num_failed, None, None, "too few runs", metric)
    if n == 0:
        return replace(plain, verdict="failed" if summary.num_failed else "not run")
    if value is None:
        return replace(plain, verdict="no reference")
    if mean is None or std is None:
        return replace(plain, difference=None if mean is None else mean - value)
    difference, freedom = mean - value, n - 1
    if dataset not in reference.one_split:
        error = std * math.sqrt(1 / n + 1 / reference.runs)
    elif not one_split:
        error = std * math.sqrt(1 / n + 1)
    elif between is None:
        return replace(plain, difference=difference, verdict="undecided")
    else:
        error = math.sqrt(std**2 * (1 / n + 1 / reference.runs) + 2 * between**2)
    margin = protocol.margin if protocol.margin is not None else 1.0 if metric.is_share else None

    def beyond(distance: float) -> float:
        """The probability of so large a distance in one direction, if there is none in truth."""
        return float(stdtr(freedom, -distance / error)) if error else float(distance <= 1e-9)  # all runs gave the same

    found = replace(
        plain,
        difference=difference,
        p_value=min(1.0, 2 * beyond(max(0.0, abs(difference) - reference.rounding))),
        p_equal=None if margin is None else beyond(margin - abs(difference) - reference.rounding),
        half_width=float(stdtrit(freedom, 0.975)) * error + reference.rounding,
    )
    return correct([found], protocol)[0]


def correct(outcomes: Sequence[Outcome], protocol: Protocol = Protocol()) -> list[Outcome]:  # noqa: B008 - frozen
    """The outcomes with the verdicts that hold when all of them are asked for at once (Holm's method).

    >>> one = Outcome(80.0, 1.0, 10, 0, -2.0, 0.03, "undecided")
    >>> [found.verdict for found in correct([one])], [found.verdict for found in correct([one, one])]
    (['worse'], ['undecided', 'undecided'])
    """
    tested = sorted(found.p_value for found in outcomes if found.p_value is not None)
    adjusted: dict[float, float] = {}
    largest = 0.0
    for place, p in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - place) * p))
        adjusted.setdefault(p, largest)
    return [
        found if found.p_value is None else _decided(replace(found, p_adjusted=adjusted[found.p_value]), protocol.level)
        for found in outcomes
    ]


def _decided(found: Outcome, level: float) -> Outcome:
    verdict: Verdict = "undecided"
    if found.p_equal is not None and found.p_equal < level:
        verdict = "equal"
    elif found.p_adjusted is not None and found.difference is not None and found.p_adjusted < level:
        verdict = "better" if (found.difference > 0) == found.metric.is_higher_better else "worse"
    return replace(found, verdict=verdict)
