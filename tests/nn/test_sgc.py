import pytest
import torch
import torch_geometric.nn as pyg

from graphjoule.graph.features import SparseFeatures
from graphjoule.nn import SGC
from graphjoule.ops import make_key, propagate
from tests.graphs import random_edges
from tests.nn.pyg import DEPTHS, X, close, pyg_edges, randomised


@pytest.mark.parametrize("num_layers", DEPTHS)
def test_sgc_is_pygs(num_layers):
    graph, index, weight = pyg_edges()
    ours = randomised(SGC(5, 64, 3, num_layers))
    theirs = pyg.SGConv(5, 3, K=num_layers, bias=False).double()
    theirs.load_state_dict({"lin.weight": ours.linear.weight})
    torch.testing.assert_close(ours(X, graph), theirs(X, index, weight), **close)


def test_sgc_has_one_weight_and_neither_bias_nor_dropout():
    model = SGC(5, 64, 3, 8)
    assert [(name, list(parameter.shape)) for name, parameter in model.named_parameters()] == [
        ("linear.weight", [3, 5])
    ]
    graph = random_edges().graph()
    assert model(X.float(), graph, key=make_key(0)).equal(model.eval()(X.float(), graph))


def test_the_steps_of_sgc_are_the_powers_of_p():
    model, graph, seen = SGC(5, 64, 3, 3).double(), random_edges().graph64(), []
    for conv in model.convs:
        conv.register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(SparseFeatures.from_dense(X), graph)
    h = X @ model.linear.weight.t()
    for output in seen:
        h = propagate(h, graph)
        torch.testing.assert_close(output, h, **close)
