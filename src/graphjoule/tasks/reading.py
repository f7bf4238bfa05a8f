"""Tables of the user's, CSV or Parquet, as columns of text and numbers that know where every value stands.

pyarrow reads both. What it finds wrong in a CSV file it says without line and column, and some of it not at all, so a
second and slow pass, with Python's own strict reader, looks for the place when something is wrong.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pyarrow.types

from graphjoule.errors import GraphjouleError
from graphjoule.files import reason

PARQUET_SUFFIXES = (".parquet", ".pq")
LONGEST_LINE = 16 * 2**20
"""Characters. A table of 100,000 features stays below 2 million a line."""
_DELIMITERS = (",", "\t", ";")
_MOST_COLUMNS = 10_000  # to count in a line that is refused, which may be all commas
_BLOCK = 1 << 20  # characters that are looked at together for bytes that are not UTF-8


@dataclass(frozen=True)
class Header:
    """The names of a table's columns, and the sentences about one that is not there."""

    path: Path
    names: tuple[str, ...]
    places: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        places: dict[str, int] = {}
        for number, name in enumerate(self.names, start=1):
            if not name:
                raise GraphjouleError(
                    f"{self.path}, line 1, column {number} has no name; every column needs one. "
                    "A row number that a program wrote in front is best left out."
                )
            if name in places:
                raise GraphjouleError(
                    f"{self.path}, line 1: columns {places[name] + 1} and {number} are both called {name!r}; names "
                    "must differ."
                )
            places[name] = number - 1
        object.__setattr__(self, "places", places)

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def find(self, name: str, argument: str | None) -> str:
        """The name itself; an unknown one is refused with the names there are.

        Args:
            name: the column.
            argument: what asked for it; None if it was the model that is to predict.
        """
        if name not in self:
            why = ", which the model was trained with" if argument is None else f" for `{argument}`"
            shown = shorten(self.names, most=100)
            raise GraphjouleError(f"{self.path}, line 1: there is no column {name!r}{why}; the columns are: {shown}.")
        return name


@dataclass(frozen=True)
class Wanted:
    """Which columns of a table to keep, and as what.

    Attributes:
        text: columns kept as text.
        numbers: columns in which every value must be a finite number.
        hint: what to do about a value that is not, to end the sentence with.
    """

    text: Sequence[str] = ()
    numbers: Sequence[str] = ()
    hint: str = ""


Choose = Callable[[Header], Wanted]


@dataclass(frozen=True, eq=False)
class Table:
    """The columns that were wanted.

    Attributes:
        header: all columns' names and the file.
        text: columns of text without surrounding blanks; "" where there is no value.
        numbers: columns of finite float64 numbers.
        num_rows: number of rows below the header.
        unit: "line" or "row", what `place` counts.
    """

    header: Header
    text: dict[str, pa.ChunkedArray]
    numbers: dict[str, np.ndarray]
    num_rows: int
    unit: str = "line"

    @property
    def path(self) -> Path:
        """The file."""
        return self.header.path

    def place(self, row: int) -> int:
        """The line on which a row begins, or its number in a Parquet file, from 1. A CSV file is read again for it."""
        if self.unit == "row":
            return row + 1
        with _open_csv(self.path) as file:
            return next(islice(_rows(_Lines(file, self.path)), row + 1, None))[0]

    def refuse(self, row: int, column: str, sentence: str) -> NoReturn:
        """Raise the error about one value: where it stands and what is wrong with it."""
        raise GraphjouleError(f"{self.path}, {self.unit} {self.place(row)}, column {column!r}: {sentence}")

    def numbers_of_text(self, column: str, hint: str, *, may_be_blank: bool = False) -> np.ndarray:
        """A column of text as finite numbers; the first value that is not one is refused.

        Args:
            column: the column.
            hint: how to end the sentence about a value that is not a number.
            may_be_blank: let a blank be NaN instead.
        """
        values = self.text[column].to_pylist()
        numbers = np.empty(len(values))
        for row, value in enumerate(values):
            if may_be_blank and not value:
                numbers[row] = np.nan
            elif is_number(value):
                numbers[row] = float(value)
            else:
                self.refuse(row, column, f"{number_fault(value)}{hint}.")
        return numbers


