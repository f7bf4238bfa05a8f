from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import graphjoule.graph.laplacian
from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.measures.energy import (
    class_energies,
    combinatorial_energy,
    component_energies,
    dirichlet_energy,
    higher_energy,
    kernel_distance,
    random_walk_energy,
    rayleigh_quotient,
)
from graphjoule.ops import propagate, srelu
from tests.graphs import Edges, edge_lists, few, k33, no_edges, normal, path3, random_edges

seeds = st.integers(0, 2**16)


def trace_form(x: torch.Tensor, edges: Edges) -> torch.Tensor:
    """tr(X^T (I - P) X), which cancels where the edge form does not."""
    return torch.trace(x.t() @ (torch.eye(edges.num_nodes, dtype=torch.float64) - edges.dense()) @ x)


def smooth(edges: Edges) -> torch.Tensor:
    """The kernel vector sqrt(1 + d)."""
    return (1 + edges.adjacency().sum(dim=1)).sqrt()[:, None]


def edge_form(x: torch.Tensor, edges: Edges) -> torch.Tensor:
    """The sum over edges, one difference at a time: exact however smooth the features are."""
    y, a = x / smooth(edges), edges.adjacency()
    ends = a.triu().nonzero()
    return sum((a[i, j] * (y[i] - y[j]).square().sum() for i, j in ends), torch.zeros((), dtype=torch.float64))


def double_sum(x: torch.Tensor, edges: Edges) -> torch.Tensor:
    """Definition 1 as it is written: half the sum over all ordered pairs of nodes."""
    y = x / smooth(edges)
    squares = (y[:, None] - y[None]).square().sum(dim=2)
    return (edges.adjacency() * squares).sum() / 2


@few
@given(edge_lists(), seeds)
def test_it_is_the_trace_form(edges, seed):
    x = normal(edges.num_nodes, 3, seed=seed)
    scale = float(x.square().sum())  # the trace form cancels, so its error is relative to ||X||^2
    assert abs(dirichlet_energy(x, edges.graph64()) - trace_form(x, edges)) <= 1e-14 * scale


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_edges", [30, 120])  # with and without several components
def test_all_forms_agree_to_twelve_digits_on_weighted_graphs(num_edges, seed):
    edges = random_edges(40, num_edges, weighted=True, seed=seed)
    x = normal(40, 5, seed=seed)
    energy = dirichlet_energy(x, edges.graph64())
    for form in (trace_form, edge_form, double_sum):
        torch.testing.assert_close(energy, form(x, edges), rtol=1e-12, atol=0)


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


@pytest.mark.parametrize("num_edges", [12, 60])
@pytest.mark.parametrize("ripple", [1e-3, 1e-6, 1e-9])
def test_it_does_not_cancel_when_features_are_almost_smooth(ripple, num_edges):
    edges = random_edges(20, num_edges, weighted=True)
    x = smooth(edges) + ripple * normal(20, 3)
    # What is left to lose is the rounding of x / sqrt(1 + d), which the edge form has too.
    torch.testing.assert_close(
        dirichlet_energy(x, edges.graph64()), edge_form(x, edges), rtol=1e-12 + 1e-15 / ripple, atol=0
    )


def _large_graph(num_components):
    """A random graph of 5,000 nodes in as many pieces as asked for, large enough for the way in float32."""
    generator = torch.Generator().manual_seed(num_components)
    size = 5000 // num_components
    ends = torch.randint(0, size, (2, 15000), generator=generator)
    ends += size * torch.randint(0, num_components, (15000,), generator=generator)
    return Propagation.from_edge_index(ends, num_nodes=5000, symmetrize=True)


@pytest.mark.parametrize("num_components", [1, 4])
@pytest.mark.parametrize("steps", [0, 1, 5, 40])
def test_large_float32_features_have_the_energy_of_float64_ones(steps, num_components):
    """Whichever way is taken: rough features go through float32, smooth ones must not."""
    graph = _large_graph(num_components)
    x = normal(5000, 64).float().abs()
    for _ in range(steps):
        x = propagate(x, graph)
    torch.testing.assert_close(dirichlet_energy(x, graph), dirichlet_energy(x.double(), graph), rtol=1e-6, atol=0)


@pytest.mark.parametrize("num_edges", [12, 60])
def test_float32_features_as_smooth_as_they_can_be_have_their_own_energy(num_edges):
    edges = random_edges(20, num_edges)
    x = (1000 * smooth(edges)).float() * torch.tensor([[1.0, -3.0]])  # only its rounding is not smooth
    truth = edge_form(x.double(), edges)
    assert 0 < truth < 1e-13 * x.double().square().sum()
    torch.testing.assert_close(dirichlet_energy(x, edges.graph()), truth, rtol=1e-8, atol=0)


