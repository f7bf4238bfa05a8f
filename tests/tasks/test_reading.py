import csv
import gzip
import io
import os
import time
import tracemalloc
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.reading import Table, shorten
from tests.graphs import few


def read(path, text=(), inferred=()):
    """The columns as lists."""
    return {name: values.to_pylist() for name, values in Table(path).read(text, inferred).items()}


def places(path, count):
    table = Table(path)
    return [table.place(row) for row in range(count)]


def write(tmp_path, content, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path, text=(), inferred=()):
    """The sentence with which a file is refused."""
    with pytest.raises(GraphjouleError) as caught:
        read(path, text, inferred)
    said = str(caught.value)
    assert said.endswith((".", "?"))
    assert "\n" not in said
    assert said.count(str(path)) >= 1
    return said.replace(f"{path}", "FILE")


# What is read.


def test_columns_come_as_text_or_as_what_they_look_like(tmp_path):
    path = write(tmp_path, "id,x,other,flag,day\n1,1,?,yes,2020-01-02\n2,-2.5e3,?,,\n")
    assert read(path, ["id"], ["x", "flag", "day"]) == {
        "id": ["1", "2"],
        "x": [1.0, -2500.0],
        "flag": [True, None],
        "day": [date(2020, 1, 2), None],
    }
    assert places(path, 2) == [2, 3]
    assert Table(path).names == ("id", "x", "other", "flag", "day")


@pytest.mark.parametrize(
    "content",
    [
        "id,x\na,1\nb,2\n",
        "id,x\na,1\nb,2",  # no newline at the end
        "id,x\r\na,1\r\nb,2\r\n",  # Windows
        "id,x\ra,1\rb,2\r",  # an old Macintosh
        "\ufeffid,x\na,1\nb,2\n",  # a byte order mark, as spreadsheets write it
        "id\tx\na\t1\nb\t2\n",
        "id;x\na;1\nb;2\n",
        " id , x \n a , 1 \n b ,2\n",
        '"id","x"\n"a","1"\n"b","2"\n',
        "\n\nid,x\n\na,1\n\n\nb,2\n\n",
    ],
)
def test_the_many_ways_to_write_the_same_table(tmp_path, content):
    assert read(write(tmp_path, content), ["id"], ["x"]) == {"id": ["a", "b"], "x": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("id;income (k, gross);label", ("id", "income (k, gross)", "label")),
        ("id\tincome, gross\tlabel", ("id", "income, gross", "label")),
        ('id,"a;b;c;d",label', ("id", "a;b;c;d", "label")),
        ("id,a;b", ("id", "a;b")),  # as many columns either way: the comma
    ],
)
def test_the_delimiter_is_the_one_that_gives_the_header_the_most_columns(tmp_path, header, names):
    path = write(tmp_path, f"{header}\n{header}\n")
    assert Table(path).names == names
    assert read(path, [names[-1]]) == {names[-1]: [names[-1]]}


def test_a_byte_that_is_not_utf8_is_placed_by_the_headers_delimiter(tmp_path):
    path = write(tmp_path, b"id;x;label\na, b, c;\xff;u\n")
    for wanted in (["x"], []), ([], ["x"]):
        assert "line 2, column 'x': the byte 0xff" in refusal(path, *wanted)


def test_an_empty_name_is_no_folder():
    for name in ("", "."):
        with pytest.raises(GraphjouleError, match=r"The name of a file is empty, or '\.', which is a folder"):
            Table(name)


def test_quoted_values_may_hold_delimiters_quotes_and_line_breaks_and_lines_are_still_counted(tmp_path):
    path = write(tmp_path, 'id,x\n"a,1",1\n"b\n""b""\nb",2\n\nc,3\nd,wrong\n')
    assert read(path, ["id"])["id"] == ["a,1", 'b\n"b"\nb', "c", "d"]
    assert places(path, 4) == [2, 3, 7, 8]


value = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=5)


