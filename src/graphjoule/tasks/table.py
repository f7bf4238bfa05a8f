"""The columns of a table of the user's, as text and numbers that know where every value stands."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from graphjoule.errors import GraphjouleError
from graphjoule.files import reason


@dataclass(frozen=True)
class Header:
    """The names of a table's columns, and the sentences about one that is not there."""

    path: Path
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        for number, name in enumerate(self.names, start=1):
            if not name:
                raise GraphjouleError(
                    f"{self.path}, line 1, column {number} has no name; every column needs one. "
                    "A row number that a program wrote in front is best left out."
                )
            if name in self.names[: number - 1]:
                first = self.names.index(name) + 1
                raise GraphjouleError(
                    f"{self.path}, line 1: columns {first} and {number} are both called {name!r}; names must differ."
                )

    def find(self, name: str, option: str | None) -> str:
        """The name itself; refused with the names there are if it is none of them.

        Args:
            name: the column.
            option: what asked for it; None if it was the model that is to predict.
        """
        if name not in self.names:
            why = ", which the model was trained with" if option is None else f" for {option}"
            raise GraphjouleError(
                f"{self.path}, line 1: there is no column {name!r}{why}; the columns are: {', '.join(self.names)}."
            )
        return name


@dataclass(frozen=True)
class Wanted:
    """Which columns of a table to keep, and as what.

    Attributes:
        text: columns kept as text.
        numbers: columns in which every value must be a finite number.
        hint: what to do about a value that is none, to end the sentence with.
    """

    text: Sequence[str] = ()
    numbers: Sequence[str] = ()
    hint: str = ""


Choose = Callable[[Header], Wanted]


@dataclass(frozen=True, eq=False)
class Table:
    """The columns that were wanted, and the place of every row in its file.

    Attributes:
        header: all columns' names and the file.
        text: columns of text without surrounding blanks; "" where there is no value.
        numbers: columns of finite float64 numbers.
        rows: line of every row in a CSV file, or its number in a Parquet file, counted from 1.
        unit: "line" or "row", what `rows` counts.
    """

    header: Header
    text: dict[str, list[str]]
    numbers: dict[str, np.ndarray]
    rows: np.ndarray
    unit: str = "line"

    @property
    def path(self) -> Path:
        """The file."""
        return self.header.path

    @property
    def num_rows(self) -> int:
        """Number of rows below the header."""
        return len(self.rows)

    def refuse(self, row: int, column: str, sentence: str) -> NoReturn:
        """Raise the error about one value: where it stands and what is wrong with it."""
        raise GraphjouleError(f"{self.path}, {self.unit} {self.rows[row]}, column {column!r}: {sentence}")


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
