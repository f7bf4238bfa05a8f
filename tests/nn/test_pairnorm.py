import pytest
import torch
import torch_geometric.nn as pyg

from graphjoule.nn import PairNorm, PairNormGCN
from tests.graphs import normal
from tests.nn.pyg import DEPTHS, X, close, pyg_conv, pyg_edges, randomised


@pytest.mark.parametrize("num_layers", DEPTHS)
def test_pairnorm_is_pygs_convolutions_and_its_normalisation(num_layers):
    graph, index, weight = pyg_edges()
    ours, h = randomised(PairNormGCN(5, 4, 3, num_layers, scale=2.0)), X
    for k, conv in enumerate(ours.convs):
        h = pyg_conv(conv)(h, index, weight)
        h = pyg.PairNorm(scale=2.0)(h).relu() if k < num_layers - 1 else h
    torch.testing.assert_close(ours(X, graph), h, **close)


def test_pairnorm_leaves_the_mean_at_zero_and_the_total_distance_at_its_scale():
    x = PairNorm(3.0)(5 * normal(50, 8) + 2)
    torch.testing.assert_close(x.mean(dim=0), torch.zeros(8, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(x.square().sum(dim=1).mean().sqrt(), torch.tensor(3.0).double(), rtol=1e-6, atol=0)
    assert PairNorm()(torch.zeros(4, 2)).equal(torch.zeros(4, 2))


def test_pygs_gcn_takes_the_width_for_pairnorms_scale_and_ours_does_not():
    assert pyg.GCN(5, 64, 2, norm="PairNorm").norms[0].scale == 64
    assert {conv.norm.scale for conv in PairNormGCN(5, 64, 3, 4).convs[:-1]} == {1.0}
    assert isinstance(PairNormGCN(5, 64, 3, 4).convs[-1].norm, torch.nn.Identity)
