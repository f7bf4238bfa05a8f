import sys
from datetime import date
from decimal import Decimal

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.reading import read_table
from graphjoule.tasks.table import Wanted

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(tmp_path, **columns):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def read(path, text=(), numbers=()):
    return read_table(path, lambda header: Wanted(text, numbers))


def refusal(path, text=(), numbers=()):
    with pytest.raises(GraphjouleError) as caught:
        read(path, text, numbers)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


def test_columns_of_any_plain_type_are_read_as_a_person_would_type_them(tmp_path):
    path = write(
        tmp_path,
        id=[1, 2, 3],
        name=pa.array(["a", " b", None]).dictionary_encode(),
        label=[0.0, float("nan"), 1.0],
        x=pa.array([1, 2, 3], pa.int8()),
        flag=[True, False, True],
        price=pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("0.0")]),
    )
    table = read(path, ["id", "name", "label", "flag"], ["x", "flag", "price"])
    assert table.text["id"] == ["1", "2", "3"]
    assert table.text["name"] == ["a", "b", ""]
    assert table.text["label"] == ["0.0", "", "1.0"]
    assert table.text["flag"] == ["True", "False", "True"]
    assert {name: values.tolist() for name, values in table.numbers.items()} == {
        "x": [1, 2, 3],
        "flag": [1, 0, 1],
        "price": [1.5, 2.5, 0],
    }
    assert (table.unit, table.rows.tolist()) == ("row", [1, 2, 3])


BAD = {
    "null": ([1.0, None], "FILE, row 2, column 'x': the value is blank"),
    "NaN": ([1.0, float("nan")], "FILE, row 2, column 'x': 'nan' is not a finite number"),
    "text": (["red", "blue"], "FILE, row 1, column 'x': 'red' is not a number"),
    "numbers as text": (["1", "2"], "FILE, row 1, column 'x': '1' is text"),
    "dates": ([date(2020, 1, 1)] * 2, "FILE, row 1, column 'x': '2020-01-01' is not a number"),
    "lists": ([[1.0], [2.0]], "FILE, row 1, column 'x': '[1.0]' is not a number"),
}


@pytest.mark.parametrize(("values", "said"), BAD.values(), ids=BAD)
def test_a_bad_column_is_one_sentence_with_file_row_and_column(tmp_path, values, said):
    assert said in refusal(write(tmp_path, id=["a", "b"], x=values), ["id"], ["x"])


def test_bytes_are_no_names(tmp_path):
    assert "binary values are neither text nor numbers" in refusal(write(tmp_path, id=[b"a", b"b"]), ["id"])


@pytest.mark.parametrize("content", [b"id,x\na,1\n", b"PAR1", b"PAR1" + b"\0" * 50 + b"PAR1"])
def test_a_file_that_is_no_parquet(tmp_path, content):
    (tmp_path / "t.parquet").write_bytes(content)
    assert refusal(tmp_path / "t.parquet", ["id"]).startswith("FILE is not a whole Parquet file")


def test_no_row(tmp_path):
    assert "no row below it" in refusal(
        write(tmp_path, id=pa.array([], pa.string()), x=pa.array([], pa.float64())), ["id"], ["x"]
    )


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path, id=["a"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'graphjoule[parquet]'" in refusal(path, ["id"])
