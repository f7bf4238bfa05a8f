import sys
import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.measures import eigenvalues as eigenvalues_module
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.measures.spectrum import energy_by_band, spectrum
from graphjoule.tasks import load_task
from tests.graphs import Edges, edge_lists, few, k33, no_edges, normal, path3, random_edges

ESTIMATES = ("lambda_0", "lambda_1", "lambda_max", "min_factor", "max_factor")
spectrum_module = sys.modules["graphjoule.measures.spectrum"]  # the package shows the function of that name


def truth(edges: Edges) -> np.ndarray:
    """All eigenvalues of I - P but one 0 for every component, by the dense route."""
    laplacian = torch.eye(edges.num_nodes, dtype=torch.float64) - edges.dense()
    return torch.linalg.eigvalsh(laplacian).numpy()[num_components(edges) :]


def num_components(edges: Edges) -> int:
    reached = torch.eye(edges.num_nodes, dtype=torch.float64) + edges.adjacency()
    for _ in range(edges.num_nodes.bit_length()):
        reached = ((reached @ reached) > 0).double()
    return len(torch.unique(reached, dim=0))


def true_values(eigenvalues: np.ndarray) -> dict[str, float]:
    squares = (1 - eigenvalues) ** 2
    return {
        "lambda_0": eigenvalues.min(),
        "lambda_1": eigenvalues[squares.argmin()],
        "lambda_max": eigenvalues.max(),
        "min_factor": squares.min(),
        "max_factor": squares.max(),
    }


def assert_right(found, eigenvalues: np.ndarray, *, exact: float = 1e-12) -> None:
    """Every interval holds the true number, and what is called exact or proved from one side is so."""
    for name, value in true_values(eigenvalues).items():
        estimate = getattr(found, name)
        if name == "lambda_1" and abs(2 - value - estimate.value) < 1e-12:  # the other one of two that are as close
            value = 2 - value
        assert estimate.low - 1e-12 <= value <= estimate.high + 1e-12, (name, estimate, value)
        if estimate.kind == "upper bound" and name != "lambda_1":
            assert value <= estimate.value + 1e-9
        if estimate.kind == "lower bound":
            assert value >= estimate.value - 1e-9
        if estimate.kind == "exact" and name != "lambda_1":  # of two eigenvalues, one on either side of 1, both are
            assert abs(value - estimate.value) < exact
    for value, error in zip(found.eigenvalues, found.errors, strict=True):
        assert np.abs(eigenvalues - value).min() <= error + 1e-12
    low, high = found.interval
    assert low - 1e-12 <= eigenvalues.min() <= eigenvalues.max() <= high + 1e-12


def cycle(num_nodes: int) -> Edges:
    node = torch.arange(num_nodes)
    half = torch.stack([node, (node + 1) % num_nodes])
    return Edges(torch.cat([half, half.flip(0)], dim=1), None, num_nodes)


def line(num_nodes: int) -> Edges:
    half = torch.stack([torch.arange(num_nodes - 1), torch.arange(1, num_nodes)])
    return Edges(torch.cat([half, half.flip(0)], dim=1), None, num_nodes)


@few
@given(edge_lists())
def test_small_graphs_are_exact(edges):
    eigenvalues, found = truth(edges), spectrum(edges.graph64())
    assert found.is_complete
    assert found.num_components == num_components(edges)
    np.testing.assert_allclose(found.eigenvalues, eigenvalues, atol=1e-13)
    if len(eigenvalues):
        assert all(getattr(found, name).kind == "exact" for name in ESTIMATES)
        assert_right(found, eigenvalues)
    else:
        assert all(getattr(found, name) is None for name in ESTIMATES)
        assert found.interval is None


