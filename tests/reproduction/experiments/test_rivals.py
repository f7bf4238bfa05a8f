"""The rivals compute what their papers say."""

import numpy as np
import torch
from torch_geometric.nn import AntiSymmetricConv, GCNConv

from graphjoule import Propagation
from reproduction.experiments import rivals


def test_adgn_is_the_layer_of_pyg():
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 1, 2, 2, 3, 0, 3], [1, 0, 2, 1, 3, 2, 3, 0]])
    model, x = rivals.ADGN(3, 8, 2, num_layers=5, epsilon=0.3, gamma=0.2), torch.randn(4, 8)
    layer = AntiSymmetricConv(8, GCNConv(8, 8, bias=False), num_iters=5, epsilon=0.3, gamma=0.2)
    with torch.no_grad():
        layer.W.copy_(model.turn.weight)
        layer.phi.lin.weight.copy_(model.conv.linear.weight)
        layer.bias.copy_(model.conv.bias.normal_())
    found = model.propagated(x, Propagation.from_edge_index(edges))
    torch.testing.assert_close(found, layer(x, edges))


def test_graphs_and_encodings_of_nodes():
    batch, walk = rivals._places("ring-3", "walk", torch.device("cpu"))
    assert torch.equal(batch[:14], torch.tensor([0] * 6 + [1] * 6 + [2] * 2))
    assert walk[:, :4].unique(dim=0).tolist() == [[0.0, 0.5, 0.0, 0.375]]  # back after 2 and 4 steps
    _, waves = rivals._places("ring-3", "laplacian", torch.device("cpu"))
    ring = waves[:6, :5].double().numpy()
    np.testing.assert_allclose(ring.T @ ring / 6, np.eye(5), atol=1e-6)
