"""Tables of numbers in gzipped CSV without a header, as OGB publishes them: read fast, refused by file and line."""

from __future__ import annotations

import gzip
import io
import warnings
import zipfile
import zlib
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.resources.abc import Traversable
from itertools import chain

import numpy as np

from graphjoule.errors import GraphjouleError

_LONGEST_LINE = 1 << 16  # bytes; 128 numbers take about 1,400
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_UNREADABLE = (OSError, EOFError, KeyError, RuntimeError, zlib.error, zipfile.BadZipFile)


@dataclass(frozen=True)
class Table:
    """What a file of numbers must look like.

    Attributes:
        file: the file, in a folder or in a zip archive.
        rows: number of lines; a file with more is not read further, whatever it unpacks to.
        columns: number of values in every line.
        below: for whole numbers: all must be at least 0 and less than this. None for numbers with a fraction.
    """

    file: Traversable
    rows: int
    columns: int = 1
    below: int | None = None

    def read(self) -> np.ndarray:
        """The table, shape ``[rows, columns]``: int64 if `below` is given, else float32 and finite."""
        dtype = np.float32 if self.below is None else np.int64
        try:
            table = self._parse(dtype)
        except ValueError as error:
            if isinstance(error, GraphjouleError):
                raise
            raise self._fault(str(error)) from error
        except _UNREADABLE as error:
            raise GraphjouleError(f"The file {self.file} is no readable .csv.gz file ({error}).") from error
        if table.shape != (self.rows, self.columns) or not self._is_in_range(table):
            raise self._fault(f"it has {table.shape[0]} lines of numbers and {table.shape[1]} columns")
        return table

    def _parse(self, dtype: type[np.generic]) -> np.ndarray:
        with closing(self._lines()) as lines, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an overflow to infinity: found later, and with its line
            first = next(lines, None)
            if first is None:
                return np.empty((0, self.columns), dtype)
            return np.loadtxt(chain([first], lines), dtype, delimiter=",", comments=None, ndmin=2, encoding="ascii")

    def _lines(self) -> Generator[bytes, None, None]:
        """The lines, as few and short as a table of this size can have, so that a crafted file cannot fill memory."""
        with self.file.open("rb") as packed, gzip.GzipFile(fileobj=packed) as unpacked:
            read = partial(io.BufferedReader(unpacked, 1 << 20).readline, _LONGEST_LINE + 1)
            for number, line in enumerate(iter(read, b""), start=1):
                if number > self.rows:
                    raise GraphjouleError(f"The file {self.file} has more than the {self.rows:,} lines expected.")
                if len(line) > _LONGEST_LINE:
                    raise GraphjouleError(f"Line {number} of {self.file} is longer than {_LONGEST_LINE:,} bytes.")
                yield line

    def _is_in_range(self, table: np.ndarray) -> bool:
        if self.below is None:
            return bool(np.isfinite(table).all())
        return not table.size or bool(table.min() >= 0 and table.max() < self.below)

    def _fault(self, otherwise: str) -> GraphjouleError:
        """The error for the first line that is wrong, found by reading again: slow, but only when all is lost."""
        with closing(self._lines()) as lines:
            return GraphjouleError(self._first_fault(lines) or f"The file {self.file} cannot be read: {otherwise}.")

    def _first_fault(self, lines: Iterable[bytes]) -> str | None:
        number = 0
        for number, line in enumerate(lines, start=1):
            fields = line.decode("ascii", "backslashreplace").rstrip("\r\n").split(",")
            if len(fields) != self.columns or not line.strip():
                count = len(fields) if line.strip() else 0
                return f"Line {number} of {self.file} has {count} values; expected {self.columns} divided by commas."
            for column, field in enumerate(fields, start=1):
                if not self._is_value(field):
                    expected = (
                        "a finite number" if self.below is None else f"a whole number from 0 to {self.below - 1:,}"
                    )
                    return f"Line {number}, column {column} of {self.file} is {field[:40]!r}; expected {expected}."
        if number < self.rows:
            return f"The file {self.file} cannot be read: it has {number:,} lines, expected {self.rows:,}."
        return None

    def _is_value(self, field: str) -> bool:
        try:
            if self.below is not None:
                return 0 <= int(field) < self.below
            return abs(float(field)) <= _LARGEST_FLOAT  # NaN is not
        except ValueError:
            return False
