"""The peer computes what ours computes, or the comparison is about nothing."""

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from graphjoule.graph import Propagation
from graphjoule.training import SeedBatch, architecture_of, build_model
from graphjoule.training.recipe import load_recipe
from reproduction.bench import CitationGraph
from reproduction.bench.peer import PeerEGNN, PeerGCNII, PeerTraining, peer_graph

PLAIN = {"dropout": 0.0, "output_dropout": 0.0, "hidden_channels": 8, "split": "public", "srelu_init": -0.2}
SETTINGS = {
    "as on cora": {},
    "as on arxiv": {"encoder": "mlp", "batch_norm": True},
    "first weight scaled": {"c_max": 0.25, "gamma": 0.5},  # its root is exact in float32 and float64
    "all of c_min to the encoder": {"c_min": 0.11, "beta": 0.11, "normalize_features": True},
}
both_paths = pytest.mark.parametrize("fused", [False, True], ids=["messages", "csr"])
all_settings = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


@pytest.fixture(scope="module")
def task():
    return CitationGraph(num_nodes=60, num_edges=150, num_features=12, num_classes=3).task("small")


def recipe_of(settings, **more):
    return load_recipe("egnn", "small", 6, {**PLAIN, **settings, **more})


def as_peer(state):
    """Our parameters under the peer's names."""
    return {name.replace(".activation.", "."): value for name, value in state.items()}


