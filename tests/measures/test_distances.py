import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import graphjoule.measures.distances
from graphjoule.errors import GraphjouleError
from graphjoule.measures.distances import mad, mad_gap, neighbour_mad
from tests.graphs import Edges, edge_lists, few, no_edges, normal, path3, random_edges

seeds = st.integers(0, 2**16)


def hops(edges: Edges) -> torch.Tensor:
    """Number of hops between all nodes, infinite where there is no path."""
    n = edges.num_nodes
    found = torch.full((n, n), torch.inf)
    reached = torch.eye(n)
    for hop in range(n):
        found[(reached > 0) & found.isinf()] = hop
        reached = reached @ (edges.adjacency().sign().float() + torch.eye(n))
    return found


def mad_by_hand(x: torch.Tensor, is_target: torch.Tensor, nothing: float = 0.0) -> float:
    """The mean over nodes of the mean over their targets, one pair at a time."""
    means = []
    for i, row in enumerate(x):
        targets = [j for j in is_target[i].nonzero().flatten().tolist() if row.any() and x[j].any()]
        if targets:
            means.append(sum(1 - float(torch.cosine_similarity(row, x[j], dim=0)) for j in targets) / len(targets))
    return sum(means) / len(means) if means else nothing


def with_zero_row(edges: Edges, seed: int) -> torch.Tensor:
    x = normal(edges.num_nodes, 3, seed=seed)
    if seed % 2:
        x[seed % edges.num_nodes] = 0
    return x


@few
@given(edge_lists(), seeds)
def test_neighbour_mad_is_mad_at_one_hop(edges, seed):
    x = with_zero_row(edges, seed)
    value = neighbour_mad(x, edges.graph())
    assert float(value) == pytest.approx(mad_by_hand(x, hops(edges) == 1), abs=1e-14)
    assert 0 <= value <= 2
    torch.testing.assert_close(mad(x, edges.graph(), most=1).value, value, rtol=0, atol=1e-14)


@few
@given(edge_lists(), seeds, st.integers(1, 3), st.one_of(st.none(), st.integers(0, 2)))
def test_mad_is_the_mean_over_pairs_that_many_hops_apart(edges, seed, least, more):
    x, apart = with_zero_row(edges, seed), hops(edges)
    most = None if more is None else least + more
    target = (apart >= least) & (apart <= (torch.inf if most is None else most))
    estimate = mad(x, edges.index if edges.weight is None else edges.graph(), least=least, most=most)
    assert float(estimate.value) == pytest.approx(mad_by_hand(x, target), abs=1e-14)
    assert estimate.standard_error == 0
    assert estimate.num_sources == edges.num_nodes


@few
@given(edge_lists(), seeds)
def test_the_gap_is_remote_less_near(edges, seed):
    x, apart = with_zero_row(edges, seed), hops(edges)
    remote, near = apart >= 3, (apart >= 1) & (apart <= 2)
    expected = mad_by_hand(x, remote, nothing=math.nan) - mad_by_hand(x, near, nothing=math.nan)
    assert float(mad_gap(x, edges.graph(), near=2, far=3).value) == pytest.approx(expected, abs=1e-14, nan_ok=True)


def test_nodes_that_point_almost_the_same_way_do_not_cancel():
    edges, x = random_edges(20, 60), normal(20, 2) * torch.tensor([0.0, 1e-9]) + torch.tensor([1.0, 0])
    differences = x[:, None, 1] - x[None, :, 1]  # of angles, which are as small
    neighbours = edges.adjacency() > 0
    means = (differences.square() / 2 * neighbours).sum(dim=1) / neighbours.sum(dim=1)
    expected = means[neighbours.any(dim=1)].mean()
    assert 0 < expected < 1e-17
    torch.testing.assert_close(neighbour_mad(x, edges.graph()), expected, rtol=1e-6, atol=0)


