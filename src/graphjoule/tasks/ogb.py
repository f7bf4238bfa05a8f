"""ogbn-arxiv (Hu et al. 2020), straight from the CSV files that the Open Graph Benchmark publishes.

OGB's own package is not used: it asks questions on the terminal, and it keeps and reads pickles.
"""

from __future__ import annotations

import gzip
import io
import warnings
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources.abc import Traversable
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.tasks.datasets import OgbFiles, is_file
from graphjoule.tasks.download import download
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.splits import Split
from graphjoule.tasks.task import Task

_LARGEST_COUNT = 1 << 31  # int32 indices end here
_MOST_BYTES_OF_NAMES = 1 << 20
_LONGEST_LINE = 1 << 16  # bytes; 128 numbers take about 1,400
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_UNREADABLE = (OSError, EOFError, KeyError, RuntimeError, zlib.error, zipfile.BadZipFile)


def load_ogb(files: OgbFiles, root: Path) -> Task:
    """A dataset of OGB with its official split, called ``public``; features as stored, edges in both directions."""
    with _opened(files, root) as folder:
        return _read(files, folder)


@contextmanager
def _opened(files: OgbFiles, root: Path) -> Iterator[Traversable]:
    """The dataset's folder, which may be one inside the zip; if there is neither, the zip is downloaded.

    The zip is never unpacked to disk: members are read where they are, so no name in it is ever a path to write.
    """
    if folder := files.folder(root):
        yield folder
        return
    path = files.archive(root)
    if not is_file(path):
        download(files.url, {path.name: files.sha256}, root, root)
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise GraphjouleError(f"The file {path} is no readable zip archive ({error}).") from error
    with archive:
        inside = zipfile.Path(archive, f"{files.name}/")
        for file in files.files:
            if not (inside / file).is_file():
                raise GraphjouleError(f"The archive {path} has no file {files.name}/{file}.")
        yield inside


def _read(files: OgbFiles, folder: Traversable) -> Task:
    sizes, num_nodes = files.sizes, files.sizes.num_nodes
    for what, expected in (("node", num_nodes), ("edge", sizes.num_edges)):
        file = folder / f"raw/num-{what}-list.csv.gz"
        found = int(NumberTable(file, rows=1, below=_LARGEST_COUNT).read()[0, 0])
        if found != expected:
            raise GraphjouleError(f"The file {file} says {found:,} {what}s; {files.task} has {expected:,}.")
    labels = NumberTable(folder / "raw/node-label.csv.gz", num_nodes, below=sizes.num_classes).read()[:, 0]
    edges = NumberTable(folder / "raw/edge.csv.gz", sizes.num_edges, columns=2, below=num_nodes).read()
    features = NumberTable(folder / "raw/node-feat.csv.gz", num_nodes, sizes.num_features).read()
    official = (
        NumberTable(folder / f"split/{files.split}/{part}.csv.gz", rows, below=num_nodes).read()[:, 0]
        for part, rows in zip(("train", "valid", "test"), sizes.split, strict=True)
    )
    return Task(
        name=files.task,
        features=torch.from_numpy(features).to(torch.get_default_dtype()),
        graph=Propagation.from_edge_index(torch.from_numpy(edges).t(), num_nodes=num_nodes, symmetrize=True),
        targets=torch.from_numpy(labels),
        objective=Classification(sizes.num_classes, _class_names(folder / files.class_names, sizes.num_classes)),
        fixed_splits=(Split("public", None, *map(torch.from_numpy, official)),),
        default_split="public",
    )


def _class_names(file: Traversable, num_classes: int) -> tuple[str, ...] | None:
    """Names such as ``cs.NA`` from lines such as ``0,arxiv cs na``; None if the file is not there or lacks a class."""
    if not file.is_file():
        return None
    try:
        with file.open("rb") as packed, gzip.GzipFile(fileobj=packed) as unpacked:
            text = unpacked.read(_MOST_BYTES_OF_NAMES).decode()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, zipfile.BadZipFile) as error:
        raise GraphjouleError(f"The file {file} cannot be read ({error}).") from error
    named = dict(line.split(",", 1) for line in text.splitlines() if "," in line)
    names = tuple(_category(named.get(str(label), "")) for label in range(num_classes))
    return names if all(names) else None


def _category(text: str) -> str:
    """A category as arXiv writes it.

    >>> _category("arxiv cs na")
    'cs.NA'
    """
    words = text.split()
    return f"{words[1]}.{words[2].upper()}" if len(words) == 3 and words[0] == "arxiv" else text.strip()


@dataclass(frozen=True)
class NumberTable:
    """A table of numbers in gzipped CSV without a header, and what it must look like; read fast, refused by its line.

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
