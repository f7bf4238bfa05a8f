import copy
import pickle
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_dense_adj

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation, as_propagation
from graphjoule.graph.relations import DirectedPropagation
from graphjoule.measures import dirichlet_energy
from tests.graphs import edge_lists, few, no_edges, normal, path3, random_edges

PAIR = torch.tensor([[0, 1], [1, 0]])


def build(edge_index, *args, **options) -> Propagation:
    return Propagation.from_edge_index(torch.tensor(edge_index), *args, **options)


@few
@given(edge_lists())
def test_it_is_the_dense_formula(edges):
    torch.testing.assert_close(edges.graph64().to_dense(), edges.dense(), rtol=1e-14, atol=0)
    torch.testing.assert_close(edges.graph().to_dense().double(), edges.dense(), rtol=1e-7, atol=0)


@few
@given(edge_lists(), st.sampled_from([torch.float32, torch.float64]))
def test_it_is_symmetric_to_the_bit(edges, dtype):
    p = edges.graph(dtype=dtype).to_dense()
    assert p.dtype == dtype
    assert p.equal(p.t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_weighted_duplicates_are_symmetric_to_the_bit(dtype):
    edges = random_edges(30, 5000, weighted=True)
    order = torch.randperm(10000, generator=torch.Generator().manual_seed(1))
    p = Propagation.from_edge_index(edges.index[:, order], edges.weight[order], dtype=dtype).to_dense()
    assert p.equal(p.t())


@few
@given(edge_lists())
def test_its_eigenvalues_are_above_minus_one_and_the_largest_is_one(edges):
    graph = edges.graph64()
    eigenvalues = torch.linalg.eigvalsh(graph.to_dense())
    lowest = 2 / (1 + graph.degree.max()) - 1  # Gershgorin on D~^-1 (A + I)
    assert lowest > -1
    assert eigenvalues[0] >= lowest - 1e-12
    assert abs(eigenvalues[-1] - 1) < 1e-12


@few
@given(edge_lists())
def test_no_eigenvalue_of_the_laplacian_exceeds_its_bound(edges):
    graph = edges.graph64()
    assert float((1 - torch.linalg.eigvalsh(edges.dense())).max()) <= graph.laplacian_bound + 1e-12
    assert graph.largest_degree == float(graph.degree.max())
    assert 0 < graph.laplacian_bound < 2


@few
@given(edge_lists())
def test_it_is_stored_as_sorted_csr_with_the_diagonal(edges):
    graph = edges.graph64()
    row, col = graph.row(), graph.col.long()
    stored = (edges.adjacency() > 0) | torch.eye(edges.num_nodes, dtype=torch.bool)
    assert torch.stack([row, col]).equal(stored.nonzero().t())
    assert graph.rowptr.dtype == graph.col.dtype == torch.int32
    assert graph.num_nodes == edges.num_nodes
    assert graph.num_edges == int((edges.adjacency() > 0).sum()) // 2
    assert graph.matrix.to_dense().equal(graph.to_dense())
    torch.testing.assert_close(graph.degree, edges.adjacency().sum(dim=1))


@few
@given(edge_lists(), st.randoms(use_true_random=False))
def test_renaming_the_nodes_permutes_it(edges, random):
    permutation = torch.tensor(random.sample(range(edges.num_nodes), edges.num_nodes))
    p, renamed = edges.graph64().to_dense(), edges.permuted(permutation).graph64().to_dense()
    torch.testing.assert_close(renamed, p[permutation][:, permutation], rtol=1e-14, atol=0)


@few
@given(edge_lists(weighted=False), st.randoms(use_true_random=False))
def test_the_order_of_the_edges_changes_no_bit(edges, random):
    order = torch.tensor(random.sample(range(edges.index.size(1)), edges.index.size(1)), dtype=torch.int64)
    shuffled = Propagation.from_edge_index(edges.index[:, order], num_nodes=edges.num_nodes)
    assert shuffled.to_dense().equal(edges.graph().to_dense())


def test_self_loops_are_dropped():
    looped = build([[0, 0, 1, 1], [0, 1, 0, 1]], torch.tensor([7.0, 2.0, 2.0, 5.0]))
    assert looped.to_dense().equal(Propagation.from_edge_index(PAIR, torch.tensor([2.0, 2.0])).to_dense())
    assert looped.num_edges == 1


def test_a_self_loop_of_any_weight_does_not_make_a_graph_directed():
    assert build([[0, 0], [0, 0]], torch.tensor([1.0, 3.0])).to_dense().tolist() == [[1.0]]


def test_duplicates_count_once_without_weights_and_add_up_with_weights():
    doubled = [[0, 0, 1, 1], [1, 1, 0, 0]]
    assert build(doubled).degree.tolist() == [1, 1]
    assert build(doubled, torch.tensor([1.0, 2.0, 2.0, 1.0])).degree.tolist() == [3, 3]


def test_edges_of_weight_zero_are_no_edges():
    graph = build([[0, 1, 0], [1, 0, 2]], torch.tensor([1.0, 1.0, 0.0]))
    assert (graph.num_nodes, graph.num_edges) == (3, 1)
    assert graph.to_dense()[2].tolist() == [0, 0, 1]


def test_integer_weights_are_weights():
    assert build([[0, 1], [1, 0]], torch.tensor([3, 3])).degree.tolist() == [3, 3]


@pytest.mark.parametrize("num_nodes", [1, 4])
def test_without_edges_it_is_the_identity(num_nodes):
    graph = no_edges(num_nodes).graph()
    assert graph.to_dense().equal(torch.eye(num_nodes))
    assert graph.num_edges == 0


def test_isolated_nodes_keep_their_place():
    graph = Propagation.from_edge_index(PAIR + 1, num_nodes=5)
    assert graph.to_dense().diagonal().tolist() == [1, 0.5, 0.5, 1, 1]
    assert graph.degree.tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.uint16, torch.uint64])