@few
@given(rows=st.lists(st.tuples(value, value), min_size=1, max_size=8))
def test_what_pythons_own_writer_writes_is_read_back(tmp_path_factory, rows):
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    columns = read(write(tmp_path_factory.mktemp("csv"), written.getvalue()), ["a", "b"])
    assert list(zip(*columns.values(), strict=True)) == [(a.strip() or None, b.strip() or None) for a, b in rows]


@few
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_numbers_come_back_to_the_bit(tmp_path_factory, numbers):
    path = write(tmp_path_factory.mktemp("csv"), "x\n" + "".join(f"{number!r}\n" for number in numbers))
    assert read(path, inferred=["x"])["x"] == numbers


# What is refused: file, line, column.

BAD = {
    "a row too short": ("id,x\na,1\nb\n", "FILE, line 3, column 2: the row has 1 value; expected 2"),
    "a row too long": ("id,x\na,1,2\n", "FILE, line 2, column 3: the row has 3 values; expected 2"),
    "two columns of one name": ("id,x,x\na,1,2\n", "FILE, line 1: columns 2 and 3 are both called 'x'"),
    "a column without a name": (",id,x\n0,a,1\n", "FILE, line 1, column 1 has no name"),
    "no row": ("id,x\n", "FILE has a header but no row below it"),
    "nothing": ("", "FILE is empty"),
    "blank lines": ("\n\n \n", "FILE holds blank lines alone"),
    "a quote never closed": (
        'id,x\na,1\n"b,2\nc,3\n',
        "FILE, line 3, column 2: the row has 1 value; expected 2, one for each column of the header; is a quote never",
    ),
    "not UTF-8": (b"id,x\na,1\nb\xe9,2\n", "FILE, line 3, column 'id': the byte 0xe9 is not UTF-8"),
    "not UTF-8 further right": (b'id,x\n"a,b",\xff\n', "FILE, line 2, column 'x': the byte 0xff is not UTF-8"),
    "not UTF-8 in the header": (b"id,\xe9\na,1\n", "FILE, line 1, column 2: the byte 0xe9 is not UTF-8"),
    "UTF-16": ("id,x\na,1\n".encode("utf-16"), "FILE is UTF-16; save it as UTF-8."),
    "packed": (gzip.compress(b"id,x\na,1\n"), "FILE is packed by gzip; unpack it first, as gunzip does."),
    "a workbook": (b"PK\x03\x04\x80\x00\x01", "FILE is a ZIP archive, as a workbook .xlsx is; save its table as CSV"),
    "ends within a character": (b"id,x\na,1\nb,\xc3", "FILE, line 3, column 'x': the byte 0xc3 is not UTF-8"),
    "no text at all": (b"\x89PNG\x80\x00\x01", "is not UTF-8"),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD)
def test_a_bad_file_is_one_sentence_with_file_line_and_column(tmp_path, content, said):
    told = refusal(write(tmp_path, content), ["id"], ["x"])
    assert said in told
    assert len(told) < 300


def test_a_byte_that_is_not_utf8_is_found_far_into_a_file(tmp_path):
    path = write(tmp_path, b"id,x\n" + b"abcdefg,1\n" * 30_000 + b"ab\x80,1\n")
    assert "FILE, line 30002, column 'id': the byte 0x80" in refusal(path, ["id"])


def test_a_column_that_is_not_wanted_may_hold_anything(tmp_path):
    assert read(write(tmp_path, b"id,x\na,\nb,\xff\n"), ["id"]) == {"id": ["a", "b"]}


