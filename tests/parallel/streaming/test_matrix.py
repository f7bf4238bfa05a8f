import pytest
import torch
import torch.nn.functional as F

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from graphjoule.parallel.streaming.matrix import StreamedMatrix
from graphjoule.parallel.streaming.rows import Blocks, multiply_gathered, multiply_rows, row_bytes
from reproduction.bench import CitationGraph
from tests.graphs import normal, random_edges

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
        for product in (multiply_gathered, multiply_rows):
            torch.testing.assert_close(product(graph.matrix, rows, x, blocks), want[rows])


def test_sparse_features_go_through_a_linear_map_without_becoming_dense():
    x = SparseFeatures.from_dense(X * (X > 0.5))
    out = F.linear(StreamedMatrix(x, BLOCKS), W.t(), W[0])
    torch.testing.assert_close(out.source, F.linear(X * (X > 0.5), W.t(), W[0]))
    with pytest.raises(GraphjouleError, match="multiplies by"):
        torch.mm(random_edges(23, 30).graph64().matrix, StreamedMatrix(x, BLOCKS))
