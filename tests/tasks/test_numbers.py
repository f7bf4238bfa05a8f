import gzip
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.tasks import numbers
from graphjoule.tasks.numbers import Table
from tests.graphs import few


@pytest.fixture
def save(tmp_path):
    def write(content, name="table.csv.gz"):
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(gzip.compress(content))
        return tmp_path / name

    return write


def refused(table):
    with pytest.raises(GraphjouleError) as caught:
        table.read()
    sentence = str(caught.value)
    assert str(table.file) in sentence
    assert "\n" not in sentence
    return sentence.replace(str(table.file), "FILE")


def test_numbers_with_a_fraction_are_float32(save):
    table = Table(save("0.5,-1e-3\n+2,3.25\n"), rows=2, columns=2).read()
    assert table.dtype == np.float32
    assert table.tolist() == [[0.5, np.float32(-1e-3)], [2.0, 3.25]]


def test_whole_numbers_are_int64(save):
    table = Table(save("0\n7\n"), rows=2, below=8).read()
    assert table.dtype == np.int64
    assert table.tolist() == [[0], [7]]


@pytest.mark.parametrize("text", ["1,2\r\n3,4\r\n", "1,2\n3,4", " 1, 2\n3,4 \n"])
def test_line_ends_and_blanks_around_numbers_do_not_matter(save, text):
    assert Table(save(text), rows=2, columns=2, below=9).read().tolist() == [[1, 2], [3, 4]]


@given(
    st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3), max_size=5)
)
@few
def test_what_is_written_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("numbers") / "table.csv.gz"
    path.write_bytes(gzip.compress("".join(",".join(map(repr, row)) + "\n" for row in rows).encode()))
    table = Table(path, rows=len(rows), columns=3).read()
    assert table.shape == (len(rows), 3)
    assert table.tolist() == rows


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1,2\n3,x\n", "Line 2, column 2 of FILE is 'x'; expected a whole number from 0 to 9."),
        ("1,2\n3,4.0\n", "Line 2, column 2 of FILE is '4.0'; expected a whole number from 0 to 9."),
        ("1,2\n3,10\n", "Line 2, column 2 of FILE is '10'; expected a whole number from 0 to 9."),
        ("-1,2\n3,4\n", "Line 1, column 1 of FILE is '-1'; expected a whole number from 0 to 9."),
        ("1,2\n3,99999999999999999999\n", "Line 2, column 2 of FILE is '99999999999999999999'; expected a whole"),
        ("1,2\n3,\n", "Line 2, column 2 of FILE is ''; expected a whole number"),
        ("1,2\n3,\xe9\n", "Line 2, column 2 of FILE is '\\\\xc3\\\\xa9'; expected a whole"),
        ("1,2\n3\n", "Line 2 of FILE has 1 values; expected 2 divided by commas."),
        ("1,2,3\n4,5,6\n", "Line 1 of FILE has 3 values; expected 2 divided by commas."),
        ("1,2\n\n3,4\n", "The file FILE has more than the 2 lines expected."),
        ("1,2\n\n", "Line 2 of FILE has 0 values; expected 2 divided by commas."),
        ("1,2\n", "The file FILE cannot be read: it has 1 lines, expected 2."),
        ("", "The file FILE cannot be read: it has 0 lines, expected 2."),
        ("1,2\n3,4\n5,6\n", "The file FILE has more than the 2 lines expected."),
        ("1,2\n#3,4\n", "Line 2, column 1 of FILE is '#3'; expected a whole"),
        ("1,2\n3,0_1\n", "The file FILE cannot be read: "),
    ],
)
def test_a_wrong_line_is_named(save, text, sentence):
    assert refused(Table(save(text), rows=2, columns=2, below=10)).startswith(sentence)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e39", "", "one"])
def test_a_number_that_is_none_is_named(save, value):
    sentence = refused(Table(save(f"0.5,1\n2,{value}\n"), rows=2, columns=2))
    assert sentence == f"Line 2, column 2 of FILE is {value!r}; expected a finite number."


def test_a_line_without_end_is_refused_without_being_read(save):
    sentence = refused(Table(save(b"1" * 50_000_000), rows=2, below=10))
    assert sentence == "Line 1 of FILE is longer than 65,536 bytes."


def test_more_lines_than_expected_are_not_read(save, monkeypatch):
    seen = []
    monkeypatch.setattr(numbers, "partial", lambda call, size: lambda: seen.append(call(size)) or seen[-1])
    refused(Table(save(b"1\n" * 1_000_000), rows=3, below=10))
    assert len(seen) == 4


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-12], lambda data: b"1,2\n", lambda data: b"", lambda data: data[:20] + b"\0" + data[21:]],
    ids=["cut", "not gzip", "empty", "changed"],
)
def test_a_damaged_file_is_one_sentence(save, damage):
    path = save("".join(f"{i},{i % 7}\n" for i in range(1000)))
    path.write_bytes(damage(path.read_bytes()))
    assert refused(Table(path, rows=1000, columns=2, below=1000)).startswith(
        ("The file FILE is no readable .csv.gz file", "The file FILE cannot be read: it has 0 lines")
    )


def test_a_missing_file_or_a_folder_is_one_sentence(tmp_path):
    assert "no readable .csv.gz file ([Errno 2] No such file" in refused(Table(tmp_path / "gone.csv.gz", rows=1))
    (tmp_path / "folder.csv.gz").mkdir()
    assert "no readable .csv.gz file ([Errno 21] Is a directory" in refused(Table(tmp_path / "folder.csv.gz", rows=1))


def test_a_member_of_a_zip_is_read_in_place(save, tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(save("1,2\n3,4\n"), "inside/table.csv.gz")
    member = zipfile.Path(tmp_path / "all.zip", "inside/") / "table.csv.gz"
    assert Table(member, rows=2, columns=2, below=9).read().tolist() == [[1, 2], [3, 4]]
    sentence = refused(Table(member, rows=2, columns=2, below=4))
    assert sentence == "Line 2, column 2 of FILE is '4'; expected a whole number from 0 to 3."
