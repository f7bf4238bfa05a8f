import pytest

from graphjoule.report.metrics import heading, is_better, mean_score, metrics_of, number, scaled, score_of
from graphjoule.tasks.metrics import ACCURACY, MAE, R2, RMSE
from graphjoule.training.recipe import load_recipe

from .cells import record

RECIPE = load_recipe("egnn", "cora", 4)


def test_a_share_is_written_in_percent_and_an_error_as_it_is():
    assert [number(ACCURACY, *pair) for pair in ((0.857, 0.0041), (0.5,), (None,))] == ["85.70 ± 0.41", "50.00", ""]
    assert number(MAE, 12.34567, 0.5) == "12.35 ± 0.5"
    assert (heading("accuracy", ACCURACY), heading("mae", MAE)) == ("accuracy, %", "mae")
    assert (scaled(ACCURACY, 0.5), scaled(MAE, 0.5)) == (50, 0.5)


@pytest.mark.parametrize(("metric", "good", "bad"), [(ACCURACY, 0.9, 0.1), (R2, 0.1, -1.0), (MAE, 0.1, 0.9)])
def test_a_score_is_compared_in_the_direction_of_its_metric(metric, good, bad):
    assert is_better(metric, good, bad)
    assert not is_better(metric, bad, good)
    assert not is_better(metric, good, good)
    assert is_better(metric, bad, None)
    assert not is_better(metric, None, bad)


def test_the_metrics_are_those_of_the_objective():
    assert metrics_of([record(RECIPE)]) == (ACCURACY,)
    assert metrics_of([record(RECIPE, objective="regression", val={"r2": 0.5}, test={})]) == (R2, MAE, RMSE)


def test_scores_are_read_from_records_and_failed_runs_are_in_no_mean():
    done = [record(RECIPE, seed, test={"accuracy": score}) for seed, score in enumerate((0.5, 0.7))]
    bad = {"accuracy": 0.1}
    failed = record(RECIPE, 2, failure="the loss was no longer finite", val=bad, test=bad)
    assert [score_of(one, "test", ACCURACY) for one in done] == [0.5, 0.7]
    assert score_of(done[0], "test", MAE) is None
    assert mean_score([*done, failed], "test", ACCURACY) == pytest.approx((0.6, 0.02**0.5))
    assert mean_score(done[:1], "val", ACCURACY) == (0.8, None)
    assert mean_score([failed], "val", ACCURACY) == (None, None)