def test_a_path_that_is_not_utf8_is_refused_before_anything_is_read(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/n\xe9.csv")
    with open(path, "w") as file:  # noqa: PTH123 - a name that is bytes
        file.write("id,x\na,1\n")
    with pytest.raises(GraphjouleError, match=r"n\\udce9\.csv' is not UTF-8, and a run folder could not store it"):
        Table(path)


def test_a_folder_and_a_file_that_is_not_there(tmp_path):
    assert refusal(tmp_path, ["id"]) == "FILE is a folder; expected a file."
    assert refusal(tmp_path / "no.csv", ["id"]) == "There is no file FILE."


@pytest.mark.parametrize("line", ["x" * 100, "1," * 50], ids=["one value", "many values"])
def test_a_line_of_100_mb_is_refused_in_bounded_memory(tmp_path, line):
    path = tmp_path / "long.csv"
    with path.open("w") as file:
        file.write("id,x\na,1\nb,")
        for _ in range(10_000):
            file.write(line * 100)
        file.write("\n")
    assert path.stat().st_size > 100_000_000
    tracemalloc.start()
    said = refusal(path, ["id"], ["x"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "FILE, line 3, column " in said
    assert "the line is longer than 16,777,216 characters" in said
    assert peak < 150_000_000


def test_a_long_text_is_a_value_and_lines_are_counted_past_it(tmp_path):
    path = write(tmp_path, f'id,x\na,"{"1 " * 200_000}"\nb,2\n')
    assert read(path, ["x"])["x"][1] == "2"
    assert places(path, 2) == [2, 3]


# Parquet


def write_parquet(tmp_path, **columns):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_columns_of_any_plain_type_are_read_as_a_person_would_type_them(tmp_path):
    path = write_parquet(
        tmp_path,
        id=[1, 2, 3],
        name=pa.array(["a", " b", None]).dictionary_encode(),
        label=[0.0, float("nan"), 1.0],
        x=pa.array([1, 2, 3], pa.int8()),
        flag=[True, False, True],
        price=pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("0.0")]),
    )
    assert read(path, ["id", "name", "label", "flag"], ["x", "price"]) == {
        "id": ["1", "2", "3"],
        "name": ["a", "b", None],
        "label": ["0", None, "1"],
        "flag": ["true", "false", "true"],
        "x": [1, 2, 3],
        "price": [Decimal("1.5"), Decimal("2.5"), Decimal("0.0")],
    }
    assert (Table(path).unit, places(path, 3)) == ("row", [1, 2, 3])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_text_is_text_however_a_program_keeps_it(tmp_path, kind):
    path = write_parquet(tmp_path, id=pa.array([" a", None, ""], kind))
    assert read(path, ["id"]) == read(path, inferred=["id"]) == {"id": ["a", None, None]}
    assert Table(path).read(inferred=["id"])["id"].type == pa.string()


BOMBS = {
    "numbers": np.zeros(1_000_000),
    "a long text": pa.DictionaryArray.from_arrays(np.zeros(1_000, np.int32), ["x" * 10_000]),
}


@pytest.mark.parametrize("values", BOMBS.values(), ids=BOMBS)
def test_a_parquet_file_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path, monkeypatch, values):
    path = write_parquet(tmp_path, x=values)
    assert path.stat().st_size < 20_000
    assert len(read(path, inferred=["x"])["x"])  # less than 256 MiB
    monkeypatch.setattr("graphjoule.tasks.reading.MOST_UNPACKED", 2**22)
    said = refusal(path, inferred=["x"])
    assert "would unpack to " in said
    assert "more than 256 times as many; it is not read" in said


def test_lists_are_refused_unread(tmp_path, monkeypatch):
    path = write_parquet(tmp_path, x=pa.ListArray.from_arrays([0, 1_000_000], pa.array(np.zeros(1_000_000, np.int8))))
    monkeypatch.setattr(pq, "ParquetFile", None)
    monkeypatch.setattr(Table, "_parquet_names", lambda table: ("x",))
    for asked in ({"text": ["x"]}, {"inferred": ["x"]}):
        assert "list<element: int8> values are neither text nor numbers" in refusal(path, **asked)


def test_bytes_are_no_names(tmp_path):
    assert "binary values are neither text nor numbers" in refusal(write_parquet(tmp_path, id=[b"a", b"b"]), ["id"])