def test_any_integer_dtype_names_nodes(dtype):
    assert Propagation.from_edge_index(PAIR.to(dtype)).to_dense().tolist() == [[0.5, 0.5], [0.5, 0.5]]


@few
@given(edge_lists(directed=True))
def test_symmetrize_takes_the_larger_of_both_directions(edges):
    a = edges.adjacency()
    graph = edges.graph(symmetrize=True, dtype=torch.float64)
    assert graph.to_dense().equal(graph.to_dense().t())
    torch.testing.assert_close(graph.degree, torch.maximum(a, a.t()).sum(dim=1))


@few
@given(edge_lists())
def test_symmetrize_changes_no_bit_of_an_undirected_graph(edges):
    assert edges.graph(symmetrize=True).to_dense().equal(edges.graph().to_dense())


def test_symmetrize_adds_duplicates_up_before_it_compares_directions():
    graph = build([[0, 0, 1], [1, 1, 0]], torch.tensor([1.0, 2.0, 2.5]), symmetrize=True)
    assert graph.degree.tolist() == [3, 3]


def test_to_gives_another_dtype_and_leaves_the_operator_as_it_was():
    graph = path3().graph()
    wide = graph.to(dtype=torch.float64)
    assert (wide.dtype, wide.matrix.dtype, graph.dtype) == (torch.float64, torch.float64, torch.float32)
    assert wide.to_dense().float().equal(graph.to_dense())
    assert (wide.rowptr.dtype, wide.degree.dtype) == (torch.int32, torch.float64)
    assert wide.to("cpu").dtype == torch.float64
    assert wide.device == torch.device("cpu")


def test_the_default_dtype_is_torchs():
    torch.set_default_dtype(torch.float64)
    try:
        assert path3().graph().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("weight", [1e20, 1e200, 1.7e308])
def test_large_weights_drown_the_self_loop_and_nothing_else(weight):
    p = build([[0, 1], [1, 0]], edge_weight=torch.full((2,), weight, dtype=torch.float64)).to_dense()
    torch.testing.assert_close(p, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))


