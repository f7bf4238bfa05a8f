import json
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.measures.spectrum import Spectrum, spectrum
from graphjoule.nn import EGNN, GCN
from graphjoule.ops import propagate, residual_mix, srelu
from graphjoule.tasks import load_task
from graphjoule.theory import Setting, audit, depth_limit, layer_ranges, lemmas, srelu_energy_limit, weight_report
from graphjoule.theory.layers import Enclosure, Interval
from graphjoule.trace import Trace
from tests.graphs import Edges, edge_lists, few, k33, no_edges, normal, path3, random_edges

seeds = st.integers(0, 2**16)


@pytest.fixture(scope="module")
def cora(data_root) -> Spectrum:
    return spectrum(load_task("cora", data_root).graph)


@st.composite
def settings(draw: st.DrawFn, num_layers: int = 6) -> Setting:
    share = st.floats(1e-6, 1)  # squares of what is smaller vanish in float64 within a few layers
    c_min = draw(st.one_of(st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.75, 1.0]), share))
    beta = draw(st.one_of(st.just(0.0), st.just(c_min), share.map(lambda part: part * c_min)))
    return Setting(c_min, draw(st.sampled_from([0.05, 0.4, 1.0, 2.0])), beta, num_layers)


def bipartite(size: int) -> Edges:
    half = torch.cartesian_prod(torch.arange(size), torch.arange(size, 2 * size)).t()
    return Edges(torch.cat([half, half.flip(0)], dim=1), None, 2 * size)


def energies(x0: torch.Tensor, graph: Propagation, setting: Setting, weights=None) -> list[float]:
    """E(X_0) .. E(X_K) of the network without activation, layer by layer."""
    x, found = x0, [float(dirichlet_energy(x0, graph))]
    for k, scale in enumerate(setting.scales):
        weight = scale * torch.eye(x.size(1), dtype=torch.float64) if weights is None else weights[k]
        x = residual_mix(x, x0, graph, setting.c_min, setting.beta) @ weight
        found.append(float(dirichlet_energy(x, graph)))
    return found


def eigenvectors(edges: Edges) -> torch.Tensor:
    """Eigenvectors of P outside the kernel, in columns."""
    values, vectors = torch.linalg.eigh(edges.dense())
    return vectors[:, values < 1 - 1e-9]


def has_edges(edges: Edges) -> bool:
    return bool(edges.adjacency().sum() > 0)


def lemma(number: int, edges: Edges, setting: Setting):
    found = spectrum(edges.graph64())
    return lemmas(found, setting, layer_ranges(found, setting))[number - 1]


# Lemma 1, and erratum 1


@few
@given(edge_lists(), seeds)
def test_lemma_1_with_the_right_factors(edges, seed):
    found, graph = spectrum(edges.graph64()), edges.graph64()
    assume(found.interval is not None)
    x, weight = normal(edges.num_nodes, 3, seed=seed), normal(3, 3, seed=seed + 1)
    s = torch.linalg.svdvals(weight) ** 2
    before, after = dirichlet_energy(x, graph), dirichlet_energy(propagate(x, graph) @ weight, graph)
    slack = 1e-12 * float(x.square().sum())
    assert (
        found.min_factor.value * s.min() * before - slack <= after <= found.max_factor.value * s.max() * before + slack
    )


@few
@given(edge_lists())
def test_lemma_1_fails_exactly_where_the_audit_says(edges):
    assume(has_edges(edges))
    found, graph = lemma(1, edges, Setting()), edges.graph64()
    gap = spectrum(graph).lambda_0.value
    ratios = [
        float(dirichlet_energy(propagate(u[:, None], graph), graph) / dirichlet_energy(u[:, None], graph))
        for u in eigenvectors(edges).t()
    ]
    assert (found.conclusion_holds == "no") == (max(ratios) > (1 - gap) ** 2 + 1e-9)