def test_it_does_not_cancel_on_a_long_path_either():
    half = torch.stack([torch.arange(999), torch.arange(1, 1000)])
    edges = Edges(torch.cat([half, half.flip(0)], dim=1), None, 1000)
    wave = torch.cos(torch.pi * (torch.arange(1000.0, dtype=torch.float64) + 0.5) / 1000)[:, None]
    x = smooth(edges) * (1 + wave)  # near the slowest eigenvector: an eigenvalue of about 3e-6
    torch.testing.assert_close(dirichlet_energy(x, edges.graph64()), edge_form(x, edges), rtol=1e-10, atol=0)


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


ENERGIES = [
    dirichlet_energy,
    combinatorial_energy,
    random_walk_energy,
    rayleigh_quotient,
    kernel_distance,
    partial(kernel_distance, relative=True),
]


@pytest.mark.parametrize("measure", ENERGIES)
@pytest.mark.parametrize("num_edges", [5, 14])
def test_gradcheck(measure, num_edges):
    graph = random_edges(9, num_edges, weighted=True).graph64()
    x = normal(2, 9, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: measure(x, graph), x)
    assert torch.autograd.gradgradcheck(lambda x: measure(x, graph), x)


def test_the_gradient_is_twice_the_laplacian_in_the_dtype_of_the_features():
    edges = random_edges(20, 40)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-13)):
        x = normal(20, 3).to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(dirichlet_energy(x, edges.graph()), x)
        assert gradient.dtype == dtype
        expected = 2 * (x.detach().double() - edges.dense() @ x.detach().double())
        torch.testing.assert_close(gradient.double(), expected, rtol=tolerance, atol=tolerance)


@few
@given(edge_lists(), seeds)
def test_the_combinatorial_and_the_random_walk_energy_are_their_dense_formulas(edges, seed):
    x, a = normal(edges.num_nodes, 3, seed=seed), edges.adjacency()
    graph = edges.graph64()
    laplacian = torch.diag(a.sum(dim=1)) - a
    expected = torch.trace(x.t() @ laplacian @ x)
    torch.testing.assert_close(combinatorial_energy(x, graph), expected, rtol=1e-10, atol=1e-13)
    walk = (a + torch.eye(len(a))) / (1 + a.sum(dim=1))[:, None]
    stationary = (1 + a.sum(dim=1)) / (1 + a.sum(dim=1)).sum()
    change = (x[:, None] - x[None]).square().sum(dim=2)
    expected = (stationary[:, None] * walk * change).sum() / 2
    torch.testing.assert_close(random_walk_energy(x, graph), expected, rtol=1e-10, atol=1e-13)
    variance = (stationary[:, None] * (x - stationary @ x).square()).sum()
    assert random_walk_energy(x, graph) <= 2 * variance + 1e-14


@few
@given(edge_lists(), seeds)
def test_the_rayleigh_quotient_is_between_the_eigenvalues(edges, seed):
    x = normal(edges.num_nodes, 2, seed=seed)
    eigenvalues = torch.linalg.eigvalsh(torch.eye(edges.num_nodes, dtype=torch.float64) - edges.dense())
    quotient = rayleigh_quotient(x, edges.graph64())
    assert 0 <= quotient <= eigenvalues[-1] + 1e-13
    torch.testing.assert_close(rayleigh_quotient(-7e-9 * x, edges.graph64()), quotient, rtol=1e-12, atol=1e-20)


@few
@given(edge_lists(), seeds)
def test_the_kernel_distance_is_that_to_the_eigenvectors_of_zero(edges, seed):
    x = normal(edges.num_nodes, 2, seed=seed)
    values, vectors = torch.linalg.eigh(torch.eye(edges.num_nodes, dtype=torch.float64) - edges.dense())
    kernel = vectors[:, values < 1e-9]
    assert kernel.size(1) == edges.graph64().laplacian.num_components
    distance = kernel_distance(x, edges.graph64())
    torch.testing.assert_close(distance, (x - kernel @ (kernel.t() @ x)).norm(), rtol=1e-9, atol=1e-12)
    relative = kernel_distance(x, edges.graph64(), relative=True)
    torch.testing.assert_close(relative, distance / x.norm(), rtol=1e-14, atol=0)


def test_the_kernel_distance_of_almost_smooth_float32_features_is_exact():
    edges = random_edges(20, 60)
    x = (smooth(edges) + 1e-6 * normal(20, 1)).float()
    unit = smooth(edges) / smooth(edges).norm()
    expected = (x.double() - unit @ (unit.t() @ x.double())).norm()
    assert edges.graph().laplacian.num_components == 1
    torch.testing.assert_close(kernel_distance(x, edges.graph()), expected, rtol=1e-8, atol=0)


