import math

from graphjoule.report.drawings.evidence import Evidence, Series, common_limits

from . import evidence, sweep_accuracy


def test_limits_hold_every_band_and_stay_within_percent():
    low, high = common_limits([Series([1.0], [50.0], [2.0], [3]), Series([1.0], [99.9], [1.0], [3])])
    assert low < 48.0
    assert high == 100.0
    assert common_limits([]) == (0.0, 100.0)
    assert all(map(math.isfinite, common_limits([Series([1.0], [0.0], [0.0], [1])])))


def test_only_the_seeds_that_are_asked_for_count():
    found = evidence("figure2", sweep_accuracy, seeds=4)
    some = Evidence(found.study, found.cells, found.recorded, seeds=[0])
    assert (found.outcome(found.cells[0]).n, some.outcome(found.cells[0]).n) == (4, 1)
