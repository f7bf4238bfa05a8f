import pytest
import torch
import torch_geometric.nn as pyg

from graphjoule.nn import APPNP, APPNPStep
from graphjoule.ops import make_key
from tests.graphs import random_edges
from tests.nn.pyg import DEPTHS, X, close, pyg_edges, randomised


@pytest.mark.parametrize("alpha", [0.1, 1.0])
@pytest.mark.parametrize("num_layers", DEPTHS)
def test_appnp_is_an_mlp_and_pygs_steps(num_layers, alpha):
    graph, index, weight = pyg_edges()
    ours = randomised(APPNP(5, 4, 3, num_layers, alpha=alpha))
    z0 = ours.second(ours.first(X).relu())
    theirs = pyg.APPNP(K=num_layers, alpha=alpha).double()(z0, index, weight)
    torch.testing.assert_close(ours(X, graph), theirs, **close)


def test_pygs_appnp_runs_out_of_edges_and_ours_does_not():
    """After ten steps at rate 0.5 a thousandth of PyG's entries is left; ours still spread the features."""
    graph, index, _ = pyg_edges(weighted=False)
    x = torch.ones(9, 1, dtype=torch.float64)
    torch.manual_seed(0)
    theirs = pyg.APPNP(K=10, alpha=0.0, dropout=0.5).double().train()
    dead = [float(theirs(x, index).count_nonzero()) / 9 for _ in range(50)]
    assert sum(dead) / 50 < 0.05
    hop, alive = APPNPStep(alpha=0.0, edge_dropout=0.5), []
    for seed in range(50):
        z = x
        for k in range(10):
            z = hop(z, x, graph, make_key(100 * seed + k))
        alive.append(float(z.count_nonzero()) / 9)
    assert sum(alive) / 50 > 0.3


def test_appnp_draws_other_entries_at_every_step():
    model, graph, seen = APPNP(5, 4, 3, 4, alpha=0.0, dropout=0.0, edge_dropout=0.5), random_edges().graph(), []
    for conv in model.convs:
        conv.register_forward_hook(lambda module, inputs, output: seen.append(inputs[3]))
    model(X.float(), graph, key=make_key(0))
    assert len({tuple(key.tolist()) for key in seen}) == 4