def test_as_propagation_builds_what_it_is_like_and_checks_the_node_count():
    graph = as_propagation(path3().index, 4, like=torch.ones((), dtype=torch.float64))
    assert (graph.num_nodes, graph.dtype) == (4, torch.float64)
    assert as_propagation(graph, 4, like=torch.ones(())) is graph
    with pytest.raises(GraphjouleError, match="4 nodes but the features have 3 rows"):
        as_propagation(graph, 3, like=torch.ones(()))


def test_a_float64_operator_from_edges_is_not_a_rounded_float32_one():
    graph = as_propagation(path3().index, 3, like=torch.ones((), dtype=torch.float64))
    assert abs(float(graph.to_dense()[0, 1]) - 6**-0.5) < 1e-15


@few
@given(edge_lists())
def test_a_mixture_with_the_identity_has_its_entries_whatever_was_asked_before(edges):
    graph = edges.graph64()
    for a, alpha in ((0.7, 0.2), (0.7, 0.2), (1.0, 0.5), (0.7, 0.2)):
        dense = torch.zeros(graph.shape, dtype=torch.float64)
        dense[graph.row(), graph.col.long()] = graph.mixed(a, alpha)
        torch.testing.assert_close(dense, a * graph.to_dense() + alpha * torch.eye(graph.num_nodes).double())


@few
@given(edge_lists())
def test_its_edges_are_those_it_was_built_from(edges):
    adjacency = edges.adjacency()
    for graph in (edges.graph(), edges.graph64()):
        assert graph.edge_index.dtype == torch.int64
        assert graph.edge_index.equal(adjacency.nonzero().t())  # both directions, sorted, without self-loops
        assert graph.edge_weight.dtype == graph.dtype
        expected = adjacency[adjacency > 0].to(graph.dtype)
        torch.testing.assert_close(graph.edge_weight, expected, rtol=4 * torch.finfo(graph.dtype).eps, atol=0)
        if edges.weight is None:
            assert graph.edge_weight.eq(1).all()
        assert graph.edge_index is graph.edge_index
        assert graph.edge_weight is graph.edge_weight


def test_a_pyg_layer_makes_the_same_operator_of_its_edges():
    graph = random_edges(weighted=True).graph()
    index, weight = gcn_norm(graph.edge_index, graph.edge_weight, graph.num_nodes, add_self_loops=True)
    torch.testing.assert_close(to_dense_adj(index, edge_attr=weight)[0], graph.to_dense())


