import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from graphjoule.errors import GraphjouleError
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.nn import GCN
from graphjoule.terms.embeddings import EmbeddingHooks, graph_layers
from tests.graphs import normal, path3, random_edges


def test_every_call_is_measured_anew_and_every_layer_once():
    graph, model = random_edges(9, 14).graph64(), GCN(5, 5, 5, num_layers=3).double().eval()
    hooks = EmbeddingHooks(model, graph, "convs.*", None)
    for seed in (0, 1):
        x = normal(9, 5, seed=seed)
        model(x, graph)
        chain = hooks.chain()
        assert [each.name for each in chain] == ["input of convs.0", "convs.0", "convs.1", "convs.2"]
        assert float(chain[0].log_energy.exp()) == pytest.approx(float(dirichlet_energy(x, graph)))
    hooks.clear()
    with pytest.raises(GraphjouleError, match="call the model first"):
        hooks.chain()
    hooks.remove()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_scores_of_another_width_are_left_free_where_two_layers_remain():
    graph, x = path3().graph(), normal(3, 4, dtype=torch.float32)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    hooks = EmbeddingHooks(model, graph, "*", None)
    model(x)
    assert [each.channels for each in hooks.chain()] == [6, 6]
    short = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    hooks = EmbeddingHooks(short, graph, "*", None)
    short(x)
    assert [each.channels for each in hooks.chain()] == [6, 2]


def test_the_nodes_of_an_edge_index_are_counted_by_the_features():
    edge_index, x = path3().index, normal(5, 4, dtype=torch.float32)  # two nodes without edges
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    hooks = EmbeddingHooks(model, edge_index, None, 5)
    model(x)
    assert len(hooks.chain()) == 3


def test_the_graph_layers_of_a_model_are_its_convs():
    assert graph_layers(GCN(5, 4, 2, num_layers=2)) == "convs.*"
    assert graph_layers(pyg.GAT(5, 4, 2)) == "convs.*"
    assert graph_layers(nn.Linear(2, 2)) is None
