"""Your own graph from one ``.npz`` archive of plain arrays: the pieces of SciPy's sparse matrices, no pickle."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, counted
from graphjoule.graph import Propagation
from graphjoule.graph.edges import int64_array
from graphjoule.graph.features import Features, check_features
from graphjoule.tasks.arrays import CSR_PIECES, NUMBERS, csr_of, read_arrays
from graphjoule.tasks.facts import Source
from graphjoule.tasks.files import source_files
from graphjoule.tasks.inputs import ModelInput
from graphjoule.tasks.loglines import tell_graph, tell_nodes, tell_split
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.rules import stratified_rule
from graphjoule.tasks.splits import PARTS, split_of_masks
from graphjoule.tasks.table import check_file
from graphjoule.tasks.task import Task, pack_features

_MASKS = tuple(f"{part}_mask" for part in PARTS)
_TEXT_OR_NUMBERS = "Uiu"
_KINDS = (
    {f"{matrix}_{piece}": NUMBERS for matrix in ("adj", "attr") for piece in CSR_PIECES}
    | dict.fromkeys(("adj_data", "attr_data"), NUMBERS + "b")
    | {"features": NUMBERS, "labels": "iu", "class_names": _TEXT_OR_NUMBERS, "node_ids": _TEXT_OR_NUMBERS}
    | dict.fromkeys(_MASKS, "b")
)


def load_npz(path: str | Path, *, test_fraction: float = 0.0) -> Task:
    """A task from an archive; features are taken as stored, an edge counts in both directions.

    ======================================================  =========================================================
    ``adj_data``, ``adj_indices``, ``adj_indptr``,          the adjacency as SciPy's CSR matrix; its values are the
    ``adj_shape``                                           weights
    ``features``, or ``attr_data``, ``attr_indices``, ...   the features, dense or as a CSR matrix
    ``labels``                                              class of every node from 0, -1 where unknown
    ``class_names``, ``node_ids``                           names, where there are some
    ``train_mask``, ``val_mask``, ``test_mask``             a split of your own, called "public"; the last is optional
    ======================================================  =========================================================

    Args:
        path: the archive.
        test_fraction: share of the labelled nodes of each class to hold back, where there are no masks.
    """
    path = check_file(path)
    arrays = _read(path, required=("labels",))
    given = _input(path, arrays)
    drawn = stratified_rule(test_fraction)
    names = _class_names(path, arrays, given.targets)
    tell_graph(path, given.graph)
    try:
        masks = {mask: torch.from_numpy(arrays[mask]) for mask in _MASKS if mask in arrays}
        public = split_of_masks("public", masks)
        task = Task(
            name=path.name,
            features=given.features,
            graph=given.graph,
            targets=given.targets,
            objective=Classification(len(names), names) if names else Classification.of(given.targets),
            fixed_splits=(public,) if public else (),
            default_split=public.name if public else drawn,
            node_ids=given.node_ids,
            source=Source(files=source_files(npz=path)),
        )
    except GraphjouleError as error:
        raise GraphjouleError(f"{path}: {error}") from error
    tell_nodes(path, task.num_features, task.targets, task.facts().classes)
    if public:
        tell_split(path, public)
    return task


def load_npz_like(path: str | Path, num_features: int) -> ModelInput:
    """Another graph from an archive with as many features; labels may be missing."""
    path = check_file(path)
    given = _input(path, _read(path, required=()))
    if given.features.size(1) != num_features:
        raise GraphjouleError(
            f"{path} has {counted(given.features.size(1), 'feature')}; the model was trained with {num_features:,}."
        )
    return given


def load_npz_graph(path: str | Path) -> Propagation:
    """The graph of an archive alone: of its arrays only ``adj_data``, ``adj_indices``, ... are needed and read."""
    path = check_file(path)
    graph = _graph(path, _read(path, required=(), matrices=("adj",)))
    tell_graph(path, graph)
    return graph


def _read(path: Path, required: tuple[str, ...], matrices: tuple[str, ...] = ("adj", "attr")) -> dict[str, np.ndarray]:
    """The arrays of an archive that mean something here; of the matrices alone where `matrices` leaves one out."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError) as error:
        raise GraphjouleError(f"{path} is no readable .npz archive ({error}).") from error
    if set(CSR_PIECES) <= names and "adj_data" not in names:
        raise GraphjouleError(
            f"{path} holds one sparse matrix, as scipy.sparse.save_npz writes it; save its {', '.join(CSR_PIECES)} as "
            f"{', '.join(f'adj_{piece}' for piece in CSR_PIECES)} instead, together with features and labels, by "
            "numpy.savez."
        )
    pieces = {matrix: [f"{matrix}_{piece}" for piece in CSR_PIECES] for matrix in matrices}
    if "features" in names:
        pieces.pop("attr", None)
    needed = {*required, *(key for keys in pieces.values() for key in keys)}
    known = needed if "attr" not in matrices else needed | (_KINDS.keys() & names)
    try:
        return read_arrays(path, str(path), {key: kind for key, kind in _KINDS.items() if key in known})
    except MemoryError as error:
        raise GraphjouleError(f"{path} says of an array that it is larger than the memory.") from error