def read_table(path: str | Path, choose: Choose, *, may_be_empty: bool = False) -> Table:
    """Read some columns of a table: Parquet if the file is called ``.parquet`` or ``.pq``, else CSV.

    The delimiter of CSV is the one of comma, tab and semicolon that divides the header line most often. Values may be
    quoted with ``"``; blank lines are skipped; surrounding blanks of a value are dropped; a byte order mark is allowed.

    Args:
        path: the file; UTF-8 text if it is CSV, with a header line.
        choose: says from the header which columns to keep; columns it leaves out may hold anything.
        may_be_empty: allow a header without a row below it.

    Raises:
        GraphjouleError: one sentence with file, line and column about something that is wrong.
    """
    path = check_file(path)
    table = (_read_parquet if path.suffix.lower() in PARQUET_SUFFIXES else _read_csv)(path, choose)
    if not table.num_rows and not may_be_empty:
        raise GraphjouleError(f"{path} has a header but no row below it; at least one is needed.")
    return table


def check_file(path: str | Path) -> Path:
    """The path of a file that is there; anything else is refused with a sentence."""
    path = Path(path)
    if path == Path():  # what an empty name becomes
        raise GraphjouleError("The name of a file is empty, or '.', which is a folder; expected a file.")
    try:
        if path.is_dir():
            raise GraphjouleError(f"{path} is a folder; expected a file.")
        if not path.exists():
            raise GraphjouleError(f"There is no file {path}.")
        if not path.is_file():
            raise GraphjouleError(f"{path} is not a file on disk; expected one, because it may be read twice.")
        if not path.stat().st_size:
            raise GraphjouleError(f"{path} is empty; expected a header line and rows below it.")
    except OSError as error:
        raise GraphjouleError(f"Cannot read {path}: {reason(error)}.") from error
    return path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise GraphjouleError(f"Cannot read {path}: {reason(error)}.") from error


def is_number(value: str) -> bool:
    """Whether a text is a finite number.

    >>> [is_number(text) for text in ("-2.5e3", "inf", "red", "1_000")]  # Python itself would read the last as 1000
    [True, False, False, False]
    """
    try:
        return bool(np.isfinite(float(value))) and "_" not in value
    except ValueError:
        return False


def number_fault(value: str) -> str:
    """What is wrong with a value that should be a finite number, as the beginning of a sentence.

    >>> number_fault(""), number_fault("red"), number_fault("inf")
    ('the value is blank', "'red' is not a number", "'inf' is not a finite number")
    """
    if not value:
        return "the value is blank"
    shown = repr(value if len(value) <= 40 else f"{value[:40]}...")
    try:
        float(value)
    except ValueError:
        return f"{shown} is not a number"
    return f"{shown} is not a finite number"