def test_erratum_1_k33_breaks_the_upper_bound():
    found = lemma(1, k33(), Setting())
    assert found.verdict == "fails here"
    assert found.paper[1].high == pytest.approx(0.0625, abs=1e-13)
    assert found.corrected[1] == pytest.approx((0.25, 0.25), abs=1e-13)
    assert "lambda_0 + lambda_max = 2.25" in found.why
    sign, graph = torch.tensor([1.0, 1, 1, -1, -1, -1], dtype=torch.float64)[:, None], k33().graph64()
    ratio = float(dirichlet_energy(propagate(sign, graph), graph) / dirichlet_energy(sign, graph))
    assert ratio == pytest.approx(0.25, abs=1e-14)


def test_lemma_1_holds_with_one_eigenvalue_beyond_1():
    pair = Edges(torch.tensor([[0, 1], [1, 0]]), torch.tensor([3.0, 3.0]), 2)  # P has eigenvalues 1 and -1/2
    assert lemma(1, pair, Setting()).verdict == "holds here"


# Lemmas 2 and 3


@few
@given(edge_lists(), seeds)
def test_lemma_2(edges, seed):
    x, weight, graph = normal(edges.num_nodes, 3, seed=seed), normal(3, 3, seed=seed + 1), edges.graph64()
    after = dirichlet_energy(propagate(x, graph) @ weight, graph)
    s_max = torch.linalg.svdvals(weight).max() ** 2
    assert after <= s_max * dirichlet_energy(x, graph) * (1 + 1e-12) + 1e-14
    if has_edges(edges):
        assert lemma(2, edges, Setting()).verdict == "holds here"


@few
@given(edge_lists(), seeds)
def test_lemma_3_and_what_is_left_at_that_depth(edges, seed):
    assume(has_edges(edges))
    setting, graph = Setting(c_max=0.4, num_layers=5), edges.graph64()
    x = x0 = normal(edges.num_nodes, 2, seed=seed)
    for scale in setting.scales:
        x = scale * propagate(x, graph)
    found = lemma(3, edges, setting)
    first, last = dirichlet_energy(x0, graph), dirichlet_energy(x, graph)
    assert found.corrected[0].low * first - 1e-14 <= last <= found.corrected[1].high * first + 1e-14
    assert found.corrected[1].high <= setting.c_max
    assert found.verdict == "holds here"


# The exact range of every layer


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
@given(edge_lists(), settings(num_layers=300))
def test_the_limit_of_endless_depth_does_not_depend_on_c_max(edges, setting):
    assume(has_edges(edges))
    found = spectrum(edges.graph64())
    assume((1 - setting.c_min) * found.lambda_0.value + setting.beta > 0.05)  # else 300 layers are not endless
    last, (least, most) = layer_ranges(found, setting)[-1], depth_limit(found, setting)
    assert last.total_min.low == pytest.approx(least.low, abs=1e-5)
    assert last.total_max.high == pytest.approx(most.high, abs=1e-5)


def test_nothing_but_the_previous_layer_stays_as_it_is():
    setting = Setting(c_min=1.0, c_max=0.5, beta=0.0, num_layers=3)
    found = spectrum(path3().graph64())
    assert layer_ranges(found, setting)[-1].total_max.high == pytest.approx(0.5)
    assert depth_limit(found, setting)[1] == (0.5, 0.5)


# Lemma 4, and erratum 2


@few
@given(edge_lists(), settings())
def test_lemma_4_fails_exactly_where_the_audit_says(edges, setting):
    assume(has_edges(edges))
    found, graph = lemma(4, edges, setting), edges.graph64()
    seen = np.array([energies(u[:, None], graph, setting) for u in eigenvectors(edges).t()])
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = np.nanmin(seen[:, 1:] / seen[:, :-1])
    assume(abs(worst - setting.c_min) > 1e-6)
    assert found.conclusion_holds == ("yes" if worst > setting.c_min else "no")