@pytest.mark.parametrize("measure", ENERGIES)
def test_zero_features_measure_zero_with_a_gradient_of_zero(measure):
    x = torch.zeros(9, 2, requires_grad=True)
    value = measure(x, random_edges().graph())
    assert value == 0
    assert torch.autograd.grad(value, x)[0].count_nonzero() == 0


def test_the_energy_of_features_that_are_not_finite_is_not_a_number():
    x = torch.ones(3, 1)
    x[1] = torch.inf
    assert dirichlet_energy(x, path3().graph()).isnan()


@pytest.mark.parametrize("num_edges", [20, 60])
def test_weights_can_be_given_with_an_edge_index(num_edges):
    edges, x = random_edges(20, num_edges, weighted=True), normal(20, 3)
    energy = dirichlet_energy(x, edges.index, edge_weight=edges.weight)
    torch.testing.assert_close(energy, trace_form(x, edges), rtol=1e-12, atol=0)


def test_whole_weights_of_a_float32_graph_are_exact():
    edges, x = random_edges(20, 60), normal(20, 3)
    torch.testing.assert_close(dirichlet_energy(x, edges.graph()), trace_form(x, edges), rtol=1e-12, atol=0)
    weighted = random_edges(20, 60, weighted=True)
    energy = dirichlet_energy(x, weighted.graph())
    torch.testing.assert_close(energy, trace_form(x, weighted), rtol=1e-6, atol=0)


def test_weights_that_only_add_up_to_whole_degrees_are_not_rounded():
    cycle = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    edges = Edges(torch.cat([cycle, cycle.flip(0)], dim=1), torch.tensor([0.5, 1.5]).repeat(4), 4)
    x = normal(4, 3)
    torch.testing.assert_close(dirichlet_energy(x, edges.graph()), trace_form(x, edges), rtol=1e-6, atol=0)


@few
@given(edge_lists())
def test_components_are_numbered_by_their_first_node(edges):
    laplacian = edges.graph().laplacian
    reach = torch.linalg.matrix_power(edges.adjacency().sign() + torch.eye(edges.num_nodes), edges.num_nodes) > 0
    firsts = [int(row.nonzero()[0]) for row in reach]
    numbers = {first: number for number, first in enumerate(sorted(set(firsts)))}
    assert laplacian.component.tolist() == [numbers[first] for first in firsts]
    assert laplacian.num_components == len(numbers)


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


@pytest.mark.parametrize("shape", [(3,), (0, 3, 2)])
def test_features_that_are_no_matrix_are_refused(shape):
    with pytest.raises(GraphjouleError, match=r"expected \[..., num_nodes, channels\]"):
        dirichlet_energy(torch.ones(shape), path3().index)


@pytest.mark.parametrize("measure", [dirichlet_energy, combinatorial_energy, rayleigh_quotient, kernel_distance])
def test_what_is_no_tensor_and_what_is_no_graph_is_refused(measure):
    with pytest.raises(
        GraphjouleError, match=r"The features are of type ndarray; expected a tensor \[\.\.\., num_nodes"
    ):
        measure(normal(3, 2).numpy(), path3().index)
    with pytest.raises(GraphjouleError, match="The features are of type str"):
        measure("a", path3().graph())
    for graph, kind in [(path3().index.numpy(), "ndarray"), (None, "NoneType"), ("cora", "str")]:
        with pytest.raises(GraphjouleError, match=f"The graph is of type {kind}; expected a Propagation, or an edge_"):
            measure(normal(3, 2), graph)


def test_features_without_channels_have_no_energy():
    assert dirichlet_energy(torch.ones(3, 0), path3().graph()) == 0


def test_another_number_of_nodes_is_refused():
    with pytest.raises(GraphjouleError, match="3 nodes but the features have 4 rows"):
        dirichlet_energy(torch.ones(4, 2), path3().graph())


def test_weights_beside_a_propagation_are_refused():
    with pytest.raises(GraphjouleError, match="has its own weights"):
        dirichlet_energy(torch.ones(3, 2), path3().graph(), edge_weight=torch.ones(4))


def test_another_device_is_refused():
    with pytest.raises(GraphjouleError, match="on cpu but the features are on meta"):
        dirichlet_energy(torch.ones(3, 2, device="meta"), path3().graph())


def test_what_it_needs_of_a_graph_is_made_once():
    graph = path3().graph()
    assert graph.to("cpu").laplacian is graph.laplacian
    assert graph.to(dtype=torch.float64).dtype == torch.float64


def parts_by_hand(x, edges, labels):
    """Within, between, unlabelled: one edge at a time."""
    a = edges.adjacency()
    y = x / (1 + a.sum(dim=1)).sqrt()[:, None]
    parts = torch.zeros(3, dtype=torch.float64)
    for i, j in a.triu().nonzero().tolist():
        part = 2 if labels[i] < 0 or labels[j] < 0 else int(labels[i] != labels[j])
        parts[part] += a[i, j] * (y[i] - y[j]).square().sum()
    return parts


