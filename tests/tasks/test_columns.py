"""Columns as features and targets: what is recognised, what becomes of it, and what is asked about."""

import subprocess
import sys
from datetime import date, datetime

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.columns import encode, keep_constant, measure_numbers, recognise
from graphjoule.tasks.encoders import CategoryColumn, NumberColumn, TableColumns, TextColumn
from tests.graphs import few
from tests.tasks import column

DTYPE = np.dtype(np.float32)


def fitted(table, **columns):
    """Encoders of columns that are recognised."""
    found = [recognise(table, name, values).encoder for name, values in columns.items()]
    parts = {
        field: tuple(each for each in found if isinstance(each, kind))
        for field, kind in (("numbers", NumberColumn), ("categories", CategoryColumn), ("texts", TextColumn))
    }
    return TableColumns(id=None, label="label", **parts)


def features(table, columns, **values):
    matrix, said = encode(table, columns, values, DTYPE)
    return (matrix.toarray() if sp.issparse(matrix) else matrix).tolist(), said


@few
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_mean_and_deviation_are_numpys_up_to_rounding(values):
    values = np.array(values)
    found = measure_numbers("x", values)
    assert found.mean == pytest.approx(values.mean(), abs=1e-9 * max(1, abs(values).max()))
    assert found.std == pytest.approx(values.std(), rel=1e-6, abs=1e-9 * max(1, abs(values).max()))


def test_the_order_of_the_rows_does_not_change_a_bit():
    values = np.random.RandomState(0).randn(1000) * 10.0 ** np.arange(1000).clip(max=6)
    assert measure_numbers("x", values) == measure_numbers("x", np.sort(values))


def test_huge_and_tiny_numbers_do_not_overflow(table):
    values = {"x": column(1e300, -1e300, 0.0), "y": column(1e-300, 2e-300, 3e-300)}
    x = np.array(features(table, fitted(table, **values), **values)[0])
    assert np.allclose(x.mean(axis=0), 0, atol=1e-6)
    assert np.allclose(x.std(axis=0), 1)


# What is recognised.

MANY = 60
KINDS = {
    "whole numbers": (column(1, 2, 3), "number"),
    "numbers": (column(1.5, None, 3.0), "number"),
    "numbers as text": (column("1", "2e3", ".5"), "number"),
    "numbers and words for missing": (column("1", "n/a", "?", "2"), "number"),
    "booleans": (column(True, False, None), "boolean"),
    "days": (column(date(2020, 1, 1), date(2020, 1, 3)), "date"),
    "moments": (column(datetime(2020, 1, 1, 12), datetime(2020, 1, 3)), "date"),
    "dates as text": (column("31.1.2020", "01.02.2021"), "date"),
    "American dates": (column("1/31/2020", "02/01/2021"), "date"),
    "English dates": (column("31/01/2020", "02/01/2021"), "date"),
    "dates with a time": (column("2020-01-31T10:00:00Z", "2020-02-01"), "date"),
    "few words": (column("red", "blue", None), "category"),
    "names": (column(*(f"n{i}" for i in range(MANY))), "names"),
    "texts": (column(*(f"number {i} of the very long list" for i in range(MANY))), "text"),
    "one value": (column(*["a"] * 3), "constant"),
    "one number": (column(7, 7, 7), "constant"),
    "nothing": (column(None, None), "blank"),
    "words for nothing": (column("NA", "NA"), "constant"),
}


@pytest.mark.parametrize(("values", "kind"), KINDS.values(), ids=KINDS)
def test_what_a_column_is_recognised_as(table, values, kind):
    found = recognise(table, "c", values)
    assert (found.kind, found.problem) == (kind, None)
    assert found.becomes.startswith("left out") == (kind in ("names", "constant", "blank"))


UNCLEAR = {
    "mostly numbers": (column("1", "2", "3", "tall"), "'tall' is not a number, and 3 of 4 values are; leave it blank"),
    "an underscore": (column("1", "1_000"), "'1_000' is not a number"),
    "a decimal comma": (column("1,5", "2,5"), "'1,5' looks like a number; write it as 1234.5."),
    "prices": (column("$1,200.50", "$3"), "'$1,200.50' looks like a number"),
    "infinite": (
        column(1.0, float("inf")),
        "inf is not a finite number, or too large; leave it blank if it is unknown.",
    ),
    "a day or a month": (column("01/02/2020", "03/04/2020"), "'01/02/2020' may have the day or the month first"),
    "lists": (column([1.0], [2.0]), "list<item: double> values are neither text nor numbers."),
}