def moved_model(recipe, task):
    """Our model away from its initial point, where the penalty has a gradient and SReLU cuts something."""
    model = build_model(recipe, task, seed=3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def in_float64(task):
    """The same task with an operator that never was float32: a rounded one would differ from PyG's by 1e-8."""
    edges = torch.stack([task.graph.row(), task.graph.col.long()])
    graph = Propagation.from_edge_index(edges, num_nodes=task.num_nodes, dtype=torch.float64)
    return replace(task, features=task.features.double(), graph=graph)


@both_paths
@all_settings
def test_logits_are_the_same(task, settings, fused):
    recipe = recipe_of(settings)
    ours = moved_model(recipe, task).eval()
    theirs = PeerEGNN(task.num_features, task.out_channels, recipe).eval()
    theirs.load_state_dict(as_peer(ours.state_dict()))
    with torch.no_grad():
        torch.testing.assert_close(
            theirs(task.features, *peer_graph(task.graph, fused=fused)),
            ours(task.features, task.graph),
            atol=1e-5,
            rtol=1e-5,
        )


@both_paths
@all_settings
def test_loss_and_gradients_are_the_same(task, settings, fused):
    recipe, task = recipe_of(settings), in_float64(task)
    ours = moved_model(recipe, task).double().train()
    theirs = PeerEGNN(task.num_features, task.out_channels, recipe).double().train()
    theirs.load_state_dict(as_peer(ours.state_dict()))
    our_loss = F.cross_entropy(ours(task.features, task.graph), task.targets) + ours.penalty()
    their_logits = theirs(task.features, *peer_graph(task.graph, fused=fused))
    their_loss = F.cross_entropy(their_logits, task.targets) + theirs.penalty()
    torch.testing.assert_close(their_loss, our_loss)
    our_loss.backward()
    their_loss.backward()
    expected = as_peer({name: parameter.grad for name, parameter in ours.named_parameters()})
    torch.testing.assert_close({n: p.grad for n, p in theirs.named_parameters()}, expected, atol=1e-12, rtol=1e-10)


@both_paths
@all_settings
def test_an_epoch_is_the_same(task, settings, fused):
    recipe = recipe_of(settings, **{"weight_decay.conv": 0.3, "weight_decay.dense": 0.2, "weight_decay.shift": 0.1})
    runs = SeedBatch(architecture_of(recipe), recipe, task, [0], [task.split("public")])
    theirs = PeerTraining(recipe, task, fused=fused)
    theirs.model.load_state_dict(as_peer(runs.current_model(0).state_dict()))
    for epoch in range(3):
        runs.train_epoch()
        row = [theirs.train_step(), *theirs.evaluate()]
        torch.testing.assert_close(torch.tensor(row), runs.curve[0, epoch], atol=1e-5, rtol=1e-4)
    expected = as_peer(runs.current_model(0).state_dict())
    torch.testing.assert_close(dict(theirs.model.state_dict()), expected, atol=2e-4, rtol=1e-3)


GCNII = {"dropout": 0.0, "hidden_channels": 8, "split": "public", "alpha": 0.2, "theta": 0.7}
gcnii_settings = pytest.mark.parametrize("settings", [{}, {"batch_norm": True}], ids=["plain", "batch norm"])


def gcnii_as_peer(state):
    """Our parameters of GCNII under the peer's names."""
    names = {name: re.sub(r"convs\.(\d+)\.norm\.", r"norms.\1.", name) for name in state}
    return {re.sub(r"^(convs\.\d+\.weight)$", r"\g<1>1", names[name]): value for name, value in state.items()}


@both_paths
@gcnii_settings
def test_gcnii_has_the_same_loss_and_gradients(task, settings, fused):
    recipe, task = load_recipe("gcnii", "small", 6, {**GCNII, **settings}), in_float64(task)
    ours = moved_model(recipe, task).double().train()
    theirs = PeerGCNII(task.num_features, task.out_channels, recipe).double().train()
    theirs.load_state_dict(gcnii_as_peer(ours.state_dict()))
    our_loss = F.cross_entropy(ours(task.features, task.graph), task.targets)
    their_loss = F.cross_entropy(theirs(task.features, *peer_graph(task.graph, fused=fused)), task.targets)
    torch.testing.assert_close(their_loss, our_loss, rtol=1e-10, atol=0)
    our_loss.backward()
    their_loss.backward()
    expected = gcnii_as_peer({name: parameter.grad for name, parameter in ours.named_parameters()})
    torch.testing.assert_close({n: p.grad for n, p in theirs.named_parameters()}, expected, atol=1e-12, rtol=1e-10)


@both_paths
@gcnii_settings
def test_an_epoch_of_gcnii_is_the_same(task, settings, fused):
    decay = {"weight_decay.conv": 0.3, "weight_decay.dense": 0.2}
    recipe = load_recipe("gcnii", "small", 6, {**GCNII, **settings, **decay})
    runs, theirs = (
        SeedBatch(architecture_of(recipe), recipe, task, [0], [task.split("public")]),
        PeerTraining(recipe, task, fused=fused),
    )
    theirs.model.load_state_dict(gcnii_as_peer(runs.current_model(0).state_dict()))
    for epoch in range(3):
        runs.train_epoch()
        row = [theirs.train_step(), *theirs.evaluate()]
        torch.testing.assert_close(torch.tensor(row), runs.curve[0, epoch], atol=1e-5, rtol=1e-4)
    expected = gcnii_as_peer(runs.current_model(0).state_dict())
    torch.testing.assert_close(dict(theirs.model.state_dict()), expected, atol=2e-4, rtol=1e-3)


def test_the_peer_starts_where_the_paper_does(task):
    recipe = recipe_of({"c_max": 0.25})
    ours, theirs = build_model(recipe, task, seed=0), PeerEGNN(task.num_features, task.out_channels, recipe)
    expected = as_peer(ours.state_dict())
    for name, value in theirs.state_dict().items():
        if name.startswith("convs"):
            assert value.equal(expected[name]), name
    assert theirs.penalty().item() == 0


def test_every_parameter_of_the_peer_is_trained(task):
    gcnii = load_recipe("gcnii", "small", 6, {**GCNII, "batch_norm": True})
    for recipe in (recipe_of(SETTINGS["as on arxiv"]), gcnii):
        training = PeerTraining(recipe, task, fused=False)
        grouped = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
        assert {id(p) for p in grouped} == {id(p) for p in training.model.parameters()}
        assert len(grouped) == len(list(training.model.parameters()))


def test_dropout_is_on_in_training_and_off_in_evaluation(task):
    training = PeerTraining(recipe_of({}, dropout=0.5), task, fused=False)
    assert training.evaluate() == training.evaluate()
    training.model.train()
    scores = [training.model(training.x, training.adj, training.edge_weight) for _ in range(2)]
    assert not scores[0].equal(scores[1])
