"""ogbn-arxiv (Hu et al. 2020), straight from the CSV files that the Open Graph Benchmark publishes.

OGB's own package is not used: it asks questions on the terminal, and it keeps and reads pickles.
"""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
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
_LONGEST_NUMBER = 40  # bytes with its delimiter
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
        found = int(read_numbers(file, rows=1, below=_LARGEST_COUNT)[0, 0])
        if found != expected:
            raise GraphjouleError(f"The file {file} says {found:,} {what}s; {files.task} has {expected:,}.")
    labels = read_numbers(folder / "raw/node-label.csv.gz", num_nodes, below=sizes.num_classes)[:, 0]
    edges = read_numbers(folder / "raw/edge.csv.gz", sizes.num_edges, columns=2, below=num_nodes)
    features = read_numbers(folder / "raw/node-feat.csv.gz", num_nodes, sizes.num_features)
    official = (
        read_numbers(folder / f"split/{files.split}/{part}.csv.gz", rows, below=num_nodes)[:, 0]
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


def read_numbers(file: Traversable, rows: int, columns: int = 1, below: int | None = None) -> np.ndarray:
    """A table of numbers in gzipped CSV without a header, refused by its line if it is not what it must be.

    Args:
        file: the file, in a folder or in a zip archive.
        rows: number of lines; no more is unpacked than so many can have.
        columns: number of values in every line.
        below: for whole numbers: all must be at least 0 and less than this. None for numbers with a fraction.

    Returns:
        Shape ``[rows, columns]``: int64 if `below` is given, else float32 and finite.
    """
    expected = "a finite number" if below is None else f"a whole number from 0 to {below - 1:,}"
    dtype, names = np.float32 if below is None else np.int64, [str(number) for number in range(columns)]
    most = rows * columns * _LONGEST_NUMBER + _LONGEST_NUMBER
    try:
        with file.open("rb") as packed, gzip.GzipFile(fileobj=packed) as unpacked:
            text = unpacked.read(most + 1)
        if len(text) > most:
            raise GraphjouleError(f"The file {file} unpacks to more than {most:,} bytes; expected {rows:,} lines.")
        content = pyarrow.csv.read_csv(
            pa.BufferReader(text),
            pyarrow.csv.ReadOptions(column_names=names, block_size=max(len(text), 1), use_threads=False),
            pyarrow.csv.ParseOptions(ignore_empty_lines=False),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.from_numpy_dtype(dtype)), null_values=[]),
        )
        table: np.ndarray = np.stack([column.to_numpy() for column in content.itercolumns()], axis=1)
    except pa.ArrowInvalid as error:
        said = " ".join(str(error).split())
        if wrong := re.search(r"Row #(\d+): Expected \d+ columns, got (\d+)", said):
            said = f"Line {wrong[1]} of {file} has {wrong[2]} values; expected {columns} divided by commas."
        elif wrong := re.search(r"column #(\d+): Row #(\d+): .*invalid value '(.*)'", said):
            said = f"Line {wrong[2]}, column {int(wrong[1]) + 1} of {file} is {wrong[3][:40]!r}; expected {expected}."
        else:
            said = f"The file {file} cannot be read: {said}."
        if text:
            raise GraphjouleError(said) from error
        table = np.empty((0, columns), dtype)
    except _UNREADABLE as error:
        raise GraphjouleError(f"The file {file} is no readable .csv.gz file ({error}).") from error
    if len(table) != rows:
        raise GraphjouleError(f"The file {file} cannot be read: it has {len(table):,} lines, expected {rows:,}.")
    outside = ~np.isfinite(table) if below is None else (table < 0) | (table >= below)
    if outside.any():
        line, column = np.argwhere(outside)[0]
        raise GraphjouleError(
            f"Line {line + 1}, column {column + 1} of {file} is '{table[line, column]}'; expected {expected}."
        )
    return table
