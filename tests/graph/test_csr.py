"""The pieces of CSR matrices against dense ones, the CPU's sparse product, and linear maps with cheap gradients."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.graph.csr import (
    csr_product,
    csr_tensor,
    entries_of_rows,
    gradient_of,
    is_plain,
    linear_map,
    of_all_runs,
    row_of_entries,
    row_starts,
    with_signature,
)
from tests.graphs import few

lengths = st.lists(st.integers(0, 4), min_size=1, max_size=9)


def starts_of(length: list[int]) -> torch.Tensor:
    return torch.tensor([0, *length]).cumsum(0).int()


@few
@given(lengths, st.randoms(use_true_random=False))
def test_starts_are_those_of_the_rows_whatever_their_order(length, random):
    rows = [row for row, count in enumerate(length) for _ in range(count)]
    random.shuffle(rows)
    starts = row_starts(torch.tensor(rows, dtype=torch.int64), len(length))
    assert starts.dtype == torch.int32
    assert starts.equal(starts_of(length))


def test_without_entries_or_rows_starts_are_zeros():
    none = torch.zeros(0, dtype=torch.int64)
    assert row_starts(none, 3).tolist() == [0, 0, 0, 0]
    assert row_starts(none, 0).tolist() == [0]


@few
@given(lengths, st.data())
def test_entries_of_some_rows_are_theirs_in_the_order_asked_for(length, data):
    rowptr = starts_of(length)
    rows = data.draw(st.lists(st.integers(0, len(length) - 1)))  # in any order, some of them twice or none at all
    place, entry = entries_of_rows(rowptr, torch.tensor(rows, dtype=torch.int64))
    pieces = [range(int(rowptr[row]), int(rowptr[row + 1])) for row in rows]
    assert entry.tolist() == [number for piece in pieces for number in piece]
    assert place.tolist() == [number for number, piece in enumerate(pieces) for _ in piece]
    assert place.dtype == entry.dtype == torch.int64


def test_all_rows_have_all_entries():
    rowptr = starts_of([2, 0, 3])
    place, entry = entries_of_rows(rowptr, torch.arange(3))
    assert place.equal(row_of_entries(rowptr))
    assert entry.equal(torch.arange(5))


def _pieces(dense):
    matrix = dense.to_sparse_csr()
    return matrix.crow_indices().int(), matrix.col_indices().int(), matrix.values()


@pytest.mark.parametrize("channels", [1, 7, 16, 33, 64, 257])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_it_is_the_dense_product(channels):
    torch.manual_seed(channels)
    dense = torch.randn(30, 20) * (torch.rand(30, 20) < 0.2)
    dense[3:6] = 0  # rows without an entry
    x = torch.randn(20, channels)
    torch.testing.assert_close(csr_product(*_pieces(dense), x), dense @ x, rtol=1e-5, atol=1e-5)


def test_a_transposed_factor_is_read_as_it_stands():
    x = torch.randn(8, 5).t()
    matrix = (torch.tensor([0, 1, 3]), torch.tensor([4, 0, 2]), torch.tensor([2.0, 1.0, -1.0]))
    torch.testing.assert_close(csr_product(*matrix, x), torch.stack([2 * x[4], x[0] - x[2]]))


def test_no_entry_at_all_gives_zeros():
    rowptr, col = torch.zeros(5, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    assert csr_product(rowptr, col, torch.zeros(0), torch.randn(3, 4)).equal(torch.zeros(4, 4))


def test_what_is_not_finite_stays_visible():
    """One bad node spoils its neighbours and nobody else."""
    x = torch.ones(3, 4)
    x[2] = torch.nan
    out = csr_product(torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2]), torch.ones(3), x)
    assert out.isnan().all(dim=1).tolist() == [False, True]


def test_sums_are_the_same_at_every_call():
    torch.manual_seed(0)
    rowptr = torch.tensor([0, 5000], dtype=torch.int32)
    col, value, x = torch.randint(0, 50, (5000,), dtype=torch.int32), torch.randn(5000), torch.randn(50, 64)
    first = csr_product(rowptr, col, value, x)
    assert all(csr_product(rowptr, col, value, x).equal(first) for _ in range(5))
    torch.testing.assert_close(first, csr_tensor(rowptr, col, value, (1, 50)).to_dense() @ x, rtol=1e-3, atol=1e-3)


@with_signature
class _Times(torch.autograd.Function):
    @staticmethod
    def forward(x, factor=3.0):
        return factor * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return ctx.factor * grad, None


def test_a_call_is_bound_without_working_the_signature_out_again(monkeypatch):
    def never(*_args, **_options):
        raise AssertionError("worked out again")

    monkeypatch.setattr(inspect, "_signature_from_function", never)
    x = torch.tensor(2.0, requires_grad=True)
    y = _Times.apply(x)
    y.backward()
    assert (y.item(), x.grad.item()) == (6.0, 3.0)
    assert _Times.apply(x, 5.0).item() == 10.0


def test_a_plain_call_has_neither_a_gradient_nor_a_transform_around_it():
    assert not is_plain()
    with torch.no_grad():
        assert is_plain()
        inside = []
        torch.vmap(lambda x: (inside.append(is_plain()), x)[1])(torch.ones(2))
        assert inside == [False]
    with torch.inference_mode():
        assert is_plain()


def test_where_torch_does_not_tell_no_call_is_plain(monkeypatch):
    monkeypatch.delattr(torch._C, "_are_functorch_transforms_active")
    with torch.no_grad():
        assert not is_plain()


MATRIX = torch.arange(12.0, dtype=torch.float64).view(3, 4)


def scaled(x: torch.Tensor, scale: torch.Tensor, *, transposed: bool = False) -> torch.Tensor:
    """``diag(scale) M x``, or its adjoint ``M^T diag(scale) x``."""

    def product(runs, scales):
        assert runs.dim() == scales.dim() == 2  # however many vmaps there are
        return (runs * scales) @ MATRIX if transposed else (runs @ MATRIX.T) * scales

    def adjoint(grad, scale):
        return scaled(grad, scale, transposed=not transposed)

    return linear_map(x, of_all_runs(product, 1), scale, adjoint=adjoint)


def test_a_linear_map_has_derivatives_of_any_order():
    x, scale = torch.randn(4, dtype=torch.float64, requires_grad=True), torch.randn(3, dtype=torch.float64)
    assert scaled(x, scale).equal((MATRIX @ x) * scale)
    assert torch.autograd.gradcheck(lambda x: scaled(x, scale).sin(), x)
    assert torch.autograd.gradgradcheck(lambda x: scaled(x, scale).sin(), x)
    with torch.no_grad():
        torch.testing.assert_close(scaled(x, scale), (MATRIX @ x) * scale)


def test_a_linear_map_under_nested_vmaps_knows_whose_scale_is_whose():
    """Two axes of the same length that share one tensor each: what is not repeated would be mistaken."""
    x, scale = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    every = torch.vmap(lambda s: torch.vmap(lambda one: scaled(one, s))(x))(scale)
    torch.testing.assert_close(every, (x @ MATRIX.T)[None] * scale[:, None])
    other = torch.vmap(lambda one: torch.vmap(lambda s: scaled(one, s), in_dims=1)(scale.T))(x)
    torch.testing.assert_close(other, (x @ MATRIX.T)[:, None] * scale)
    gradient = torch.vmap(torch.func.grad(lambda one, s: scaled(one, s).square().sum()))(x, scale)
    torch.testing.assert_close(gradient, 2 * ((x @ MATRIX.T) * scale * scale) @ MATRIX)


def test_the_gradient_of_a_linear_map_has_the_dtype_of_its_argument():
    x = torch.ones(3, requires_grad=True)
    linear_map(x, lambda x: 2 * x.double()).sum().backward()
    assert (x.grad.dtype, x.grad.tolist()) == (torch.float32, [2.0, 2.0, 2.0])


def test_a_gradient_by_something_faster_has_the_derivatives_of_the_plain_function():
    calls = []

    class Cube(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, y):
            return (x**3 * y).sum()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            def fast(grad, x, y):
                calls.append(1)
                return 3 * grad * x**2 * y, grad * x**3

            return gradient_of(lambda x, y: (x**3 * y).sum(), fast, grad, ctx.saved_tensors)

    x, y = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(Cube.apply, (x, y))
    assert torch.autograd.gradgradcheck(Cube.apply, (x, y))
    assert calls
    hessian = torch.func.jacrev(torch.func.jacrev(Cube.apply))(x.detach(), y.detach())
    torch.testing.assert_close(hessian, torch.diag(6 * x * y).detach())
    rows = torch.stack([x.detach(), y.detach()])
    by_row = torch.vmap(torch.func.grad(Cube.apply), in_dims=(0, None))(rows, y.detach())
    torch.testing.assert_close(by_row, 3 * rows**2 * y.detach())