def shorten(names: Sequence[str], most: int = 12) -> str:
    """Names in one list for a sentence, the first of them if there are many.

    >>> shorten(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


# CSV


def _read_csv(path: Path, choose: Choose) -> Table:
    try:
        has_quotes = _check_text(path)
        with _open_csv(path) as file:
            lines = _Lines(file, path)
            rows = _rows(lines)
            header = Header(path, tuple(name.strip() for name in next(rows, (0, []))[1]))
            if not header.names:
                raise GraphjouleError(f"{path} holds blank lines alone; expected a header line and rows below it.")
            num_lines, is_empty = lines.number, next(rows, None) is None
        wanted = choose(header)
        if has_quotes:  # pyarrow reads "a"b as ab
            _check_rows(header)
        if is_empty:
            empty = pa.chunked_array([], pa.string())
            return Table(header, dict.fromkeys(wanted.text, empty), {n: np.empty(0) for n in wanted.numbers}, 0)
        return _read_columns(header, wanted, num_lines, lines.delimiter)
    except OSError as error:
        raise GraphjouleError(f"Cannot read {path}: {reason(error)}.") from error


def _read_columns(header: Header, wanted: Wanted, num_lines: int, delimiter: str) -> Table:
    """The wanted columns below the header's lines."""

    def read(number_type: pa.DataType) -> tuple[pa.Table, dict[str, pa.ChunkedArray]]:
        types = dict.fromkeys(wanted.text, pa.string()) | dict.fromkeys(wanted.numbers, number_type)
        content = pyarrow.csv.read_csv(
            header.path,
            pyarrow.csv.ReadOptions(
                column_names=list(header.names),
                skip_rows=num_lines,
                block_size=LONGEST_LINE,  # pyarrow refuses a row that is longer than a block
            ),
            pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(
                # Without a column it would give no rows.
                include_columns=list(types) or [header.names[0]],
                column_types=types or {header.names[0]: pa.string()},
                null_values=[],
            ),
        )
        return content, {name: pc.utf8_trim_whitespace(content.column(name)) for name in wanted.text}

    try:
        content, text = read(pa.float64())
        numbers = {name: content.column(name).to_numpy() for name in wanted.numbers}
        if all(np.isfinite(values).all() for values in numbers.values()):
            return Table(header, text, numbers, content.num_rows)
        _check_rows(header)
        content, text = read(pa.string())
    except pa.ArrowInvalid:
        _check_rows(header)
        try:
            content, text = read(pa.string())
        except pa.ArrowInvalid as error:
            raise GraphjouleError(f"{header.path} cannot be read: {' '.join(str(error).split())}.") from error
    # A number that pyarrow does not read and Python does, such as one with a no-break space behind it; else an error.
    as_text = {name: pc.utf8_trim_whitespace(content.column(name)) for name in wanted.numbers}
    table = Table(header, text | as_text, {}, content.num_rows)
    numbers = {name: table.numbers_of_text(name, wanted.hint) for name in wanted.numbers}
    return Table(header, text, numbers, content.num_rows)


def _open_csv(path: Path) -> TextIO:
    return path.open(encoding="utf-8-sig", newline="")


def _check_text(path: Path) -> bool:
    """Whether a file has quotes; refused if a byte anywhere is not UTF-8: pyarrow looks at wanted columns alone."""
    has_quotes = False
    try:
        with _open_csv(path) as file:
            while block := file.read(_BLOCK):
                has_quotes = has_quotes or '"' in block
    except UnicodeDecodeError:
        _refuse_encoding(path)
    return has_quotes


class _Lines:
    """The lines of a file with the number of the last one; one that is too long ends it, before it fills the memory."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file, self.path = file, path
        self.number, self.last, self.delimiter = 0, "", ""

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        self.last = self._file.readline(LONGEST_LINE)
        self.number += 1
        if not self.delimiter and self.last.strip():  # the header line
            self.delimiter = _delimiter(self.last)
        if len(self.last) == LONGEST_LINE and self.last[-1] not in "\r\n":
            raise GraphjouleError(
                f"{self.path}, line {self.number}, column {self.longest_column()}: the line is longer than "
                f"{LONGEST_LINE:,} characters; this is no table of one node or edge a line."
            )
        if not self.last:
            raise StopIteration
        return self.last

    def longest_column(self) -> int:
        """Number of the column with the longest value in the last line, from 1."""
        lengths = [len(value) for value in self.last.split(self.delimiter, _MOST_COLUMNS)]
        return lengths.index(max(lengths)) + 1


def _delimiter(header: str) -> str:
    """The delimiter that gives a header line the most columns; of equal ones the first of comma, tab, semicolon.

    >>> _delimiter("id;income (k, gross);label")
    ';'
    """
    return max(_DELIMITERS, key=_outside_quotes(header).count)


def _outside_quotes(line: str) -> str:
    return "".join(line.split('"')[::2])  # every other piece


def _rows(lines: _Lines) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the line it begins on: a quoted value may hold line breaks."""
    first = next((line for line in lines if line.strip()), "")
    start = lines.number
    reader = csv.reader(chain((first,), lines), delimiter=lines.delimiter or _DELIMITERS[0], strict=True)
    try:
        for fields in reader:
            if fields:
                yield start, fields
            start = lines.number + 1
    except csv.Error as error:
        if "field limit" in str(error):
            raise GraphjouleError(
                f"{lines.path}, line {start}, column {lines.longest_column()}: a value is longer than "
                f"{csv.field_size_limit():,} characters; is a quote never closed?"
            ) from error
        raise GraphjouleError(f"{lines.path}, line {start}: the quotes cannot be read ({error}).") from error


