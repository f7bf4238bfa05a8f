import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.ops import dropout, egnn_layer, make_key, residual_mix, srelu
from tests.graphs import edge_lists, few, no_edges, normal, random_edges

EDGES = random_edges(weighted=True)
C_MIN_BETA = [(0.2, 0.1), (0.15, 0.15), (0.3, 0.0), (0.0, 0.0), (1.0, 0.25)]


def inputs(num_nodes: int = 9, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """X, X0, W and b, in float64 and with gradients."""
    shapes = ((num_nodes, 3), (num_nodes, 3), (3, 3), (3,))
    return tuple(normal(*shape, seed=seed + k).requires_grad_() for k, shape in enumerate(shapes))


def dense_layer(p, x, x0, weight, shift, c_min, beta):
    """max(b, [(1 - c_min) P X + alpha X + beta X0] W) with a dense P."""
    alpha = c_min - beta
    z = ((1 - c_min) * (p @ x) + alpha * x + beta * x0) @ weight
    return torch.where(z > shift, z, shift.expand_as(z))


@few
@given(edge_lists(), st.sampled_from(C_MIN_BETA), st.integers(0, 99))
def test_the_layer_is_the_dense_formula(edges, c_min_beta, seed):
    x, x0, weight, shift = inputs(edges.num_nodes, seed)
    c_min, beta = c_min_beta
    out = egnn_layer(x, x0, edges.graph64(), weight, shift, c_min=c_min, beta=beta)
    expected = dense_layer(edges.dense(), x, x0, weight, shift, c_min, beta)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-14)


@few
@given(edge_lists(), st.sampled_from(C_MIN_BETA))
def test_the_mix_is_the_dense_formula(edges, c_min_beta):
    x, x0, _, _ = inputs(edges.num_nodes)
    c_min, beta = c_min_beta
    expected = (1 - c_min) * (edges.dense() @ x) + (c_min - beta) * x + beta * x0
    torch.testing.assert_close(residual_mix(x, x0, edges.graph64(), c_min, beta), expected, rtol=1e-13, atol=1e-15)


def test_dropout_falls_on_x_and_never_on_x0():
    x, x0, weight, shift = inputs()
    key = make_key(2)
    out = egnn_layer(x, x0, EDGES.graph64(), weight, shift, c_min=0.3, beta=0.1, p=0.5, key=key)
    expected = dense_layer(EDGES.dense(), dropout(x, 0.5, key), x0, weight, shift, 0.3, 0.1)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-14)
    without = egnn_layer(x, x0, EDGES.graph64(), weight, shift, c_min=0.3, beta=0.1, p=0.5, key=None)
    torch.testing.assert_close(without, dense_layer(EDGES.dense(), x, x0, weight, shift, 0.3, 0.1))


def test_no_shift_leaves_the_layer_linear():
    x, x0, weight, _ = inputs()
    low = torch.full((3,), -1e9, dtype=torch.float64)
    settings = {"c_min": 0.2, "beta": 0.1}
    linear = egnn_layer(x, x0, EDGES.graph64(), weight, None, **settings)
    assert linear.equal(egnn_layer(x, x0, EDGES.graph64(), weight, low, **settings))
    doubled = egnn_layer(2 * x, 2 * x0, EDGES.graph64(), weight, None, **settings)
    torch.testing.assert_close(doubled, 2 * linear)


def test_srelu_is_the_larger_of_shift_and_value_per_channel():
    z = torch.tensor([[-3.0, 0.5], [1.0, -0.5]])
    assert srelu(z, torch.tensor([-1.0, 0.0])).tolist() == [[-1.0, 0.5], [1.0, 0.0]]
    assert srelu(z, torch.zeros(2)).equal(z.relu())
    assert srelu(torch.tensor([[torch.nan, 1.0]]), torch.zeros(2)).isnan().tolist() == [[True, False]]


def test_srelu_sends_the_gradient_to_whichever_was_larger():
    z = torch.tensor([[-3.0, 0.5], [1.0, -0.5]], requires_grad=True)
    shift = torch.tensor([-1.0, 0.0], requires_grad=True)
    to_z, to_shift = torch.autograd.grad(srelu(z, shift).sum(), (z, shift))
    assert to_z.tolist() == [[0, 1], [1, 0]]
    assert to_shift.tolist() == [1, 1]


@pytest.mark.parametrize("edges", [EDGES, no_edges(2), no_edges(1)], ids=["weighted", "no edges", "one node"])
@pytest.mark.parametrize("key", [None, make_key(5)], ids=["eval", "dropout"])
@pytest.mark.parametrize("c_min_beta", C_MIN_BETA[:3])
def test_gradcheck_of_everything_that_trains(edges, key, c_min_beta):
    graph = edges.graph64()
    c_min, beta = c_min_beta

    def layer(x, x0, weight, shift):
        return egnn_layer(x, x0, graph, weight, shift, c_min=c_min, beta=beta, p=0.4, key=key)

    given = inputs(edges.num_nodes)
    assert torch.autograd.gradcheck(layer, given)
    on_shift = layer(*given) == given[3]
    if edges is EDGES:  # both branches of the maximum were checked
        assert on_shift.any()
        assert not on_shift.all()


def test_gradcheck_without_shift():
    x, x0, weight, _ = inputs()
    graph = EDGES.graph64()
    assert torch.autograd.gradcheck(
        lambda *a: egnn_layer(*a[:2], graph, a[2], None, c_min=0.2, beta=0.1), (x, x0, weight)
    )


def test_gradgradcheck():
    graph, key = EDGES.graph64(), make_key(5)

    def layer(x, x0, weight, shift):
        return egnn_layer(x, x0, graph, weight, shift, c_min=0.2, beta=0.1, p=0.4, key=key).square()

    assert torch.autograd.gradgradcheck(layer, inputs())


def test_many_runs_are_a_loop_over_runs():
    graph, keys = EDGES.graph64(), make_key(torch.arange(3))

    def layer(x, x0, weight, shift, key):
        return egnn_layer(x, x0, graph, weight, shift, c_min=0.2, beta=0.1, p=0.4, key=key)

    runs = [inputs(seed=10 * run) for run in range(3)]
    loop = torch.stack([layer(*run, key) for run, key in zip(runs, keys, strict=True)])
    stacked = tuple(torch.stack(tensors) for tensors in zip(*runs, strict=True))
    together = torch.vmap(layer)(*stacked, keys)
    torch.testing.assert_close(together, loop, rtol=1e-13, atol=1e-15)
    upstream = normal(3, 9, 3, seed=7)
    leaves = [tensor for run in runs for tensor in run]
    torch.testing.assert_close(
        torch.autograd.grad(together, leaves, upstream),
        torch.autograd.grad(loop, leaves, upstream),
        rtol=1e-12,
        atol=1e-14,
    )


def test_features_that_do_not_fit_the_graph_are_refused_with_a_sentence():
    x, x0, weight, shift = inputs(8)
    with pytest.raises(GraphjouleError, match=r"shape \[8, 3\], torch.float64 over a graph of 9 nodes"):
        egnn_layer(x, x0, EDGES.graph64(), weight, shift, c_min=0.2, beta=0.1)
    x, x0, weight, shift = inputs(9)
    with pytest.raises(GraphjouleError, match=r"torch.float64 over a graph of 9 nodes, torch.float32"):
        egnn_layer(x, x0, EDGES.graph(), weight, shift, c_min=0.2, beta=0.1)
