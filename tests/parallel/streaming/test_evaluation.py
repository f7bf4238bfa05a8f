import gc

import pytest
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import SparseFeatures
from graphjoule.nn import MODELS
from graphjoule.parallel.streaming import evaluate_in_blocks
from reproduction.bench import CitationGraph
from tests.graphs import no_edges, normal, path3, random_edges
from tests.ops.live_bytes import LiveBytes

NUM_NODES, NUM_FEATURES, NUM_CLASSES = 60, 12, 4
NORMALISED = {name: {"batch_norm": True} for name in MODELS if name != "pairnorm"}


def features(num_nodes: int = NUM_NODES, *, sparse: bool = False) -> Tensor | SparseFeatures:
    x = normal(num_nodes, NUM_FEATURES)
    return SparseFeatures.from_dense(x * (x > 1)) if sparse else x


def used_model(name: str, x, graph, num_layers: int = 5, **options):
    """A model that has been in training once, so that its batch norms know something."""
    torch.manual_seed(0)
    model = MODELS[name](NUM_FEATURES, 8, NUM_CLASSES, num_layers, **options).double()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.train()(x, graph)
    return model.eval()


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("block_bytes", [1, 500, 2**26])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_every_model_scores_as_its_own_forward_does(name, block_bytes, sparse):
    x, graph = features(sparse=sparse), random_edges(NUM_NODES, 150, weighted=True).graph64()
    for options in ({}, NORMALISED.get(name, {})):
        model = used_model(name, x, graph, **options)
        scores = evaluate_in_blocks(model, x, graph, block_bytes=block_bytes)
        assert type(scores) is Tensor
        torch.testing.assert_close(scores, model(x, graph), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_in_single_precision_it_differs_by_rounding(name):
    x, graph = features(), random_edges(NUM_NODES, 150).graph()
    model = used_model(name, x, random_edges(NUM_NODES, 150).graph64()).float()
    scores = evaluate_in_blocks(model, x.float(), graph, block_bytes=300)
    torch.testing.assert_close(scores, model(x.float(), graph), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("edges", [no_edges(1), no_edges(7), path3()], ids=["one node", "no edges", "path"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_small_and_empty_graphs(name, edges):
    x, graph = features(edges.num_nodes), edges.graph64()
    model = used_model(name, x, graph)
    torch.testing.assert_close(
        evaluate_in_blocks(model, x, graph, block_bytes=64), model(x, graph), rtol=1e-11, atol=1e-12
    )


@torch.no_grad()
def test_an_energetic_network_of_the_largest_benchmark_with_an_mlp_encoder():
    x, graph = features(), random_edges(NUM_NODES, 150).graph64()
    model = used_model("egnn", x, graph, 12, encoder="mlp", batch_norm=True, activation="linear")
    torch.testing.assert_close(evaluate_in_blocks(model, x, graph, block_bytes=100), model(x, graph))


def test_a_model_in_training_is_evaluated_and_its_input_is_left_alone():
    x, graph = features(), random_edges(NUM_NODES, 150).graph64()
    model, before = used_model("gcn", x, graph, batch_norm=True), x.clone()
    first = evaluate_in_blocks(model.train(), x, graph, block_bytes=100)
    assert not model.training
    assert not first.requires_grad
    assert first.equal(evaluate_in_blocks(model, x, graph, block_bytes=100))
    assert x.equal(before)


def peak_activations(name: str, num_layers: int) -> float:
    """Peak memory of an evaluation, in activations of all nodes."""
    task = CitationGraph(5_000, 10_000, num_features=NUM_FEATURES, num_classes=NUM_CLASSES).task("citations")
    model = MODELS[name](NUM_FEATURES, 32, NUM_CLASSES, num_layers).eval()
    gc.collect()
    with LiveBytes() as memory:
        evaluate_in_blocks(model, task.features, task.graph, block_bytes=2**16)
    return memory.peak / (5_000 * 32 * 4)


@pytest.mark.parametrize("name", ["egnn", "gcn", "jknet", "pairnorm"])
def test_memory_is_a_few_activations_at_any_depth(name):
    shallow, deep = peak_activations(name, 3), peak_activations(name, 9)
    assert 1 < shallow < 7  # P itself was there before
    assert deep == pytest.approx(shallow, rel=0.02)


class Sorting(MODELS["gcn"]):
    """A model that no block of rows can follow."""

    def _forward(self, x, graph, keys):
        return super()._forward(x, graph, keys).sort(dim=0).values


def test_a_model_that_needs_all_rows_at_once_is_refused_by_what_it_calls():
    x, graph = features(), random_edges(NUM_NODES, 150).graph64()
    with pytest.raises(GraphjouleError, match="cannot be evaluated in blocks of rows: it calls sort"):
        evaluate_in_blocks(Sorting(NUM_FEATURES, 8, 4, 2).double(), x, graph)


def test_a_block_of_nothing_is_refused():
    graph = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
    with pytest.raises(GraphjouleError, match="block_bytes is 0; it must be at least 1"):
        evaluate_in_blocks(MODELS["gcn"](3, 4, 2, 2), torch.ones(2, 3), graph, block_bytes=0)
