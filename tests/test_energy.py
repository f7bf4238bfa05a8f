import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import graphjoule.energy
from graphjoule.energy import dirichlet_energy
from graphjoule.errors import GraphjouleError
from graphjoule.ops import propagate, srelu
from graphs import Edges, edge_lists, few, k33, no_edges, normal, path3, random_edges

seeds = st.integers(0, 2**16)


def trace_form(x: torch.Tensor, edges: Edges) -> torch.Tensor:
    """tr(X^T (I - P) X), which cancels where the edge form does not."""
    return torch.trace(x.t() @ (torch.eye(edges.num_nodes, dtype=torch.float64) - edges.dense()) @ x)


def smooth(edges: Edges) -> torch.Tensor:
    """The kernel vector sqrt(1 + d)."""
    return (1 + edges.adjacency().sum(dim=1)).sqrt()[:, None]


@few
@given(edge_lists(), seeds)
def test_the_edge_form_is_the_trace_form(edges, seed):
    x = normal(edges.num_nodes, 3, seed=seed)
    scale = float(x.square().sum())  # the trace form cancels, so its error is relative to ||X||^2
    assert abs(dirichlet_energy(x, edges.graph64()) - trace_form(x, edges)) <= 1e-14 * scale


def test_the_two_forms_agree_to_twelve_digits_on_a_weighted_graph():
    edges = random_edges(40, 120, weighted=True)
    x = normal(40, 5)
    torch.testing.assert_close(dirichlet_energy(x, edges.graph64()), trace_form(x, edges), rtol=1e-12, atol=0)


def test_an_edge_index_gives_the_energy_in_full_precision():
    edges, x = random_edges(20, 40), normal(20, 5)
    torch.testing.assert_close(dirichlet_energy(x, edges.index), trace_form(x, edges), rtol=1e-12, atol=0)


@few
@given(edge_lists(), seeds)
def test_it_is_never_negative_and_at_most_twice_the_squared_norm(edges, seed):
    x = normal(edges.num_nodes, 3, seed=seed) * 1e-3 + smooth(edges)
    energy = dirichlet_energy(x, edges.graph64())
    assert 0 <= energy <= 2 * x.square().sum()


@few
@given(edge_lists())
def test_it_is_zero_on_the_kernel(edges):
    x = smooth(edges) @ torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    assert dirichlet_energy(x, edges.graph64()) <= 1e-28 * x.square().sum()


def test_it_does_not_cancel_when_features_are_almost_smooth():
    edges = random_edges(20, 40)
    ripple = 1e-9 * normal(20, 1)
    energy = dirichlet_energy(smooth(edges) + ripple, edges.graph64())
    torch.testing.assert_close(energy, dirichlet_energy(ripple, edges.graph64()), rtol=1e-5, atol=0)


@few
@given(edge_lists(), seeds, st.floats(-100, 100))
def test_scaling_the_features_scales_it_by_the_square(edges, seed, factor):
    x, graph = normal(edges.num_nodes, 3, seed=seed), edges.graph64()
    torch.testing.assert_close(
        dirichlet_energy(factor * x, graph), factor**2 * dirichlet_energy(x, graph), rtol=1e-12, atol=1e-300
    )


@few
@given(edge_lists(), seeds)
def test_rotating_the_features_changes_nothing(edges, seed):
    x, graph = normal(edges.num_nodes, 3, seed=seed), edges.graph64()
    rotation = torch.linalg.qr(normal(3, 3, seed=seed + 1))[0]
    torch.testing.assert_close(dirichlet_energy(x @ rotation, graph), dirichlet_energy(x, graph), rtol=1e-12, atol=0)


@few
@given(edge_lists(), seeds, st.randoms(use_true_random=False))
def test_renaming_the_nodes_changes_nothing(edges, seed, random):
    x = normal(edges.num_nodes, 3, seed=seed)
    permutation = torch.tensor(random.sample(range(edges.num_nodes), edges.num_nodes))
    renamed = dirichlet_energy(x[permutation], edges.permuted(permutation).graph64())
    torch.testing.assert_close(renamed, dirichlet_energy(x, edges.graph64()), rtol=1e-12, atol=0)


def test_gradcheck():
    graph = random_edges(weighted=True).graph64()
    x = normal(9, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: dirichlet_energy(x, graph), x)
    assert torch.autograd.gradgradcheck(lambda x: dirichlet_energy(x, graph), x)


def test_many_edges_are_summed_in_pieces(monkeypatch):
    edges, x = random_edges(20, 60, weighted=True), normal(20, 3)
    whole = dirichlet_energy(x, edges.graph64())
    monkeypatch.setattr(graphjoule.energy, "_EDGES_AT_ONCE", 7)
    torch.testing.assert_close(dirichlet_energy(x, edges.graph64()), whole, rtol=1e-14, atol=0)


@pytest.mark.parametrize("num_nodes", [1, 4])
def test_a_graph_without_edges_has_no_energy(num_nodes):
    x = normal(num_nodes, 2).requires_grad_()
    energy = dirichlet_energy(x, no_edges(num_nodes).graph64())
    assert energy == 0
    assert torch.autograd.grad(energy, x)[0].count_nonzero() == 0


def test_float32_and_integer_features_are_measured_in_float64():
    x = torch.tensor([[1], [0], [3]])
    expected = trace_form(x.double(), path3())
    for dtype in (torch.int64, torch.float16, torch.float32, torch.float64):
        energy = dirichlet_energy(x.to(dtype), path3().index)
        assert energy.dtype == torch.float64
        torch.testing.assert_close(energy, expected, rtol=1e-12, atol=0)


def test_one_step_of_propagation_on_k33_breaks_lemma_1():
    sign, graph = torch.tensor([1.0, 1, 1, -1, -1, -1], dtype=torch.float64)[:, None], k33().graph64()
    ratio = dirichlet_energy(propagate(sign, graph), graph) / dirichlet_energy(sign, graph)
    assert abs(ratio - 0.25) < 1e-14
    assert ratio > (1 - 3 / 4) ** 2  # the paper's bound


def test_srelu_on_a_path_raises_energy_against_lemma_6():
    x, graph = -smooth(path3()), path3().graph64()
    shift = torch.tensor([-1.5], dtype=torch.float64)
    assert dirichlet_energy(x, graph) < 1e-30
    energy = float(dirichlet_energy(srelu(x, shift), graph))
    assert round(energy, 3) == 0.036
    assert abs(energy - 2 * (1 - 1.5 / 3**0.5) ** 2) < 1e-14


@pytest.mark.parametrize("shape", [(3,), (3, 2, 2)])
def test_features_that_are_no_matrix_are_refused(shape):
    with pytest.raises(GraphjouleError, match=r"expected \[num_nodes, channels\]"):
        dirichlet_energy(torch.ones(shape), path3().index)


def test_another_number_of_nodes_is_refused():
    with pytest.raises(GraphjouleError, match="3 nodes but the features have 4 rows"):
        dirichlet_energy(torch.ones(4, 2), path3().graph())
