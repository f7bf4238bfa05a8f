"""The paper's lemmas and the errata, on graphs small enough to know the truth."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from graphjoule.measures import Spectrum, dirichlet_energy, spectrum
from graphjoule.ops import propagate, srelu
from graphjoule.tasks import load_task
from graphjoule.theory import Setting, audit, depth_limit, layer_ranges, lemmas, srelu_energy_limit
from tests.graphs import Edges, edge_lists, few, k33, normal, path3
from tests.theory import bipartite, eigenvectors, energies, has_edges, seeds, settings


@pytest.fixture(scope="module")
def cora(data_root) -> Spectrum:
    return spectrum(load_task("cora", data_root).graph)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pubmed", "physics"])
def test_lemma_4_fails_on_the_papers_own_graphs_and_settings(data_root, name):
    c_min, beta = {"pubmed": (0.11, 0.11), "physics": (0.12, 0.1)}[name]
    result = audit(load_task(name, data_root).graph, Setting(c_min, 1.0, beta, 32))
    assert [found.verdict for found in result.lemmas] == ["holds here"] * 3 + ["fails here", "holds here"]
