"""Every source of data, as one table that ends in one shape: `NodeTask`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from graphjoule.errors import GraphjouleError, choices
from graphjoule.tasks.coauthor import PHYSICS, load_coauthor
from graphjoule.tasks.digits import load_digits
from graphjoule.tasks.knn import knn_edge_index
from graphjoule.tasks.planetoid import CORA, PUBMED, load_planetoid
from graphjoule.tasks.raw import RawFiles, resolve_data_root
from graphjoule.tasks.splits import Split
from graphjoule.tasks.task import NodeTask

__all__ = ["DATASETS", "DatasetSource", "NodeTask", "Split", "knn_edge_index", "load_task", "resolve_data_root"]


@dataclass(frozen=True)
class DatasetSource:
    """One row of `DATASETS`: a dataset that can be asked for by name.

    Attributes:
        name: what the user calls it.
        description: one line about what the nodes, edges and classes are.
        origin: where it comes from.
        load: makes the task from the data root.
        raw: the files it needs, or None if it comes with an installed package.
    """

    name: str
    description: str
    origin: str
    load: Callable[[Path], NodeTask]
    raw: RawFiles | None = None

    def is_present(self, root: Path) -> bool:
        """Whether loading needs no download."""
        return self.raw is None or not self.raw.missing(root)


_SOURCES = (
    DatasetSource(
        "cora",
        "2,708 papers, 5,278 citations, 1,433 words, 7 topics",
        "Planetoid raw files, Yang et al. 2016; downloaded by PyTorch Geometric",
        partial(load_planetoid, CORA),
        CORA,
    ),
    DatasetSource(
        "digits",
        "1,797 images of handwritten digits, linked with their 8 nearest neighbours, 64 pixels, 10 classes",
        "embedded in scikit-learn; no download",
        load_digits,
    ),
    DatasetSource(
        "physics",
        "34,493 authors, 247,962 co-authorships, 8,415 keywords, 5 fields",
        "Coauthor graph, Shchur et al. 2018; downloaded by PyTorch Geometric",
        partial(load_coauthor, PHYSICS),
        PHYSICS,
    ),
    DatasetSource(
        "pubmed",
        "19,717 papers, 44,324 citations, 500 words, 3 topics",
        "Planetoid raw files, Yang et al. 2016; downloaded by PyTorch Geometric",
        partial(load_planetoid, PUBMED),
        PUBMED,
    ),
)

DATASETS: dict[str, DatasetSource] = {source.name: source for source in _SOURCES}


def load_task(name: str, data_root: str | os.PathLike[str] | None = None) -> NodeTask:
    """Load a dataset by name; its raw files are downloaded if they are not there. Features are left as stored.

    Args:
        name: one of `DATASETS`.
        data_root: folder of raw files; else the environment's ``GRAPHJOULE_DATA``, else ``~/.cache/graphjoule``.
    """
    if name not in DATASETS:
        raise GraphjouleError(f"Unknown dataset {name!r}; expected one of: {choices(DATASETS)}.")
    return DATASETS[name].load(resolve_data_root(data_root))
