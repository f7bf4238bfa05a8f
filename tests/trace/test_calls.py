import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData

from graphjoule.trace.calls import edges_of, is_edges, named_inputs, read_inputs, rows_of
from tests.graphs import path3, random_edges

from . import single

INDEX, X = path3().index, single(3, 2)


class Model(nn.Module):
    def forward(self, x, edge_index=None, edge_weight=None, *others, batch=None, **more):
        return x


def read(*args, **kwargs):
    return read_inputs(list(named_inputs(Model(), args, kwargs)))


def test_edges_weights_and_batches_are_found_by_name_wherever_they_stand():
    weight, batch = torch.ones(4), torch.zeros(3, dtype=torch.int64)
    for found in (
        read(X, INDEX, weight, batch=batch),
        read(X, edge_weight=weight, edge_index=INDEX, batch=batch),
        read(Data(x=X, edge_index=INDEX, edge_weight=weight, batch=batch)),
    ):
        assert found.edges is INDEX
        assert found.weight is weight
        assert found.batch is batch
        assert found.num_nodes == 3
        assert found.has_graph


def test_a_graph_is_found_by_its_type_and_edges_by_their_shape_where_no_name_tells():
    graph = path3().graph()
    assert read(X, graph).graph is graph

    class Nameless(nn.Module):
        def forward(self, a, b, c=None):
            return a

    found = read_inputs(list(named_inputs(Nameless(), (X, INDEX), {})))
    assert found.edges is INDEX
    assert found.other is None
    other = INDEX.clone()
    assert read_inputs(list(named_inputs(Nameless(), (X, INDEX, other), {}))).other is other
    assert not read_inputs([("x", torch.zeros(2, 5, dtype=torch.int64)), ("edge_label_index", INDEX)]).has_graph
    assert read(X, None, None, INDEX).edges is INDEX  # among *others
    assert read(X, adj_t=INDEX).edges is INDEX  # among **more


def test_a_call_that_does_not_fit_the_signature_is_read_without_names():
    assert list(named_inputs(nn.Linear(2, 2), (X, INDEX), {"a": 1})) == [("", X), ("", INDEX), ("a", 1)]


def test_relations_are_read_from_hetero_data_and_from_mappings():
    data = HeteroData()
    data["paper"].x, data["author"].x = single(3, 2), single(2, 2)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    data["paper", "cites", "paper"].edge_index = INDEX
    expected = {("author", "writes", "paper"), ("paper", "cites", "paper")}
    assert set(read(data).relations) == set(read(data.x_dict, data.edge_index_dict).relations) == expected


def test_a_batch_of_graphs_is_one_graph():
    batch = Batch.from_data_list([Data(x=X, edge_index=INDEX)] * 2)
    found = read(batch)
    assert found.num_nodes == 6
    assert found.batch.tolist() == [0, 0, 0, 1, 1, 1]
    assert int(found.edges.max()) == 5


@pytest.mark.parametrize("form", [torch.Tensor.to_sparse_coo, torch.Tensor.to_sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_matrix_has_targets_as_rows(form):
    dense = torch.tensor([[0.0, 2, 0], [0, 0, 0], [3, 0, 0]])
    adj_t = form(dense)
    assert is_edges(adj_t)
    index, weight = edges_of(adj_t)
    assert index.tolist() == [[1, 0], [0, 2]]
    assert weight.tolist() == [2, 3]


def test_a_sparse_tensor_of_torch_sparse_is_read_by_its_parts():
    class SparseTensor:
        def coo(self):
            return torch.tensor([0, 2]), torch.tensor([1, 0]), None

        def sparse_sizes(self):
            return 3, 3

    assert read(X, SparseTensor()).edges is not None
    assert edges_of(SparseTensor())[0].tolist() == [[1, 0], [0, 2]]


def test_what_is_no_edges():
    for value in (X, INDEX.float(), INDEX.t(), INDEX.bool(), INDEX[0], None, 3, single(3, 2).to_sparse()):
        assert not is_edges(value)
    assert edges_of(INDEX, torch.ones(3))[1] is None  # of other edges
    assert edges_of(INDEX, is_reversed=True)[0].equal(INDEX.flip(0))


def test_rows_are_those_of_the_features_or_of_a_pair():
    x = single(5, 2)
    assert rows_of([("x", x), ("edge_index", INDEX)]) == (5, 5, False)
    assert rows_of([("x", (x, x))]) == (5, 5, False)
    assert rows_of([("x", (x, x[:5]))]) == (5, 5, False)  # a view of all rows
    assert rows_of([("x", (x, x[:2]))]) == (5, 2, True)
    assert rows_of([("x", (x, None))]) == (5, None, True)
    assert rows_of([("x", None), ("pos", x)]) == (5, 5, False)
    assert rows_of([("edge_index", random_edges().index)]) == (None, None, False)
    assert torch.vmap(lambda y: torch.tensor(rows_of([("x", (y, y + 0))])[2]))(single(2, 5, 2)).tolist() == [True] * 2
