import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.ops import propagate
from tests.graphs import edge_lists, few, no_edges, normal, path3, random_edges

WEIGHTED = random_edges(weighted=True)


@few
@given(edge_lists(), st.integers(0, 4))
def test_it_is_the_dense_product(edges, channels):
    x = normal(edges.num_nodes, channels)
    torch.testing.assert_close(propagate(x, edges.graph64()), edges.dense() @ x, rtol=1e-13, atol=1e-15)


@few
@given(edge_lists(), st.floats(-2, 2), st.floats(-2, 2), st.sampled_from([torch.float32, torch.float64]))
def test_with_a_residual_connection_it_is_the_dense_sum_in_value_and_gradient(edges, a, alpha, dtype):
    x = normal(edges.num_nodes, 3).to(dtype).requires_grad_()
    dense = (a * edges.dense() + alpha * torch.eye(edges.num_nodes, dtype=torch.float64)).to(dtype)
    out = propagate(x, edges.graph64().to(dtype=dtype), a, alpha)
    rounding = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
    torch.testing.assert_close(out, dense @ x, rtol=rounding, atol=rounding)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, dense @ torch.ones_like(x), rtol=rounding, atol=rounding)


@few
@given(edge_lists())
def test_its_gradient_is_the_product_with_the_transpose(edges):
    x = normal(edges.num_nodes, 2).requires_grad_()
    upstream = normal(edges.num_nodes, 2, seed=1)
    (gradient,) = torch.autograd.grad(propagate(x, edges.graph64()), x, upstream)
    torch.testing.assert_close(gradient, edges.dense().t() @ upstream, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("edges", [WEIGHTED, no_edges(3), no_edges(1)], ids=["weighted", "no edges", "one node"])
def test_gradcheck_and_gradgradcheck(edges):
    x, graph = normal(edges.num_nodes, 2).requires_grad_(), edges.graph64()
    assert torch.autograd.gradcheck(lambda x: propagate(x, graph), x)
    assert torch.autograd.gradgradcheck(lambda x: propagate(x, graph), x)
    assert torch.autograd.gradgradcheck(lambda x: propagate(x.square(), graph).square(), x)


def test_features_in_any_memory_order_work():
    x, graph = normal(4, 9), WEIGHTED.graph64()
    torch.testing.assert_close(propagate(x.t(), graph), WEIGHTED.dense() @ x.t())
    torch.testing.assert_close(propagate(x.t()[:, 1:3], graph), WEIGHTED.dense() @ x.t()[:, 1:3])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_many_runs_are_a_loop_over_runs(axis):
    graph, x = WEIGHTED.graph64(), normal(3, 9, 2).requires_grad_()
    loop = torch.stack([propagate(run, graph) for run in x])
    runs = torch.vmap(lambda x: propagate(x, graph), in_dims=axis)(x.movedim(0, axis))
    torch.testing.assert_close(runs, loop, rtol=1e-14, atol=0)
    upstream = normal(3, 9, 2, seed=1)
    torch.testing.assert_close(
        torch.autograd.grad(runs, x, upstream), torch.autograd.grad(loop, x, upstream), rtol=1e-14, atol=0
    )


def test_gradients_inside_vmap_are_a_loop_over_runs():
    graph, x = WEIGHTED.graph64(), normal(3, 9, 2)

    def loss(x):
        return propagate(x, graph).pow(3).sum()

    loop = torch.stack([torch.func.grad(loss)(run) for run in x])
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(x), loop, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (torch.ones(4, 2), r"shape \[4, 2\], torch.float32 over a graph of 3 nodes, torch.float32"),
        (
            torch.ones(3, 2, dtype=torch.float64),
            r"shape \[3, 2\], torch.float64 over a graph of 3 nodes, torch.float32; use graph.to",
        ),
        (torch.ones(3), r"shape \[3\]"),
        (torch.ones(3, 2, 2), r"shape \[3, 2, 2\]"),
        (torch.ones(()), r"shape \[\]"),
    ],
)
def test_features_that_do_not_fit_are_refused_with_a_sentence(x, sentence):
    with pytest.raises(GraphjouleError, match="Cannot propagate features of " + sentence):
        propagate(x, path3().graph())
