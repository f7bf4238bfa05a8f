"""The datasets that can be asked for by name, as one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from graphjoule.tasks import heterophilous, planetoid, wikics, words
from graphjoule.tasks.digits import load_digits
from graphjoule.tasks.heterophilous import load_heterophilous
from graphjoule.tasks.ogb import ARXIV, load_ogb
from graphjoule.tasks.planetoid import load_planetoid
from graphjoule.tasks.raw import RawFiles
from graphjoule.tasks.task import Task
from graphjoule.tasks.wikics import load_wikics
from graphjoule.tasks.words import load_words


class NeededFiles(Protocol):
    """Files under the data root that a dataset is read from."""

    def missing(self, root: Path) -> list[Path]:
        """Those that are not there; none if loading needs no download."""


@dataclass(frozen=True)
class DatasetSource:
    """One row of `DATASETS`: a dataset that can be asked for by name.

    Attributes:
        name: what the user calls it.
        group: what kind of graph it is, for a list by groups.
        description: one line about what the nodes, edges and classes are.
        split: one line about the split it is used with if none is asked for.
        origin: where it comes from.
        load: makes the task from the data root.
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


_PER_CLASS = "20 training and 30 validation nodes of every class, drawn by the seed; the rest test"
_TEN_PUBLIC = (
    "public: one of ten by the seed, public-0 to public-9; half of the nodes train, a quarter each validates and tests"
)


def _planetoid(raw: RawFiles, description: str, num_train: int) -> DatasetSource:
    split = f"public: {num_train} papers train, 500 validate, 1,000 test"
    origin = "Planetoid raw files, Yang et al. 2016; downloaded by PyTorch Geometric"
    return DatasetSource(raw.task, "Citations", description, split, origin, partial(load_planetoid, raw), raw)


def _words(raw: RawFiles, group: str, description: str, origin: str) -> DatasetSource:
    return DatasetSource(raw.task, group, description, _PER_CLASS, origin, partial(load_words, raw), raw)


def _heterophilous(raw: RawFiles, description: str) -> DatasetSource:
    origin = "Heterophilous graphs, Platonov et al. 2023; downloaded by PyTorch Geometric"
    load = partial(load_heterophilous, raw)
    return DatasetSource(raw.task, "Heterophilous graphs", description, _TEN_PUBLIC, origin, load, raw)


_COAUTHOR = "Coauthor graph, Shchur et al. 2018; downloaded by PyTorch Geometric"
_AMAZON = "Amazon graph, McAuley et al. 2015, Shchur et al. 2018; downloaded by PyTorch Geometric"
_FULL = "Full citation network, Bojchevski & Günnemann 2018; downloaded by PyTorch Geometric"

_SOURCES = (
    DatasetSource(
        "digits",
        "Without a download",
        "1,797 images of handwritten digits, linked with their 8 nearest neighbours, 64 pixels, 10 classes",
        "5 training and 10 validation images of every class, drawn by the seed; the rest test",
        "embedded in scikit-learn",
        load_digits,
    ),
    _planetoid(planetoid.CORA, "2,708 papers, 5,278 citations, 1,433 words, 7 topics", 140),
    _planetoid(planetoid.CITESEER, "3,327 papers, 4,552 citations, 3,703 words, 6 topics", 120),
    _planetoid(planetoid.PUBMED, "19,717 papers, 44,324 citations, 500 words, 3 topics", 60),
    DatasetSource(
        "arxiv",
        "Citations",
        "169,343 papers, 1,166,243 citations, 128 averaged word vectors, 40 subject areas (ogbn-arxiv)",
        "public: 90,941 papers until 2017 train, 29,799 of 2018 validate, 48,603 since 2019 test",
        "Open Graph Benchmark, Hu et al. 2020; raw CSV files, 83 MB",
        partial(load_ogb, ARXIV),
        ARXIV,
    ),
    _words(words.CORA_ML, "Citations", "2,995 papers, 8,158 citations, 2,879 words, 7 topics", _FULL),
    _words(words.CITESEER_FULL, "Citations", "4,230 papers, 5,337 citations, 602 words, 6 topics", _FULL),
    _words(words.DBLP, "Citations", "17,716 papers, 52,867 citations, 1,639 words, 4 topics", _FULL),
    _words(words.PUBMED_FULL, "Citations", "19,717 papers, 44,324 citations, 500 words, 3 topics", _FULL),
    _words(words.CS, "Co-authors", "18,333 authors, 81,894 co-authorships, 6,805 keywords, 15 fields", _COAUTHOR),
    _words(
        words.PHYSICS,
        "Co-authors",
        "34,493 authors, 247,962 co-authorships, 8,415 keywords, 5 fields",
        _COAUTHOR,
    ),
    _words(
        words.COMPUTERS,
        "Goods bought together",
        "13,752 goods, 245,861 pairs often bought together, 767 words of reviews, 10 categories",
        _AMAZON,
    ),
    _words(
        words.PHOTO,
        "Goods bought together",
        "7,650 goods, 119,081 pairs often bought together, 745 words of reviews, 8 categories",
        _AMAZON,
    ),
    DatasetSource(
        "wikics",
        "Wikipedia",
        "11,701 articles on computer science, 216,123 links, 300 averaged word vectors, 10 branches",
        "public: one of twenty by the seed, public-0 to public-19, which share one test part",
        "Wiki-CS, Mernyei & Cangea 2020; downloaded by PyTorch Geometric",
        partial(load_wikics, wikics.WIKICS),
        wikics.WIKICS,
    ),
    _heterophilous(
        heterophilous.ROMAN_EMPIRE, "22,662 words of one article, 32,927 links, 300 features, 18 syntactic roles"
    ),
    _heterophilous(
        heterophilous.AMAZON_RATINGS, "24,492 goods, 93,050 pairs often bought together, 300 features, 5 ratings"
    ),
    _heterophilous(heterophilous.MINESWEEPER, "10,000 cells of a grid, 39,402 pairs, 7 features, mine or none"),
    _heterophilous(heterophilous.TOLOKERS, "11,758 workers, 519,000 common tasks, 10 features, banned or not"),
    _heterophilous(heterophilous.QUESTIONS, "48,921 users, 153,540 answers, 301 features, still active or not"),
)

DATASETS: dict[str, DatasetSource] = {source.name: source for source in _SOURCES}
