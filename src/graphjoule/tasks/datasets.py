"""The datasets that can be asked for by name, as one table: where their files are looked for, and where they come from.

Nothing here imports torch: a list of the datasets and a wrong name are answered at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

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


def _loader(module: str, function: str, raw: NeededFiles | None) -> Callable[[Path], Task]:
    """A function of this room that is imported when it is called."""

    def load(root: Path) -> Task:
        found = getattr(import_module(f"graphjoule.tasks.{module}"), function)
        task: Task = found() if raw is None else found(raw, root)
        return task

    return load


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
        load: makes the task from the data root and what the pattern found.
    """

    name: str
    pattern: str
    group: str
    description: str
    split: str
    origin: str
    load: Callable[[Path, re.Match[str]], Task]

    def member(self, name: str) -> DatasetSource | None:
        """The dataset of a name; None if it is of another family, or made from a dataset that is not there."""
        match = re.fullmatch(self.pattern, name)
        if match is None:
            return None
        base = match.groupdict().get("base")
        if base is not None and base not in DATASETS:
            return None
        raw = DATASETS[base].raw if base is not None else None
        load = self.load
        return DatasetSource(
            name, self.group, self.description, self.split, self.origin, lambda root: load(root, match), raw
        )


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


def _generated(function: str) -> Callable[[Path, re.Match[str]], Task]:
    """A function of `generated.py` of the number in the name."""

    def load(root: Path, match: re.Match[str]) -> Task:
        task: Task = getattr(import_module("graphjoule.tasks.generated"), function)(int(match["number"]))
        return task

    return load


def _without_features(root: Path, match: re.Match[str]) -> Task:
    from graphjoule.tasks.generated import without_features

    return without_features(load_task(match["base"], root), int(match["number"]))


# The files are pickles, which run code when they are read, so only these very bytes ever reach the unpickler.
_CORA_SHA256 = {
    "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
}
# CiteSeer's are not taken from files at hand but from three public lists of them. The exclusive or of these, Cora's and
# PubMed's is f52b3d47f5993912d7509b51e8090b6807228c4ba8c7d906f946868005c61c18, which GraphMLDatasets.jl states for all
# 24 files.
_CITESEER_SHA256 = {
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
}
_PUBMED_SHA256 = {
    "ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    "ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
}

_PLANETOID_URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
_SHCHUR_URL = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
_FULL_URL = "https://github.com/abojchevski/graph2gauss/raw/master/data"
_HETEROPHILOUS_URL = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"
_PER_CLASS = "20 training and 30 validation nodes of every class, drawn by the seed; the rest test"
_TEN_PUBLIC = (
    "public: one of ten by the seed, public-0 to public-9; half of the nodes train, a quarter each validates and tests"
)


def _planetoid(name: str, sha256: Mapping[str, str], description: str, num_train: int) -> DatasetSource:
    raw = RawFiles(name.lower(), name, _PLANETOID_URL, sha256)
    split = f"public: {num_train} papers train, 500 validate, 1,000 test"
    origin = "Planetoid raw files, Yang et al. 2016"
    load = _loader("planetoid", "load_planetoid", raw)
    return DatasetSource(raw.task, "Citations", description, split, origin, load, raw)


def _words(task: str, group: str, description: str, origin: str, url: str, name: str, file: str) -> DatasetSource:
    raw = RawFiles(task, name, url, {file: None})
    load = _loader("bag_of_words", "load_bag_of_words", raw)
    return DatasetSource(task, group, description, _PER_CLASS, origin, load, raw)


def _full(task: str, name: str, description: str) -> DatasetSource:
    origin = "Full citation network, Bojchevski & Günnemann 2018"
    return _words(task, "Citations", description, origin, _FULL_URL, name, f"{name}.npz")


def _coauthor(task: str, name: str, file: str, description: str) -> DatasetSource:
    origin = "Coauthor graph, Shchur et al. 2018"
    return _words(task, "Co-authors", description, origin, _SHCHUR_URL, name, file)


def _amazon(task: str, name: str, description: str) -> DatasetSource:
    origin = "Amazon graph, McAuley et al. 2015, Shchur et al. 2018"
    file = f"amazon_electronics_{task}.npz"
    return _words(task, "Goods bought together", description, origin, _SHCHUR_URL, name, file)


def _heterophilous(task: str, description: str) -> DatasetSource:
    name = task.replace("-", "_")
    raw = RawFiles(task, name, _HETEROPHILOUS_URL, {f"{name}.npz": None})
    origin = "Heterophilous graphs, Platonov et al. 2023"
    load = _loader("several_splits", "load_heterophilous", raw)
    return DatasetSource(task, "Heterophilous graphs", description, _TEN_PUBLIC, origin, load, raw)


_ARXIV = OgbFiles(
    task="arxiv",
    name="arxiv",
    folders=("arxiv", "ogbn_arxiv"),
    split="time",
    class_names="mapping/labelidx2arxivcategeory.csv.gz",  # so spelled
    sizes=OgbSizes(169_343, 1_166_243, 128, 40, (90_941, 29_799, 48_603)),
    # The address stands in OGB's master.csv. OGB publishes no checksum; the SHA-256 is the one that a dozen public
    # repositories independently recorded of what they downloaded there.
    url="https://snap.stanford.edu/ogb/data/nodeproppred",
    sha256="49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276",
)
_WIKICS = RawFiles(
    "wikics", "WikiCS", "https://github.com/pmernyei/wiki-cs-dataset/raw/master/dataset", {"data.json": None}
)

