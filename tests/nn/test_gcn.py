import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from graphjoule.nn import GCN, GCNConv
from tests.graphs import normal, random_edges


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2, 5])
def test_it_is_a_stack_of_pygs_layers(num_layers, weighted):
    import torch_geometric.nn
    from torch_geometric.utils import coalesce, remove_self_loops

    edges, x = random_edges(weighted=weighted), normal(9, 5)
    # PyG counts duplicates twice and a self-loop as the added one; ours are merged and dropped, as the paper wants.
    index, weight = coalesce(*remove_self_loops(edges.index, edges.weight), reduce="sum")
    ours = GCN(5, 4, 3, num_layers).double().eval()
    h = x
    for k, conv in enumerate(ours.convs):
        theirs = torch_geometric.nn.GCNConv(conv.linear.in_features, conv.linear.out_features).double()
        torch.nn.init.normal_(conv.bias)
        theirs.load_state_dict({"lin.weight": conv.linear.weight, "bias": conv.bias})
        h = theirs(h, index, weight)
        h = h.relu() if k < num_layers - 1 else h
    torch.testing.assert_close(ours(x, edges.graph64()), h, rtol=1e-10, atol=1e-12)


def test_weights_start_as_glorot_and_biases_at_zero():
    torch.manual_seed(0)
    conv = GCNConv(30, 20)
    bound = (6 / 50) ** 0.5
    assert 0.95 * bound < conv.linear.weight.abs().max() <= bound
    assert conv.bias.count_nonzero() == 0


def test_there_is_one_group_and_no_penalty():
    model = GCN(5, 4, 3, num_layers=2, batch_norm=True)
    assert model.parameter_groups() == {"all": [name for name, _ in model.named_parameters()]}
    assert model.penalty() == 0


def test_batch_norm_stands_before_each_relu_and_not_after_the_last_layer():
    model = GCN(5, 4, 3, num_layers=3, batch_norm=True)
    norms = [isinstance(conv.norm, torch.nn.BatchNorm1d) for conv in model.convs]
    relus = [isinstance(conv.activation, torch.nn.ReLU) for conv in model.convs]
    assert norms == relus == [True, True, False]


def test_a_layer_takes_sparse_features():
    conv, graph = GCNConv(5, 4).double(), random_edges().graph64()
    x = normal(9, 5) * (normal(9, 5, seed=1) > 0)
    torch.testing.assert_close(conv(SparseFeatures.from_dense(x), graph), conv(x, graph))


def test_an_unknown_activation_is_refused():
    with pytest.raises(GraphjouleError, match="activation is 'srelu'; choose one of relu, linear"):
        GCNConv(5, 4, activation="srelu")
