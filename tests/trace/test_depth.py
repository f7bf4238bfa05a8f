import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import Data
from torch_geometric.utils import total_influence

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from graphjoule.nn import EGNN, GCN, SGC
from graphjoule.trace import Trace, reach, with_reach
from tests.graphs import normal, random_edges

EDGES = random_edges(24, 30)
GRAPH, X = EDGES.graph(), normal(24, 5, dtype=torch.float32)


def test_layer_k_of_a_network_reaches_k_hops_and_the_mean_grows():
    model = SGC(5, 4, 3, num_layers=6).train()
    found = reach(model, GRAPH, (X, GRAPH), "convs.*", num_probes=72)
    assert list(found) == [f"convs.{k}" for k in range(6)]
    assert [len(one.influence) - 1 for one in found.values()][:3] == [1, 2, 3]
    means = [one.mean for one in found.values()]
    assert means == sorted(means)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_it_is_what_pyg_computes_node_by_node():
    model = pyg.GCN(5, 6, num_layers=3, out_channels=3).eval()
    data = Data(x=X, edge_index=GRAPH.edge_index)
    expected, _ = total_influence(model, data, max_hops=23, normalize=False)
    found = reach(model, GRAPH, (X, GRAPH.edge_index), "convs.2", num_probes=10**6)["convs.2"]
    torch.testing.assert_close(found.influence.float(), expected[:4], rtol=1e-4, atol=1e-6)
    assert expected[4:].sum() == 0


def test_a_sample_agrees_with_the_full_jacobian_to_its_stated_error():
    torch.manual_seed(0)
    model = EGNN(5, 8, 3, num_layers=8, c_min=0.2, beta=0.1)
    full = reach(model, GRAPH, (X, GRAPH), "convs.7", num_probes=10**6)["convs.7"]
    some = reach(model, GRAPH, (X, GRAPH), "convs.7", num_probes=48)["convs.7"]
    shared = slice(0, min(len(full.influence), len(some.influence)))
    assert full.mean_error < 1e-9
    assert bool(
        ((some.influence[shared] - full.influence[shared]).abs() <= 4 * some.standard_error[shared] + 1e-6).all()
    )
    assert abs(some.mean - full.mean) <= 4 * some.mean_error


def test_of_a_deep_network_some_layers_are_measured():
    found = reach(GCN(5, 4, 3, num_layers=40), GRAPH, (X, GRAPH), num_probes=8)
    numbers = [int(name.removeprefix("convs.")) + 1 for name in found]
    assert numbers[:4] == [1, 2, 3, 5]
    assert numbers[-1] == 40
    assert len(numbers) <= 10


def test_the_source_may_be_a_layer_and_features_may_be_sparse():
    model = EGNN(5, 4, 3, num_layers=4)
    dense = reach(model, GRAPH, (X, GRAPH), num_probes=96)
    sparse = reach(model, GRAPH, (SparseFeatures.from_dense(X), GRAPH), num_probes=96)
    assert sparse["convs.3"].influence.tolist() == pytest.approx(dense["convs.3"].influence.tolist(), rel=1e-4)
    later = reach(model, GRAPH, (X, GRAPH), "convs.*", source="convs.1", num_probes=96)
    assert list(later) == ["convs.2", "convs.3"]  # the layers before it do not depend on it
    assert len(later["convs.3"].influence) - 1 <= 2


def test_rows_of_a_trace_take_it_on():
    model = EGNN(5, 4, 3, num_layers=4)
    trace = with_reach(
        Trace.of(model, GRAPH, (X, GRAPH)), reach(model, GRAPH, (X, GRAPH), ["convs.0", "convs.3"], num_probes=8)
    )
    assert [row.name for row in trace.layers if "reach" in row] == ["convs.0", "convs.3"]
    assert trace.measures[-1] == "reach"
    assert "reach" in trace.table().splitlines()[0]


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, x, graph):
        return self.linear(x.mean(dim=0))


@pytest.mark.parametrize(
    ("model", "inputs", "options", "sentence"),
    [
        (Pooled(), (X, GRAPH), {}, "No output of linear is node features that depend on the input"),
        (SGC(5, 4, 3, num_layers=2), (GRAPH,), {}, "called without node features"),
        (SGC(5, 4, 3, num_layers=2), (X, GRAPH), {"source": "encoder"}, "No module is called 'encoder'"),
    ],
)
def test_what_has_no_reach_is_refused_with_a_sentence(model, inputs, options, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        reach(model, GRAPH, inputs, **options)