@few
@given(edge_lists(), seeds)
def test_classes_are_split_edge_by_edge_and_add_up(edges, seed):
    x, generator = normal(edges.num_nodes, 3, seed=seed), torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 3, (edges.num_nodes,), generator=generator)
    parts = torch.stack(class_energies(x, edges.graph64(), labels))
    torch.testing.assert_close(parts, parts_by_hand(x, edges, labels), rtol=1e-13, atol=1e-300)
    torch.testing.assert_close(parts.sum(), dirichlet_energy(x, edges.graph64()), rtol=1e-11, atol=1e-14)


@few
@given(edge_lists(), seeds)
def test_components_are_measured_each_by_itself(edges, seed):
    x, graph = normal(edges.num_nodes, 3, seed=seed), edges.graph64()
    energies = component_energies(x, graph)
    assert energies.shape == (graph.laplacian.num_components,)
    for number, energy in enumerate(energies):
        alone = x * (graph.laplacian.component == number)[:, None]
        torch.testing.assert_close(energy, dirichlet_energy(alone, graph), rtol=1e-11, atol=1e-14)


def test_many_edges_are_summed_in_pieces(monkeypatch):
    edges, x = random_edges(20, 60, weighted=True), normal(20, 3)
    labels = torch.arange(20) % 3
    whole = torch.stack(class_energies(x, edges.graph64(), labels))
    monkeypatch.setattr(graphjoule.graph.laplacian, "_EDGES_AT_ONCE", 7)
    torch.testing.assert_close(torch.stack(class_energies(x, edges.graph64(), labels)), whole, rtol=1e-14, atol=0)


def test_runs_are_measured_each_by_itself():
    edges, x, labels = random_edges(20, 25), normal(2, 3, 20, 4), torch.arange(20) % 4 - 1
    graph = edges.graph64()
    within = class_energies(x, graph, labels).within
    components = component_energies(x, graph)
    assert within.shape == (2, 3)
    for i, j in ((0, 0), (1, 2)):
        torch.testing.assert_close(within[i, j], class_energies(x[i, j], graph, labels).within)
        torch.testing.assert_close(components[i, j], component_energies(x[i, j], graph))
    torch.testing.assert_close(torch.vmap(lambda run: component_energies(run, graph))(x[0]), components[0])


def test_parts_have_the_right_gradient():
    graph, labels = random_edges(weighted=True).graph64(), torch.arange(9) % 3 - 1
    x = normal(9, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: class_energies(x, graph, labels), x)
    assert torch.autograd.gradcheck(lambda x: component_energies(x, graph), x)


def test_weights_of_an_edge_index_count_in_parts_too():
    edges, x, labels = random_edges(20, 25, weighted=True), normal(20, 3), torch.arange(20) % 2
    given = class_energies(x, edges.index, labels, edge_weight=edges.weight)
    assert torch.stack(given).equal(torch.stack(class_energies(x, edges.graph64(), labels)))
    energies = component_energies(x, edges.index, edge_weight=edges.weight)
    assert energies.equal(component_energies(x, edges.graph64()))


def test_nodes_without_edges_are_components_without_energy():
    assert component_energies(normal(4, 2), no_edges(4).graph64()).equal(torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("labels", [torch.zeros(4, dtype=torch.int64), torch.zeros(3), torch.zeros(3, 1).long()])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(GraphjouleError, match="expected one integer for each of the 3 nodes"):
        class_energies(torch.ones(3, 2), path3().graph(), labels)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_a_higher_energy_is_that_of_the_dense_power(order):
    edges, x = random_edges(12, 9, weighted=True), normal(12, 3)
    laplacian = torch.eye(12, dtype=torch.float64) - edges.dense()
    expected = torch.trace(x.t() @ torch.linalg.matrix_power(laplacian, order) @ x)
    torch.testing.assert_close(higher_energy(x, edges.graph64(), order), expected, rtol=1e-11, atol=0)


def test_an_order_below_one_is_refused():
    with pytest.raises(GraphjouleError, match="order is 0; it must be at least 1"):
        higher_energy(normal(3, 2), random_edges(3, 2).graph64(), 0)


@pytest.mark.parametrize("x", [torch.tensor([[1j], [-1j]]), torch.eye(2).to_sparse()])
def test_features_that_are_no_dense_real_numbers_are_refused(x):
    with pytest.raises(GraphjouleError, match="expected a dense tensor of real numbers"):
        dirichlet_energy(x, torch.tensor([[0, 1], [1, 0]]))
