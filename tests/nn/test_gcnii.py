import math

import pytest
import torch
import torch_geometric.nn as pyg

from graphjoule.nn import GCNII
from graphjoule.ops import make_key
from graphjoule.trace import Trace
from tests.graphs import random_edges
from tests.nn.pyg import DEPTHS, X, close, pyg_edges, randomised


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("num_layers", DEPTHS)
def test_gcnii_is_a_stack_of_pygs_layers(num_layers, weighted):
    graph, index, weight = pyg_edges(weighted=weighted)
    ours = randomised(GCNII(5, 4, 3, num_layers, alpha=0.2, theta=0.7))
    h = h0 = ours.encoder(X)
    for k, conv in enumerate(ours.convs, start=1):
        theirs = pyg.GCN2Conv(4, alpha=0.2, theta=0.7, layer=k).double()
        theirs.load_state_dict({"weight1": conv.weight})
        h = theirs(h, h0, index, weight).relu()
    torch.testing.assert_close(ours(X, graph), ours.head(h), **close)


def test_gcnii_starts_with_glorot_weights_and_has_two_groups():
    torch.manual_seed(0)
    model = GCNII(5, 40, 3, num_layers=3, batch_norm=True)
    bound = (6 / 80) ** 0.5
    assert all(0.9 * bound < conv.weight.abs().max() <= bound for conv in model.convs)
    groups = model.parameter_groups()
    assert groups["conv"] == [f"convs.{k}.weight" for k in range(3)]
    assert {name.split(".")[0] for name in groups["dense"]} == {"encoder", "convs", "head"}
    assert model.penalty() == 0


def test_gcniis_identity_mapping_grows_with_depth():
    strengths = [conv.identity for conv in GCNII(5, 4, 3, num_layers=64, theta=0.5).convs]
    assert strengths == sorted(strengths)
    assert strengths[0] == pytest.approx(1 - math.log(1.5))
    assert strengths[-1] == pytest.approx(1 - math.log(0.5 / 64 + 1))


@pytest.mark.parametrize("num_layers", [3, 70])
@pytest.mark.parametrize("key", [None, make_key(1)], ids=["eval", "training"])
def test_gcnii_watched_layer_by_layer_gives_the_scores_of_its_fused_stack(num_layers, key):
    torch.manual_seed(0)
    model, graph = GCNII(5, 4, 3, num_layers).train(key is not None), random_edges().graph()
    fused = model(X.float(), graph, key=key)
    with Trace(model, graph, watch=["convs.*"]) as trace:
        watched = model(X.float(), graph, key=key)
    assert len(trace.layers) == num_layers
    torch.testing.assert_close(watched, fused, rtol=1e-5, atol=1e-6)
