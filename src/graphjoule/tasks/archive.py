"""Your own graph from one ``.npz`` archive of plain arrays: the pieces of SciPy's sparse matrices, no pickle."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.features import Features, check_features
from graphjoule.graph import Propagation
from graphjoule.tasks.arrays import NUMBERS, read_arrays
from graphjoule.tasks.facts import Source
from graphjoule.tasks.files import source_files
from graphjoule.tasks.inputs import ModelInput
from graphjoule.tasks.rules import stratified_rule
from graphjoule.tasks.splits import PARTS, fixed_split
from graphjoule.tasks.table import check_file
from graphjoule.tasks.task import NodeTask, count_classes, pack_features

_PIECES = ("data", "indices", "indptr", "shape")
_MASKS = tuple(f"{part}_mask" for part in PARTS)
_TEXT_OR_NUMBERS = "Uiu"
_KINDS = (
    {f"{matrix}_{piece}": NUMBERS + "b" for matrix in ("adj", "attr") for piece in _PIECES}
    | {"features": NUMBERS, "labels": "iu", "class_names": _TEXT_OR_NUMBERS, "node_ids": _TEXT_OR_NUMBERS}
    | dict.fromkeys(_MASKS, "b")
)


def load_npz(path: str | Path, *, test_fraction: float = 0.0) -> NodeTask:
    """A task from an archive; features are taken as stored, an edge counts in both directions.

    ======================================================  =========================================================
    ``adj_data``, ``adj_indices``, ``adj_indptr``,          the adjacency as SciPy's CSR matrix; its values are the
    ``adj_shape``                                           weights
    ``features``, or ``attr_data``, ``attr_indices``, ...   the features, dense or as a CSR matrix
    ``labels``                                              class of every node from 0, -1 where unknown
    ``class_names``, ``node_ids``                           names, where there are some
    ``train_mask``, ``val_mask``, ``test_mask``             a split of your own, called "public"
    ======================================================  =========================================================

    Args:
        path: the archive.
        test_fraction: share of the labelled nodes of each class to hold back, where there are no masks.
    """
    path = check_file(path)
    arrays = _read(path, required=("labels",))
    given = _input(path, arrays)
    names = tuple(map(str, arrays["class_names"])) if "class_names" in arrays else None
    masks = [torch.from_numpy(arrays[mask]) for mask in _MASKS if mask in arrays]
    public = (fixed_split("public", *masks),) if len(masks) == len(_MASKS) else ()
    return NodeTask(
        name=path.name,
        features=given.features,
        graph=given.graph,
        labels=given.labels,
        num_classes=len(names) if names else count_classes(given.labels),
        class_names=names,
        fixed_splits=public,
        default_split="public" if public else stratified_rule(test_fraction),
        node_ids=given.node_ids,
        source=Source(files=source_files(npz=path)),
    )


def load_npz_like(path: str | Path, num_features: int) -> ModelInput:
    """Another graph from an archive with as many features; labels may be missing."""
    path = check_file(path)
    given = _input(path, _read(path, required=()))
    if given.features.size(1) != num_features:
        raise GraphjouleError(
            f"{path} has {given.features.size(1)} features; the model was trained with {num_features}."
        )
    return given


def _read(path: Path, required: tuple[str, ...]) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError) as error:
        raise GraphjouleError(f"{path} is no readable .npz archive ({error}).") from error
    matrices = ["adj"] if "features" in names else ["adj", "attr"]
    required = (*required, *(f"{matrix}_{piece}" for matrix in matrices for piece in _PIECES))
    try:
        return read_arrays(path, str(path), {key: k for key, k in _KINDS.items() if key in names or key in required})
    except MemoryError as error:
        raise GraphjouleError(f"{path} says of an array that it is larger than the memory.") from error


def _input(path: Path, arrays: dict[str, np.ndarray]) -> ModelInput:
    """Features, graph, labels and names, checked against each other."""
    links = _csr(path, arrays, "adj").tocoo()
    num_nodes = links.shape[0]
    features = _features(path, arrays)
    labels, ids = arrays.get("labels", np.full(num_nodes, -1)), arrays.get("node_ids", np.arange(num_nodes))
    shapes = {"adj": links.shape[1:], "features": features.shape[:1], "labels": labels.shape, "node_ids": ids.shape}
    for name, shape in shapes.items():
        if tuple(shape) != (num_nodes,):
            raise GraphjouleError(
                f"{path}: {name} is for {list(shape)} nodes; expected {num_nodes}, one for each row of adj."
            )
    edge_index = torch.from_numpy(np.stack([links.row, links.col]).astype(np.int64))
    weight = torch.from_numpy(links.data.astype(np.float64))
    try:
        check_features(features)
        graph = Propagation.from_edge_index(edge_index, weight, num_nodes, symmetrize=True)
    except GraphjouleError as error:
        raise GraphjouleError(f"{path}: {error}") from error
    return ModelInput(features, graph, torch.from_numpy(labels.astype(np.int64)), tuple(map(str, ids)))


def _features(path: Path, arrays: dict[str, np.ndarray]) -> Features:
    if "features" not in arrays:
        return pack_features(_csr(path, arrays, "attr"))
    dense = arrays["features"]
    if dense.ndim != 2:
        raise GraphjouleError(f"{path}: features has shape {list(dense.shape)}; expected [num_nodes, num_features].")
    return pack_features(torch.from_numpy(dense).to(torch.get_default_dtype()))


def _csr(path: Path, arrays: dict[str, np.ndarray], matrix: str) -> sp.csr_matrix:
    data, indices, indptr, shape = (arrays[f"{matrix}_{piece}"] for piece in _PIECES)
    try:
        rows, columns = (int(size) for size in shape)
        csr = sp.csr_matrix((data, indices, indptr), shape=(rows, columns))
        csr.check_format(full_check=True)  # SciPy checks no index by itself, and its C loops trust them all
    except (ValueError, TypeError) as error:
        raise GraphjouleError(f"{path}: the arrays {matrix}_* are no sparse matrix: {error}.") from error
    return csr
