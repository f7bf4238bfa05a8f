import pytest
import torch

from graphjoule.graph import Propagation
from graphjoule.graph.laplacian import QUICK_NUMEL
from graphjoule.graph.product import Product
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.ops.propagate import plain_product
from tests.graph.test_laplacian import CASES, GRAPHS, near_kernel, noise

FACTORS = [(1.0, 0.0), (0.8, 0.1), (-1.0, 1.0), (0.3, -0.31)]


def energies(graph: Propagation, x: torch.Tensor, a: float = 0.8, alpha: float = 0.1) -> torch.Tensor | None:
    return Product(plain_product(x, graph, a, alpha), graph, a, alpha).energies(x)


@pytest.mark.parametrize(("a", "alpha"), FACTORS)
@pytest.mark.parametrize("share", [10.0, 0.3])
@pytest.mark.parametrize("name", GRAPHS)
def test_six_digits_are_those_of_float64_for_any_mixture(name, share, a, alpha):
    graph = GRAPHS[name]
    x = near_kernel(graph, share)
    found, truth = energies(graph, x, a, alpha), dirichlet_energy(x.double(), graph)
    assert found is not None
    torch.testing.assert_close(found, truth, rtol=2e-6, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_where_digits_would_cancel_it_is_no_number(case):
    graph, x = CASES[case]()
    found = energies(graph, x)
    assert found is not None
    assert found.isnan()


def test_smooth_features_are_refused_rather_than_measured_badly():
    graph = GRAPHS["random"]
    for share in (0.1, 0.03, 1e-3):
        x = near_kernel(graph, share)
        found = energies(graph, x)
        assert found is not None
        assert found.isnan() or float(found) == pytest.approx(float(dirichlet_energy(x.double(), graph)), rel=1e-5)


def test_features_that_are_small_or_of_another_dtype_or_without_a_product_are_left_alone():
    graph, x = GRAPHS["random"], noise()
    assert energies(graph, x[:, :2].contiguous()) is None
    assert energies(graph.to(dtype=torch.float64), x.double()) is None
    assert energies(graph, x, a=0.0, alpha=1.0) is None


def test_the_missing_neighbours_of_a_part_have_no_energy():
    whole = GRAPHS["random"]
    part = whole.induced(torch.arange(0, whole.num_nodes, 2))
    x = torch.randn(part.num_nodes, 2 + QUICK_NUMEL // part.num_nodes, generator=torch.Generator().manual_seed(0))
    assert energies(part, x) is None


@pytest.mark.parametrize("a", [1e-2, 1e-3, 1e-4, 1e-6])
def test_a_product_that_is_almost_the_features_is_refused_rather_than_trusted(a):
    graph, x = GRAPHS["random"], noise()
    found = energies(graph, x, a, 0.9)
    assert found is not None
    assert found.isnan() or float(found) == pytest.approx(float(dirichlet_energy(x.double(), graph)), rel=2e-6)