@pytest.mark.parametrize(
    ("weight", "is_weighted"), [(None, False), (1.0, False), (1.0 + 1e-5, True), (0.5, True), (3.0, True)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_graph_is_weighted_if_an_edge_weighs_anything_but_one(weight, is_weighted, dtype):
    edges = random_edges(40, 90)
    given = None if weight is None else torch.full((edges.index.size(1),), weight, dtype=torch.float64)
    index = torch.unique(edges.index, dim=1) if weight is not None else edges.index
    given = None if given is None else given[: index.size(1)]
    assert Propagation.from_edge_index(index, given, 40, dtype=dtype).is_weighted is is_weighted


def test_a_graph_without_edges_is_not_weighted():
    assert not Propagation.from_edge_index(torch.empty(2, 0, dtype=torch.int64), None, 3).is_weighted


@few
@given(edge_lists(), st.integers(1, 5), st.booleans())
def test_blocks_cover_the_nodes_and_no_entry_leads_from_one_to_another(edges, count, one_way):
    graph = edges.graph64()
    if one_way:
        source, target = graph.edge_index
        graph = DirectedPropagation.of(graph.edge_index[:, source < target], None, edges.num_nodes)
    blocks = graph.blocks(count)
    assert 1 <= len(blocks) <= count
    assert [0, *(end for _, end in blocks)] == [*(start for start, _ in blocks), graph.num_nodes]
    for start, end in blocks:
        outside = torch.ones(graph.num_nodes, dtype=torch.bool)
        outside[start:end] = False
        assert not graph.to_dense()[start:end, outside].any()


@few
@given(edge_lists(), st.data())
def test_the_induced_operator_is_a_principal_part_of_the_whole(edges, data):
    chosen = data.draw(st.sets(st.integers(0, edges.num_nodes - 1), min_size=1))
    nodes, graph = torch.tensor(sorted(chosen)), edges.graph64()
    induced = graph.induced(nodes)
    assert induced.to_dense().equal(graph.to_dense()[nodes][:, nodes])
    assert induced.degree.equal(graph.degree[nodes])
    assert induced.rowptr.dtype == induced.col.dtype == torch.int32
    assert induced.num_edges == int((edges.adjacency()[nodes][:, nodes] > 0).sum()) // 2
    for start, stop in pairwise(induced.rowptr.tolist()):  # columns are sorted, which products rely on
        assert induced.col[start:stop].equal(induced.col[start:stop].sort().values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_induced_operator_is_symmetric_and_of_the_dtype(dtype):
    graph = random_edges(50, 400, weighted=True).graph(dtype=dtype)
    p = graph.induced(torch.arange(0, 50, 3)).to_dense()
    assert p.dtype == dtype
    assert p.equal(p.t())


def test_a_graph_that_is_made_or_first_used_inside_a_transform_is_a_plain_one():
    edges, x = random_edges(4, 4), normal(4, 2)
    graph = edges.graph64()
    inside = torch.func.grad(lambda x: dirichlet_energy(x, graph) + (graph.edge_index.size(1) * x).sum())(x)
    assert copy.deepcopy(graph) is graph
    again = pickle.loads(pickle.dumps(graph))
    assert again.edge_index.equal(graph.edge_index)
    x.requires_grad_()
    outside = dirichlet_energy(x, again) + (again.edge_index.size(1) * x).sum()
    torch.testing.assert_close(inside, torch.autograd.grad(outside, x)[0])
    made = []

    def on_a_part(x):  # edges that are made inside
        made.append(Propagation.from_edge_index(edges.index[:, :], num_nodes=4, dtype=torch.float64))
        return dirichlet_energy(x, made[-1])

    found = torch.func.grad(on_a_part)(x.detach())
    torch.testing.assert_close(found, torch.autograd.grad(dirichlet_energy(x, again), x)[0])
    assert pickle.loads(pickle.dumps(made[0])).value.equal(again.value)
    part = lambda x: dirichlet_energy(x, graph.induced(torch.arange(2)))  # noqa: E731
    assert torch.func.grad(part)(x.detach()[:2]).isfinite().all()
    index, rows = edges.index, torch.stack([x.detach(), 2 * x.detach()])
    of_edges = torch.vmap(torch.func.grad(lambda x: dirichlet_energy(x, index)))(rows)
    torch.testing.assert_close(of_edges[0], torch.autograd.grad(dirichlet_energy(x, again), x)[0])
    torch.testing.assert_close(of_edges[1], 2 * of_edges[0])


def test_derivatives_by_edge_weights_are_refused_inside_transforms_too():
    x, weight = normal(2, 2), torch.ones(2, dtype=torch.float64)
    energy = lambda weight: dirichlet_energy(x, PAIR, edge_weight=weight)  # noqa: E731
    for derivative in (torch.func.grad(energy), lambda w: torch.func.jvp(energy, (w,), (w,))):
        with pytest.raises(GraphjouleError, match="no graph passes on"):
            derivative(weight)
    with torch.no_grad():
        assert energy(weight.requires_grad_()) > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"edge_index": [[0, 1], [1, 0]]}, "edge_index is of type list; expected a tensor, such as torch.as_tensor"),
        ({"edge_weight": [1.0, 1.0]}, "edge_weight is of type list; expected a tensor"),
        ({"edge_weight": torch.ones(2, requires_grad=True)}, "has a gradient, which no graph passes on; .*detach"),
        ({"dtype": torch.int64}, "dtype is torch.int64; the entries of P are fractions"),
    ],
)
def test_what_makes_no_operator_is_refused(given, message):
    with pytest.raises(GraphjouleError, match=message):
        Propagation.from_edge_index(**{"edge_index": torch.tensor([[0, 1], [1, 0]]), **given})
