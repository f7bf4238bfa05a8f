import pytest
import torch
from hypothesis import given

from graphjoule.classifier.inductive import extend_graph, nearest_rows
from graphjoule.nn import EGNN
from tests.graphs import edge_lists, few, no_edges, normal, random_edges


def test_the_nearest_rows_are_those_of_all_distances():
    x, reference = normal(20, 3), normal(30, 3, seed=1)
    order = torch.cdist(x, reference).argsort(dim=1)[:, :4]
    assert nearest_rows(x, reference, 4).equal(order.sort(dim=1).values)


def test_of_equally_near_rows_the_lower_index_is_taken():
    reference = torch.zeros(9, 2)
    assert nearest_rows(torch.zeros(2, 2), reference, 3).tolist() == [[0, 1, 2]] * 2
    assert nearest_rows(torch.zeros(1, 2), reference, 9).tolist() == [list(range(9))]


@few
@given(edge_lists())
def test_an_extended_operator_is_the_old_one_with_rows_below(edges):
    graph = edges.graph64()
    neighbor = torch.tensor([[0], [graph.num_nodes - 1]])
    n, p = graph.num_nodes, extend_graph(graph, neighbor).to_dense()
    assert p[:n, :n].equal(graph.to_dense())
    assert not p[:n, n:].any()  # no old node sees a new one
    for new, (old,) in enumerate(neighbor.tolist()):
        assert float(p[n + new, n + new]) == 0.5
        assert float(p[n + new, old]) == pytest.approx(1 / (2 * (float(graph.degree[old]) + 1)) ** 0.5)
        assert int((p[n + new] != 0).sum()) == 2


@pytest.mark.parametrize("num_layers", [1, 5])
def test_a_network_on_it_computes_what_the_dense_operator_gives(num_layers):
    graph = random_edges(num_nodes=9).graph64()
    extended = extend_graph(graph, torch.tensor([[0, 3], [2, 5], [1, 8]]))
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
    p = extend_graph(no_edges(2).graph64(), torch.tensor([[0, 1]])).to_dense()
    assert torch.allclose(p[2], torch.tensor([3.0, 3.0, 9.0], dtype=torch.float64).rsqrt())
