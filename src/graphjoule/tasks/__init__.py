"""Every source of data ends in one shape: `Task`."""

from __future__ import annotations

import os

from graphjoule.errors import GraphjouleError, choices
from graphjoule.tasks.knn import knn_edge_index
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.raw import resolve_data_root
from graphjoule.tasks.sources import DATASETS, DatasetSource
from graphjoule.tasks.splits import Split
from graphjoule.tasks.task import Task

__all__ = [
    "DATASETS",
    "Classification",
    "DatasetSource",
    "Split",
    "Task",
    "find_dataset",
    "knn_edge_index",
    "load_task",
    "resolve_data_root",
]


def load_task(name: str, data_root: str | os.PathLike[str] | None = None) -> Task:
    """Load a dataset by name; its raw files are downloaded if they are not there. Features are left as stored.

    Args:
        name: one of `DATASETS`.
        data_root: folder of raw files; else the environment's ``GRAPHJOULE_DATA``, else ``~/.cache/graphjoule``.
    """
    return find_dataset(name).load(resolve_data_root(data_root))


def find_dataset(name: str) -> DatasetSource:
    """The row of `DATASETS`; a name that is none of them is refused with those there are."""
    if name not in DATASETS:
        raise GraphjouleError(f"Unknown dataset {name!r}; expected one of: {choices(DATASETS)}.")
    return DATASETS[name]
