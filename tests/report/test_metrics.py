import pytest

from graphjoule.report.metrics import Metric, curve_name, mean_score, metrics_of, score_of
from graphjoule.training.recipe import load_recipe

from .cells import record

SHARE, ERROR = Metric("f1"), Metric("mean_error", is_share=False, higher_is_better=False)
RECIPE = load_recipe("egnn", "cora", 4)


def test_a_share_is_written_in_percent_and_an_error_as_it_is():
    assert [SHARE.text(0.857, 0.0041), SHARE.text(0.5), SHARE.text(None)] == ["85.70 ± 0.41", "50.00", ""]
    assert ERROR.text(12.34567, 0.5) == "12.35 ± 0.5"
    assert (SHARE.heading, ERROR.heading) == ("f1, %", "mean error")


@pytest.mark.parametrize(("metric", "good", "bad"), [(SHARE, 0.9, 0.1), (ERROR, 0.1, 0.9)])
def test_a_metric_knows_its_direction(metric, good, bad):
    assert metric.is_better(good, bad)
    assert not metric.is_better(bad, good)
    assert not metric.is_better(good, good)
    assert metric.is_better(bad, None)
    assert not metric.is_better(None, bad)


def test_scores_are_read_from_records_and_failed_runs_are_in_no_mean():
    done = [record(RECIPE, 0, test_accuracy=0.5), record(RECIPE, 1, test_accuracy=0.7)]
    failed = record(RECIPE, 2, failure="the loss was no longer finite", val_accuracy=0.1, test_accuracy=0.1)
    (metric,) = metrics_of(done)
    assert curve_name(metric) in done[0].curve
    assert [score_of(one, "test", metric) for one in done] == [0.5, 0.7]
    assert mean_score([*done, failed], "test", metric) == pytest.approx((0.6, 0.02**0.5))
    assert mean_score(done[:1], "val", metric) == (0.8, None)
    assert mean_score([failed], "val", metric) == (None, None)