_SOURCES = (
    DatasetSource(
        "digits",
        "Without a download",
        "1,797 images of handwritten digits, linked with their 8 nearest neighbours, 64 pixels, 10 classes",
        "5 training and 10 validation images of every class, drawn by the seed; the rest test",
        "embedded in scikit-learn",
        _loader("digits", "load_digits", None),
    ),
    _planetoid("Cora", _CORA_SHA256, "2,708 papers, 5,278 citations, 1,433 words, 7 topics", 140),
    _planetoid("CiteSeer", _CITESEER_SHA256, "3,327 papers, 4,552 citations, 3,703 words, 6 topics", 120),
    _planetoid("PubMed", _PUBMED_SHA256, "19,717 papers, 44,324 citations, 500 words, 3 topics", 60),
    DatasetSource(
        "arxiv",
        "Citations",
        "169,343 papers, 1,166,243 citations, 128 averaged word vectors, 40 subject areas (ogbn-arxiv)",
        "public: 90,941 papers until 2017 train, 29,799 of 2018 validate, 48,603 since 2019 test",
        "Open Graph Benchmark, Hu et al. 2020; raw CSV files, 83 MB",
        _loader("ogb", "load_ogb", _ARXIV),
        _ARXIV,
    ),
    _full("cora-ml", "cora_ml", "2,995 papers, 8,158 citations, 2,879 words, 7 topics"),
    _full("citeseer-full", "citeseer", "4,230 papers, 5,337 citations, 602 words, 6 topics"),
    _full("dblp", "dblp", "17,716 papers, 52,867 citations, 1,639 words, 4 topics"),
    _full("pubmed-full", "pubmed", "19,717 papers, 44,324 citations, 500 words, 3 topics"),
    _coauthor("cs", "CS", "ms_academic_cs.npz", "18,333 authors, 81,894 co-authorships, 6,805 keywords, 15 fields"),
    _coauthor(
        "physics", "Physics", "ms_academic_phy.npz", "34,493 authors, 247,962 co-authorships, 8,415 keywords, 5 fields"
    ),
    _amazon(
        "computers",
        "Computers",
        "13,752 goods, 245,861 pairs often bought together, 767 words of reviews, 10 categories",
    ),
    _amazon("photo", "Photo", "7,650 goods, 119,081 pairs often bought together, 745 words of reviews, 8 categories"),
    DatasetSource(
        "wikics",
        "Wikipedia",
        "11,701 articles on computer science, 216,123 links, 300 averaged word vectors, 10 branches",
        "public: one of twenty by the seed, public-0 to public-19, which share one test part",
        "Wiki-CS, Mernyei & Cangea 2020",
        _loader("several_splits", "load_wikics", _WIKICS),
        _WIKICS,
    ),
    _heterophilous("roman-empire", "22,662 words of one article, 32,927 links, 300 features, 18 syntactic roles"),
    _heterophilous("amazon-ratings", "24,492 goods, 93,050 pairs often bought together, 300 features, 5 ratings"),
    _heterophilous("minesweeper", "10,000 cells of a grid, 39,402 pairs, 7 features, mine or none"),
    _heterophilous("tolokers", "11,758 workers, 519,000 common tasks, 10 features, banned or not"),
    _heterophilous("questions", "48,921 users, 153,540 answers, 301 features, still active or not"),
)

_MADE = "Made on the spot, by distance"
_OWN = "drawn by graphjoule.tasks.generated"
_ECHO = f"{_OWN}; the families of ECHO, Miglior et al. 2025"
_BY_GRAPH = "public: six graphs in ten train, two each validate and test"


def _numbered(letter: str, stem: str, function: str, description: str, split: str, origin: str) -> DatasetFamily:
    pattern = rf"{stem}-(?P<number>[1-9]\d{{0,3}})"
    return DatasetFamily(f"{stem}-{letter}", pattern, _MADE, description, split, origin, _generated(function))


FAMILIES = (
    _numbered(
        "D",
        "ring",
        "ring_transfer",
        "rings of 2 D nodes; the class of the flagged node is asked for D hops away, 5 classes",
        "stratified-25-25: half of the rings train, a quarter each validates and tests, drawn by the seed",
        _OWN,
    ),
    _numbered(
        "D",
        "shortest-paths",
        "shortest_paths",
        "graphs of six families with diameters of D / 2 to D; how far every node is from the flagged one",
        _BY_GRAPH,
        _ECHO,
    ),
    _numbered(
        "D", "eccentricity", "eccentricity", "the same graphs; how far the farthest node is from each", _BY_GRAPH, _ECHO
    ),
    _numbered("D", "diameter", "graph_diameter", "the same graphs; the diameter of each", _BY_GRAPH, _ECHO),
    _numbered(
        "N",
        "mines",
        "mines",
        "N x N cells, a fifth with a mine, half of which show how many of their neighbours have one; mine or none",
        "stratified-25-25: half of the cells train, a quarter each validates and tests, drawn by the seed",
        f"{_OWN}; minesweeper, Platonov et al. 2023",
    ),
    DatasetFamily(
        "DATASET-missing-P",
        r"(?P<base>.+)-missing-(?P<number>\d{1,3})",
        _MADE,
        "any dataset, with the features of P percent of the nodes set to zero; those that train in a public split keep "
        "theirs",
        "that of the dataset",
        "the setting of PairNorm, Zhao & Akoglu 2020",
        _without_features,
    ),
)
"""Datasets with a number in their name."""

DATASETS: dict[str, DatasetSource] = DatasetTable({source.name: source for source in _SOURCES})
"""The datasets by name."""
