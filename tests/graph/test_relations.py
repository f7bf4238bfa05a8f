"""Operators of edges that keep their direction, and of edges of several types, against their dense formulas."""

import pytest
import torch
from hypothesis import given

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.extension import ExtendedPropagation, joined, links_to
from graphjoule.graph.relations import DirectedPropagation, MixedPropagation
from graphjoule.measures import dirichlet_energy
from graphjoule.ops import make_key, propagate
from graphjoule.ops.edge_dropout import propagate_dropped
from tests.graphs import dense_propagation, edge_lists, few

ARROWS = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 0, 0, 1]])
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0])


def adjacency(index, weight, num_nodes):
    """``a[i, j]``: the weight from i to j."""
    a = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    return a.index_put_(tuple(index), weight.double(), accumulate=True).fill_diagonal_(0)


def dense_directed(a):
    p = a.T + torch.eye(len(a), dtype=torch.float64)
    return p / p.sum(dim=1, keepdim=True)


def directed(num_nodes=5):
    return DirectedPropagation.of(ARROWS, WEIGHTS, num_nodes, dtype=torch.float64)


def mixed(*, is_directed):
    parts = (ARROWS[:, :3], ARROWS[:, 3:])
    if is_directed:
        return MixedPropagation.of([DirectedPropagation.of(part, None, 5, dtype=torch.float64) for part in parts])
    build = Propagation.from_edge_index
    return MixedPropagation.of([build(part, None, 5, symmetrize=True, dtype=torch.float64) for part in parts])


OPERATORS = {
    "directed": directed,
    "typed": lambda: mixed(is_directed=False),
    "directed and typed": lambda: mixed(is_directed=True),
}
every_operator = pytest.mark.parametrize("graph", [make() for make in OPERATORS.values()], ids=list(OPERATORS))


@few
@given(edge_lists())
def test_a_node_takes_the_mean_of_itself_and_of_those_whose_edges_lead_to_it(edges):
    index = edges.index[:, ::2]  # some directions are gone
    graph = DirectedPropagation.of(index, None, edges.num_nodes, dtype=torch.float64)
    a = adjacency(index, torch.ones(index.size(1)), edges.num_nodes).clamp(max=1)
    torch.testing.assert_close(graph.to_dense(), dense_directed(a))
    assert graph.num_edges == int(a.sum())
    torch.testing.assert_close(adjacency(graph.edge_index, graph.edge_weight, edges.num_nodes), a)


def test_weights_of_one_direction_add_up_and_loops_and_zeros_are_no_edges():
    index = torch.tensor([[0, 0, 1, 2, 1], [1, 1, 1, 0, 2]])
    graph = DirectedPropagation.of(index, torch.tensor([1.0, 2.0, 9.0, 0.0, 1.0]), 3, dtype=torch.float64)
    assert graph.to_dense().tolist() == [[1, 0, 0], [0.75, 0.25, 0], [0, 0.5, 0.5]]
    assert graph.degree.tolist() == [0, 3, 1]


def test_every_type_is_normalised_by_itself_and_has_an_equal_voice():
    for is_directed, dense in ((False, lambda a: dense_propagation(torch.maximum(a, a.T))), (True, dense_directed)):
        parts = [adjacency(part, torch.ones(part.size(1)), 5) for part in (ARROWS[:, :3], ARROWS[:, 3:])]
        expected = (dense(parts[0]) + dense(parts[1])) / 2
        torch.testing.assert_close(mixed(is_directed=is_directed).to_dense(), expected)


@every_operator
def test_products_and_gradients_are_those_of_the_matrix(graph):
    p, x = graph.to_dense(), torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(propagate(x, graph, a=0.7, alpha=0.2), 0.7 * p @ x + 0.2 * x)
    assert torch.autograd.gradcheck(lambda x: propagate(x, graph, a=0.7, alpha=0.2), x)
    assert torch.autograd.gradgradcheck(lambda x: propagate(x, graph).square(), x)
    many = torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True)
    torch.vmap(lambda x: propagate(x, graph))(many).square().sum().backward()
    torch.testing.assert_close(many.grad, 2 * p.T @ (p @ many.detach()))


@every_operator
def test_dropped_entries_have_the_gradient_of_the_matrix_that_is_left(graph):
    key, eye = make_key(3), torch.eye(5, dtype=torch.float64)
    left = propagate_dropped(eye, graph, 0.5, key)
    kept = left != 0
    torch.testing.assert_close(left, torch.where(kept, 2 * graph.to_dense(), 0.0))
    assert 0 < int(kept.sum()) < graph.col.numel()
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: propagate_dropped(x, graph, 0.5, key), x)
    assert torch.autograd.gradgradcheck(lambda x: propagate_dropped(x, graph, 0.5, key).square(), x)


@every_operator
def test_energies_are_those_of_the_merged_undirected_graph(graph):
    a = sum(adjacency(part.edge_index, part.edge_weight, 5) for part in getattr(graph, "parts", (graph,)))
    a = torch.maximum(a, a.T)
    x = torch.randn(5, 3, dtype=torch.float64)
    laplacian = torch.eye(5, dtype=torch.float64) - dense_propagation(a)
    torch.testing.assert_close(dirichlet_energy(x, graph), (x.T @ laplacian @ x).trace())


@every_operator
def test_it_moves_and_changes_its_dtype(graph):
    assert graph.to("cpu") is graph
    single = graph.to(dtype=torch.float32)
    assert type(single) is type(graph)
    torch.testing.assert_close(single.to_dense(), graph.to_dense().float())
    torch.testing.assert_close(single.transposed.to_dense(), graph.to_dense().T.float())
    assert single.transposed.transposed is single


@every_operator
def test_what_needs_one_undirected_graph_refuses_it(graph):
    for ask in (lambda: graph.induced(torch.tensor([0])), lambda: graph.require_whole("A spectrum")):
        with pytest.raises(GraphjouleError, match="needs one undirected graph, and here edges keep their direction or"):
            ask()


@every_operator
def test_new_nodes_read_and_old_ones_stay(graph):
    """Node 5 reads from 0, and node 6 from 5; of types, by the first alone."""
    new = torch.tensor([[0, 5, 6], [5, 6, 6]])
    if isinstance(graph, MixedPropagation):
        none = torch.empty(2, 0, dtype=torch.int64)
        build = DirectedPropagation.of if graph.is_directed else Propagation.from_edge_index
        more = {} if graph.is_directed else {"symmetrize": True}
        links = MixedPropagation.of([build(part, None, 7, dtype=torch.float64, **more) for part in (new, none)])
    else:
        links = DirectedPropagation.of(new, None, 7, dtype=torch.float64)
    p = ExtendedPropagation.of(graph, links).to_dense()
    assert p[:5, :5].equal(graph.to_dense())
    assert p[:5, 5:].count_nonzero() == 0
    assert (p[5, 0] > 0, p[6, 5] > 0, p[5, 6] > 0) == (True, True, not graph.is_directed)
    if graph.is_directed:
        torch.testing.assert_close(p.sum(dim=1), torch.ones(7, dtype=torch.float64))
        assert p[5, 0] == (0.25 if isinstance(graph, MixedPropagation) else 0.5)
    whole = joined(graph, links)
    assert type(whole) is type(graph)
    assert whole.num_edges == graph.num_edges + 2
    nearest = links_to(torch.tensor([[1, 2]]), graph)
    row = ExtendedPropagation.of(graph, nearest).to_dense()[5]
    assert row.nonzero().flatten().tolist() == [1, 2, 5]
