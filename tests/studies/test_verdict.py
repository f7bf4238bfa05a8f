import math
from dataclasses import replace

import pytest
from scipy.stats import t as student

from graphjoule.studies import STUDIES, Collection, Protocol, Reference, make_ledger
from graphjoule.studies.verdict import correct, judge, rule
from graphjoule.tasks.metrics import MAE, R2
from graphjoule.tasks.objective import Regression

from . import made_up
from .test_ledger import CELL, STUDY, row, runs


@pytest.mark.parametrize(
    ("mean", "scale", "verdict"),
    [
        (85.7, 0.4, "equal"),
        (85.4, 0.4, "equal"),
        (85.0, 0.4, "worse"),
        (86.4, 0.4, "better"),
        (60.8, 31.0, "undecided"),  # not rejected, and not shown to be equal
        (85.3, 1.2, "undecided"),
        (85.7 + 0.94, 0.0, "equal"),
        (85.7 + 0.96, 0.0, "better"),  # the paper's 85.7 may be 85.65, and then it is more than a point
        (84.7, 0.0, "worse"),
    ],
)
def test_the_verdict_follows_the_difference_and_the_spread(mean, scale, verdict):
    outcome = row(runs(mean, scale)).outcome
    assert outcome.verdict == verdict
    assert outcome.mean == pytest.approx(mean)
    assert outcome.std == pytest.approx(scale * math.sqrt(10 / 9))
    assert outcome.difference == pytest.approx(mean - 85.7)
    if verdict in ("better", "worse"):
        assert outcome.p_value == outcome.p_adjusted < 0.05  # the only cell


def test_the_p_value_is_that_of_the_stated_rule():
    outcome = row(runs(85.0, 0.6)).outcome
    t = (0.7 - 0.05) / (0.6 * math.sqrt(10 / 9) * math.sqrt(1 / 10 + 1 / 10))
    # Student's distribution with 9 degrees of freedom: its two-sided 5 % point is 2.262, its 3 % point 2.574.
    assert 2.262 < t < 2.574
    assert 0.03 < outcome.p_value < 0.05


def test_few_runs_need_a_larger_difference():
    assert judge(runs(85.0, 0.4), 85.7).verdict == "worse"
    assert judge(runs(85.0, 0.4, n=2), 85.7).verdict == "undecided"


@pytest.mark.parametrize(
    ("records", "paper", "verdict"),
    [
        ([], 85.7, "not run"),
        ([made_up(CELL, 0, None)], 85.7, "failed"),
        ([made_up(CELL, 0, 0.8)], 85.7, "too few runs"),
        ([made_up(CELL, 0, 0.8)], None, "no reference"),
        ([], None, "not run"),
    ],
)
def test_where_there_is_nothing_to_compare_the_verdict_says_so(records, paper, verdict):
    outcome = judge(records, paper)
    assert outcome.verdict == verdict
    assert outcome.p_value is None


def test_failed_runs_are_counted_and_in_no_mean():
    outcome = row([*runs(85.7, 0.4, n=9), made_up(CELL, 9, None)]).outcome
    assert (outcome.n, outcome.num_failed) == (9, 1)
    assert outcome.mean == pytest.approx(85.7 - 0.4 / 9)


def numbers(values):
    fields = {"objective": "regression", "val": {"r2": 0.5}}
    return [made_up(CELL, seed, 0.0, **fields, test={"r2": value}) for seed, value in enumerate(values)]


def test_numbers_are_not_shares_and_are_shown_as_they_are():
    reference = Reference(rows=[{"cora_64": 0.853}])
    outcome = judge(numbers([0.801, 0.803, 0.802]), 0.853, reference)
    assert (outcome.metric, outcome.verdict) == (R2, "worse")
    assert outcome.mean == pytest.approx(0.802)
    assert outcome.text(outcome.mean) == "0.802"
    assert reference.rounding == 0.0005
    same = numbers([0.8531, 0.8534, 0.8528])
    assert judge(same, 0.853, reference).verdict == "undecided"  # a point of R² is no margin
    assert judge(same, 0.853, reference, Protocol(margin=0.01)).verdict == "equal"


