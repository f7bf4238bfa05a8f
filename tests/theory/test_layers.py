"""The exact range of every layer, settings, and interval arithmetic."""

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.measures import spectrum
from graphjoule.theory import Setting, depth_limit, layer_ranges
from graphjoule.theory.layers import Enclosure, Interval
from tests.graphs import edge_lists, few, k33, normal, path3, random_edges
from tests.theory import eigenvectors, energies, has_edges, seeds, settings


@few
@given(edge_lists(), seeds, settings())
def test_layer_ranges_hold_for_any_features(edges, seed, setting):
    graph = edges.graph64()
    found = layer_ranges(spectrum(graph), setting)
    seen = energies(normal(edges.num_nodes, 3, seed=seed), graph, setting)
    if not found:
        assert not has_edges(edges)
        return
    slack = 1e-11 * max(seen)
    for k, layer in enumerate(found, start=1):
        assert layer.total_min.low * seen[0] - slack <= seen[k] <= layer.total_max.high * seen[0] + slack
        assert layer.step_min.low * seen[k - 1] - slack <= seen[k]
        assert seen[k] <= layer.step_max.high * seen[k - 1] + slack


@few
@given(edge_lists(), settings())
def test_layer_ranges_are_attained_by_eigenvectors(edges, setting):
    assume(has_edges(edges))
    graph = edges.graph64()
    seen = np.array([energies(u[:, None], graph, setting) for u in eigenvectors(edges).t()])
    for k, layer in enumerate(layer_ranges(spectrum(graph), setting), start=1):
        total = seen[:, k] / seen[:, 0]
        assert total.min() == pytest.approx(layer.total_min.high, rel=1e-6, abs=1e-10)
        assert total.max() == pytest.approx(layer.total_max.low, rel=1e-6, abs=1e-10)
        clear = seen[:, k - 1] > 1e-8 * seen[:, 0]
        if clear.all():
            step = seen[:, k] / seen[:, k - 1]
            assert step.min() == pytest.approx(layer.step_min.high, rel=1e-4, abs=1e-10)
            assert step.max() == pytest.approx(layer.step_max.low, rel=1e-4, abs=1e-10)


@pytest.mark.parametrize(
    "setting", [Setting(0.2, 1.0, 0.1, 20), Setting(0.11, 0.4, 0.11, 20), Setting(0.75, 1, 0.25, 9)]
)
def test_bounds_over_an_interval_enclose_the_exact_range(setting):
    graph = random_edges(200, 500, seed=3).graph64()
    exact, bounds = (layer_ranges(spectrum(graph, dense_nodes=size), setting) for size in (1000, 1))
    for one, other in zip(exact, bounds, strict=True):
        for name in ("step_min", "step_max", "total_min", "total_max"):
            inner, outer = getattr(one, name), getattr(other, name)
            assert inner.high - inner.low < 1e-6 * (1 + inner.low) or math.isinf(inner.high)
            assert outer.low - 1e-9 <= inner.high
            assert inner.low <= outer.high + 1e-9
        assert other.total_max.high - other.total_max.low < 2e-3


def test_a_frequency_that_is_wiped_out_and_comes_back_is_an_unbounded_step():
    setting = Setting(c_min=1 / 3, beta=0.1, num_layers=2)  # (1 - c) p + c is 0 at p = -1/2, an eigenvalue of K3,3
    first, second = layer_ranges(spectrum(k33().graph64()), setting)
    assert first.total_min.low < 1e-25
    assert second.step_max.high == math.inf
    assert second.total_min.low > 0


@few
@given(edge_lists(), settings(num_layers=150))
def test_the_limit_of_endless_depth_does_not_depend_on_c_max(edges, setting):
    assume(has_edges(edges))
    found = spectrum(edges.graph64())
    assume((1 - setting.c_min) * found.lambda_0.value + setting.beta > 0.1)  # else 150 layers are not endless
    last, (least, most) = layer_ranges(found, setting)[-1], depth_limit(found, setting)
    assert last.total_min.low == pytest.approx(least.low, abs=1e-5)
    assert last.total_max.high == pytest.approx(most.high, abs=1e-5)


def test_nothing_but_the_previous_layer_stays_as_it_is():
    setting = Setting(c_min=1.0, c_max=0.5, beta=0.0, num_layers=3)
    found = spectrum(path3().graph64())
    assert layer_ranges(found, setting)[-1].total_max.high == pytest.approx(0.5)
    assert depth_limit(found, setting)[1] == (0.5, 0.5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"c_min": 1.5}, r"c_min is 1.5; it must be in \[0, 1\]"),
        ({"c_min": float("nan")}, "c_min is nan"),
        ({"c_min": "a"}, "c_min is 'a'; expected a number"),
        ({"c_max": None}, "c_max is None; expected a number"),
        ({"beta": True}, "beta is True; expected a number"),
        ({"num_layers": 2.5}, "num_layers is 2.5; expected a whole number"),
        ({"c_max": 0.0}, "c_max is 0.0; it must be positive"),
        ({"c_min": 0.1, "beta": 0.2}, "beta is 0.2; it must be between 0 and c_min, which is 0.1"),
        ({"num_layers": 0}, "num_layers is 0; it must be at least 1"),
    ],
)
def test_settings_that_no_network_has_are_refused(options, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        Setting(**options)


def test_an_enclosure_that_holds_the_limit_decides_nothing():
    assert [Enclosure(low, high).is_at_most(1.0) for low, high in ((0, 0.9), (0.9, 1.1), (1.1, 2))] == [
        "yes",
        "unknown",
        "no",
    ]
    assert Enclosure(1.0, 1 + 1e-12).is_at_most(1.0) == "yes"


@given(st.floats(-2, 2), st.floats(0, 1), st.floats(-2, 2), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
@example(0.0, 0.0, 2e-311, 0.0, 0.0, 0.0)  # 0.1 / 2e-311 overflows
def test_interval_arithmetic_contains_every_result(a, width_a, b, width_b, at_a, at_b):
    one = Interval(np.array([a]), np.array([a + width_a]))
    other = Interval(np.array([b]), np.array([b + width_b]))
    x, y = min(a + at_a * width_a, a + width_a), min(b + at_b * width_b, b + width_b)
    for found, value in (
        (one.times(other), x * y),
        (one.plus(0.3), x + 0.3),
        (one.absolute(), abs(x)),
        (one.absolute().squared(), x * x),
        (one.plus_quotient(0.1, other), abs(x + 0.1 / y) if y else math.inf),
    ):
        assert found.low[0] <= value <= found.high[0]
