import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.nn import EGNN, GCN
from graphjoule.ops.egnn import residual_mix
from graphjoule.trace import LayerTrace, RecordedTrace, Trace
from graphjoule.trace.limits import limits
from tests.graphs import few, k33, no_edges, normal, random_edges


def trace_of(*energies, **facts):
    rows = [LayerTrace(f"layer.{k}", {"energy": energy}, **facts) for k, energy in enumerate(energies)]
    return RecordedTrace(rows, ["energy"])


@few
@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=8), st.floats(0.01, 0.99), st.floats(0.01, 2))
def test_both_limits_of_every_layer_are_proposition_1(energies, c_min, c_max):
    found = limits(trace_of(*energies), c_min, c_max)
    assert found.initial_energy == energies[0]
    assert len(found.layers) == len(energies) - 1
    for k, layer in enumerate(found.layers, start=1):
        assert (layer.name, layer.energy) == (f"layer.{k}", energies[k])
        assert layer.lower == c_min * energies[k - 1]
        assert layer.upper == c_max * energies[0]
        near = 2e-6
        if energies[k] < layer.lower * (1 - near):
            assert not layer.holds_lower
        if energies[k] > layer.upper * (1 + near):
            assert not layer.holds_upper
        if layer.lower <= energies[k] <= layer.upper:
            assert layer.holds_lower
            assert layer.holds_upper
    assert found.holds == (not found.broken)


def test_slack_says_how_many_times_the_limit_is_kept():
    found = limits(trace_of(10.0, 4.0, 0.2), c_min=0.1, c_max=0.8)
    first, second = found.layers
    assert (first.lower_slack, first.upper_slack) == (pytest.approx(4), pytest.approx(2))
    assert (second.lower_slack, second.upper_slack) == (pytest.approx(0.5), pytest.approx(40))
    assert [layer.name for layer in found.broken] == ["layer.2"]
    assert found.summary() == (
        "Limits c_min = 0.1, c_max = 0.8: of 2 layers 1 at or above the lower, 2 at or below the upper."
    )
    assert "all within both limits" in limits(trace_of(1.0, 0.5), 0.1, 1.0).summary()


def test_rounding_at_a_limit_is_forgiven_and_no_more():
    assert limits(trace_of(1.0, 1 + 5e-7), 0.1, 1.0).holds
    assert not limits(trace_of(1.0, 1 + 5e-6), 0.1, 1.0).holds
    assert limits(trace_of(1.0, 0.1 * (1 - 5e-7)), 0.1, 1.0).holds
    assert not limits(trace_of(1.0, 0.1 * (1 - 5e-6)), 0.1, 1.0).holds


def test_zero_energy_is_within_limits_of_zero_and_nan_within_none():
    assert limits(trace_of(0.0, 0.0), 0.2, 1.0).holds
    assert not limits(trace_of(0.0, 1.0), 0.2, 1.0).holds
    (layer,) = limits(trace_of(1.0, math.nan), 0.2, 1.0).layers
    assert not layer.holds_lower
    assert not layer.holds_upper


def test_the_table_says_what_is_broken_and_json_all():
    found = limits(trace_of(1.0, 2.0, 0.3, 0.001), 0.2, 1.0)
    head, first, *lines = found.table().splitlines()
    assert head.split() == ["layer", "lower", "energy", "upper", "slack"]
    assert first.split() == ["layer.0", "1"]
    assert [line.split()[-1] for line in lines] == ["above", "below", "below"]
    told = json.loads(found.to_json())
    assert (told["holds"], told["c_min"], told["initial"]) == (False, 0.2, "layer.0")
    assert [layer["holds_lower"] for layer in told["layers"]] == [True, False, False]
    assert [layer["upper"] for layer in told["layers"]] == [1.0] * 3


