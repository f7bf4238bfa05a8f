"""ogbn-arxiv (Hu et al. 2020), straight from the CSV files that the Open Graph Benchmark publishes.

OGB's own package is not used: it asks questions on the terminal, and it keeps and reads pickles.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.tasks.download import Remote, download
from graphjoule.tasks.numbers import Table
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.raw import arriving, is_file
from graphjoule.tasks.splits import Split
from graphjoule.tasks.task import Task

_LARGEST_COUNT = 1 << 31  # int32 indices end here
_MOST_BYTES_OF_NAMES = 1 << 20
_COUNTS = {"node": "raw/num-node-list.csv.gz", "edge": "raw/num-edge-list.csv.gz"}
_FEATURES, _LABELS, _EDGES = "raw/node-feat.csv.gz", "raw/node-label.csv.gz", "raw/edge.csv.gz"
_PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Sizes:
    """What OGB states of a dataset; files that say otherwise are not that dataset.

    Attributes:
        num_nodes: number of nodes.
        num_edges: number of directed edges.
        num_features: columns of the features.
        num_classes: number of classes.
        split: number of nodes that train, validate and test.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    split: tuple[int, int, int]


@dataclass(frozen=True)
class OgbFiles:
    """A node-classification set of OGB under the data root: the zip as published, or the folder in it, unpacked.

    Attributes:
        task: what the task is called.
        name: the folder in the zip, and the zip's own name.
        folders: folders under the data root to look in: the one in the zip and the one that OGB's package makes of it.
        split: the folder of the official split.
        class_names: the file that names the classes; it may be missing.
        sizes: what the files must hold.
        remote: the zip on the web.
    """

    task: str
    name: str
    folders: tuple[str, ...]
    split: str
    class_names: str
    sizes: Sizes
    remote: Remote

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are read, relative to the dataset's folder."""
        parts = (f"split/{self.split}/{part}.csv.gz" for part in _PARTS)
        return (*_COUNTS.values(), _FEATURES, _LABELS, _EDGES, *parts)

    def archive(self, root: Path) -> Path:
        """Where the zip is expected."""
        return root / f"{self.name}.zip"

    def missing(self, root: Path) -> list[Path]:
        """Nothing if the zip or a folder is there; else the zip, which a download would bring."""
        return [] if self._folder(root) or is_file(self.archive(root)) else [self.archive(root)]

    @contextmanager
    def opened(self, root: Path) -> Iterator[Traversable]:
        """The dataset's folder, which may be one inside the zip; if there is neither, the zip is downloaded.

        The zip is never unpacked to disk: members are read where they are, so no name in it is ever a path to write.
        """
        if folder := self._folder(root):
            yield folder
            return
        archive = self.archive(root)
        if not is_file(archive):
            with arriving(root, archive) as stage:
                download(self.remote, stage / archive.name)
                (stage / archive.name).replace(archive)
        with _open_zip(archive) as opened:
            inside = zipfile.Path(opened, f"{self.name}/")
            for file in self.files:
                if not (inside / file).is_file():
                    raise GraphjouleError(f"The archive {archive} has no file {self.name}/{file}.")
            yield inside

    def _folder(self, root: Path) -> Path | None:
        for name in self.folders:
            if all(is_file(root / name / file) for file in self.files):
                return root / name
        return None


ARXIV = OgbFiles(
    task="arxiv",
    name="arxiv",
    folders=("arxiv", "ogbn_arxiv"),
    split="time",
    class_names="mapping/labelidx2arxivcategeory.csv.gz",  # so spelled
    sizes=Sizes(169_343, 1_166_243, 128, 40, (90_941, 29_799, 48_603)),
    # The address stands in OGB's master.csv. OGB publishes no checksum; size and SHA-256 are those that a dozen public
    # repositories independently recorded of what they downloaded there.
    remote=Remote(
        "https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip",
        83_058_288,
        "49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276",
    ),
)


def load_ogb(files: OgbFiles, root: Path) -> Task:
    """A dataset of OGB with its official split, called ``public``; features as stored, edges in both directions."""
    with files.opened(root) as folder:
        return _read(files, folder)


def _read(files: OgbFiles, folder: Traversable) -> Task:
    sizes, num_nodes = files.sizes, files.sizes.num_nodes
    for what, expected in (("node", num_nodes), ("edge", sizes.num_edges)):
        file = folder / _COUNTS[what]
        found = int(Table(file, rows=1, below=_LARGEST_COUNT).read()[0, 0])
        if found != expected:
            raise GraphjouleError(f"The file {file} says {found:,} {what}s; {files.task} has {expected:,}.")
    labels = Table(folder / _LABELS, num_nodes, below=sizes.num_classes).read()[:, 0]
    edges = Table(folder / _EDGES, sizes.num_edges, columns=2, below=num_nodes).read()
    features = Table(folder / _FEATURES, num_nodes, sizes.num_features).read()
    return Task(
        name=files.task,
        features=torch.from_numpy(features).to(torch.get_default_dtype()),
        graph=Propagation.from_edge_index(torch.from_numpy(edges).t(), num_nodes=num_nodes, symmetrize=True),
        targets=torch.from_numpy(labels),
        objective=Classification(sizes.num_classes, _class_names(folder / files.class_names, sizes.num_classes)),
        fixed_splits=(_official_split(files, folder),),
        default_split="public",
    )


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise GraphjouleError(f"The file {path} is no readable zip archive ({error}).") from error


def _official_split(files: OgbFiles, folder: Traversable) -> Split:
    parts = (
        Table(folder / f"split/{files.split}/{part}.csv.gz", rows, below=files.sizes.num_nodes).read()[:, 0]
        for part, rows in zip(_PARTS, files.sizes.split, strict=True)
    )
    return Split("public", None, *(torch.from_numpy(part) for part in parts))


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