@pytest.mark.parametrize(("values", "said"), UNCLEAR.values(), ids=UNCLEAR)
def test_what_is_unclear_is_a_problem_in_words(table, values, said):
    assert said in recognise(table, "c", values).problem


def test_a_column_that_is_named_is_categories_whatever_it_looks_like(table):
    found = recognise(table, "zip", column("1", "2", "1"), is_category=True)
    assert found.encoder == CategoryColumn(name="zip", categories=("1", "2"))
    many = column(*map(str, range(1001)))
    assert (
        "column 'c' has 1,001 different values; a `one_hot` column may have 1,000"
        in recognise(table, "c", many, is_category=True).problem
    )
    assert (
        "every value of this `one_hot` column is blank"
        in recognise(table, "c", column(None, None, kind=pa.string()), is_category=True).problem
    )


def test_of_many_categories_the_most_frequent_have_a_feature(table):
    values = column(*(f"c{i}" for i in range(150) for _ in range(4 if i < 50 else 3)), "c140", "c140")
    found = recognise(table, "c", values)
    assert found.becomes == "one feature for each of the 100 most frequent of 150 categories"
    assert len(found.encoder.categories) == 100
    assert {"c0", "c49", "c140", "c100"} <= set(found.encoder.categories)


# What becomes of it.


def test_a_missing_number_is_the_mean_and_marked(table):
    values = {"x": column(0.0, None, 10.0), "y": column(1.0, 3.0, 5.0)}
    columns = fitted(table, **values)
    assert columns.feature_names == ("x", "y", "x missing")
    x, said = features(table, columns, **values)
    assert [row[0] for row in x] == [-1, 0, 1]
    assert [row[2] for row in x] == [0, 1, 0]
    assert not said


def test_dates_count_in_days(table):
    written = {"d": column("03.01.2020", "01.01.2020")}
    columns = fitted(table, **written)
    assert columns.numbers[0].dates == "D.M.Y"
    assert (columns.numbers[0].mean, columns.numbers[0].std) == (18263.0, pytest.approx(1.0))
    assert np.allclose(features(table, columns, **written)[0], [[1.0], [-1.0]])
    assert features(table, columns, d=column(date(2020, 1, 2)))[0] == [[0.0]]
    with pytest.raises(GraphjouleError, match=r"column 'd' holds numbers; expected dates\."):
        encode(table, columns, {"d": column(1, 2)}, DTYPE)
    with pytest.raises(
        GraphjouleError, match=r"line 3, column 'd': '2020-1-2' is no date of the form in the training, 3"
    ):
        encode(table, columns, {"d": column("01.01.2020", "2020-1-2")}, DTYPE)
    typed = fitted(table, d=column(date(2020, 1, 2), date(2020, 1, 4)))
    with pytest.raises(GraphjouleError, match="column 'd' has dates in several forms; write all as 2026-01-31"):
        encode(table, typed, {"d": column("2020-01-03", "3.1.2020")}, DTYPE)
    x, said = features(table, columns, d=column("NA", None))
    assert (x, said) == ([[0.0], [0.0]], ["2 missing values of 'd' taken as its mean"])


