"""The heterophilous graphs of Platonov et al. (2023), whose edges mostly join different classes; one ``.npz`` each."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.edges import int64_array
from graphjoule.tasks.arrays import NUMBERS, read_arrays
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.public import public_splits
from graphjoule.tasks.raw import RawFiles
from graphjoule.tasks.task import Task, pack_features

_MASKS = ("train_masks", "val_masks", "test_masks")
_KINDS = {"node_features": NUMBERS, "node_labels": "iu", "edges": "iu"} | dict.fromkeys(_MASKS, "b")


def _check(file: str, folder: Path, shown: str) -> None:
    read_arrays(folder / file, f"{shown}/{file}", _KINDS)


def _heterophilous_files(task: str) -> RawFiles:
    name = task.replace("-", "_")
    file = f"{name}.npz"
    return RawFiles(task, "HeterophilousGraphDataset", name, files=(file,), check=partial(_check, file))


ROMAN_EMPIRE = _heterophilous_files("roman-empire")
AMAZON_RATINGS = _heterophilous_files("amazon-ratings")
MINESWEEPER = _heterophilous_files("minesweeper")
TOLOKERS = _heterophilous_files("tolokers")
QUESTIONS = _heterophilous_files("questions")


def load_heterophilous(raw: RawFiles, root: Path) -> Task:
    """A graph with its ten public splits of half, a quarter and a quarter of the nodes; features as stored.

    An edge counts in both directions, as in PyG's class and in the authors' code.
    """
    path = raw.ensure(root) / raw.files[0]
    arrays = read_arrays(path, str(path), _KINDS)
    edges = arrays["edges"]
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise GraphjouleError(f"The array 'edges' in {path} has shape {list(edges.shape)}; expected [num_edges, 2].")
    features = torch.from_numpy(arrays["node_features"]).to(torch.get_default_dtype())
    labels = torch.from_numpy(int64_array(arrays["node_labels"], f"{path}: node_labels"))
    edge_index = torch.from_numpy(int64_array(edges, f"{path}: edges")).t()
    return Task(
        name=raw.task,
        features=pack_features(features),
        graph=Propagation.from_edge_index(edge_index, num_nodes=features.shape[0], symmetrize=True),
        targets=labels,
        objective=Classification.of(labels),
        fixed_splits=public_splits(str(path), len(labels), [arrays[key] for key in _MASKS]),
        default_split="public",
    )