def test_x0_can_be_named():
    found = limits(trace_of(100.0, 1.0, 0.5), 0.2, 1.0, initial="layer.1")
    assert (found.initial, len(found.layers), found.holds) == ("layer.1", 1, True)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (trace_of(1.0, 1.0), {"c_min": 0.0, "c_max": 1.0}, r"c_min is 0.0; it must be between 0 and 1"),
        (trace_of(1.0, 1.0), {"c_min": 0.2, "c_max": -1.0}, r"c_max is -1.0; it must be positive"),
        (trace_of(1.0, 1.0), {"c_min": 0.2, "c_max": 1.0, "initial": "x"}, r"no row 'x' to be X_0; it has layer.0, l"),
        (trace_of(1.0), {"c_min": 0.2, "c_max": 1.0}, "There is no layer after 'layer.0'"),
        (trace_of(), {"c_min": 0.2, "c_max": 1.0}, "The trace is empty, so there is no check of the limits"),
        (RecordedTrace([LayerTrace("a", {"norm": 1.0})] * 2, ["norm"]), {"c_min": 0.2, "c_max": 1.0}, "no 'energy'"),
    ],
)
def test_what_cannot_be_checked_is_refused_with_a_sentence(given, options, said):
    with pytest.raises(GraphjouleError, match=said):
        limits(given, **options)


def test_several_runs_are_refused_until_one_is_chosen():
    rows = [LayerTrace(f"layer.{k}", {"energy": 1.0}, run=run) for k in range(2) for run in range(3)]
    trace = RecordedTrace(rows, ["energy"])
    with pytest.raises(GraphjouleError, match=r"holds 3 runs, .* choose it with trace.select\(run=0\)"):
        limits(trace, 0.2, 1.0)
    assert limits(trace.select(run=2), 0.2, 1.0).holds


def layers_of(model, edges, x):
    return Trace.of(model, edges.graph(), (x, edges.graph()), ["energy"], watch=["encoder", "convs.*"])


def test_an_initialised_egnn_is_within_its_limits_on_smooth_features_and_breaks_stricter_ones():
    edges, x = random_edges(40, 90), normal(40, 5, dtype=torch.float32)
    smooth = torch.linalg.matrix_power(edges.graph().to_dense(), 4) @ x
    torch.manual_seed(0)
    trace = layers_of(EGNN(5, 8, 3, num_layers=24, c_min=0.2, c_max=1.0), edges, smooth)
    assert limits(trace, 0.2, 1.0).holds
    assert not limits(trace, 0.2, 1e-3).holds
    assert not limits(trace, 0.9, 1.0).holds


def test_the_counterexample_to_lemma_4_breaks_the_lower_limit():
    """K3,3 at c_min = 0.2, alpha = beta = 0.1: the bipartition's sign vector has E(X_1) = 0.04 E(X_0)."""
    rows = []
    signs = torch.tensor([1.0, 1, 1, -1, -1, -1])[:, None]
    graph = k33().graph()
    for k, x in enumerate([signs, residual_mix(signs, signs, graph, 0.2, 0.1)]):
        rows.append(LayerTrace(f"X_{k}", {"energy": float(dirichlet_energy(x, graph))}))
    (layer,) = limits(RecordedTrace(rows, ["energy"]), 0.2, 1.0).layers
    assert not layer.holds_lower
    assert layer.lower_slack == pytest.approx(0.2, rel=1e-5)


def test_a_deep_gcn_breaks_the_lower_limit():
    edges, x = random_edges(40, 90), normal(40, 5, dtype=torch.float32)
    model = GCN(5, 8, 8, num_layers=16)
    trace = Trace.of(model, edges.graph(), (x, edges.graph()), ["energy"], watch=["convs.*"])
    assert not limits(trace, 0.2, 1.0).holds


def test_a_graph_without_edges_has_nothing_to_break():
    edges, x = no_edges(4), normal(4, 5, dtype=torch.float32)
    assert limits(layers_of(EGNN(5, 8, 3, num_layers=2), edges, x), 0.2, 1.0).holds