@pytest.mark.parametrize("content", [b"id,x\na,1\n", b"PAR1", b"PAR1" + b"\0" * 50 + b"PAR1"])
def test_a_file_that_is_no_parquet(tmp_path, content):
    (tmp_path / "t.parquet").write_bytes(content)
    assert refusal(tmp_path / "t.parquet", ["id"]).startswith("FILE is not a whole Parquet file")


def test_a_parquet_file_without_a_row(tmp_path):
    assert "no row below it" in refusal(
        write_parquet(tmp_path, id=pa.array([], pa.string()), x=pa.array([], pa.float64())), ["id"], ["x"]
    )


def test_shorten_keeps_short_lists_whole():
    assert shorten(["a", "b"]) == "a, b"


def test_a_table_of_20000_columns_is_read_in_seconds(tmp_path):
    names = [f"c{number}" for number in range(20_000)]
    line = ",".join("1.5" for _ in names)
    path = write(tmp_path, "\n".join([",".join(names), *[line] * 5]) + "\n")
    start = time.process_time()
    columns = Table(path).read(inferred=names)
    assert len(columns) == 20_000
    assert columns["c19999"].to_pylist() == [1.5] * 5
    assert time.process_time() - start < 10  # minutes if it grew with the square of the columns


@pytest.mark.parametrize(("written", "number"), [("1e-400", 0.0), ("-0", -0.0), ("4.9e-324", 5e-324)])
def test_tiny_numbers_are_what_python_reads(tmp_path, written, number):
    (found,) = read(write(tmp_path, f"x\n{written}.0\n" if written == "-0" else f"x\n{written}\n"), inferred=["x"])["x"]
    assert (found, np.signbit(found)) == (number, np.signbit(number))


def test_a_header_of_several_lines_and_a_file_that_ends_with_it(tmp_path):
    path = write(tmp_path, '\n"long\nname",x\na,1\nb,red\n')
    assert read(path, ["long\nname"]) == {"long\nname": ["a", "b"]}
    assert places(path, 2) == [4, 5]
    for end in ("", "\n", "\n\n"):
        assert "has a header but no row" in refusal(write(tmp_path, f"id,x{end}"), ["id"], ["x"])


def test_a_wrong_row_is_found_after_quotes_and_blank_lines(tmp_path):
    said = refusal(write(tmp_path, 'id,x\n"a\nb",1\n\nc,2\n\nd\n'), ["id"], ["x"])
    assert "FILE, line 7, column 2: the row has 1 value; expected 2" in said


def test_a_parquet_file_with_any_bit_flipped_is_read_or_refused(tmp_path):
    """Of some damage pyarrow makes numbers of texts that are not there; of some it ended the whole process."""
    pq.write_table(pa.table({"id": [f"n{i}" for i in range(40)], "x": [i / 7 for i in range(40)]}), tmp_path / "g.pq")
    good, outcomes = (tmp_path / "g.pq").read_bytes(), set()
    for place in range(len(good)):
        path = write(tmp_path, good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :], "b.pq")
        try:
            if {"id", "x"} <= set(Table(path).names):  # callers ask for no others
                read(path, ["id"], ["x"])
                outcomes.add("read")
        except GraphjouleError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_a_whole_column_with_a_leading_zero_is_text_and_others_stay_numbers(tmp_path):
    path = tmp_path / "codes.csv"
    path.write_text('id,zip,when,n,share\na, 00501,01/02/2026,7,0.5\nb,,01/02/2026,0,00.5\nc,"10001",,10,1\n')
    found = Table(path).read(inferred=["zip", "when", "n", "share"])
    assert found["zip"].to_pylist() == ["00501", None, "10001"]
    quoted = tmp_path / "quoted.csv"
    quoted.write_text('id;zip\r\n"a";"007"\r\n"b";"8"\r\n')
    assert Table(quoted).read(inferred=["zip"])["zip"].to_pylist() == ["007", "8"]
    assert (found["n"].to_pylist(), found["share"].to_pylist()) == ([7, 0, 10], [0.5, 0.5, 1.0])