def test_erratum_2_k33_keeps_a_twentyfifth_where_a_fifth_is_promised():
    setting = Setting(c_min=0.2, c_max=1.0, beta=0.1, num_layers=1)
    found = lemma(4, k33(), setting)
    assert found.premise_holds == "yes"
    assert found.verdict == "fails here"
    assert found.corrected[0] == pytest.approx((0.04, 0.04), abs=1e-12)
    sign = torch.tensor([1.0, 1, 1, -1, -1, -1], dtype=torch.float64)[:, None]
    before, after = energies(sign, k33().graph64(), setting)
    assert after / before == pytest.approx(0.04, abs=1e-14)


@pytest.mark.parametrize(("c_min", "answer"), [(0.25, "yes"), (0.26, "no"), (0.5, "no"), (0.6, "no"), (0.75, "no")])
def test_erratum_2_the_premise_needs_c_min_up_to_a_quarter(c_min, answer):
    assert lemma(4, k33(), Setting(c_min=c_min, c_max=1.0, beta=0.1)).premise_holds == answer


# Lemma 5, and errata 3 and 6


@few
@given(edge_lists(), settings())
def test_lemma_5_with_the_eigenvalue_furthest_from_1_in_place_of_lambda_0(edges, setting):
    assume(has_edges(edges))
    found = spectrum(edges.graph64())
    distance = 1 - found.max_factor.value**0.5
    assume(setting.beta == 0 or (1 - setting.c_min) * distance + setting.beta > 1e-9)
    needed = setting.beta / ((1 - setting.c_min) * distance + setting.beta) if setting.beta else 0.0
    assume(setting.c_max**0.5 >= needed)
    assert lemma(5, edges, setting).conclusion_holds == "yes"


def test_lemma_5_itself_fails_on_k55():
    """Its premise looks at the end of the spectrum near 1 alone; here the other end, p = -2/3, is what counts."""
    setting = Setting(c_min=0.1, c_max=(2 / 17) ** 2, beta=0.1, num_layers=2)
    found = lemma(5, bipartite(5), setting)
    assert found.premise_holds == "yes"
    assert found.verdict == "fails here"
    sign = torch.tensor([1.0] * 5 + [-1.0] * 5, dtype=torch.float64)[:, None]
    seen = energies(sign, bipartite(5).graph64(), setting)
    assert seen[2] / seen[0] == pytest.approx((2.3 / 17) ** 2, rel=1e-12)
    assert seen[2] > setting.c_max * seen[0]


@pytest.mark.parametrize(("layers", "c_min"), [(16, 0.2), (64, 0.15)])
def test_erratum_3_a_tiny_gap_forces_c_max_close_to_1(cora, layers, c_min):
    found, setting = cora, Setting(c_min=c_min, c_max=1.0, beta=0.1, num_layers=layers)
    needed = (0.1 / ((1 - c_min) * found.lambda_0.value + 0.1)) ** 2
    assert 0.94 < needed < 0.95
    for c_max, answer in ((1.01 * needed, "yes"), (0.99 * needed, "no")):
        other = Setting(c_min=c_min, c_max=c_max, beta=0.1, num_layers=layers)
        assert lemmas(found, other, layer_ranges(found, other))[4].premise_holds == answer
    # The scale of the first weight washes out: the deeper, the more alike.
    small = Setting(c_min=c_min, c_max=0.4, beta=0.1, num_layers=400)
    one = layer_ranges(found, small)[-1].total_max.high
    assert one == pytest.approx(depth_limit(found, setting)[1].high, abs=1e-6)
    assert one > 0.9


def test_erratum_6_the_setting_of_figure_1_breaks_its_own_upper_limit(cora):
    setting = Setting(c_min=0.15, c_max=0.4, beta=0.1, num_layers=64)
    fourth, fifth = lemmas(cora, setting, layer_ranges(cora, setting))[3:]
    assert fourth.premise_holds == "yes"
    assert fourth.verdict == "fails here"
    assert fifth.verdict == "says nothing here"
    assert fifth.conclusion_holds == "no"
    assert fifth.corrected[1].low > 0.8