def test_sources_in_blocks_are_the_same(monkeypatch):
    edges, x = random_edges(20, 30), normal(20, 3)
    whole = mad_gap(x, edges.graph(), near=1, far=2).value
    monkeypatch.setattr(graphjoule.measures.distances, "_SOURCES_AT_ONCE", 3)
    torch.testing.assert_close(mad_gap(x, edges.graph(), near=1, far=2).value, whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize("measure", [mad, mad_gap])
def test_a_sample_errs_as_much_as_it_says(measure):
    edges, x = random_edges(300, 400), normal(300, 2)  # with nodes of their own, for which near pairs do not exist
    x[0] = 0
    truth = measure(x, edges.graph()).value
    estimates = [measure(x, edges.graph(), num_sources=60, seed=seed) for seed in range(60)]
    errors = torch.stack([(e.value - truth) / e.standard_error for e in estimates])
    assert 0.75 < errors.square().mean().sqrt() < 1.3  # 1 +- 3 standard deviations of such a root
    assert abs(errors.mean()) < 3 * 60**-0.5
    assert {e.num_sources for e in estimates} == {60}


def test_a_sample_is_drawn_from_its_own_seed(monkeypatch):
    monkeypatch.setattr(graphjoule.measures.distances, "_EXACT_NODES", 10)
    monkeypatch.setattr(graphjoule.measures.distances, "_SAMPLED_SOURCES", 8)
    graph, x = random_edges(40, 80).graph(), normal(40, 3)
    before = torch.get_rng_state()
    first, again, other = mad(x, graph), mad(x, graph), mad(x, graph, seed=1)
    assert torch.get_rng_state().equal(before)
    assert first.num_sources == 8
    assert first.value == again.value != other.value
    assert first.standard_error > 0


def test_runs_are_measured_each_by_itself():
    graph, x = random_edges(20, 30).graph(), normal(2, 3, 20, 4)
    gap, near = mad_gap(x, graph, num_sources=9), neighbour_mad(x, graph)
    assert gap.value.shape == gap.standard_error.shape == near.shape == (2, 3)
    alone = mad_gap(x[1, 2], graph, num_sources=9)
    torch.testing.assert_close(gap.value[1, 2], alone.value)
    torch.testing.assert_close(gap.standard_error[1, 2], alone.standard_error)
    torch.testing.assert_close(near[1, 2], neighbour_mad(x[1, 2], graph))


def test_gradcheck():
    graph, x = random_edges().graph64(), normal(9, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: neighbour_mad(x, graph), x)
    assert torch.autograd.gradgradcheck(lambda x: neighbour_mad(x, graph), x)
    assert torch.autograd.gradcheck(lambda x: mad_gap(x, graph, near=1, far=2).value, x)


def test_without_pairs_it_is_zero_with_a_gradient_of_zero():
    x = normal(4, 2).requires_grad_()
    value = neighbour_mad(x, no_edges(4).graph())
    assert value == 0
    assert torch.autograd.grad(value, x)[0].count_nonzero() == 0
    assert mad_gap(normal(1, 2), no_edges(1).graph()).value.isnan()
    zeros = torch.zeros(3, 2, requires_grad=True)
    value = neighbour_mad(zeros, path3().graph())
    assert value == 0
    assert torch.autograd.grad(value, zeros)[0].count_nonzero() == 0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x, graph: mad(x, graph, least=0), "hops are 0 to None"),
        (lambda x, graph: mad(x, graph, least=3, most=2), "hops are 3 to 2"),
        (lambda x, graph: mad_gap(x, graph, near=3, far=3), "up to 3 hops and far from 3"),
        (lambda x, graph: mad(x, graph, num_sources=1), "num_sources is 1; expected at least 2"),
        (lambda x, graph: mad(x[:2], graph), "3 nodes but the features have 2 rows"),
    ],
)
def test_what_cannot_be_measured_is_refused(call, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        call(torch.ones(3, 2), path3().graph())


def test_a_graph_without_remote_pairs_has_no_gap():
    """A random number near -1 with an error of 0 would say that its features are smooth."""
    gap = mad_gap(torch.stack([normal(3, 4), normal(3, 4, seed=1)]), path3().graph())
    assert gap.value.isnan().tolist() == gap.standard_error.isnan().tolist() == [True, True]
