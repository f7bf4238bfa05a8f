"""Tables of the user's, CSV or Parquet, as pyarrow reads them, and the place of everything that is wrong in them.

What a column of CSV holds is inferred by pyarrow from all of its values, so that a column looks the same whichever of
the two formats it comes from. Nothing here imports torch.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pyarrow.types

from graphjoule.errors import GraphjouleError, counted, harmless
from graphjoule.files import reason

PARQUET_SUFFIXES = (".parquet", ".pq")
LONGEST_LINE = 16 * 2**20
"""Characters. A table of 100,000 features stays below 2 million a line."""
MOST_UNPACKED, MOST_TIMES = 2**28, 256
"""A packed file is read if it unpacks to no more bytes than the first, or to no more than its own size times the other:
dense features of words, which are mostly zeros, reach 250."""
_NO_TEXT = {
    b"\x1f\x8b": "is packed by gzip; unpack it first, as gunzip does",
    b"PK\x03\x04": "is a ZIP archive, as a workbook .xlsx is; save its table as CSV in UTF-8",
    b"\xff\xfe": "is UTF-16; save it as UTF-8",
    b"\xfe\xff": "is UTF-16; save it as UTF-8",
}
"""How files begin that are taken for CSV and are not, and what helps."""
_DELIMITERS = (",", "\t", ";")
_BAD_BYTE = re.compile("[\udc80-\udcff]")  # as Python reads a byte that is not UTF-8, if it is told to
_TRUE = ["true", "True", "TRUE", "yes", "Yes", "YES"]
_FALSE = ["false", "False", "FALSE", "no", "No", "NO"]


class Table:
    """A table that is open: the names of its columns, its values where they are asked for, and where each stands.

    The delimiter of CSV is the one of comma, tab and semicolon that divides the header line most often. Values may be
    quoted with ``"``; blank lines are skipped; a byte order mark is allowed. A file called ``.parquet`` or ``.pq`` is
    Parquet.

    Attributes:
        path: the file.
        names: the columns' names.
        unit: "line" or "row", what `place` counts.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = check_file(path)
        self.unit = "row" if self.path.suffix.lower() in PARQUET_SUFFIXES else "line"
        self._delimiter, self._header_lines = "", 0
        try:
            self.names = self._parquet_names() if self.unit == "row" else self._csv_names()
        except OSError as error:
            raise GraphjouleError(f"Cannot read {path}: {reason(error)}.") from error
        self._places = {name: number for number, name in reversed(list(enumerate(self.names, start=1)))}
        for number, name in enumerate(self.names, start=1):
            if not name:
                raise GraphjouleError(
                    f"{path}, line 1, column {number} has no name; every column needs one. "
                    "A row number that a program wrote in front is best left out."
                )
            if self._places[name] != number:
                raise GraphjouleError(
                    f"{path}, line 1: columns {self._places[name]} and {number} are both called {name!r}; names must "
                    "differ."
                )

    def __contains__(self, name: str) -> bool:
        return name in self._places

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

    def read(
        self, text: Iterable[str] = (), inferred: Iterable[str] = (), *, may_be_empty: bool = False
    ) -> dict[str, pa.ChunkedArray]:
        """The values of some columns, null where one is missing; other columns may hold anything.

        Args:
            text: columns read as text, each value as a person would type it: 7.0 is "7".
            inferred: columns read as what they look like: numbers, booleans, dates, or text. Here ``NA``, ``nan`` and
                the like are missing too, if all other values are of such a kind. Codes such as 00501 are text.
            may_be_empty: allow a header without a row below it.
        """
        as_text = dict.fromkeys(text)
        names = list(as_text | dict.fromkeys(inferred))
        content = (self._read_parquet if self.unit == "row" else self._read_csv)(names, as_text)
        content = content if self.unit == "row" else self._with_codes(content)
        if not content.num_rows and not may_be_empty:
            raise GraphjouleError(f"{self.path} has a header but no row below it; at least one is needed.")
        columns = {}
        for name in names:
            column = content.column(name)
            if pa.types.is_dictionary(column.type):
                column = self._written_out(column)
            if name in as_text and not _is_text(column.type):
                column = self._typed(name, column)
            if _is_text(column.type):
                column = pc.utf8_trim_whitespace(column.cast(pa.string()))
                column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
            columns[name] = column
        return columns

    def place(self, row: int) -> int:
        """The line on which a row begins, or its number in a Parquet file, from 1. A CSV file is read again for it."""
        if self.unit == "row":
            return row + 1
        limit = csv.field_size_limit(LONGEST_LINE)
        try:
            with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                reader = csv.reader(file, delimiter=self._delimiter)
                while reader.line_num < self._header_lines:
                    next(reader)
                start = reader.line_num + 1
                for fields in reader:
                    if fields and row == 0:
                        break
                    row -= bool(fields)
                    start = reader.line_num + 1
            return start
        finally:
            csv.field_size_limit(limit)

    def refuse(self, row: int, column: str, sentence: str) -> NoReturn:
        """Raise the error about one value: where it stands and what is wrong with it."""
        raise GraphjouleError(f"{self.path}, {self.unit} {self.place(row)}, column {column!r}: {sentence}")

    # CSV

    def _csv_names(self) -> tuple[str, ...]:
        with self.path.open("rb") as raw:
            start = raw.read(4)
        if (wrong := next((said for mark, said in _NO_TEXT.items() if start.startswith(mark)), None)) is not None:
            raise GraphjouleError(f"{self.path} {wrong}.")
        try:
            with self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
                first = ""
                while not first.strip():
                    if not (first := file.readline(LONGEST_LINE)):
                        raise GraphjouleError(
                            f"{self.path} holds blank lines alone; expected a header line and rows below it."
                        )
                    self._header_lines += 1
                if len(first) == LONGEST_LINE:
                    self._refuse_long_line()
                # Of equal ones the first; every other piece between quotes is outside of them.
                self._delimiter = max(_DELIMITERS, key="".join(first.split('"')[::2]).count)
                more = iter(partial(file.readline, LONGEST_LINE), "")
                reader = csv.reader((line for lines in ([first], more) for line in lines), delimiter=self._delimiter)
                names = tuple(name.strip() for name in next(reader))
                self._header_lines += reader.line_num - 1
        except csv.Error as error:
            raise GraphjouleError(f"{self.path}, line 1: the quotes cannot be read ({error}).") from error
        if _BAD_BYTE.search("".join(names)):
            self._refuse_encoding()
        return names

    def _read_csv(self, names: Sequence[str], text: Iterable[str], *, use_threads: bool = True) -> pa.Table:
        try:
            with pa.OSFile(str(self.path)) as file:  # of a path it would unpack what is called .gz
                table = pyarrow.csv.read_csv(
                    file,
                    pyarrow.csv.ReadOptions(
                        column_names=list(self.names),
                        skip_rows=self._header_lines,
                        block_size=LONGEST_LINE,  # a row that is longer than a block is refused
                        use_threads=use_threads,
                    ),
                    pyarrow.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                    pyarrow.csv.ConvertOptions(
                        include_columns=names,
                        column_types=dict.fromkeys(text, pa.string()),
                        true_values=_TRUE,
                        false_values=_FALSE,
                    ),
                )
        except pa.ArrowInvalid as error:
            said = " ".join(str(error).split())
            if said.startswith(("Empty CSV", "Could not skip initial")):  # the file ends with its header
                return pa.table({name: pa.array([], pa.string()) for name in names})
            if "straddling" in said:
                self._refuse_long_line()
            if "UTF8" in said:
                self._refuse_encoding()
            if use_threads:  # one thread knows the row
                return self._read_csv(names, text, use_threads=False)
            found = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", said)
            if found is None:
                raise GraphjouleError(f"{self.path} cannot be read: {said}.") from error
            row, width, given = (int(group) for group in found.groups())
            line = self.place(row - 1 - self._header_lines)
            quote = "; is a quote never closed?" if given < width and '"' in said else "."
            raise GraphjouleError(
                f"{self.path}, line {line}, column {min(given, width) + 1}: the row has {counted(given, 'value')}; "
                f"expected {width}, one for each column of the header{quote}"
            ) from error
        if any(pa.types.is_binary(field.type) for field in table.schema):
            self._refuse_encoding()
        return table

    def _with_codes(self, table: pa.Table) -> pa.Table:
        """The same with columns as text that pyarrow took for whole numbers although a value begins with a zero."""
        whole = [name for name in table.column_names if pa.types.is_integer(table.column(name).type)]
        if not whole or not self._has_leading_zero():
            return table
        as_text = self._read_csv(whole, whole)
        for name in whole:
            if first_code(as_text.column(name)) is not None:
                table = table.set_column(table.column_names.index(name), name, as_text.column(name))
        return table

    def _has_leading_zero(self) -> bool:
        """Whether a value begins with a zero and a digit: a look at the bytes, far cheaper than to read them again."""
        before = np.frombuffer(f'\n\r" {self._delimiter}'.encode(), np.uint8)
        with self.path.open("rb") as file:
            tail = b""
            while block := file.read(LONGEST_LINE):
                content = np.frombuffer(tail + block, np.uint8)
                zeros = np.flatnonzero(content[1:-1] == ord("0"))
                zeros = zeros[content[zeros + 2] - ord("0") < 10]  # what is less than "0" wraps around
                if np.isin(content[zeros], before).any():
                    return True
                tail = block[-2:]
        return False

    def _refuse_long_line(self) -> NoReturn:
        with self.path.open(encoding="utf-8", errors="replace", newline="") as file:
            line, number = "\n", 0
            while line and (len(line) < LONGEST_LINE or line[-1] in "\r\n"):
                line, number = file.readline(LONGEST_LINE), number + 1
        if not line:
            raise GraphjouleError(
                f"{self.path}: a value in quotes is longer than {LONGEST_LINE:,} characters; is a quote never closed?"
            )
        lengths = [len(value) for value in line.split(self._delimiter or ",", 10_000)]
        raise GraphjouleError(
            f"{self.path}, line {number}, column {lengths.index(max(lengths)) + 1}: the line is longer than "
            f"{LONGEST_LINE:,} characters; this is no table of one node or edge a line."
        )

    def _refuse_encoding(self) -> NoReturn:
        """Say on which line and in which column the first byte stands that is not UTF-8."""
        delimiter = self._delimiter or ","
        with self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            line, number, bad = "\n", 0, None
            while line and bad is None:
                line, number = file.readline(LONGEST_LINE), number + 1
                bad = _BAD_BYTE.search(line)
        byte, before = (ord(bad[0]) - 0xDC00, line[: bad.start()]) if bad else (0, "")
        column = "".join(before.split('"')[::2]).count(delimiter)
        names = getattr(self, "names", ())
        shown = repr(names[column]) if column < len(names) else str(column + 1)
        raise GraphjouleError(
            f"{self.path}, line {number}, column {shown}: the byte 0x{byte:02x} is not UTF-8; save the file as UTF-8."
        )

    # Parquet

    def _parquet_names(self) -> tuple[str, ...]:
        try:
            with pq.ParquetFile(self.path) as file:
                return tuple(file.schema_arrow.names)
        except (pa.ArrowException, OSError, ValueError) as error:
            why = " ".join(str(error).split()).rstrip(".")
            raise GraphjouleError(f"{self.path} is not a whole Parquet file: {why}.") from error

    def _read_parquet(self, names: Sequence[str], text: Iterable[str]) -> pa.Table:
        try:
            schema = pq.read_schema(self.path)
            for name in names:
                if pa.types.is_nested(kind := schema.field(name).type):  # a row of it may be of any length
                    self.refuse(0, name, f"{kind} values are neither text nor numbers.")
            # A text that is stored once and meant a million times is seen for what it is before it is written out.
            once = [name for name in names if _is_text(schema.field(name).type)]
            is_small = self.path.stat().st_size < MOST_UNPACKED
            with pq.ParquetFile(self.path, read_dictionary=once if is_small else None) as file:
                # Not by their columns: where the file is damaged, pyarrow ends the process at the question.
                groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
                check_unpacked(self.path, sum(max(g.total_byte_size, 8 * len(names) * g.num_rows) for g in groups))
                content = file.read(columns=list(names))
            content.validate(full=True)  # pyarrow takes numbers of texts that are not there, and text that is not UTF-8
            return content
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, GraphjouleError):
                raise
            why = " ".join(str(error).split()).rstrip(".")
            raise GraphjouleError(f"{self.path} is not a whole Parquet file: {why}.") from error

    def _written_out(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """A column of which every different value is stored once, value by value."""
        kind = column.type.value_type
        if _is_text(kind):
            lengths = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks)
            check_unpacked(self.path, sum(pc.sum(each).as_py() or 0 for each in lengths))
        return column.cast(kind)

    def _typed(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The values of a typed column as text; NaN is missing, as null is."""
        kind = column.type
        if pa.types.is_floating(kind):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
        if not (is_number(kind) or pa.types.is_temporal(kind) or pa.types.is_null(kind)):
            self.refuse(0, name, f"{kind} values are neither text nor numbers.")
        return column.cast(pa.string())


def first_code(column: pa.ChunkedArray) -> str | None:
    """The first text that is a code and no number: digits alone, the first of them a zero.

    >>> first_code(pa.chunked_array([["10001", "00501", None]])), first_code(pa.chunked_array([["0", "0.5"]]))
    ('00501', None)
    """
    place = int(pc.index(pc.match_substring_regex(column, r"^\s*0\d+\s*$"), True).as_py())
    return None if place < 0 else str(column[place].as_py()).strip()


def is_number(kind: pa.DataType) -> bool:
    """Whether a type of pyarrow's is one of numbers or of booleans."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def check_file(path: str | Path) -> Path:
    """The path of a file that is there; anything else is refused with a sentence."""
    path = Path(path)
    if path == Path():  # what an empty name becomes
        raise GraphjouleError("The name of a file is empty, or '.', which is a folder; expected a file.")
    try:
        str(path.absolute()).encode()
        if path.is_dir():
            raise GraphjouleError(f"{path} is a folder; expected a file.")
        if not path.exists():
            raise GraphjouleError(f"There is no file {path}.")
        if not path.is_file():
            raise GraphjouleError(f"{path} is not a file on disk; expected one, because it may be read twice.")
        if not path.stat().st_size:
            raise GraphjouleError(f"{path} is empty; expected a header line and rows below it.")
    except UnicodeEncodeError as error:
        raise GraphjouleError(
            f"The path {str(path)!a} is not UTF-8, and a run folder could not store it; rename the file or folder."
        ) from error
    except OSError as error:
        raise GraphjouleError(f"Cannot read {path}: {reason(error)}.") from error
    return path


def check_unpacked(path: Path, num_bytes: int) -> None:
    """Refuse a packed file whose own headers say that it unpacks to far more than its size."""
    size = path.stat().st_size
    if num_bytes > max(MOST_UNPACKED, MOST_TIMES * size):
        raise GraphjouleError(
            f"{path} has {size:,} bytes and would unpack to {num_bytes:,}, more than {MOST_TIMES} times as many; it is "
            "not read. If it is right, store it less packed."
        )


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise GraphjouleError(f"Cannot read {path}: {reason(error)}.") from error


def shorten(names: Sequence[str], most: int = 12) -> str:
    """Names in one list for a sentence, the first of them if there are many.

    >>> shorten(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    shown = ", ".join(harmless(" ".join(name.split())) for name in names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown
