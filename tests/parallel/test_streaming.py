"""Evaluation in blocks: the matrices, and the models."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import SparseFeatures
from graphjoule.nn import MODELS
from graphjoule.parallel.streaming import (
    Blocks,
    StreamedMatrix,
    evaluate_in_blocks,
    multiply_rows,
    row_bytes,
)
from reproduction.bench import CitationGraph
from tests.graphs import no_edges, normal, path3, random_edges
from tests.ops.live_bytes import LiveBytes

BLOCKS = Blocks(torch.device("cpu"), 100)
X, Y, W = normal(23, 5), normal(23, 5, seed=1), normal(5, 3, seed=2)


def streamed(x=X) -> StreamedMatrix:
    return StreamedMatrix(x, BLOCKS)


BY_ROW = {
    "plus a number": lambda x, y: x + 1,
    "plus a row": lambda x, y: x + W[:, 0],
    "plus another": lambda x, y: torch.add(x, y, alpha=0.3),
    "minus": lambda x, y: 2 - x - y,
    "times": lambda x, y: 0.5 * x * y,
    "divided": lambda x, y: x / 3,
    "maximum": torch.maximum,
    "matrix product": lambda x, y: x @ W,
    "linear": lambda x, y: F.linear(x, W.t(), W[0]),
    "relu of a product": lambda x, y: torch.relu(torch.mm(x, W)),
    "clamp": lambda x, y: x.clamp(min=0),
    "softmax": lambda x, y: F.softmax(x, dim=-1),
    "row sums": lambda x, y: x.square().sum(dim=1),
    "layer norm": lambda x, y: F.layer_norm(x, (5,)),
    "batch norm": lambda x, y: F.batch_norm(x, W[:, 0], W[:, 1].exp()),
    "double": lambda x, y: x.double(),
}


@pytest.mark.parametrize("name", BY_ROW)
def test_functions_of_rows_give_what_they_give_a_tensor(name):
    out = BY_ROW[name](streamed(), streamed(Y))
    assert isinstance(out, StreamedMatrix)
    torch.testing.assert_close(out.source, BY_ROW[name](X, Y), rtol=1e-13, atol=1e-15)


OVER_ROWS = {
    "mean of columns": lambda x: x.mean(dim=0),
    "sum of columns": lambda x: torch.sum(x, 0),
    "mean of a vector": lambda x: x.square().sum(dim=1).mean(),
}


@pytest.mark.parametrize("name", OVER_ROWS)
def test_reductions_over_rows_are_plain_tensors(name):
    out = OVER_ROWS[name](streamed())
    assert type(out) is torch.Tensor
    torch.testing.assert_close(out, OVER_ROWS[name](X), rtol=1e-13, atol=1e-15)


def test_it_says_what_it_is():
    x = streamed()
    assert (x.shape, x.size(0), x.dim(), len(x), x.dtype) == (torch.Size([23, 5]), 23, 2, 23, torch.float64)
    assert x.device == BLOCKS.device
    assert x.is_floating_point()


REFUSED = {
    "sum of all": lambda x: x.sum(),
    "kept dimension": lambda x: x.mean(dim=0, keepdim=True),
    "softmax over nodes": lambda x: F.softmax(x, dim=0),
    "argmax of all": lambda x: x.argmax(),
    "gram matrix": lambda x: x @ x,
    "dense product": lambda x: torch.ones(23, 23, dtype=torch.float64) @ x,
    "batch norm in training": lambda x: F.batch_norm(x, None, None, training=True),
    "batch norm in training by place": lambda x: F.batch_norm(x, None, None, None, None, True),
    "transpose": lambda x: x.t(),
    "row": lambda x: x[0],
    "sort": lambda x: x.sort(dim=0),
    "in place": lambda x: x.add_(1),
    "into another": lambda x: torch.cat([x, x]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_function_of_rows_is_refused(name):
    with pytest.raises(GraphjouleError, match="cannot be evaluated in blocks of rows"):
        REFUSED[name](streamed())


@pytest.mark.parametrize("num_bytes", [1, 40, 400, 2**20])
def test_blocks_cover_every_row_once_and_keep_to_their_size(num_bytes):
    graph = CitationGraph(300, 900, num_features=2, num_classes=2).task("citations").graph
    blocks = Blocks(torch.device("cpu"), num_bytes)
    for made in (blocks.of_rows(300, 8), blocks.of_entries(graph.rowptr, 8)):
        assert [row for rows in made for row in range(rows.start, rows.stop)] == list(range(300))
    most = max(1, num_bytes // 8)
    for rows in blocks.of_entries(graph.rowptr, 8):
        entries = int(graph.rowptr[rows.stop] - graph.rowptr[rows.start])
        assert rows.stop - rows.start <= most
        assert entries <= most or rows.stop - rows.start == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_bytes", [1, 100, 2**20])  # a hub alone names more rows than the first two allow
def test_a_product_with_rows_gathered_in_pieces_is_the_product(num_bytes, dtype):
    graph = random_edges(40, 200, weighted=True).graph(dtype=dtype)
    x, blocks = normal(40, 6, dtype=dtype), Blocks(torch.device("cpu"), num_bytes)
    want = graph.to_dense() @ x
    for rows in blocks.of_entries(graph.rowptr, row_bytes(x)):
        for gather in (True, False):
            torch.testing.assert_close(multiply_rows(graph.matrix, rows, x, blocks, gather=gather), want[rows])


def test_sparse_features_go_through_a_linear_map_without_becoming_dense():
    x = SparseFeatures.from_dense(X * (X > 0.5))
    out = F.linear(StreamedMatrix(x, BLOCKS), W.t(), W[0])
    torch.testing.assert_close(out.source, F.linear(X * (X > 0.5), W.t(), W[0]))
    with pytest.raises(GraphjouleError, match="multiplies by"):
        torch.mm(random_edges(23, 30).graph64().matrix, StreamedMatrix(x, BLOCKS))


NUM_NODES, NUM_FEATURES, NUM_CLASSES = 30, 12, 4
NORMALISED = {name: {"batch_norm": True} for name in MODELS if name not in ("pairnorm", "wave")}
NORMALISED["wave"] = {"encoder": "mlp", "head": "mlp", "speeds": "spread"}


def features(num_nodes: int = NUM_NODES, *, sparse: bool = False) -> Tensor | SparseFeatures:
    x = normal(num_nodes, NUM_FEATURES)
    return SparseFeatures.from_dense(x * (x > 1)) if sparse else x


def used_model(name: str, x, graph, num_layers: int = 5, **options):
    """A model that has been in training once, so that its batch norms know something."""
    torch.manual_seed(0)
    model = MODELS[name](NUM_FEATURES, 8, NUM_CLASSES, num_layers, **options).double()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    if x.size(0) > 1:  # one node has no variance
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


@torch.no_grad()
def test_a_deep_wave_without_a_force():
    """Beyond 64 layers the wave of a whole graph is held, which takes products that blocks of rows do not have."""
    x, graph = features(), random_edges(NUM_NODES, 150).graph64()
    model = used_model("wave", x, graph, 150, mu=0.0, delta=0.0)
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
    task = CitationGraph(2_000, 4_000, num_features=NUM_FEATURES, num_classes=NUM_CLASSES).task("citations")
    model = MODELS[name](NUM_FEATURES, 32, NUM_CLASSES, num_layers).eval()
    gc.collect()
    with LiveBytes() as memory:
        evaluate_in_blocks(model, task.features, task.graph, block_bytes=2**15)
    return memory.peak / (2_000 * 32 * 4)


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


def citations(num_nodes: int = 3000):
    return CitationGraph(num_nodes, 5 * num_nodes, num_features=20, num_classes=4).task("citations")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_scores_in_blocks_on_a_gpu_are_those_of_the_forward(name):
    task = citations()
    model = MODELS[name](20, 16, 4, 6).eval()
    want = model(task.features, task.graph)
    scores = evaluate_in_blocks(model.cuda(), task.features, task.graph, block_bytes=5000)
    assert scores.device.type == "cpu"
    torch.testing.assert_close(scores, want, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_graph_stays_in_host_memory():
    task = citations(200_000)
    model = MODELS["egnn"](20, 64, 4, 8).cuda()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    evaluate_in_blocks(model, task.features, task.graph, block_bytes=2**20)
    assert torch.cuda.max_memory_allocated() - before < 2**24  # one activation is 51 MB