def _input(path: Path, arrays: dict[str, np.ndarray]) -> ModelInput:
    """Features, graph, labels and names, checked against each other."""
    graph = _graph(path, arrays)
    features = _features(path, arrays)
    labels = arrays.get("labels", np.full(graph.num_nodes, -1))
    ids = arrays.get("node_ids", np.arange(graph.num_nodes))
    shapes = {"features": features.shape[:1], "labels": labels.shape, "node_ids": ids.shape}
    shapes |= {mask: arrays[mask].shape for mask in _MASKS if mask in arrays}
    for name, shape in shapes.items():
        _check_nodes(path, name, tuple(shape), graph.num_nodes)
    try:
        check_features(features)
    except GraphjouleError as error:
        raise GraphjouleError(f"{path}: {error}") from error
    return ModelInput(features, graph, torch.from_numpy(int64_array(labels, f"{path}: labels")), _node_ids(path, ids))


def _check_nodes(path: Path, name: str, shape: tuple[int, ...], num_nodes: int) -> None:
    if shape != (num_nodes,):
        raise GraphjouleError(
            f"{path}: {name} is for {list(shape)} nodes; expected {num_nodes}, one for each row of adj."
        )


def _graph(path: Path, arrays: dict[str, np.ndarray]) -> Propagation:
    links = csr_of(arrays, "adj", str(path)).tocoo()
    _check_nodes(path, "adj", tuple(links.shape[1:]), links.shape[0])
    weight = links.data.astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(weight) | (weight < 0))
    if wrong.size:
        raise GraphjouleError(
            f"{path}: adj_data[{wrong[0]}] is {weight[wrong[0]]}; weights must be finite and 0 or more."
        )
    edge_index = torch.from_numpy(np.stack([links.row, links.col]).astype(np.int64))
    try:
        return Propagation.from_edge_index(edge_index, torch.from_numpy(weight), links.shape[0], symmetrize=True)
    except GraphjouleError as error:
        raise GraphjouleError(f"{path}: {error}") from error


def _node_ids(path: Path, ids: np.ndarray) -> tuple[str, ...]:
    names = tuple(map(str, ids))
    first: dict[str, int] = {}
    for number, name in enumerate(names):
        if first.setdefault(name, number) != number:
            raise GraphjouleError(
                f"{path}: node_ids[{number}] is {name!r}, and so is node_ids[{first[name]}]; ids must differ."
            )
    return names


def _class_names(path: Path, arrays: dict[str, np.ndarray], labels: Tensor) -> tuple[str, ...] | None:
    """The names of the classes, where there are some; a single class is refused with the array that says so."""
    given = arrays.get("class_names")
    if given is not None and (given.ndim != 1 or given.size < 2):
        raise GraphjouleError(
            f"{path}: class_names has shape {list(given.shape)}; expected a list of two names or more, one per class."
        )
    if given is None and Classification.of(labels).num_classes == 1:
        raise GraphjouleError(
            f"{path}: labels holds one class, 0; at least two are needed, or the names of all of them in class_names."
        )
    return None if given is None else tuple(map(str, given))


def _features(path: Path, arrays: dict[str, np.ndarray]) -> Features:
    if "features" not in arrays:
        return pack_features(csr_of(arrays, "attr", str(path)))
    dense = arrays["features"]
    if dense.ndim != 2:
        raise GraphjouleError(f"{path}: features has shape {list(dense.shape)}; expected [num_nodes, num_features].")
    return pack_features(torch.from_numpy(dense).to(torch.get_default_dtype()))