@few
@given(edge_lists())
def test_the_large_route_never_says_anything_wrong_of_small_graphs(edges):
    eigenvalues, found = truth(edges), spectrum(edges.graph64(), dense_nodes=1)
    assert found.num_components == num_components(edges)
    if len(eigenvalues):
        assert not found.is_complete
        assert_right(found, eigenvalues)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("most_edges", [-1, 10**6])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_large_route_encloses_the_dense_truth(monkeypatch, seed, most_edges, weighted):
    """With few steps, so that Lanczos is far from done; with and without a proof by counting."""
    monkeypatch.setattr(eigenvalues_module, "_MOST_EDGES", most_edges)
    monkeypatch.setattr(eigenvalues_module, "_STEPS", 30)
    edges = random_edges(250, 400, seed=seed, weighted=weighted)
    found = spectrum(edges.graph64(), dense_nodes=20)
    eigenvalues = torch.linalg.eigvalsh(torch.eye(250, dtype=torch.float64) - edges.graph64().to_dense()).numpy()
    assert_right(found, eigenvalues[found.num_components :])
    kinds = {getattr(found, name).kind for name in ("lambda_0", "lambda_max")}
    assert kinds == ({"upper bound", "lower bound"} if most_edges < 0 else {"computed"})
    assert (found.risk > 0) == (most_edges < 0)


def test_counting_makes_the_ends_tight():
    edges = random_edges(300, 600, seed=4)
    found = spectrum(edges.graph64(), dense_nodes=1)
    eigenvalues = np.linalg.eigvalsh(np.eye(300) - edges.graph64().to_dense().numpy())[found.num_components :]
    for name in ("lambda_0", "lambda_max"):
        estimate = getattr(found, name)
        assert estimate.high - estimate.low < 1e-3 * estimate.value
        assert abs(estimate.value - true_values(eigenvalues)[name]) < 1e-10
        assert estimate.residual < 1e-8


def test_the_middle_is_proved_from_both_sides_where_there_are_no_twins():
    edges = random_edges(300, 300, seed=1, weighted=True)
    found = spectrum(edges.graph64(), dense_nodes=1)
    eigenvalues = np.linalg.eigvalsh(np.eye(300) - edges.graph64().to_dense().numpy())[found.num_components :]
    assert found.twins is None
    assert found.min_factor.kind == "computed"
    assert_right(found, eigenvalues)
    assert found.min_factor.low > 0.99 * true_values(eigenvalues)["min_factor"]
    assert abs(found.lambda_1.value - true_values(eigenvalues)["lambda_1"]) < 1e-9


def test_without_counting_the_middle_is_an_upper_bound(monkeypatch):
    monkeypatch.setattr(eigenvalues_module, "_MOST_EDGES", -1)
    edges = random_edges(300, 300, seed=1, weighted=True)
    found = spectrum(edges.graph64(), dense_nodes=1)
    assert found.min_factor.kind == "upper bound"
    assert found.min_factor.low == 0


def test_a_tiny_gap_is_resolved_on_a_long_path():
    found = spectrum(line(900).graph64(), dense_nodes=1)
    value = np.linalg.eigvalsh(np.eye(900) - line(900).graph64().to_dense().numpy())[1]
    assert value < 1e-5
    assert found.lambda_0.kind == "computed"
    assert abs(found.lambda_0.value / value - 1) < 1e-6
    assert found.lambda_0.low > 0.99 * value


def test_k33_has_the_eigenvalues_of_the_counterexample():
    found = spectrum(k33().graph())
    np.testing.assert_allclose(found.eigenvalues, [0.75] * 4 + [1.5], atol=1e-14)
    assert abs(found.max_factor.value - 0.25) < 1e-14
    assert abs(found.min_factor.value - 0.0625) < 1e-14


def test_an_even_cycle_is_known_by_formula():
    found = spectrum(cycle(12).graph64())
    expected = np.sort(2 / 3 * (1 - np.cos(2 * np.pi * np.arange(1, 12) / 12)))
    np.testing.assert_allclose(found.eigenvalues, expected, atol=1e-14)


def test_a_complete_graph_has_nothing_but_ones():
    pairs = torch.combinations(torch.arange(6)).t()
    graph = Propagation.from_edge_index(torch.cat([pairs, pairs.flip(0)], dim=1))
    for found in (spectrum(graph), spectrum(graph, dense_nodes=1)):
        assert found.twins == (0, 1)
        assert found.lambda_1.value == 1
        assert found.lambda_1.kind == "exact"
        assert abs(found.lambda_0.value - 1) < 1e-14
        assert abs(found.lambda_max.value - 1) < 1e-14
        assert found.max_factor.high < 1e-7  # counting leaves a margin of 1e-4 of the gap, squared here


