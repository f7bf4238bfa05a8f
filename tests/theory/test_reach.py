"""The closed law of reach, against polynomials, networks and their measured reach."""

import numpy as np
import pytest
import torch
from hypothesis import given

from graphjoule.errors import GraphjouleError
from graphjoule.measures import hops_from
from graphjoule.nn import APPNP, EGNN, GCNII, SGC
from graphjoule.theory import LAWS, StepLaw
from graphjoule.trace import reach
from tests.graphs import edge_lists, few, normal, random_edges
from tests.theory import settings


@few
@given(settings(num_layers=9))
def test_the_mean_number_of_steps_is_that_of_the_polynomial(setting):
    law = StepLaw(setting.c_min, setting.beta, 9)
    steps = law.steps()
    assert steps.sum() == pytest.approx(1)
    assert steps.min() >= -1e-15
    assert law.mean_steps == pytest.approx(float(np.arange(10) @ steps), rel=1e-9, abs=1e-12)
    assert law.mean_steps <= law.most_steps * (1 + 1e-12)
    assert StepLaw(setting.c_min, setting.beta, 5000).mean_steps <= law.most_steps * (1 + 1e-12)


@pytest.mark.parametrize(("c_min", "beta", "reached"), [(0.15, 0.1, 8.5), (0.11, 0.11, 0.89 / 0.11), (0.12, 0.1, 8.8)])
def test_the_papers_settings_reach_the_same_at_any_depth(c_min, beta, reached):
    assert StepLaw(c_min, beta, 64).mean_steps == pytest.approx(reached, rel=2e-3)
    assert StepLaw(c_min, beta, 1024).mean_steps == pytest.approx(reached, rel=1e-12)


@pytest.mark.parametrize("share", [0.5, 0.95])
@pytest.mark.parametrize("setting", [(0.15, 0.1), (0.0, 0.0), (0.3, 0.0), (1e-9, 1e-9)])
def test_layers_in_use_make_the_share_of_the_steps(setting, share):
    law = StepLaw(*setting, 64)
    used = law.layers_in_use(share)
    steps = [StepLaw(*setting, k).mean_steps / law.mean_steps for k in (used - 1, used)]
    assert steps[0] < share * (1 + 1e-9) <= steps[1] * (1 + 2e-9)


def test_layers_in_use_at_the_ends():
    assert StepLaw(0.0, 0.0, 7).layers_in_use(1.0) == StepLaw(0.2, 0.1, 7).layers_in_use(1.0) == 7
    assert StepLaw(1.0, 1.0, 7).layers_in_use() == 1
    with pytest.raises(GraphjouleError, match=r"share is 1.5; it must be in \(0, 1\]"):
        StepLaw(0.2, 0.1, 7).layers_in_use(1.5)


@few
@given(edge_lists(), settings(num_layers=4))
def test_normalised_features_see_no_further_on_average_than_the_walk_makes_steps(edges, setting):
    """Rows of ``D^-1/2 q(P) D^1/2`` are distributions, and a walk of ``j`` steps ends at most ``j`` hops away."""
    law, p = StepLaw(setting.c_min, setting.beta, 4), edges.dense()
    q = sum(a * torch.linalg.matrix_power(p, j) for j, a in enumerate(law.steps()))
    scale = (1 + edges.adjacency().sum(dim=1)).sqrt()
    walk = q * scale / scale[:, None]
    torch.testing.assert_close(walk.sum(dim=1), torch.ones(len(p)).double())
    hops = hops_from(edges.graph(), torch.arange(len(p))).clamp(min=0)
    assert float((walk * hops).sum(dim=1).max()) <= law.mean_steps + 1e-9


@pytest.mark.parametrize(
    ("name", "build", "options"),
    [
        ("egnn", EGNN, {"c_min": 0.3, "beta": 0.2}),
        ("appnp", APPNP, {"alpha": 0.2}),
        ("sgc", SGC, {}),
        ("gcnii", GCNII, {"alpha": 0.2}),
    ],
)
def test_the_law_is_what_is_measured_of_each_network(name, build, options):
    graph, x = random_edges(30, 40).graph64(), normal(30, 3).abs()
    model = build(3, 4, 3, num_layers=5, **options).double()
    if name == "gcnii":
        with torch.no_grad():
            model.encoder.first.weight.abs_()  # X_0 > 0: ReLU does nothing
            model.encoder.first.bias.fill_(0.1)
            for conv in model.convs:
                conv.weight.copy_(torch.eye(4))
    source = {"egnn": "encoder", "gcnii": "encoder", "appnp": "second", "sgc": "linear"}[name]
    measured = reach(model, graph, (x, graph), "convs.4", source=source, num_probes=10**6)["convs.4"]
    law = StepLaw.of(name, options, 5).reach(graph)
    torch.testing.assert_close(measured.shares, law.shares, rtol=1e-9, atol=1e-12)
    assert measured.mean == pytest.approx(law.mean)
    assert law.mean_error == pytest.approx(0, abs=1e-12)


def test_others_have_no_law():
    with pytest.raises(
        GraphjouleError, match=f"The reach of gcn has no closed law; there is one for {', '.join(LAWS)}"
    ):
        StepLaw.of("gcn", {}, 2)
    with pytest.raises(GraphjouleError, match=r"beta is 0\.5"):
        StepLaw(0.2, 0.5, 4)
    with pytest.raises(GraphjouleError, match="num_nodes is 1"):
        StepLaw(0.2, 0.1, 4).reach(random_edges().graph(), num_nodes=1)
