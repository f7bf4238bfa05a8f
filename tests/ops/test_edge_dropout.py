"""Both ways to drop edges against dense matrices, in value, gradient and chance."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.ops import backend_for, edge_dropout, make_key, propagate, use_backend
from graphjoule.ops.edge_dropout import EdgeSubset, propagate_dropped, propagate_over
from tests.graphs import dense_propagation, edge_lists, few, no_edges, normal, random_edges
from tests.nn.dense import dropped

WEIGHTED = random_edges(weighted=True)
OPERATIONS = {
    "entries of P": propagate_dropped,
    "edges of A": lambda x, graph, p, key: EdgeSubset.draw(graph, p, key).propagate(x),
}
both = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


def as_matrix(operation, edges, p, key):
    """The operator itself: its product with the identity."""
    return operation(torch.eye(edges.num_nodes, dtype=torch.float64), edges.graph64(), p, key)


@few
@given(edge_lists(), st.floats(0.01, 0.99), st.integers(0, 2**40))
def test_dropped_entries_are_the_dense_matrix_with_its_entries_dropped(edges, p, seed):
    key = make_key(seed)
    expected = dropped(edges.dense(), p, key)
    torch.testing.assert_close(as_matrix(propagate_dropped, edges, p, key), expected, rtol=1e-13, atol=1e-15)


@few
@given(edge_lists(), st.floats(0.01, 0.99), st.integers(0, 2**40))
def test_a_subset_is_the_normalised_adjacency_of_the_edges_it_keeps(edges, p, seed):
    key = make_key(seed)
    pattern = dropped((edges.dense() != 0).double(), p, key, undirected=True) != 0
    assert pattern.equal(pattern.t())
    expected = dense_propagation(edges.adjacency() * pattern)
    matrix = as_matrix(OPERATIONS["edges of A"], edges, p, key)
    torch.testing.assert_close(matrix, expected, rtol=1e-13, atol=1e-15)


@both
@pytest.mark.parametrize("edges", [WEIGHTED, no_edges(3), no_edges(1)], ids=["weighted", "no edges", "one node"])
def test_gradcheck_and_gradgradcheck(operation, edges):
    x, graph, key = normal(edges.num_nodes, 2).requires_grad_(), edges.graph64(), make_key(3)
    assert torch.autograd.gradcheck(lambda x: operation(x, graph, 0.5, key), x)
    assert torch.autograd.gradgradcheck(lambda x: operation(x.square(), graph, 0.5, key), x)


def test_dropped_entries_have_the_transpose_for_gradient_which_is_another_matrix():
    graph, key, x = WEIGHTED.graph64(), make_key(1), normal(9, 2).requires_grad_()
    matrix, upstream = as_matrix(propagate_dropped, WEIGHTED, 0.5, key), normal(9, 2, seed=1)
    assert not torch.allclose(matrix, matrix.t())
    (gradient,) = torch.autograd.grad(propagate_dropped(x, graph, 0.5, key), x, upstream)
    torch.testing.assert_close(gradient, matrix.t() @ upstream, rtol=1e-13, atol=1e-15)


def test_without_a_key_or_a_rate_nothing_is_dropped():
    x, graph = normal(9, 2), WEIGHTED.graph64()
    whole = propagate(x, graph)
    assert propagate_dropped(x, graph, 0.5, None).equal(whole)
    assert propagate_dropped(x, graph, 0.0, make_key(0)).equal(whole)
    assert propagate_over(x, graph).equal(whole)
    torch.testing.assert_close(EdgeSubset.draw(graph, 0.0, make_key(0)).propagate(x), whole, rtol=1e-14, atol=1e-15)


def test_a_subset_without_any_edge_is_the_identity():
    x, graph = normal(9, 2), WEIGHTED.graph64()
    subset = EdgeSubset.draw(graph, 1 - 2**-16, make_key(0))
    torch.testing.assert_close(propagate_over(x, subset), x, rtol=1e-12, atol=0)


def test_entries_are_dropped_as_often_as_asked_and_right_on_average():
    edges, p, draws = random_edges(6, 9), 0.3, 1000
    graph, eye = edges.graph64(), torch.eye(6, dtype=torch.float64)
    keys = make_key(torch.arange(draws))
    matrices = torch.vmap(lambda key: propagate_dropped(eye, graph, p, key))(keys)
    error = (matrices.mean(dim=0) - edges.dense()).abs() / edges.dense().clamp(min=1e-9)
    assert error[edges.dense() != 0].max() < 5 * (p / (1 - p) / draws) ** 0.5
    subsets = torch.vmap(lambda key: EdgeSubset.draw(graph, p, key).propagate(eye))(keys)
    kept = (subsets != 0).double().mean(dim=0)
    off_diagonal = (edges.dense() != 0) & (eye == 0)
    assert (kept[off_diagonal] - (1 - p)).abs().max() < 5 * (p * (1 - p) / draws) ** 0.5
    assert (kept.diagonal() == 1).all()


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_runs_are_a_loop_over_runs_each_with_its_own_mask(operation, dtype):
    graph, x, keys = (
        WEIGHTED.graph(dtype=dtype),
        normal(3, 9, 2, dtype=dtype).requires_grad_(),
        make_key(torch.arange(3)),
    )
    loop = torch.stack([operation(run, graph, 0.4, key) for run, key in zip(x, keys, strict=True)])
    runs = torch.vmap(lambda x, key: operation(x, graph, 0.4, key))(x, keys)
    upstream = normal(3, 9, 2, seed=1, dtype=dtype)
    assert runs.equal(loop)
    assert torch.autograd.grad(runs, x, upstream)[0].equal(torch.autograd.grad(loop, x, upstream)[0])
    one_key = torch.vmap(lambda x: operation(x, graph, 0.4, keys[0]), in_dims=1, out_dims=1)(x.movedim(0, 1))
    assert one_key.equal(torch.stack([operation(run, graph, 0.4, keys[0]) for run in x], dim=1))
    twice = torch.vmap(torch.vmap(lambda x, key: operation(x, graph, 0.4, key)), in_dims=(None, 1))(x, keys[:, None])
    assert twice.equal(loop[None])


@both
def test_gradients_inside_vmap_are_a_loop_over_runs(operation):
    graph, x, keys = WEIGHTED.graph64(), normal(3, 9, 2), make_key(torch.arange(3))

    def loss(x, key):
        return operation(x, graph, 0.4, key).pow(3).sum()

    loop = torch.stack([torch.func.grad(loss)(run, key) for run, key in zip(x, keys, strict=True)])
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(x, keys), loop, rtol=1e-14, atol=0)


@both
def test_a_call_repeats_to_the_bit_and_another_key_is_another_draw(operation):
    graph, x = random_edges(50, 200).graph(), normal(50, 8, dtype=torch.float32)
    first = operation(x, graph, 0.5, make_key(0))
    assert operation(x, graph, 0.5, make_key(0)).equal(first)
    assert not operation(x, graph, 0.5, make_key(1)).equal(first)


@both
@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (torch.ones(4, 2), r"shape \[4, 2\], torch.float32 over a graph of 9 nodes, torch.float32"),
        (torch.ones(9, 2, dtype=torch.float64), r"shape \[9, 2\], torch.float64 over a graph of 9 nodes"),
        (torch.ones(9), r"shape \[9\]"),
    ],
)
def test_features_that_do_not_fit_are_refused_with_a_sentence(operation, x, sentence):
    with pytest.raises(GraphjouleError, match="Cannot propagate features of " + sentence):
        operation(x, random_edges().graph(), 0.5, make_key(0))


def test_what_is_remembered_of_a_graph_goes_with_it():
    def use(graph: Propagation) -> None:
        propagate_dropped(torch.ones(9, 1), graph, 0.5, make_key(0))

    gc.collect()
    before, graph = len(edge_dropout._NUMBERED), random_edges().graph()
    use(graph)
    use(graph)
    assert len(edge_dropout._NUMBERED) == before + 1
    del graph
    gc.collect()
    assert len(edge_dropout._NUMBERED) == before


@pytest.mark.gpu
@both
@pytest.mark.parametrize("channels", [1, 3, 40, 64, 100])
@pytest.mark.parametrize("size", [(9, 14), (500, 4000)], ids=str)
def test_triton_gives_the_values_and_gradients_of_the_reference(operation, channels, size):
    graph, keys = random_edges(*size, weighted=True).graph().to("cuda"), make_key(torch.arange(3)).cuda()
    x = torch.randn(3, size[0], channels, device="cuda", requires_grad=True)
    upstream, results = torch.randn_like(x), {}
    for backend in ("reference", "triton"):
        with use_backend(backend):
            assert backend_for(x) == backend
            out = torch.vmap(lambda x, key: operation(x, graph, 0.6, key))(x, keys)
        results[backend] = (out, torch.autograd.grad(out, x, upstream)[0])
    for ours, truth in zip(results["triton"], results["reference"], strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@both
def test_a_cuda_graph_replays_it_with_new_keys(operation):
    graph, key = random_edges(500, 4000).graph().to("cuda"), make_key(0).cuda()
    x = torch.randn(500, 16, device="cuda")
    expected = [operation(x, graph, 0.5, make_key(seed).cuda()) for seed in range(3)]
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = operation(x, graph, 0.5, key)
    for seed in range(3):
        key.copy_(make_key(seed))
        captured.replay()
        assert out.equal(expected[seed])