def test_twins_need_equal_weights_and_weight_one_between_them():
    index = torch.tensor([[0, 1, 0, 2, 1, 2], [1, 0, 2, 0, 2, 1]])
    for weight, twins in (([1, 1, 3, 3, 3, 3], (0, 1)), ([2, 2, 3, 3, 3, 3], None), ([1, 1, 3, 3, 4, 4], None)):
        graph = Propagation.from_edge_index(index, torch.tensor(weight).double(), dtype=torch.float64)
        found = spectrum(graph)
        assert found.twins == twins
        assert (found.min_factor.value < 1e-25) == (twins is not None)


@pytest.mark.parametrize("num_nodes", [1, 5])
def test_without_edges_there_is_nothing_but_the_kernel(num_nodes):
    found = spectrum(no_edges(num_nodes).graph())
    assert (found.num_components, found.lambda_0, found.interval, len(found.eigenvalues)) == (num_nodes, None, None, 0)
    assert found.is_complete
    assert found.risk == 0


def test_a_float32_graph_of_whole_weights_is_as_good_as_a_float64_one():
    edges = random_edges(30, 60)
    np.testing.assert_allclose(
        spectrum(edges.graph()).eigenvalues, spectrum(edges.graph64()).eigenvalues, rtol=0, atol=1e-14
    )


def test_a_float32_graph_of_other_weights_says_how_far_its_eigenvalues_can_be_off():
    edges = random_edges(30, 60, weighted=True)
    rounded, exact = spectrum(edges.graph()), spectrum(edges.graph64())
    off = np.abs(rounded.eigenvalues - exact.eigenvalues).max()
    assert 1e-10 < off < rounded.errors.max() < 1e-5
    assert_right(rounded, exact.eigenvalues, exact=1e-6)


def test_many_large_components_are_not_all_solved_densely(monkeypatch):
    monkeypatch.setattr(spectrum_module, "_DENSE_WORK", 2 * 40**3)
    pieces = [cycle(40).index + 40 * k for k in range(6)]
    edges = Edges(torch.cat([*pieces, torch.tensor([[240, 241], [241, 240]])], dim=1), None, 243)
    found = spectrum(edges.graph64(), dense_nodes=40)
    assert not found.is_complete
    assert found.num_components == 8
    expected = 2 / 3 * (1 - np.cos(2 * np.pi * np.arange(1, 40) / 40))
    assert_right(found, np.append(np.tile(expected, 6), 1.0))


def test_no_dense_nodes_at_all_are_refused():
    with pytest.raises(GraphjouleError, match="dense_nodes is 0; it must be at least 1"):
        spectrum(path3().graph(), dense_nodes=0)


def true_bands(x: torch.Tensor, edges: Edges, ends) -> np.ndarray:
    values, vectors = torch.linalg.eigh(torch.eye(edges.num_nodes, dtype=torch.float64) - edges.dense())
    share = (values[:, None] * (vectors.t() @ x) ** 2).sum(dim=1)
    inside = [(values > low + 1e-9) & (values <= high + 1e-9) for low, high in pairwise(ends)]
    return np.array([float(share[band].sum()) for band in inside])


ENDS = [0, 0.25, 0.5, 1, 1.3, 2]


@few
@given(edge_lists(), st.integers(0, 99), st.sampled_from([1, 100]))
def test_bands_are_those_of_the_eigenvectors(edges, seed, dense_nodes):
    x = normal(edges.num_nodes, 3, seed=seed)
    found, expected = energy_by_band(x, edges.graph64(), ENDS, dense_nodes=dense_nodes), true_bands(x, edges, ENDS)
    slack = 1e-9 * (1 + expected.sum())
    assert ((found.low - slack <= expected) & (expected <= found.high + slack)).all()
    assert abs(found.energy.sum() - expected.sum()) <= slack
    if dense_nodes > 1:
        assert found.is_exact
        np.testing.assert_allclose(found.energy, expected, atol=slack)


