"""Datasets with several public splits, ``public-0``, ``public-1`` and so on: the heterophilous graphs and Wiki-CS."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.edges import int64_array
from graphjoule.tasks.archive import NUMBERS, read_arrays
from graphjoule.tasks.datasets import RawFiles
from graphjoule.tasks.download import read_raw_file
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.splits import PARTS, Split, fixed_split
from graphjoule.tasks.task import Task, pack_features

_MASKS = ("train_masks", "val_masks", "test_masks")
_KINDS = {"node_features": NUMBERS, "node_labels": "iu", "edges": "iu"} | dict.fromkeys(_MASKS, "b")
_LISTS = ("features", "labels", "links", "train_masks", "val_masks", "test_mask")
_TYPES = {"f": np.float64, "i": np.int64, "b": np.bool_}
_WORDS = {"f": "numbers", "i": "whole numbers", "b": "true and false"}


def load_heterophilous(raw: RawFiles, root: Path) -> Task:
    """A graph of Platonov et al. (2023), whose edges mostly join different classes; features as stored.

    Its ten public splits have half of the nodes, a quarter and a quarter. An edge counts in both directions, as in
    PyG's class and in the authors' code.
    """
    path, arrays = read_raw_file(raw, root, partial(read_arrays, kinds=_KINDS))
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


def load_wikics(raw: RawFiles, root: Path) -> Task:
    """Wiki-CS (Mernyei & Cangea 2020): articles with averaged word vectors and twenty splits that share one test part.

    A link counts in both directions. The validation part is the file's ``val_masks``; its ``stopping_masks``, meant to
    choose the epoch while ``val_masks`` choose the settings, are not read, so both choices see the same nodes.
    """
    path, content = read_raw_file(raw, root, _read_wikics)
    features = torch.from_numpy(_array(content, "features", "f", path)).to(torch.get_default_dtype())
    labels = torch.from_numpy(_array(content, "labels", "i", path))
    train, val, test = (_array(content, key, "b", path) for key in ("train_masks", "val_masks", "test_mask"))
    return Task(
        name=raw.task,
        features=pack_features(features),
        graph=Propagation.from_edge_index(_edges(content, path), num_nodes=features.shape[0], symmetrize=True),
        targets=labels,
        objective=Classification.of(labels),
        fixed_splits=public_splits(str(path), len(labels), (train, val, np.tile(test, (len(train), 1)))),
        default_split="public",
    )


def _array(content: dict[str, Any], key: str, kind: str, path: Path) -> np.ndarray:
    """A list of the file as an array; a conversion that would change what it says is refused."""
    try:
        given: np.ndarray = np.asarray(content[key])
        array: np.ndarray = given.astype(_TYPES[kind])
        is_same = given.dtype.kind in "iufb" and np.array_equal(given, array, equal_nan=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise GraphjouleError(f"The list {key!r} in {path} is no array of {_WORDS[kind]} ({error}).") from error
    if not is_same:
        raise GraphjouleError(f"The list {key!r} in {path} holds something other than {_WORDS[kind]}.")
    return array


def _edges(content: dict[str, Any], path: Path) -> torch.Tensor:
    """``edge_index`` of the links, which stand as one list of targets per article."""
    links = content["links"]
    if not all(isinstance(targets, list) for targets in links):
        raise GraphjouleError(f"The list 'links' in {path} must hold one list of article numbers per article.")
    source = np.repeat(np.arange(len(links)), [len(targets) for targets in links])
    target = _array({"links": [node for targets in links for node in targets]}, "links", "i", path)
    return torch.from_numpy(np.stack([source, target]))


def _read_wikics(path: Path, shown: str) -> dict[str, Any]:
    """The lists of a Wiki-CS file; one that is no JSON object with all of them is refused, and called `shown`."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise GraphjouleError(f"The file {shown} is no readable JSON ({error}).") from error
    for key in _LISTS:
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise GraphjouleError(f"The file {shown} has no list {key!r}; expected {', '.join(_LISTS)}.")
    return {key: content[key] for key in _LISTS}


def public_splits(shown: str, num_nodes: int, masks: Sequence[np.ndarray]) -> tuple[Split, ...]:
    """The splits whose masks are the rows of boolean matrices ``[num_splits, num_nodes]``.

    Args:
        shown: how to call the file they come from in the sentence.
        num_nodes: number of nodes.
        masks: three matrices: which nodes train, which choose the epoch, and which are scored.

    >>> rows = np.eye(3, dtype=bool)
    >>> [split.name for split in public_splits("masks.npz", 3, [rows[:2], rows[1:], rows[[2, 0]]])]
    ['public-0', 'public-1']
    """
    num_splits = masks[0].shape[0] if masks[0].ndim else 0
    if not num_splits or any(mask.shape != (num_splits, num_nodes) for mask in masks):
        shapes = ", ".join(f"{part} {list(mask.shape)}" for part, mask in zip(PARTS, masks, strict=True))
        raise GraphjouleError(
            f"The masks in {shown} have the shapes {shapes}; expected three times [number of splits, {num_nodes}]."
        )
    rows = zip(*(torch.from_numpy(mask) for mask in masks), strict=True)
    return tuple(fixed_split(f"public-{number}", *row) for number, row in enumerate(rows))
