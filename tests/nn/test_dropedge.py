import pytest
import torch

from graphjoule.nn import MODELS, DropEdgeGCN
from graphjoule.ops import make_key, split_key
from graphjoule.ops.edge_dropout import EdgeSubset
from tests.graphs import random_edges
from tests.nn.pyg import DEPTHS, X, close, pyg_conv, pyg_edges, randomised


@pytest.mark.parametrize("num_layers", DEPTHS)
def test_dropedge_trains_as_pygs_convolutions_on_the_edges_that_are_left(num_layers):
    graph, index, weight = pyg_edges()
    ours, key = randomised(DropEdgeGCN(5, 4, 3, num_layers, dropout=0.0, edge_dropout=0.4)), make_key(5)
    eye = torch.eye(9, dtype=torch.float64)
    kept = EdgeSubset.draw(graph, 0.4, split_key(key, num_layers + 2)[0]).propagate(eye) != 0
    is_left = kept[index[0], index[1]]
    assert 0 < is_left.sum() < len(is_left)
    h = X
    for k, conv in enumerate(ours.convs):
        h = pyg_conv(conv)(h, index[:, is_left], weight[is_left])
        h = h.relu() if k < num_layers - 1 else h
    torch.testing.assert_close(ours.train()(X, graph, key=key), h, **close)


def test_dropedge_evaluates_on_the_whole_graph_as_gcn_does():
    dropedge = randomised(DropEdgeGCN(5, 4, 3, 3, edge_dropout=0.9))
    gcn = MODELS["gcn"](5, 4, 3, 3).double().eval()
    gcn.load_state_dict(dropedge.state_dict())
    assert dropedge(X, random_edges().graph64()).equal(gcn(X, random_edges().graph64()))


def test_dropedge_without_a_rate_trains_as_gcn_does():
    dropedge = randomised(DropEdgeGCN(5, 4, 3, 3, edge_dropout=0.0)).train()
    gcn = MODELS["gcn"](5, 4, 3, 3).double().train()
    gcn.load_state_dict(dropedge.state_dict())
    graph, key = random_edges().graph64(), make_key(2)
    assert dropedge(X, graph, key=key).equal(gcn(X, graph, key=key))
