import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures, check_features, checked_features, normalize_rows
from tests.graphs import few, normal


@st.composite
def matrices(draw: st.DrawFn) -> torch.Tensor:
    """Mostly zero, any small shape, rows and columns that are all zero included."""
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    entry = st.one_of(st.just(0.0), st.floats(-3, 3))
    entries = draw(st.lists(entry, min_size=rows * columns, max_size=rows * columns))
    return torch.tensor(entries, dtype=torch.float64).view(rows, columns)


@few
@given(matrices())
def test_dense_to_sparse_and_back_keeps_every_bit(x):
    sparse = SparseFeatures.from_dense(x)
    assert (sparse.dtype, sparse.shape) == (x.dtype, x.shape)
    assert sparse.to_dense().equal(x)
    assert sparse.value.numel() == int(x.count_nonzero())
    assert (sparse.num_nodes, sparse.num_features) == (x.size(0), x.size(1)) == (sparse.size(0), sparse.size(-1))


@few
@given(matrices())
def test_the_transposed_pattern_is_the_transpose(x):
    sparse = SparseFeatures.from_dense(x)
    value = sparse.value[sparse.to_transposed]
    again = SparseFeatures(sparse.t_rowptr, sparse.t_col, value, sparse.rowptr, sparse.col, sparse.to_transposed)
    assert again.to_dense().equal(x.t())


def test_scipy_duplicates_are_summed_and_stored_zeros_dropped_without_touching_the_matrix():
    given = sp.coo_matrix(([1.0, 2.0, 0.0, 4.0], ([0, 0, 1, 1], [2, 2, 0, 1])), shape=(2, 3))
    sparse = SparseFeatures.from_scipy(given)
    assert sparse.to_dense().tolist() == [[0, 0, 3], [0, 4, 0]]
    assert sparse.value.numel() == 2
    assert given.nnz == 4
    assert sparse.dtype == torch.float32


def test_any_scipy_format_and_number_works():
    dense = np.array([[0, 2], [1, 0], [0, 0]])
    for form in (sp.csr_matrix, sp.csc_matrix, sp.coo_array, sp.lil_matrix):
        assert SparseFeatures.from_scipy(form(dense)).to_dense().tolist() == dense.tolist()


LAYOUTS = {
    "coo": torch.Tensor.to_sparse_coo,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda x: x.to_sparse_bsr((1, 1)),
}


def in_layout(x, layout):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse .* tensor support is in beta")  # torch's own, once per program
        return LAYOUTS[layout](x)


@pytest.mark.parametrize("layout", LAYOUTS)
@few
@given(matrices())
def test_a_sparse_layout_of_torch_becomes_the_same_features(layout, x):
    features, expected = checked_features(in_layout(x, layout)), SparseFeatures.from_dense(x)
    for name in ("rowptr", "col", "value", "t_rowptr", "t_col", "to_transposed"):
        assert getattr(features, name).equal(getattr(expected, name))


def test_a_sparse_layout_with_duplicates_stored_zeros_or_dense_rows_is_the_matrix_that_it_means():
    index = torch.tensor([[0, 0, 1, 1], [2, 2, 0, 1]])
    twice = torch.sparse_coo_tensor(index, torch.tensor([1.0, 2.0, 0.0, 4.0]), (2, 3), check_invariants=True)
    assert checked_features(twice).to_dense().tolist() == [[0, 0, 3], [0, 4, 0]]
    assert checked_features(twice).value.numel() == 2
    assert checked_features(torch.eye(3).to_sparse(1)).equal(torch.eye(3))


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_layout_that_is_no_matrix_of_finite_numbers_is_a_sentence(layout):
    nan = torch.eye(3)
    nan[1, 2] = torch.nan
    for x, said in ((nan, "hold nan at node 1, column 2"), (torch.eye(3).int(), "dtype torch.int32; expected a fl")):
        with pytest.raises(GraphjouleError, match=said):
            checked_features(in_layout(x, layout))
    with pytest.raises(GraphjouleError, match=r"shape \[3\]"):
        checked_features(torch.ones(3).to_sparse())


