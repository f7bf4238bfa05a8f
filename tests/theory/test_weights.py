"""What weights after training guarantee."""

import json

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.measures import spectrum
from graphjoule.nn import EGNN, GCN
from graphjoule.theory import Setting, layer_ranges, weight_report
from graphjoule.trace import Trace
from tests.graphs import edge_lists, few, no_edges, normal, path3, random_edges
from tests.theory import energies, has_edges, seeds, settings


@few
@given(edge_lists(), seeds, settings(num_layers=4), st.sampled_from([0.0, 0.01, 0.3, 3.0]))
def test_energies_lie_in_the_intervals_of_the_weights(edges, seed, setting, noise):
    assume(has_edges(edges))
    options = {"c_min": setting.c_min, "c_max": setting.c_max, "beta": setting.beta, "activation": "linear"}
    model = EGNN(3, 3, 2, num_layers=4, **options).double()
    with torch.no_grad():
        for k, conv in enumerate(model.convs):
            conv.weight += noise * normal(3, 3, seed=seed + k)
    graph, weights = edges.graph64(), [conv.weight.detach() for conv in model.convs]
    seen = energies(normal(edges.num_nodes, 3, seed=seed), graph, setting, weights)
    slack = 1e-11 * max(seen)
    for k, layer in enumerate(weight_report(model, graph).layers, start=1):
        s = torch.linalg.svdvals(weights[k - 1]) ** 2
        assert (layer.s_min, layer.s_max) == pytest.approx((float(s.min()), float(s.max())))
        assert layer.total.low * seen[0] - slack <= seen[k] <= layer.total.high * seen[0] + slack
        assert layer.step.low * seen[k - 1] - slack <= seen[k]
        assert seen[k] <= layer.step.high * seen[k - 1] + slack


def test_at_the_initial_point_the_intervals_are_the_exact_ranges():
    graph, setting = random_edges(40, 80).graph64(), Setting(0.2, 0.4, 0.1, 8)
    model = EGNN(3, 4, 2, num_layers=8, c_min=0.2, c_max=0.4, beta=0.1).double()
    with torch.no_grad():
        model.convs[0].weight.copy_(0.4**0.5 * torch.eye(4))
    for layer, exact in zip(weight_report(model, graph).layers, layer_ranges(spectrum(graph), setting), strict=True):
        assert layer.total == pytest.approx((exact.total_min.low, exact.total_max.high), rel=1e-6)
        assert layer.step.low == pytest.approx(exact.step_min.low, rel=1e-6)
        assert layer.keeps_upper == exact.total_max.is_at_most(0.4)


def test_measured_energies_decide_which_limits_held():
    graph, x = random_edges(40, 80).graph64(), normal(40, 3)
    model = EGNN(3, 4, 2, num_layers=3, c_min=0.2, beta=0.1).double().eval()
    with torch.no_grad(), Trace(model, graph, watch=["encoder", "convs.*"]) as trace:
        model(x, graph)
    measured = [layer.energy for layer in trace.layers]
    report = weight_report(model, graph, measured)
    for k, layer in enumerate(report.layers, start=1):
        assert layer.measured_step == pytest.approx(measured[k] / measured[k - 1])
        assert layer.keeps_lower == ("yes" if measured[k] >= 0.2 * measured[k - 1] else "no")
        assert layer.keeps_upper == ("yes" if measured[k] <= measured[0] else "no")
    assert weight_report(model, spectrum(graph), measured) == report
    lines = report.table().splitlines()
    assert len(lines) == 4
    assert json.loads(report.to_json())["layers"][0]["s_max"] == 1


def test_weights_of_zero_leave_nothing():
    model = EGNN(3, 4, 2, num_layers=3)
    for conv in model.convs:
        torch.nn.init.zeros_(conv.weight)
    for layer in weight_report(model, path3().graph()).layers:
        assert layer.total == (0, 0)
        assert (layer.s_max, layer.keeps_upper, layer.keeps_lower == "yes") == (0, "yes", False)


@pytest.mark.parametrize(
    ("model", "graph", "energies", "sentence"),
    [
        (lambda: GCN(3, 4, 2, num_layers=2), path3, None, "GCN is not a model whose `convs` have weight, c_min"),
        (lambda: torch.nn.Linear(2, 2), path3, None, "Linear is not a model whose `convs`"),
        (lambda: EGNN(3, 4, 2, num_layers=2, batch_norm=True), path3, None, "The layers have a batch norm"),
        (lambda: EGNN(3, 4, 2, num_layers=2), lambda: no_edges(3), None, "The graph has no edges"),
        (lambda: EGNN(3, 4, 2, num_layers=2), path3, [1.0, 2.0], "2 energies were given; expected 3"),
    ],
)
def test_what_bounds_nothing_is_refused(model, graph, energies, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        weight_report(model(), graph().graph(), energies)