def test_categories_and_words_are_one_feature_each(table):
    text = ["The cat sat on the mat", "a Cat, a dog and a man", None, "ÄPFEL und Birnen und Äpfel"]
    values = {"city": column("Rome", "Bern", None, "Rome"), "note": column(*text)}
    columns = fitted(table, **values)
    assert columns.categories == (CategoryColumn(name="city", categories=("Bern", "Rome")),)
    assert columns.texts == (TextColumn(name="note", words=("cat",)),)
    assert features(table, columns, **values)[0] == [[0, 1, 1], [1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert columns.feature_names == ("city=Bern", "city=Rome", "note:cat")


def test_what_the_model_has_not_met_is_counted_and_has_no_feature(table):
    columns = fitted(table, city=column("Bern", "Rome", "Rome"), x=column(0.0, 1.0, 2.0))
    x, said = features(table, columns, city=column("Oslo", "Rome", None), x=column(1.0, None, 1.0))
    assert x == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert said == ["1 missing value of 'x' taken as its mean", "1 value of 'city' without a category of the model"]


def test_values_beyond_the_training_range_by_more_than_its_width_are_counted(table):
    columns = fitted(table, x=column(0.0, 1.0, 2.0), age=column(*range(20, 60)))
    _, said = features(table, columns, x=column(-2.0, 4.0, 1.0), age=column(98, -20, 30))
    assert said == ["1 value of 'age' far from all that the model was trained on"]
    _, said = features(table, columns, x=column(-2.1, 800.0), age=column(8000, -1e30))
    assert said == [f"2 values of {name!r} far from all that the model was trained on" for name in ("x", "age")]
    before = columns.model_copy(
        update={"numbers": tuple(each.model_copy(update={"low": None, "high": None}) for each in columns.numbers)}
    )  # as earlier versions wrote it
    _, said = features(table, before, x=column(800.0, 900.0), age=column(8000, 30))
    assert said == ["1 value of 'x' far from all that the model was trained on"]
    kept = TableColumns(id=None, label="y", numbers=(keep_constant(measure_numbers("x", np.full(7, 5.0))),))
    assert features(table, kept, x=column(6.0, 5.0))[1] == []
    assert len(features(table, kept, x=column(6.0, 50.0))[1]) == 1


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (
            [1e9],
            "'x' has 1 value so far out, such as 1e+09, that the others hardly differ: their deviation is 11.54, and",
        ),
        ([1e300], "such as 1e+300, that the others hardly differ: their deviation is 11.54, and 4."),
        ([-9999, -9999], "2 values so far out, such as -9999, that the others hardly differ: their deviation is 11.54"),
        ([150], None),
    ],
)
def test_a_column_is_doubted_whose_spread_is_that_of_few_values(table, odd, said):
    found = recognise(table, "x", column(*(float(20 + i % 40) for i in range(400)), *map(float, odd)))
    assert found.doubt is None if said is None else said in found.doubt


def test_counts_and_flags_are_not_doubted(table):
    draw = np.random.RandomState(0)
    for values in ([0] * 999 + [1], [0] * 990 + [1, 2, 3] * 3, draw.lognormal(sigma=2, size=2_000), [5, 5, 1_000]):
        assert recognise(table, "x", column(*map(float, values))).doubt is None
    dates = recognise(table, "x", column(*(f"2024-01-{1 + i % 28:02}" for i in range(200)), "9999-12-31"))
    assert "1 value so far out, such as 9999-12-31, that" in dates.doubt


@pytest.mark.parametrize(("value", "kept"), [(1.0, 1.0), (0.0, 1.0), (-7.3, -1.0), (1e300, 1.0), (5e-324, 1.0)])
def test_a_constant_column_that_is_kept_has_size_one(table, value, kept):
    columns = TableColumns(id=None, label="y", numbers=(keep_constant(measure_numbers("x", np.full(7, value))),))
    assert features(table, columns, x=column(*[value] * 7))[0] == [[kept]] * 7


def test_a_value_too_far_away_to_be_a_feature_is_refused(table):
    columns = TableColumns(id=None, label="y", numbers=(NumberColumn(name="x", mean=0.0, std=1e-300),))
    with pytest.raises(GraphjouleError, match=r"t.csv, line 3, column 'x': 1.0 is too far from the training nodes'"):
        features(table, columns, x=column(0.0, 1.0))


def test_yes_and_1_are_one_column_and_missing_words_stand_among_dates(table):
    flags = recognise(table, "x", column("true", "0", "1", "no", "NA", None))
    assert (flags.kind, flags.missing, flags.encoder.mean) == ("boolean", 2, 0.5)
    days = recognise(table, "x", column("31.1.2026", "n/a", "1.2.2026"))
    assert (days.kind, days.missing, days.encoder.dates) == ("date", 1, "D.M.Y")
    mixed = recognise(table, "x", column(*(f"{1 + i}/1/2026" if i % 2 else f"2026-01-{1 + i:02}" for i in range(30))))
    assert (mixed.kind, mixed.encoder) == ("names", None)
    assert "like dates, but not all in one of the forms" in mixed.becomes
    columns = TableColumns(id=None, label="y", numbers=(flags.encoder,))
    with pytest.raises(GraphjouleError, match="column 'x': 'maybe' is neither yes nor no"):
        features(table, columns, x=column("yes", "maybe"))


def test_nothing_imports_torch():
    code = "import sys, graphjoule.tasks.table_report; assert not {'torch', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
