"""The datasets that can be asked for by name, from the table ``datasets.toml``: where their files are, and where from.

Nothing here imports torch: a list of the datasets and a wrong name are answered at once.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from graphjoule.errors import GraphjouleError, choices

if TYPE_CHECKING:
    from graphjoule.tasks.task import Task

DATA_ROOT_VARIABLE = "GRAPHJOULE_DATA"


def load_task(name: str, data_root: str | os.PathLike[str] | None = None) -> Task:
    """Load a dataset by name; its raw files are downloaded if they are not there. Features are left as stored.

    Args:
        name: one of `DATASETS`, or of a family of `FAMILIES` with its number, such as ``ring-20``.
        data_root: folder of raw files; else the environment's ``GRAPHJOULE_DATA``, else ``~/.cache/graphjoule``.
    """
    return find_dataset(name).load(resolve_data_root(data_root))


def find_dataset(name: str) -> DatasetSource:
    """The row of `DATASETS`; an unknown name is refused with the choices."""
    if name not in DATASETS:
        numbered = ", ".join(family.name for family in FAMILIES)
        raise GraphjouleError(
            f"Unknown dataset {name!r}; expected one of: {choices(DATASETS)}; or, with a number for the last letter, "
            f"one of: {numbered}."
        )
    return DATASETS[name]


def resolve_data_root(data_root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of raw files: the argument, else ``GRAPHJOULE_DATA``, else a cache folder of the user's."""
    given = data_root or os.environ.get(DATA_ROOT_VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says to ignore a relative path.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "graphjoule"


def is_file(path: Path) -> bool:
    """Whether a file is there and its folder may be entered."""
    try:
        return path.is_file()
    except OSError:
        return False


class NeededFiles(Protocol):
    """Files under the data root that a dataset is read from."""

    def missing(self, root: Path) -> list[Path]:
        """Those that are not there; none if loading needs no download."""


@dataclass(frozen=True)
class RawFiles:
    """The raw files of a dataset, in the folder where PyTorch Geometric keeps them too: ``NAME/raw``.

    Attributes:
        task: what the task made of them is called.
        name: the folder's name.
        url: the folder on the web.
        sha256: the files' names, each with its SHA-256; None where nothing in the file can run and re-encodings of it
            with the same arrays are about.
    """

    task: str
    name: str
    url: str
    sha256: Mapping[str, str | None]

    @property
    def files(self) -> tuple[str, ...]:
        """The files' names."""
        return tuple(self.sha256)

    def folder(self, root: Path) -> Path:
        """Where the files are expected."""
        return root / self.name / "raw"

    def missing(self, root: Path) -> list[Path]:
        """The files that are not there."""
        return [path for file in self.files if not is_file(path := self.folder(root) / file)]


@dataclass(frozen=True)
class OgbSizes:
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
        url: the folder on the web that holds the zip.
        sha256: the zip's SHA-256.
    """

    task: str
    name: str
    folders: tuple[str, ...]
    split: str
    class_names: str
    sizes: OgbSizes
    url: str
    sha256: str

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are read, relative to the dataset's folder."""
        tables = ("num-node-list", "num-edge-list", "node-feat", "node-label", "edge")
        parts = ("train", "valid", "test")
        return (
            *(f"raw/{table}.csv.gz" for table in tables),
            *(f"split/{self.split}/{part}.csv.gz" for part in parts),
        )

    def archive(self, root: Path) -> Path:
        """Where the zip is expected."""
        return root / f"{self.name}.zip"

    def folder(self, root: Path) -> Path | None:
        """The folder that holds all files, or None."""
        for name in self.folders:
            if all(is_file(root / name / file) for file in self.files):
                return root / name
        return None

    def missing(self, root: Path) -> list[Path]:
        """Nothing if the zip or a folder is there; else the zip, which a download would bring."""
        return [] if self.folder(root) or is_file(self.archive(root)) else [self.archive(root)]


@dataclass(frozen=True)
class DatasetSource:
    """One row of `DATASETS`: a dataset that can be asked for by name.

    Attributes:
        name: what the user calls it.
        group: what kind of graph it is, for a list by groups.
        description: one line about what the nodes, edges and classes are.
        split: one line about the split it is used with if none is asked for.
        origin: where it comes from.
        load: makes the task from the data root; the place to import torch.
        raw: the files it needs, or None if it comes with an installed package.
    """

    name: str
    group: str
    description: str
    split: str
    origin: str
    load: Callable[[Path], Task]
    raw: NeededFiles | None = None

    def is_present(self, root: Path) -> bool:
        """Whether loading needs no download."""
        return self.raw is None or not self.raw.missing(root)


@dataclass(frozen=True)
class DatasetFamily:
    """Datasets with a number in their name, such as ``ring-20``, of which there are too many for a row each.

    Attributes:
        name: what the user writes, the number as a letter: ``ring-D``.
        pattern: a regular expression of the names.
        group: as of a `DatasetSource`, like the next three.
        description: with ``{}`` where the number stands.
        split: one line about the split.
        origin: where it comes from.
        make: name of the function that makes the task, see `datasets.toml`.
    """

    name: str
    pattern: str
    group: str
    description: str
    split: str
    origin: str
    make: str

    def member(self, name: str) -> DatasetSource | None:
        """The dataset of a name; None if it is of another family, or made from a dataset that is not there."""
        match = re.fullmatch(self.pattern, name)
        if match is None:
            return None
        base = match.groupdict().get("base")
        if base is not None and base not in DATASETS:
            return None
        raw = DATASETS[base].raw if base is not None else None
        load = partial(_load_generated, self.make, base, int(match["number"]))
        return DatasetSource(name, self.group, self.description, self.split, self.origin, load, raw)


class DatasetTable(dict[str, DatasetSource]):
    """Datasets by name; those of a family are found too, and not listed.

    Example:
        >>> "ring-20" in DATASETS, "ring-20" in list(DATASETS), DATASETS["ring-20"].is_present(Path())
        (True, False, True)
    """

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or any(family.member(str(name)) for family in FAMILIES)

    def __missing__(self, name: str) -> DatasetSource:
        found = next((member for family in FAMILIES if (member := family.member(name))), None)
        if found is None:
            raise KeyError(name)
        return found


def _load(maker: str, raw: NeededFiles | None, root: Path) -> Task:
    """Call a function of this room by its name, FILE.FUNCTION, which is imported now."""
    module, _, function = maker.partition(".")
    make = getattr(import_module(f"graphjoule.tasks.{module}"), function)
    task: Task = make() if raw is None else make(raw, root)
    return task


def _load_generated(function: str, base: str | None, number: int, root: Path) -> Task:
    make = getattr(import_module("graphjoule.tasks.generated"), function)
    task: Task = make(number) if base is None else make(load_task(base, root), number)
    return task


def _source(row: dict[str, Any]) -> DatasetSource:
    """A row of the file, with what its source says for all."""
    raw: NeededFiles | None = None
    if ogb := row.get("ogb"):
        sizes = OgbSizes(**ogb["sizes"] | {"split": tuple(ogb["sizes"]["split"])})
        lists = {"folders": tuple(ogb["folders"]), "sizes": sizes}
        raw = OgbFiles(task=row["name"], url=row["url"], **ogb | lists)
    elif "folder" in row:
        raw = RawFiles(row["name"], row["folder"], row["url"], row.get("sha256") or {row["file"]: None})
    words = {key: row[key] for key in ("name", "group", "description", "split", "origin")}
    return DatasetSource(**words, load=partial(_load, row["load"], raw), raw=raw)


def _family(row: dict[str, str]) -> DatasetFamily:
    stem, _, _ = row["name"].rpartition("-")
    return DatasetFamily(**{"pattern": rf"{stem}-(?P<number>[1-9]\d{{0,3}})"} | row)


_TABLE = tomllib.loads((resources.files("graphjoule.tasks") / "datasets.toml").read_text(encoding="utf-8"))

FAMILIES = tuple(_family(row) for row in _TABLE["family"])
"""Datasets with a number in their name."""

DATASETS: dict[str, DatasetSource] = DatasetTable(
    {own["name"]: _source(source | own) for source in _TABLE["source"] for own in source["dataset"]}
)
"""The datasets by name."""