def _check_rows(header: Header) -> None:
    """Refuse the first row whose quotes cannot be read or that has too few or too many values."""
    width = len(header.names)
    with _open_csv(header.path) as file:
        for line, row in _rows(_Lines(file, header.path)):
            if len(row) != width:
                raise GraphjouleError(
                    f"{header.path}, line {line}, column {min(len(row), width) + 1}: the row has {len(row)} values; "
                    f"expected {width}, one for each column of the header."
                )


def _refuse_encoding(path: Path) -> NoReturn:
    """Say on which line and in which column the first byte stands that is not UTF-8."""
    delimiter, number = "", 0
    names: tuple[str, ...] = ()
    # Such a byte is read as a code of its own, which no UTF-8 text has.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        while line := file.readline(LONGEST_LINE):
            number += 1
            if not delimiter and line.strip():
                delimiter = _delimiter(line)
                with suppress(csv.Error):
                    names = tuple(name.strip() for name in next(csv.reader([line], delimiter=delimiter)))
            if bad := re.search("[\udc80-\udcff]", line):
                break
    assert bad is not None
    column = _outside_quotes(line[: bad.start()]).count(delimiter)
    is_named = column < len(names) and names[column].isprintable()
    shown = repr(names[column]) if is_named else str(column + 1)
    raise GraphjouleError(
        f"{path}, line {number}, column {shown}: the byte 0x{ord(bad[0]) - 0xDC00:02x} is not UTF-8; save the file as "
        "UTF-8."
    )


# Parquet


def _read_parquet(path: Path, choose: Choose) -> Table:
    """Rows are counted instead of lines; null and, in text, NaN are blank."""
    try:
        with pq.ParquetFile(path) as file:
            header = Header(path, tuple(file.schema_arrow.names))
            wanted = choose(header)
            content = file.read(columns=[*wanted.text, *wanted.numbers])
            num_rows = file.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, GraphjouleError):
            raise
        why = " ".join(str(error).split()).rstrip(".")
        raise GraphjouleError(f"{path} is not a whole Parquet file: {why}.") from error
    table = Table(header, {}, {}, num_rows, unit="row")
    for name in wanted.text:
        table.text[name] = _text(table, name, content.column(name))
    for name in wanted.numbers:
        table.numbers[name] = _numbers(table, name, content.column(name), wanted.hint)
    return table


def _text(table: Table, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values as a person would type them: text as it is, 7 as "7"."""
    kind = _value_type(column)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_number(kind) or pa.types.is_null(kind)):
        table.refuse(0, name, f"{kind} values are neither text nor numbers.")
    typed = ["" if value is None or value != value else str(value) for value in column.to_pylist()]
    return pc.utf8_trim_whitespace(pa.chunked_array([typed], pa.string()))


def _numbers(table: Table, name: str, column: pa.ChunkedArray, hint: str) -> np.ndarray:
    kind = _value_type(column)
    if not _is_number(kind):
        row, value = next(((r, v) for r, v in enumerate(column.to_pylist()) if v is not None), (0, None))
        table.refuse(row, name, f"{_fault(value)}{hint}.")
    values = np.asarray(column.cast(kind).cast("float64", safe=False).to_numpy())  # a null becomes NaN
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        table.refuse(int(wrong[0]), name, f"{_fault(column[int(wrong[0])].as_py())}{hint}.")
    return values


def _fault(value: Any) -> str:
    """What is wrong with a value; text of digits in a text column is text all the same."""
    fault = number_fault("" if value is None else str(value))
    return f"{value!r} is text" if isinstance(value, str) and "finite" in fault else fault


def _value_type(column: pa.ChunkedArray) -> pa.DataType:
    """The type of the values, also where the file keeps every different one once."""
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))
