import pytest
import torch
import torch_geometric.nn as pyg

from graphjoule.nn import JKNet
from graphjoule.ops import make_key
from tests.graphs import random_edges
from tests.nn.pyg import DEPTHS, X, close, pyg_conv, pyg_edges, randomised


@pytest.mark.parametrize("num_layers", DEPTHS)
def test_jknet_is_pygs_convolutions_and_jumping_knowledge(num_layers):
    graph, index, weight = pyg_edges()
    ours, layers = randomised(JKNet(5, 4, 3, num_layers)), [X]
    for conv in ours.convs:
        layers.append(pyg_conv(conv)(layers[-1], index, weight).relu())
    torch.testing.assert_close(ours(X, graph), ours.head(pyg.JumpingKnowledge("max")(layers[1:])), **close)


def test_jknet_drops_after_its_layers_and_not_on_its_input():
    model = JKNet(5, 4, 3, 1, dropout=1 - 2**-16)  # everything that is dropped is gone
    scores = model(X.float(), random_edges().graph(), key=make_key(0))
    torch.testing.assert_close(scores, model.head.bias.expand(9, 3))
    seen = []
    model.convs[0].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model(X.float(), random_edges().graph(), key=make_key(0))
    assert seen[0].equal(X.float())
