"""Influence per hop: the same as from the full Jacobian, with an error that says how far off a sample is."""

import networkx as nx
import pytest
import torch
from hypothesis import given

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.relations import DirectedPropagation
from graphjoule.measures import Reach, hops_from, jacobian_reach
from graphjoule.nn import EGNN, GCN
from tests.graphs import edge_lists, few, normal, random_edges


def embedded(model, x, graph):
    x = x.clone().requires_grad_()
    return model.eval()(x, graph), x


def by_full_jacobian(model, x, graph, hops):
    """``I_h`` from all derivatives, one entry at a time."""
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x, graph), x)  # [n, c, n, c0]
    pairs = jacobian.abs().sum(dim=(1, 3))
    return [float(pairs[hops == hop].sum() / len(x)) for hop in range(int(hops.max()) + 1)]


def dense_hops(edges):
    graph = nx.from_numpy_array(edges.adjacency().numpy())
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    count = edges.num_nodes
    return torch.tensor([[lengths[i].get(j, -1) for j in range(count)] for i in range(count)])


@few
@given(edge_lists())
def test_hops_are_those_of_networkx(edges):
    found = hops_from(edges.graph(), torch.arange(edges.num_nodes))
    assert found.equal(dense_hops(edges))


@pytest.mark.parametrize("kind", [GCN, EGNN])
def test_all_probes_give_the_full_jacobian_without_error(kind):
    edges = random_edges(12, 14)
    model, x = kind(3, 4, 2, num_layers=3).double().eval(), normal(12, 3)
    found = jacobian_reach(*embedded(model, x, edges.graph64()), edges.graph64(), num_probes=24)
    exact = by_full_jacobian(model, x, edges.graph64(), dense_hops(edges))
    assert found.influence.tolist() == pytest.approx(exact[: len(found.influence)])
    assert sum(exact[len(found.influence) :]) == 0
    assert found.standard_error.abs().max() < 1e-9
    assert found.mean == pytest.approx(sum(h * one for h, one in enumerate(exact)) / sum(exact))
    assert (found.elsewhere, found.num_probes) == (0, 24)


def test_a_sample_is_off_by_about_its_standard_error_and_not_biased():
    torch.manual_seed(0)
    edges = random_edges(40, 60, seed=2)
    model, x = EGNN(3, 8, 4, num_layers=4).double().eval(), normal(40, 3)
    exact = torch.tensor(by_full_jacobian(model, x, edges.graph64(), dense_hops(edges)))
    output, source = embedded(model, x, edges.graph64())
    drawn = [jacobian_reach(output, source, edges.graph64(), num_probes=64, seed=seed) for seed in range(30)]
    near = torch.stack([(one.influence[:3] - exact[:3]) / one.standard_error[:3] for one in drawn])
    assert 0.7 < float(near.square().mean().sqrt()) < 1.5
    assert float(near.mean().abs()) < 0.5
    mean = float((torch.arange(len(exact)) * exact).sum() / exact.sum())
    assert 0.6 < (sum(((one.mean - mean) / one.mean_error) ** 2 for one in drawn) / len(drawn)) ** 0.5 < 1.6


def test_operations_that_vmap_does_not_know_are_taken_one_probe_after_the_other():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad * float(grad.isfinite().all())  # a number on the host: vmap refuses

    edges, x = random_edges(6, 6), normal(6, 2).requires_grad_()
    found = jacobian_reach(Twice.apply(x), x, edges.graph64(), num_probes=12)
    assert found.influence.tolist() == pytest.approx([4.0])
    assert (found.mean, found.range()) == (0, 0)


def test_influence_without_a_path_is_kept_apart():
    x = normal(4, 2).requires_grad_()
    graph = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=4, dtype=torch.float64)
    found = jacobian_reach(x - x.mean(dim=0), x, graph, num_probes=8)
    assert found.elsewhere == pytest.approx(2 * (2 * 2 + 2 * 3) / 16)
    assert found.influence.tolist() == pytest.approx([2 * 0.75, 2 * 2 * 0.25 / 4])


def test_a_node_reaches_those_whose_edges_lead_to_it():
    arrows = DirectedPropagation.of(torch.tensor([[0, 1, 2], [1, 2, 3]]), dtype=torch.float64)
    assert hops_from(arrows, torch.tensor([0, 3])).tolist() == [[0, -1, -1, -1], [3, 2, 1, 0]]
    x = torch.eye(4).double().requires_grad_()
    found = jacobian_reach(arrows.product(arrows.product(x)), x, arrows, num_probes=16)
    assert (found.elsewhere, found.range()) == (0, 2)


def test_range_is_the_fewest_hops_that_have_the_share():
    found = Reach(torch.tensor([5.0, 4.0, 0.95, 0.05]), torch.zeros(4), 0.0, 0.6, 0.0, 8)
    assert [found.range(share) for share in (0.5, 0.51, 0.99, 1.0)] == [0, 1, 2, 3]
    assert found.depth_in_use(20) == 0.1
    assert found.shares.sum() == pytest.approx(1)
    assert str(found) == "0.6 ± 0 hops, 99 % of the influence within 2"
    with pytest.raises(GraphjouleError, match=r"share is 0; it must be in \(0, 1\]"):
        found.range(0)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x, g: jacobian_reach(x.detach(), x, g), "does not depend on anything"),
        (lambda x, g: jacobian_reach(x / 0, x, g), "numbers that are not finite"),
        (lambda x, g: jacobian_reach(x[0], x, g), r"output has shape \[2\]"),
        (lambda x, g: jacobian_reach(2 * x, x, g, num_probes=1), "num_probes is 1; expected at least 2"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(call, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        call(normal(6, 2).requires_grad_(), random_edges(6, 6).graph64())