def test_what_is_better_the_metric_says(monkeypatch):
    monkeypatch.setattr(Regression, "metrics", (MAE,))
    fields = {"objective": "regression", "val": {"mae": 2.0, "r2": 0.0}}
    low, high = (
        judge([made_up(CELL, seed, 0.0, **fields, test={"mae": mean + 0.01 * seed}) for seed in range(3)], 5.0)
        for mean in (4.0, 6.0)
    )
    assert (low.verdict, high.verdict) == ("better", "worse")


# Equivalence, correction, and the split.


def test_the_tests_are_those_of_the_stated_rule():
    std = 0.6 * math.sqrt(10 / 9)
    outcome, error = judge(runs(85.4, 0.6), 85.7, STUDY.reference), std * math.sqrt(2 / 10)
    assert outcome.p_equal == pytest.approx(student.sf((1 - 0.3 - 0.05) / error, 9))
    assert outcome.p_value == pytest.approx(2 * student.sf((0.3 - 0.05) / error, 9))
    assert outcome.half_width == pytest.approx(student.ppf(0.975, 9) * error + 0.05)
    text = rule(STUDY.reference, STUDY.protocol)
    assert "within the margin of 1 by" in text
    assert "On physics all runs of the paper had one split" in text


def test_a_difference_must_hold_among_all_cells_and_a_recipe_of_two_rows_is_one_of_them():
    cells = STUDY.cells(["cora", "pubmed"], ["egnn", "gcn"])
    records = [record for cell in cells for record in runs(cell.reference, 2.0, cell)]
    alone = judge(runs(cells[0].reference - 3, 2.0, cells[0]), cells[0].reference, STUDY.reference)
    moved = [*runs(cells[0].reference - 3, 2.0, cells[0]), *records[10:]]
    rows = make_ledger(STUDY, cells, Collection(moved))
    assert (alone.verdict, rows[0].outcome.verdict) == ("worse", "undecided")
    assert rows[0].outcome.p_adjusted == pytest.approx(len(cells) * alone.p_value)
    table2 = STUDIES["table2"]
    same = [c for c in table2.cells(["cora"], layers=[64]) if c.variant.value in ("orthogonal", "tuned", "srelu")]
    for found in make_ledger(table2, same, Collection(runs(85.0, 0.6))):
        assert found.outcome.p_adjusted == found.outcome.p_value


def test_holms_method_is_that_of_the_book():
    one = judge(runs(85.0, 0.6), 85.7)
    found = correct([replace(one, p_value=p) for p in (0.01, 0.04, 0.03, 0.005)])
    assert [each.p_adjusted for each in found] == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_where_the_reference_had_one_split_its_mean_scatters_like_a_split():
    reference = Reference(runs=10, one_split=["physics"])
    records = runs(93.8, 0.5)
    fixed, drawn = (judge(records, 92.8, reference, dataset=name) for name in ("cora", "physics"))
    assert (fixed.verdict, drawn.verdict) == ("better", "undecided")
    ratio = (drawn.half_width - reference.rounding) / (fixed.half_width - reference.rounding)
    assert ratio == pytest.approx(math.sqrt((1 / 10 + 1) / (2 / 10)))
    ours = [judge(records, 92.8, reference, dataset="physics", one_split=True, between=std) for std in (None, 0.1)]
    assert (ours[0].verdict, ours[0].p_value) == ("undecided", None)  # nothing says what two splits differ by
    error = math.sqrt(ours[1].std ** 2 * 2 / 10 + 2 * 0.1**2)
    assert ours[1].half_width == pytest.approx(student.ppf(0.975, 9) * error + reference.rounding)
