"""CSV files in one pass: block by block, in bounded memory, every row with the line it begins on."""

from __future__ import annotations

import csv
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NoReturn, TextIO

import numpy as np

from graphjoule.errors import GraphjouleError
from graphjoule.files import reason
from graphjoule.tasks.table import Choose, Header, Table, Wanted, number_fault

LONGEST_LINE = 16 * 2**20
"""Characters; a table of 100,000 features stays below 2 million a line, a file that is no table is told soon."""
# Rows that are turned into columns at once. By a sweep over 200k nodes and 1M edges: 4.4 s of CPU at 256, 6.9 at 1,024,
# 14.5 at 16,384: few enough live lists fit in the cache and give the garbage collector nothing to walk through.
_BLOCK = 256
_DELIMITERS = (",", "\t", ";")
_MOST_COLUMNS = 10_000  # to count in a line that is refused, which may be all commas


def read_csv(path: Path, choose: Choose) -> Table:
    """Read some columns of a CSV file; see `read_table`.

    The delimiter is the one of comma, tab and semicolon that divides the header line most often. Values may be quoted
    with ``"``; blank lines are skipped; surrounding blanks of a value are dropped; a byte order mark is allowed.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = _rows(file, path)
            header = Header(path, _names(rows))
            if not header.names:
                raise GraphjouleError(f"{path} holds blank lines alone; expected a header line and rows below it.")
            return _collect(header, choose(header), rows)
    except UnicodeDecodeError:
        _refuse_encoding(path)
    except OSError as error:
        raise GraphjouleError(f"Cannot read {path}: {reason(error)}.") from error


class _Lines:
    """The lines of a file with the number of the last one; one that is too long ends it, before it fills the memory."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file, self._path = file, path
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
                f"{self._path}, line {self.number}, column {self.longest_column()}: the line is longer than "
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


def _rows(file: TextIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the line it begins on: a quoted value may hold line breaks."""
    lines = _Lines(file, path)
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
                f"{path}, line {start}, column {lines.longest_column()}: a value is longer than "
                f"{csv.field_size_limit():,} characters; is a quote never closed?"
            ) from error
        raise GraphjouleError(f"{path}, line {start}: the quotes cannot be read ({error}).") from error


def _names(rows: Iterator[tuple[int, list[str]]]) -> tuple[str, ...]:
    _, first = next(rows, (0, []))
    return tuple(name.strip() for name in first)


def _collect(header: Header, wanted: Wanted, rows: Iterator[tuple[int, list[str]]]) -> Table:
    """Gather the wanted columns; a row lives only until its block is done."""
    at = {name: index for index, name in enumerate(header.names)}
    text: dict[str, list[str]] = {name: [] for name in wanted.text}
    blocks: dict[str, list[np.ndarray]] = {name: [] for name in wanted.numbers}
    lines: list[np.ndarray] = []
    while block := list(islice(rows, _BLOCK)):
        numbers, fields = zip(*block, strict=True)
        lines.append(np.array(numbers, dtype=np.int64))
        _check_widths(header, numbers, fields)
        columns = list(zip(*fields, strict=True))
        for name, values in text.items():
            values.extend(map(str.strip, columns[at[name]]))
        for name, arrays in blocks.items():
            arrays.append(_numbers(columns[at[name]], header, name, numbers, wanted.hint))
    return Table(
        header,
        text,
        {name: np.concatenate(arrays) for name, arrays in blocks.items() if arrays},
        np.concatenate(lines) if lines else np.empty(0, dtype=np.int64),
    )


def _check_widths(header: Header, lines: Sequence[int], rows: Sequence[list[str]]) -> None:
    width = len(header.names)
    for line, row in zip(lines, rows, strict=True):
        if len(row) != width:
            where = f"column {min(len(row), width) + 1}"
            raise GraphjouleError(
                f"{header.path}, line {line}, {where}: the row has {len(row)} values; expected {width}, one for each "
                "column of the header."
            )


def _numbers(values: Sequence[str], header: Header, name: str, lines: Sequence[int], hint: str) -> np.ndarray:
    """One block of a column as numbers; on failure the first value that is none is found and told."""
    try:
        numbers = np.fromiter(map(float, values), dtype=np.float64, count=len(values))
        if np.isfinite(numbers).all() and not any("_" in value for value in values):  # Python would read 1_0 as 10
            return numbers
    except ValueError:
        pass
    line, value = next((n, v.strip()) for n, v in zip(lines, values, strict=True) if not _is_finite(v))
    raise GraphjouleError(f"{header.path}, line {line}, column {name!r}: {number_fault(value)}{hint}.")


def _is_finite(value: str) -> bool:
    try:
        return bool(np.isfinite(float(value))) and "_" not in value
    except ValueError:
        return False


def _refuse_encoding(path: Path) -> NoReturn:
    """Find the first byte that is not UTF-8, and say on which line and in which column it stands."""
    line, before, byte = _first_bad_byte(path)
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        delimiter = _delimiter(next((header for header in file if header.strip()), ""))
        file.seek(0)
        names = _names(_rows(file, path))
    column = _outside_quotes(before).count(delimiter)
    is_named = column < len(names) and "\ufffd" not in names[column]
    shown = repr(names[column]) if is_named else str(column + 1)
    raise GraphjouleError(
        f"{path}, line {line}, column {shown}: the byte 0x{byte:02x} is not UTF-8; save the file as UTF-8."
    )


def _first_bad_byte(path: Path) -> tuple[int, str, int]:
    """The line of the first byte that is not UTF-8, what stands before it on the line, and the byte."""
    decoder = getincrementaldecoder("utf-8")()
    line, current, byte = 1, "", 0
    with path.open("rb") as stream:
        while block := stream.read(2**16):
            try:
                current += decoder.decode(block)
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                current += error.object[: error.start].decode()
                break
            line += current.count("\n")
            current = current[current.rfind("\n") + 1 :][-LONGEST_LINE:]
        else:  # the file ends within a character
            byte = decoder.getstate()[0][0]
    return line + current.count("\n"), current[current.rfind("\n") + 1 :], byte
