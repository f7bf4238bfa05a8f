import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.extension import ExtendedPropagation, joined, links_to
from graphjoule.nn import EGNN, MODELS
from graphjoule.ops import use_backend
from tests.graphs import edge_lists, few, no_edges, normal, random_edges

OLD = random_edges(9, 14)


def links(num_old: int, num_new: int, *, seed: int = 1, weighted: bool = False) -> Propagation:
    """Edges of which each has a new end, in a graph of all nodes."""
    generator = torch.Generator().manual_seed(seed)
    new = torch.randint(num_old, num_old + num_new, (3 * num_new,), generator=generator)
    other = torch.randint(num_old + num_new, (3 * num_new,), generator=generator)
    weight = torch.rand(3 * num_new, generator=generator, dtype=torch.float64) if weighted else None
    return Propagation.from_edge_index(torch.stack([new, other]), weight, num_old + num_new, symmetrize=True)


@few
@given(edge_lists(), st.data())
def test_it_is_the_dense_formula_with_the_old_rows_as_they_were(old, data):
    graph = old.graph64()
    num_new = data.draw(st.integers(1, 4))
    num_nodes = graph.num_nodes + num_new
    added = Propagation.from_edge_index(
        torch.tensor(
            data.draw(
                st.lists(
                    st.tuples(st.integers(graph.num_nodes, num_nodes - 1), st.integers(0, num_nodes - 1)), max_size=9
                )
            ),
            dtype=torch.int64,
        )
        .view(-1, 2)
        .t(),
        num_nodes=num_nodes,
        symmetrize=True,
        dtype=torch.float64,
    )
    a = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    a[: graph.num_nodes, : graph.num_nodes] = old.adjacency()
    for i, j in added.edge_index.t().tolist():
        if i >= graph.num_nodes:
            a[i, j] = 1
    degree = a.sum(dim=1) + 1
    expected = (a + torch.eye(num_nodes, dtype=torch.float64)) / (degree[:, None] * degree).sqrt()
    found = ExtendedPropagation.of(graph, added)
    torch.testing.assert_close(found.to_dense(), expected)
    assert found.value[: len(graph.value)].equal(graph.value)
    both_ways = a * (a.T > 0)
    assert found.num_edges == int((both_ways > 0).sum()) // 2 + int(((a > 0) & (a.T == 0)).sum())


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_new_nodes_leave_what_a_model_says_of_the_old_ones_as_it_was(name, backend):
    torch.manual_seed(0)
    model = MODELS[name](5, 8, 3, num_layers=3).eval()
    x, graph = normal(12, 5, dtype=torch.float32), OLD.graph()
    hub = links_to(torch.arange(9).repeat(3, 1), graph)  # of a larger degree than any old node
    with use_backend(backend), torch.no_grad():
        for added in (links(9, 3, weighted=True), hub):
            extended = ExtendedPropagation.of(graph, added)
            torch.testing.assert_close(model(x, extended)[:9], model(x[:9], graph))
        moved = joined(graph, links(9, 3, weighted=True))
        assert not torch.allclose(model(x, moved)[:9], model(x[:9], graph))


@pytest.mark.parametrize("name", MODELS)
def test_new_nodes_that_are_a_copy_of_the_old_graph_get_what_the_old_nodes_get(name):
    torch.manual_seed(0)
    model = MODELS[name](5, 8, 3, num_layers=3).eval()
    x, graph = normal(9, 5, dtype=torch.float32), OLD.graph()
    copy = Propagation.from_edge_index(OLD.index + 9, num_nodes=18)
    with torch.no_grad():
        out = model(torch.cat([x, x]), ExtendedPropagation.of(graph, copy))
    torch.testing.assert_close(out[9:], out[:9])


@pytest.mark.parametrize("weighted", [False, True])
def test_all_nodes_together_are_the_graph_of_all_edges(weighted):
    old, added = random_edges(9, 14, weighted=weighted), links(9, 3, weighted=weighted)
    weights = None
    if weighted:
        weights = torch.cat([old.weight, added.edge_weight.double()])
    whole = Propagation.from_edge_index(torch.cat([old.index, added.edge_index], dim=1), weights, 12)
    torch.testing.assert_close(joined(old.graph(), added).to_dense(), whole.to_dense(), rtol=1e-5, atol=1e-6)


def test_messages_go_from_old_nodes_to_new_ones():
    old = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
    added = Propagation.from_edge_index(torch.tensor([[1, 2], [2, 1]]), torch.tensor([2.0, 2.0]))
    graph = ExtendedPropagation.of(old, added)
    assert graph.edge_index.t().tolist() == [[1, 0], [0, 1], [1, 2]]  # source, target
    assert graph.edge_weight.tolist() == pytest.approx([1, 1, 2])
    moved = graph.to(dtype=torch.float64)
    assert isinstance(moved, ExtendedPropagation)
    assert moved.num_old == 2


def test_an_energy_of_edges_that_go_one_way_is_refused():
    graph = ExtendedPropagation.of(OLD.graph(), links(9, 3))
    with pytest.raises(GraphjouleError, match="A Dirichlet energy needs a graph whose edges go both ways"):
        graph.laplacian.form(normal(12, 2))


@few
@given(edge_lists())
def test_an_extended_operator_is_the_old_one_with_rows_below(edges):
    graph = edges.graph64()
    neighbor = torch.tensor([[0], [graph.num_nodes - 1]])
    n = graph.num_nodes
    p = ExtendedPropagation.of(graph, links_to(neighbor, graph)).to_dense()
    assert p[:n, :n].equal(graph.to_dense())
    assert not p[:n, n:].any()  # no old node sees a new one
    for new, (old,) in enumerate(neighbor.tolist()):
        assert float(p[n + new, n + new]) == pytest.approx(0.5)
        assert float(p[n + new, old]) == pytest.approx(1 / (2 * (float(graph.degree[old]) + 1)) ** 0.5)
        assert int((p[n + new] != 0).sum()) == 2


@pytest.mark.parametrize("num_layers", [1, 5])
def test_a_network_on_it_computes_what_the_dense_operator_gives(num_layers):
    graph = random_edges(num_nodes=9).graph64()
    extended = ExtendedPropagation.of(graph, links_to(torch.tensor([[0, 3], [2, 5], [1, 8]]), graph))
    model = EGNN(4, 6, 3, num_layers).double().eval()
    x = normal(12, 4)
    with torch.no_grad():
        p = extended.to_dense()
        h = x0 = model.encoder(x)
        for conv in model.convs:
            h = ((1 - conv.c_min) * p @ h + (conv.c_min - conv.beta) * h + conv.beta * x0) @ conv.weight
            h = torch.maximum(h, conv.activation.shift)
        expected = model.head(h)
        assert torch.allclose(model(x, extended), expected, atol=1e-12)
        assert torch.allclose(model(x, extended)[:9], model(x[:9], graph), atol=1e-12)


def test_new_nodes_beside_a_graph_without_edges():
    old = no_edges(2).graph64()
    p = ExtendedPropagation.of(old, links_to(torch.tensor([[0, 1]]), old)).to_dense()
    assert torch.allclose(p[2], torch.tensor([3.0, 3.0, 9.0], dtype=torch.float64).rsqrt())
