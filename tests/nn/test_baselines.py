"""The baselines beside PyTorch Geometric's layers on the same weights, and where that library does something else."""

import math

import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.utils import coalesce, remove_self_loops

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from graphjoule.nn import APPNP, GCNII, MODELS, SGC, APPNPStep, DropEdgeGCN, GCNIIConv, JKNet, PairNorm, PairNormGCN
from graphjoule.ops import make_key, propagate, split_key
from graphjoule.ops.edge_dropout import EdgeSubset
from graphjoule.trace import Trace
from tests.graphs import normal, random_edges

X = normal(9, 5)
DEPTHS = [1, 2, 5]
close = {"rtol": 1e-10, "atol": 1e-12}


def pyg_edges(*, weighted=True):
    """The graph twice: ours, and as PyG wants it (it counts duplicates twice and takes a self-loop for its own)."""
    edges = random_edges(weighted=weighted)
    return edges.graph64(), *coalesce(*remove_self_loops(edges.index, edges.weight), reduce="sum")


def randomised(model):
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=k))
    return model.double().eval()


def pyg_conv(conv):
    theirs = pyg.GCNConv(conv.linear.in_features, conv.linear.out_features).double()
    theirs.load_state_dict({"lin.weight": conv.linear.weight.double(), "bias": conv.bias.double()})
    return theirs


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


@pytest.mark.parametrize("name", MODELS)
def test_a_trace_sees_every_graph_layer_of_every_model(name):
    model, graph = MODELS[name](5, 4, 3, num_layers=6).eval(), random_edges().graph()
    before = model(X.float(), graph)
    with Trace(model, graph, watch=["convs.*"]) as trace:
        torch.testing.assert_close(model(X.float(), graph), before)
    assert [layer.name for layer in trace.layers] == [f"convs.{k}" for k in range(6)]


def test_the_steps_of_sgc_are_the_powers_of_p():
    model, graph, seen = SGC(5, 64, 3, 3).double(), random_edges().graph64(), []
    for conv in model.convs:
        conv.register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(SparseFeatures.from_dense(X), graph)
    h = X @ model.linear.weight.t()
    for output in seen:
        h = propagate(h, graph)
        torch.testing.assert_close(output, h, **close)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: PairNormGCN(5, 4, 3, 2, scale=0.0), "scale is 0.0; it must be positive"),
        (lambda: PairNorm(math.nan), "scale is nan; it must be positive"),
        (lambda: DropEdgeGCN(5, 4, 3, 2, edge_dropout=1.0), r"edge_dropout is 1.0; it must be in \[0, 1\)"),
        (lambda: APPNP(5, 4, 3, 2, edge_dropout=-0.1), r"edge_dropout is -0.1; it must be in \[0, 1\)"),
        (lambda: APPNP(5, 4, 3, 2, alpha=1.1), r"alpha is 1.1; it must be in \[0, 1\]"),
        (lambda: GCNII(5, 4, 3, 2, alpha=-1.0), r"alpha is -1.0; it must be in \[0, 1\]"),
        (lambda: GCNII(5, 4, 3, 2, theta=0.0), "theta is 0.0; it must be positive"),
        (lambda: GCNIIConv(4, dropout=1.0), r"dropout is 1.0; it must be in \[0, 1\)"),
    ],
)
def test_settings_outside_their_range_are_refused_with_a_sentence(build, sentence):
    with pytest.raises(GraphjouleError, match=f"^{sentence}"):
        build()
