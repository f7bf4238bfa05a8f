"""The logarithm of the energy: value, gradient, any size of features, many runs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.measures import dirichlet_energy
from graphjoule.terms.log_energy import SmoothingGraph, log_energy
from tests.graphs import Edges, edge_lists, few, k33, normal, path3, random_edges


@few
@given(edges=edge_lists(), seed=st.integers(0, 99), size=st.sampled_from([1e-20, 1.0, 1e20]))
def test_the_logarithm_is_that_of_the_energy(edges, seed, size):
    graph = edges.graph64()
    x = size * normal(edges.num_nodes, 3, seed=seed)
    value, is_nil = log_energy(x, SmoothingGraph.of(graph, torch.float64))
    energy = dirichlet_energy(x, graph)
    assert bool(is_nil) == bool(energy <= 1e-30 * x.square().sum())
    if not is_nil:
        torch.testing.assert_close(value, energy.log(), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("edges", [path3(), k33(), random_edges(30, 20)], ids=["one component", "bipartite", "several"])
def test_its_gradient_is_right(edges):
    graph = SmoothingGraph.of(edges.graph64(), torch.float64)
    x = normal(edges.num_nodes, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: log_energy(x, graph)[0], x)
    runs = normal(3, edges.num_nodes, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: log_energy(x, graph)[0], runs)


def test_many_runs_are_those_one_by_one_with_an_axis_or_under_vmap():
    graph = SmoothingGraph.of(random_edges(20, 15).graph(), torch.float32)
    runs = normal(4, 20, 3, dtype=torch.float32)
    single = torch.stack([log_energy(run, graph)[0] for run in runs])
    torch.testing.assert_close(log_energy(runs, graph)[0], single)
    torch.testing.assert_close(torch.vmap(lambda x: log_energy(x, graph)[0], in_dims=1)(runs.movedim(0, 1)), single)
    nested = torch.vmap(torch.vmap(lambda x: log_energy(x, graph)[0]))(torch.stack([runs, 2 * runs]))
    torch.testing.assert_close(nested[0], single)


def test_gradients_can_be_had_run_by_run_inside_vmap():
    graph = SmoothingGraph.of(random_edges(20, 15).graph(), torch.float32)
    runs = normal(4, 20, 3, dtype=torch.float32)
    by_run = torch.func.vmap(torch.func.grad(lambda x: log_energy(x, graph)[0]))(runs)
    runs.requires_grad_()
    log_energy(runs, graph)[0].sum().backward()
    torch.testing.assert_close(by_run, runs.grad)


def test_a_limit_that_holds_adds_nothing_to_a_gradient():
    graph = SmoothingGraph.of(random_edges(20, 15).graph(), torch.float32)
    x = normal(20, 3, dtype=torch.float32).requires_grad_()
    (x.square().sum() + torch.relu(log_energy(x, graph)[0] - 1e3)).backward()
    assert x.grad.equal(2 * x.detach())


def test_a_look_in_inference_mode_does_not_stand_in_the_way_of_training():
    graph = SmoothingGraph.of(random_edges(20, 15).graph(), torch.float32)
    x = normal(20, 3, dtype=torch.float32)
    with torch.inference_mode():
        before = log_energy(x, graph)[0].item()
    value, _ = log_energy(x.requires_grad_(), graph)
    value.backward()
    assert value.item() == before
    assert x.grad.isfinite().all()


def test_a_number_that_is_none_stays_visible():
    graph = SmoothingGraph.of(random_edges(20, 15).graph(), torch.float32)
    x = normal(20, 3, dtype=torch.float32)
    x[3, 1] = torch.nan
    assert log_energy(x, graph)[0].isnan()


def test_layers_of_other_widths_and_other_runs_do_not_disturb_each_other():
    """One piece of memory serves all calls."""
    graph = SmoothingGraph.of(random_edges(20, 15).graph(), torch.float32)
    xs = [normal(20, width, dtype=torch.float32, seed=k).requires_grad_() for k, width in enumerate((3, 5, 3, 3))]
    sum(log_energy(x, graph)[0] for x in xs).backward()
    for x in xs:
        alone = x.detach().clone().requires_grad_()
        log_energy(alone, SmoothingGraph.of(random_edges(20, 15).graph(), torch.float32))[0].backward()
        torch.testing.assert_close(x.grad, alone.grad, rtol=0, atol=0)


@pytest.mark.parametrize("edges", [path3(), random_edges(30, 20)], ids=["one component", "several"])
def test_all_runs_at_once_are_those_one_by_one(edges):
    graph = SmoothingGraph.of(edges.graph64(), torch.float64)
    runs = normal(3, edges.num_nodes, 4, seed=2)
    size, norm, energy, product = graph.smoothness_of_all(runs)
    for k, run in enumerate(runs):
        one, its_norm, its_energy, its_product = graph.smoothness(run)
        assert one == 1
        assert float(norm[k] * size[k] ** 2) == pytest.approx(its_norm)
        assert float(energy[k] * size[k] ** 2) == pytest.approx(its_energy)
        torch.testing.assert_close(product[k] * size[k], its_product)


@pytest.mark.gpu
def test_on_a_gpu_logarithm_and_gradient_are_those_of_the_cpu():
    edges = random_edges(300, 700, seed=5)
    x = normal(4, 300, 64, dtype=torch.float32)
    results = []
    for device in ("cpu", "cuda"):
        given = x.clone().to(device).requires_grad_()
        value, _ = log_energy(given, SmoothingGraph.of(edges.graph().to(device), torch.float32))
        value.sum().backward()
        results.append((value.detach().cpu(), given.grad.cpu()))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-37, 1e-20, 1e18])
def test_value_and_gradient_are_finite_at_any_size(size, dtype):
    graph = SmoothingGraph.of(path3().graph(), dtype)
    x = (size * normal(3, 2, dtype=dtype)).requires_grad_()
    value, is_nil = log_energy(x, graph)
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()
    assert bool(is_nil) == (size == 0)
    assert bool((x.grad == 0).all()) == (size == 0)


def test_smooth_features_in_float32_do_not_cancel():
    edges = random_edges(200, 500, seed=3)
    graph = edges.graph()
    x = 1000 * (1 + graph.degree[:, None]).sqrt() + normal(200, 4)
    given = x.float()
    value, _ = log_energy(given, SmoothingGraph.of(graph, torch.float32))
    assert float(value) == pytest.approx(float(dirichlet_energy(given, graph).log()), abs=1e-4)


def test_second_derivatives_of_one_run_and_of_many():
    graph = SmoothingGraph.of(path3().graph64(), torch.float64)
    for x in (normal(3, 2), torch.stack([normal(3, 2), 1e-3 * normal(3, 2, seed=1)])):
        assert torch.autograd.gradgradcheck(lambda x: log_energy(x, graph)[0].sum(), x.requires_grad_())
    x = normal(3, 2)
    two = SmoothingGraph.of(Edges(torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), None, 4).graph64(), torch.float64)
    half = torch.tensor([[1.0], [-1.0], [2.0], [2.0]], dtype=torch.float64)  # the second pair is at rest, not its curve
    assert torch.autograd.gradgradcheck(lambda x: log_energy(x, two)[0], half.requires_grad_())
    found = torch.func.jacrev(torch.func.grad(lambda x: log_energy(x, graph)[0]))(x)
    torch.testing.assert_close(found, torch.autograd.functional.hessian(lambda x: log_energy(x, graph)[0], x))
