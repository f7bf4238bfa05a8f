from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from graphjoule.tasks.columns import build_features, keep_constant, measure_categories, measure_numbers
from graphjoule.tasks.facts import CategoryColumn, NumberColumn, TableColumns
from graphjoule.tasks.reading import Header, Table
from tests.graphs import few


def make(text=None, **numbers):
    text = text or {}
    count = len(next(iter((text or numbers).values())))
    names = (*text, *numbers)

    arrays = {name: np.array(values, dtype=float) for name, values in numbers.items()}
    columns = {name: pa.chunked_array([values], pa.string()) for name, values in text.items()}
    return Table(Header(Path("t.csv"), names), columns, arrays, count, unit="row")


def columns(numbers=(), categories=()):
    return TableColumns(id="id", label="label", numbers=numbers, categories=categories)


def dense(features):
    return features.to_dense() if isinstance(features, SparseFeatures) else features


@few
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_mean_and_deviation_are_numpys_up_to_rounding(values):
    values = np.array(values)
    column = measure_numbers("x", values)
    assert column.mean == pytest.approx(values.mean(), abs=1e-9 * max(1, abs(values).max()))
    assert column.std == pytest.approx(values.std(), rel=1e-6, abs=1e-9 * max(1, abs(values).max()))


def test_the_order_of_the_rows_does_not_change_a_bit():
    values = np.random.RandomState(0).randn(1000) * 10.0 ** np.arange(1000).clip(max=6)
    assert measure_numbers("x", values) == measure_numbers("x", np.sort(values))


def test_huge_and_tiny_numbers_do_not_overflow():
    table = make(x=[1e300, -1e300, 0.0], y=[1e-300, 2e-300, 3e-300])
    fitted = tuple(measure_numbers(name, values) for name, values in table.numbers.items())
    x = dense(build_features(table, columns(fitted)))
    assert torch.allclose(x.mean(dim=0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(x.std(dim=0, correction=0), torch.ones(2))


@pytest.mark.parametrize("value", [0.1, 0.0, -7.3, 1e300])
def test_a_constant_column_becomes_zero(value):
    table = make(x=[value] * 7)
    column = measure_numbers("x", table.numbers["x"])
    assert column == NumberColumn(name="x", mean=value, std=0.0)
    assert not dense(build_features(table, columns([column]))).any()
    other = make(x=[value + 5])  # on another graph it carries nothing either
    assert not dense(build_features(other, columns([column]))).any()


@pytest.mark.parametrize(("value", "kept"), [(1.0, 1.0), (0.0, 1.0), (-7.3, -1.0), (1e300, 1.0), (5e-324, 1.0)])
def test_a_constant_column_that_is_kept_has_size_one(value, kept):
    table = make(x=[value] * 7)
    column = keep_constant(measure_numbers("x", table.numbers["x"]))
    assert dense(build_features(table, columns([column]))).tolist() == [[kept]] * 7


def test_another_graph_is_scaled_with_the_first_ones_numbers():
    column = measure_numbers("x", np.array([0.0, 10.0]))
    assert dense(build_features(make(x=[5.0, 20.0, 0.0]), columns([column]))).tolist() == [[0.0], [3.0], [-1.0]]


def test_a_value_too_far_away_to_be_a_feature_is_refused():
    column = NumberColumn(name="x", mean=0.0, std=1e-300)
    with pytest.raises(
        GraphjouleError, match=r"t.csv, row 2, column 'x': 1.0 is too far from the training nodes' mean"
    ):
        build_features(make(x=[0.0, 1.0]), columns([column]))


def test_categories_are_one_column_each_after_the_numbers_and_a_blank_is_none_of_them():
    table = make({"city": ["Rome", "Bern", "", "Rome"]}, x=[0.0, 2.0, 0.0, 2.0])
    city = measure_categories("city", table)
    assert city == CategoryColumn(name="city", categories=("Bern", "Rome"))
    fitted = columns([measure_numbers("x", table.numbers["x"])], [city])
    expected = [[-1, 0, 1], [1, 1, 0], [-1, 0, 0], [1, 0, 1]]
    assert dense(build_features(table, fitted)).tolist() == expected
    assert fitted.feature_names == ("x", "city=Bern", "city=Rome")


def test_many_categories_are_kept_sparse():
    table = make({"c": [str(i) for i in range(50)]})
    features = build_features(table, columns((), [measure_categories("c", table)]))
    assert isinstance(features, SparseFeatures)
    assert features.to_dense().sum(dim=1).tolist() == [1.0] * 50


def test_a_category_the_model_does_not_know_is_refused_with_those_it_knows():
    known = CategoryColumn(name="city", categories=("Bern", "Rome"))
    with pytest.raises(GraphjouleError, match=r"t.csv, row 2, column 'city': 'Oslo' is not .*: Bern, Rome\. A blank"):
        build_features(make({"city": ["Bern", "Oslo"]}), columns((), [known]))


def test_a_column_of_names_is_no_category():
    with pytest.raises(
        GraphjouleError, match=r"column 'c' has 1,001 different values; a `one_hot` column may have 1,000"
    ):
        measure_categories("c", make({"c": [str(i) for i in range(1001)]}))
    with pytest.raises(GraphjouleError, match="every value of this `one_hot` column is blank"):
        measure_categories("c", make({"c": ["", ""]}))


def test_features_are_of_torchs_default_dtype():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        table = make(x=[0.0, 1.0, 5.0])
        assert build_features(table, columns([measure_numbers("x", table.numbers["x"])])).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)
