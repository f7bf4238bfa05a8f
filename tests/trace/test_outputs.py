import pytest
import torch
from torch import nn

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from graphjoule.trace import Trace
from graphjoule.trace.outputs import count_nodes, find_features
from tests.graphs import no_edges, path3

from . import Odd, Plain, energy, hooks, names, norm, single


@pytest.mark.parametrize(
    "give",
    [
        lambda h: (torch.zeros(7, 1), h),  # edge features first
        lambda h: [None, {"h": h}],
        lambda h: h.to_sparse(),
        lambda h: SparseFeatures.from_dense(h),
        lambda h: h.view(3, 2, 2),  # heads
        lambda h: (h, h.new_zeros(4, 2)),
    ],
)
def test_node_features_are_found_in_tuples_lists_mappings_sparse_tensors_and_heads(give):
    model, x = Odd(give), single(3, 2)
    with torch.no_grad(), Trace(nn.Sequential(model), path3().graph(), watch=["0"]) as trace:
        model(x)
    (row,) = trace.layers
    assert (row.channels, row.run) == (4, None)
    assert row.energy == pytest.approx(energy(model.linear(x), path3()), rel=1e-6)


@pytest.mark.parametrize("output", [None, 3, torch.zeros(3), torch.zeros(3, 2, dtype=torch.int64), torch.zeros(4, 2)])
def test_what_is_no_node_features_is_left_alone(output):
    assert find_features(output, 3) is None


def test_the_number_of_nodes_is_taken_from_the_models_input_not_from_a_wide_output():
    """The first output here has more rows than there are nodes, one per edge."""

    class Edgewise(nn.Module):
        def __init__(self):
            super().__init__()
            self.edge, self.node = nn.Linear(1, 2), nn.Linear(2, 2)

        def forward(self, x, edge_index):
            self.edge(torch.ones(edge_index.size(1), 1))
            return self.node(x)

    model, edges = Edgewise(), path3()
    for inputs, options in [((single(3, 2), edges.index), {}), ((single(3, 2), edges.index), {"num_nodes": 3})]:
        with Trace(model, edges.index, **options) as trace:
            model(*inputs)
        assert names(trace) == ["node"]
    with Trace(model, edges.index) as trace:
        model(edge_index=edges.index, x=single(3, 2))
    assert names(trace) == ["node"]


def test_the_number_of_nodes_is_told_by_features_before_edge_features_or_by_a_graph():
    index = path3().index
    assert count_nodes([index, torch.zeros(4, 7), torch.zeros(3, 2)], index) == 3  # four edges
    assert count_nodes([index, torch.zeros(4, 7)], index) == 4
    assert count_nodes([path3().graph()], index) == 3
    assert count_nodes([torch.zeros(2, 2)], index) is None  # node 2 would be missing
    assert count_nodes([torch.zeros(5, 3, 2)], index) == 3  # five runs
    assert count_nodes([SparseFeatures.from_dense(torch.ones(3, 2))], index) == 3


def test_a_directed_edge_index_is_refused():
    model = Plain()
    with pytest.raises(GraphjouleError, match="symmetrize=True"), Trace(model, torch.tensor([[0], [1]])):
        model(torch.ones(3, 2))
    assert hooks(model) == 0


@pytest.mark.parametrize("edges", [no_edges(1), no_edges(4)])
def test_no_edges_and_one_node_have_no_energy(edges):
    model = nn.Sequential(nn.Linear(2, 3))
    with Trace(model, edges.index) as trace:
        out = model(single(edges.num_nodes, 2))
    (row,) = trace.layers
    assert row.energy == row["rayleigh"] == 0
    assert row.norm == pytest.approx(norm(out))


def test_outputs_that_are_no_tensors_are_told_by_their_type():
    model = nn.ModuleDict({"odd": Odd(lambda h: h.argmax(dim=1))})
    with pytest.warns(UserWarning, match=r"odd \[3\] int64\."), Trace(model, path3().graph(), watch="odd"):
        model["odd"](torch.ones(3, 2))
    model = nn.ModuleDict({"odd": Odd(lambda h: "text")})
    with pytest.warns(UserWarning, match=r"odd str\."), Trace(model, path3().graph(), watch="odd"):
        model["odd"](torch.ones(3, 2))


@pytest.mark.parametrize(
    ("model", "graph", "said"),
    [
        (torch.ones(3, 2), path3().index, r"The model is of type Tensor; expected a torch\.nn\.Module\."),
        (3, path3().index, "The model is of type int; expected a torch"),
        (Plain(), path3().index.float(), r"edge_index has shape \[2, 4\] and dtype torch\.float32; expected \[2, num_"),
        (Plain(), path3().index.t(), r"edge_index has shape \[4, 2\]"),
        (Plain(), path3().index[0], r"edge_index has shape \[4\]"),
        (Plain(), path3().index.bool(), "dtype torch.bool"),
        (Plain(), path3().index.numpy(), "The graph is of type ndarray; expected a Propagation, or an edge_index"),
    ],
)
def test_what_is_no_model_and_what_is_no_graph_is_refused_at_once(model, graph, said):
    with pytest.raises(GraphjouleError, match=said):
        Trace(model, graph)