def test_to_changes_the_dtype_of_the_values_only():
    sparse = SparseFeatures.from_dense(torch.eye(3)).to(dtype=torch.float64)
    assert (sparse.dtype, sparse.col.dtype, sparse.device.type) == (torch.float64, torch.int32, "cpu")
    assert sparse.to("cpu").dtype == torch.float64


@few
@given(matrices())
def test_normalized_rows_sum_to_one_and_sparse_agrees_with_dense(x):
    x = x.abs()
    scaled = normalize_rows(x)
    expected = (x.sum(dim=1) > 0).double()
    torch.testing.assert_close(scaled.sum(dim=1), expected)
    torch.testing.assert_close(normalize_rows(SparseFeatures.from_dense(x)).to_dense(), scaled)


def test_a_row_that_sums_to_zero_stays_as_it_is():
    x = torch.tensor([[0.0, 0.0], [2.0, -2.0], [1.0, 3.0]])
    assert normalize_rows(x).tolist() == [[0, 0], [2, -2], [0.25, 0.75]]
    assert normalize_rows(SparseFeatures.from_dense(x)).to_dense().tolist() == [[0, 0], [2, -2], [0.25, 0.75]]


@pytest.mark.parametrize("make", [lambda x: x, SparseFeatures.from_dense], ids=["dense", "sparse"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_is_refused_with_its_place(make, bad):
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    check_features(make(x))
    x[1, 1] = bad
    with pytest.raises(GraphjouleError, match=rf"hold {bad} at node 1, column 1; all must be finite"):
        check_features(make(x))


def test_features_of_another_shape_or_dtype_are_refused():
    with pytest.raises(GraphjouleError, match=r"shape \[3\]; expected \[num_nodes, num_features\]"):
        check_features(torch.ones(3))
    with pytest.raises(GraphjouleError, match=r"dtype torch.int64; expected a floating-point"):
        check_features(torch.ones(3, 2, dtype=torch.int64))


@pytest.mark.parametrize("nodes", [[0], [3, 7, 8], list(range(10))])
def test_some_rows_are_what_they_are_of_a_dense_matrix(nodes):
    x, nodes = normal(10, 6), torch.tensor(nodes)
    zeros = x * (x > 0.7)
    rows, want = SparseFeatures.from_dense(zeros)[nodes], SparseFeatures.from_dense(zeros[nodes])
    for name in ("rowptr", "col", "value", "t_rowptr", "t_col", "to_transposed"):
        assert getattr(rows, name).equal(getattr(want, name)), name
        assert getattr(rows, name).dtype == getattr(want, name).dtype, name


def test_rows_by_mask_slice_and_number():
    x = normal(10, 6)
    sparse = SparseFeatures.from_dense(x * (x > 0.7))
    for chosen in (torch.arange(10) % 3 == 1, slice(2, 9, 3), [5, 0, -1]):
        assert sparse[chosen].to_dense().equal(sparse.to_dense()[chosen])
    assert sparse[-2].to_dense().equal(sparse.to_dense()[-2:-1])


def test_factors_of_rows_and_columns_are_part_of_the_features():
    x = torch.rand(5, 4) * (torch.rand(5, 4) > 0.3)
    rows, columns = torch.tensor([0.0, 1, 2, 3, 4]), torch.tensor([2.0, 0, 1, 3])
    scaled = SparseFeatures.from_dense(x).scaled(rows, columns).scaled(rows=rows)
    expected = rows[:, None] ** 2 * x * columns
    torch.testing.assert_close(scaled.to_dense(), expected)
    torch.testing.assert_close(scaled.to(dtype=torch.float64).to_dense(), expected.double())
    torch.testing.assert_close(scaled[torch.tensor([3, 1])].to_dense(), expected[[3, 1]])


def test_features_with_other_values_or_factors_know_their_pattern_already():
    x = SparseFeatures.from_dense(torch.eye(3))
    for twin in (x.with_value(2 * x.value), x.scaled(rows=torch.ones(3)), x.scaled(columns=torch.ones(3))):
        assert twin.rows is x.rows  # to sort the rows again would wait for the device in every epoch
        assert twin.t_rows is x.t_rows