# Lemma 6, and erratum 4


@few
@given(edge_lists(), seeds, st.sampled_from([0.0, 0.01, 0.5]))
def test_lemma_6_relu_and_leaky_relu_do_not_raise_energy(edges, seed, slope):
    x, graph = normal(edges.num_nodes, 3, seed=seed), edges.graph64()
    after = dirichlet_energy(torch.nn.functional.leaky_relu(x, slope), graph)
    assert after <= dirichlet_energy(x, graph) * (1 + 1e-12) + 1e-14


@few
@given(edge_lists(), seeds, st.floats(-3, 1))
def test_srelu_raises_energy_within_its_limit(edges, seed, shift):
    x, graph = normal(edges.num_nodes, 3, seed=seed), edges.graph64()
    b = shift + normal(3, seed=seed + 1) / 10
    limit = srelu_energy_limit(float(dirichlet_energy(x, graph)), graph, b)
    assert float(dirichlet_energy(srelu(x, b), graph)) <= limit * (1 + 1e-12) + 1e-14


def test_erratum_4_srelu_makes_energy_from_nothing_on_a_path():
    graph = path3().graph64()
    x, b = -(1 + graph.degree).sqrt()[:, None], torch.tensor([-1.5], dtype=torch.float64)
    assert dirichlet_energy(x, graph) < 1e-30
    energy = float(dirichlet_energy(srelu(x, b), graph))
    assert round(energy, 3) == 0.036
    assert energy <= srelu_energy_limit(0.0, graph, b)


# Weights after training


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


# The audit as a whole


def test_an_audit_says_the_same_in_lines_and_in_json():
    result = audit(k33().graph(), Setting(c_min=0.2, beta=0.1, num_layers=3))
    text = "\n".join(result.lines())
    assert "6 nodes, 9 edges, 1 connected component; c_min 0.2" in text
    assert "Lemma 1 fails here: lambda_0 + lambda_max = 2.25" in text
    assert "is broken by some features at layers 1, 3." in text
    fields = json.loads(result.to_json())
    assert fields["spectrum"]["lambda_max"]["value"] == pytest.approx(1.5)
    assert [found["verdict"] for found in fields["lemmas"]][:2] == ["fails here", "holds here"]
    assert fields["layers"][0]["total_min"] == pytest.approx([0.04, 0.04])
    assert len(fields["layers"]) == 3


@pytest.mark.parametrize("num_nodes", [1, 4])
def test_an_audit_without_edges_says_that_there_is_no_energy(num_nodes):
    result = audit(no_edges(num_nodes).graph(), Setting())
    assert (result.layers, result.lemmas, result.limit) == ([], [], None)
    assert "The graph has no edges: every feature has energy 0" in "\n".join(result.lines())
    assert json.loads(result.to_json())["spectrum"]["num_components"] == num_nodes


def test_an_audit_of_two_components_says_what_energy_cannot_see():
    two = Edges(torch.cat([path3().index, path3().index + 3], dim=1), None, 6)
    assert "The graph has 2 connected components" in audit(two.graph(), Setting()).meaning()[0]


@few
@given(edge_lists(), settings())
def test_an_audit_never_fails(edges, setting):
    result = audit(edges.graph(), setting)
    assert len(result.layers) == (setting.num_layers if has_edges(edges) else 0)
    assert all(math.isfinite(end) for layer in result.layers for end in layer.total_max)
    assert result.lines()[0] == result.title()
    json.loads(result.to_json())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pubmed", "physics"])
def test_lemma_4_fails_on_the_papers_own_graphs_and_settings(data_root, name):
    c_min, beta = {"pubmed": (0.11, 0.11), "physics": (0.12, 0.1)}[name]
    result = audit(load_task(name, data_root).graph, Setting(c_min, 1.0, beta, 32))
    assert [found.verdict for found in result.lemmas] == ["holds here"] * 3 + ["fails here", "holds here"]


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
