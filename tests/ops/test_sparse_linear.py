import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from graphjoule.ops import dropout, make_key, sparse_linear
from tests.graphs import few, normal

MOSTLY_ZERO = normal(7, 5) * (normal(7, 5, seed=1) > 0.5)
MOSTLY_ZERO[2] = 0
MOSTLY_ZERO[:, 3] = 0
X = SparseFeatures.from_dense(MOSTLY_ZERO)


def dropped(x: SparseFeatures, p: float, key: torch.Tensor | None) -> torch.Tensor:
    """The dense matrix after dropout of its stored values."""
    return x.with_value(dropout(x.value, p, key)).to_dense()


@few
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 4), st.floats(-3, 3), st.integers(0, 99))
def test_it_is_the_dense_product(rows, columns, channels, threshold, seed):
    x = normal(rows, columns, seed=seed)
    x[x < threshold] = 0  # from all stored to none
    weight = normal(columns, channels, seed=seed + 1)
    torch.testing.assert_close(sparse_linear(SparseFeatures.from_dense(x), weight), x @ weight, rtol=1e-13, atol=1e-15)


def test_dropout_draws_on_the_stored_values_only():
    weight, key = normal(5, 3), make_key(0)
    out = sparse_linear(X, weight, 0.5, key)
    torch.testing.assert_close(out, dropped(X, 0.5, key) @ weight, rtol=1e-13, atol=1e-15)
    assert not torch.allclose(out, MOSTLY_ZERO @ weight)
    assert out[2].count_nonzero() == 0


def test_no_key_is_no_dropout():
    weight = normal(5, 3)
    assert sparse_linear(X, weight, 0.5, None).equal(sparse_linear(X, weight))


@pytest.mark.parametrize("key", [None, make_key(1)], ids=["eval", "dropout"])
@pytest.mark.parametrize("x", [X, SparseFeatures.from_dense(torch.zeros(3, 5, dtype=torch.float64))], ids=["x", "zero"])
def test_gradcheck_and_gradgradcheck(x, key):
    weight = normal(5, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: sparse_linear(x, w, 0.5, key), weight)
    assert torch.autograd.gradgradcheck(lambda w: sparse_linear(x, w, 0.5, key).square(), weight)


def test_a_transposed_weight_works():
    weight = normal(3, 5).requires_grad_()
    out = sparse_linear(X, weight.t())
    torch.testing.assert_close(out, MOSTLY_ZERO @ weight.t())
    (gradient,) = torch.autograd.grad(out.square().sum(), weight)
    torch.testing.assert_close(gradient, 2 * out.t() @ MOSTLY_ZERO)


@pytest.mark.parametrize(("weights", "keys"), [("own", "own"), ("own", "shared"), ("own", None), ("shared", "own")])
def test_many_runs_are_a_loop_over_runs(weights, keys):
    weight = normal(3, 5, 2).requires_grad_()
    key = make_key(torch.arange(3))
    in_dims = (0 if weights == "own" else None, 0 if keys == "own" else None)
    runs = torch.vmap(lambda w, k: sparse_linear(X, w, 0.5, None if keys is None else k), in_dims=in_dims)(
        weight if weights == "own" else weight[0], key if keys == "own" else key[0]
    )
    loop = torch.stack(
        [
            dropped(X, 0.5, None if keys is None else key[run if keys == "own" else 0])
            @ weight[run if weights == "own" else 0]
            for run in range(3)
        ]
    )
    torch.testing.assert_close(runs, loop, rtol=1e-13, atol=1e-15)
    upstream = normal(3, 7, 2, seed=1)
    torch.testing.assert_close(
        torch.autograd.grad(runs, weight, upstream),
        torch.autograd.grad(loop, weight, upstream),
        rtol=1e-13,
        atol=1e-15,
    )


@pytest.mark.parametrize("axis", [1, 2])
def test_the_run_axis_may_be_any(axis):
    weight = normal(3, 5, 2)
    runs = torch.vmap(lambda w: sparse_linear(X, w), in_dims=axis)(weight.movedim(0, axis))
    torch.testing.assert_close(runs, MOSTLY_ZERO @ weight, rtol=1e-13, atol=1e-15)


def test_gradients_inside_vmap_are_a_loop_over_runs():
    weight, keys = normal(3, 5, 2), make_key(torch.arange(3))

    def loss(weight, key):
        return sparse_linear(X, weight, 0.5, key).square().sum()

    loop = torch.stack([torch.func.grad(loss)(w, k) for w, k in zip(weight, keys, strict=True)])
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(weight, keys), loop, rtol=1e-13, atol=1e-15)


def test_a_weight_that_does_not_fit_is_refused_with_a_sentence():
    with pytest.raises(GraphjouleError, match=r"shape \[7, 5\], torch.float64 by a weight of shape \[4, 2\]"):
        sparse_linear(X, normal(4, 2))
    with pytest.raises(GraphjouleError, match=r"torch.float64 by a weight of shape \[5, 2\], torch.float32; use x.to"):
        sparse_linear(X, torch.ones(5, 2))


def test_factors_of_rows_and_columns_that_differ_between_runs_are_those_of_the_dense_product():
    x, weight = torch.rand(6, 5).double() * (torch.rand(6, 5) > 0.4), torch.rand(5, 3).double()
    rows, columns = torch.rand(2, 6).double(), torch.rand(2, 5).double()
    sparse = SparseFeatures.from_dense(x)
    found = torch.vmap(lambda r, c: sparse_linear(sparse.scaled(r, c), weight))(rows, columns)
    torch.testing.assert_close(found, rows[:, :, None] * x * columns[:, None] @ weight)