@pytest.mark.parametrize("bands", [None, 5, ENDS])
def test_bands_of_a_large_graph_are_bounded_and_add_up(monkeypatch, bands):
    monkeypatch.setattr(spectrum_module, "_STEPS", 24)
    monkeypatch.setattr(spectrum_module, "_NUMBERS_AT_ONCE", 600)  # the columns in three pieces
    edges, x = random_edges(300, 500, seed=2), normal(300, 5)
    arguments = {} if bands is None else {"bands": bands}
    found = energy_by_band(x, edges.graph64(), **arguments, dense_nodes=2)
    exact = energy_by_band(x, edges.graph64(), **arguments)
    assert exact.is_exact
    assert not found.is_exact
    assert (found.low <= exact.energy + 1e-9).all()
    assert (found.high >= exact.energy - 1e-9).all()
    assert (found.low <= found.energy).all()
    assert (found.energy <= found.high).all()
    torch.testing.assert_close(
        torch.tensor(found.energy.sum()), dirichlet_energy(x, edges.graph64()), rtol=1e-9, atol=0
    )
    if bands is None:
        assert (found.high - found.low).max() < 0.4 * found.energy.sum()


def test_an_eigenvalue_on_an_edge_belongs_to_the_band_below():
    twins = torch.tensor([[1.0], [-1.0]])
    pair = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
    np.testing.assert_allclose(energy_by_band(twins, pair, [0, 1, 2]).energy, [2, 0], atol=1e-14)


def test_features_without_energy_have_none_in_any_band():
    for edges in (no_edges(3), path3()):
        for dense_nodes in (1, 10):
            smooth = (1 + edges.adjacency().sum(dim=1)).sqrt()[:, None]
            assert (energy_by_band(smooth, edges.graph(), dense_nodes=dense_nodes).high < 1e-14).all()


@pytest.mark.parametrize("bands", [0, [0], [0, 1], [0.5, 2], [0, 1, 1, 2], [[0, 2]]])
def test_bands_that_do_not_cover_the_spectrum_are_refused(bands):
    with pytest.raises(GraphjouleError, match="expected"):
        energy_by_band(torch.ones(3, 1), path3().graph(), bands)


@pytest.mark.parametrize("shape", [(3,), (4, 1), (2, 3, 1)])
def test_features_of_another_shape_are_refused(shape):
    with pytest.raises(GraphjouleError, match=r"expected \[num_nodes, channels\] with 3 nodes"):
        energy_by_band(torch.ones(shape), path3().graph())


def test_cora_is_exact_and_has_78_components(data_root):
    found = spectrum(load_task("cora", data_root).graph)
    assert (found.num_components, found.is_complete, len(found.eigenvalues)) == (78, True, 2708 - 78)
    assert abs(found.lambda_0.value - 0.00362064) < 1e-8
    assert abs(found.lambda_max.value - 1.48263057) < 1e-8
    assert found.lambda_1.value == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gap", "top"), [("pubmed", 0.00948047, 1.65372165), ("physics", 0.01276452, 1.46988969)]
)
def test_larger_datasets_take_less_than_a_minute(data_root, name, gap, top):
    graph = load_task(name, data_root).graph
    start = time.monotonic()
    found = spectrum(graph)
    assert time.monotonic() - start < 60
    assert found.lambda_0.low <= gap + 1e-8
    assert abs(found.lambda_0.value - gap) < 1e-8
    assert abs(found.lambda_max.value - top) < 1e-8
    assert found.lambda_1.kind == "exact"
    assert found.lambda_1.value == 1


def test_an_edge_index_is_a_graph_too():
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graph = Propagation.from_edge_index(edges, dtype=torch.float64)
    assert spectrum(edges).eigenvalues.tolist() == spectrum(graph).eigenvalues.tolist()
    x = torch.tensor([[1.0], [0.0], [-1.0], [2.0]])
    with_a_lonely_node = Propagation.from_edge_index(edges, num_nodes=4, dtype=torch.float64)
    assert energy_by_band(x, edges).energy.tolist() == energy_by_band(x, with_a_lonely_node).energy.tolist()
