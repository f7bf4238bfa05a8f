"""Wiki-CS (Mernyei & Cangea 2020): articles on computer science, their links and branches, in one JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.public import public_splits
from graphjoule.tasks.raw import RawFiles
from graphjoule.tasks.task import Task, pack_features

_FILE = "data.json"
_KEYS = ("features", "labels", "links", "train_masks", "val_masks", "test_mask")


def read_wikics(path: Path, shown: str) -> dict[str, Any]:
    """The lists of a Wiki-CS file, refusing one that is no JSON object with all of them.

    Args:
        path: the file.
        shown: how to call it in the sentence.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise GraphjouleError(f"The file {shown} is no readable JSON ({error}).") from error
    for key in _KEYS:
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise GraphjouleError(f"The file {shown} has no list {key!r}; expected {', '.join(_KEYS)}.")
    return {key: content[key] for key in _KEYS}


def _check(folder: Path, shown: str) -> None:
    read_wikics(folder / _FILE, f"{shown}/{_FILE}")


# The class takes no name; without the keyword it warns that its default has changed once.
WIKICS = RawFiles("wikics", "WikiCS", "WikiCS", files=(_FILE,), check=_check, options={"is_undirected": True})


def load_wikics(raw: RawFiles, root: Path) -> Task:
    """Articles with averaged word vectors and twenty public splits, which share one test part.

    A link counts in both directions. The validation part is the file's ``val_masks``; its ``stopping_masks``, meant to
    choose the epoch while ``val_masks`` choose the settings, are not read, so both choices see the same nodes.
    """
    path = raw.ensure(root) / _FILE
    content = read_wikics(path, str(path))
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


_TYPES = {"f": np.float64, "i": np.int64, "b": np.bool_}
_WORDS = {"f": "numbers", "i": "whole numbers", "b": "true and false"}


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
