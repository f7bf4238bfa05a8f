"""Your own graph from one ``.npz`` archive of plain arrays: the pieces of SciPy's sparse matrices, no pickle."""

from __future__ import annotations

import logging
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from graphjoule.errors import GraphjouleError, counted
from graphjoule.graph import Propagation
from graphjoule.graph.edges import int64_array
from graphjoule.graph.features import Features, check_features
from graphjoule.tasks.encoders import LossName, ObjectiveName
from graphjoule.tasks.facts import Source
from graphjoule.tasks.labels import check_objective
from graphjoule.tasks.objective import Binary, Classification, MultiLabel, Objective, Ordinal, Regression
from graphjoule.tasks.reading import check_file, check_unpacked
from graphjoule.tasks.splits import PARTS, split_of_masks, stratified_rule
from graphjoule.tasks.tables import log_graph, log_nodes, source_files
from graphjoule.tasks.task import ModelInput, Task, pack_features

NUMBERS = "iuf"
"""Kinds of NumPy dtypes that are numbers."""
CSR_PIECES = ("data", "indices", "indptr", "shape")
"""The arrays of a sparse matrix, each behind the matrix's name."""
_KIND_WORDS = {"iu": "whole numbers", "b": "booleans", "iuf": "numbers", "iufb": "numbers", "Uiu": "text or numbers"}
_MASKS = tuple(f"{part}_mask" for part in PARTS)
_KINDS = (
    {f"{matrix}_{piece}": NUMBERS for matrix in ("adj", "attr") for piece in CSR_PIECES}
    | dict.fromkeys(("adj_data", "attr_data"), NUMBERS + "b")
    | {"features": NUMBERS, "labels": "iu", "targets": NUMBERS}
    | dict.fromkeys(("class_names", "target_names", "node_ids"), "Uiu")
    | dict.fromkeys(_MASKS, "b")
)
logger = logging.getLogger("graphjoule")


def load_npz(
    path: str | Path,
    *,
    objective: ObjectiveName | None = None,
    loss: LossName | None = None,
    positive: str | None = None,
    test_fraction: float = 0.0,
) -> Task:
    """A task from an archive; features are used as stored, an edge counts in both directions.

    ======================================================  =========================================================
    ``adj_data``, ``adj_indices``, ``adj_indptr``,          the adjacency as SciPy's CSR matrix; its values are the
    ``adj_shape``                                           weights
    ``features``, or ``attr_data``, ``attr_indices``, ...   the features, dense or as a CSR matrix
    ``labels``                                              class of every node from 0, -1 where unknown
    ``targets``                                             or else one or several numbers per node, NaN where unknown
    ``class_names``, ``target_names``, ``node_ids``         names, where there are some
    ``train_mask``, ``val_mask``, ``test_mask``             a split of your own, called "public"; the last is optional
    ======================================================  =========================================================

    Args:
        path: the archive.
        objective: "classification", "binary" and "ordinal" read ``labels``, "regression" and "multilabel" ``targets``;
            by default a classification or a regression, whichever is there.
        loss: of a regression or of ordered classes: "squared" (the default) or "absolute" error.
        positive: of a binary objective the name of the positive class: by default class 1.
        test_fraction: share of the labelled nodes of each class to hold back, where there are no masks.
    """
    path = check_file(path)
    check_objective(objective, loss, positive)
    arrays = _read(path)
    asked = _objective(path, arrays, objective, loss, positive)
    given = _input(path, arrays, asked)
    drawn = stratified_rule(test_fraction)
    log_graph(path, given.graph)
    try:
        masks = {mask: torch.from_numpy(arrays[mask]) for mask in _MASKS if mask in arrays}
        public = split_of_masks("public", masks)
        made = Task(
            name=path.name,
            features=given.features,
            graph=given.graph,
            targets=given.targets,
            objective=asked,
            fixed_splits=(public,) if public else (),
            default_split=public.name if public else drawn,
            node_ids=given.node_ids,
            source=Source(files=source_files(npz=path)),
        )
    except GraphjouleError as error:
        raise GraphjouleError(f"{path}: {error}") from error
    log_nodes(path, made)
    if public:
        train, val, test = (f"{size:,}" for size in public.sizes)
        said = "%s: its masks are the split %r: %s to train, %s to validate, %s to test"
        logger.info(said, path, public.name, train, val, test)
    return made


def load_npz_like(path: str | Path, num_features: int, objective: Objective) -> ModelInput:
    """Another graph from an archive with as many features, for a model with that objective; labels may be missing."""
    path = check_file(path)
    given = _input(path, _read(path), objective)
    if given.features.size(1) != num_features:
        raise GraphjouleError(
            f"{path} has {counted(given.features.size(1), 'feature')}; the model was trained with {num_features:,}."
        )
    return given


def load_npz_graph(path: str | Path) -> Propagation:
    """The graph of an archive alone: of its arrays only ``adj_data``, ``adj_indices``, ... are needed and read."""
    path = check_file(path)
    graph = _graph(path, _read(path, matrices=("adj",)))
    log_graph(path, graph)
    return graph


def _read(path: Path, matrices: tuple[str, ...] = ("adj", "attr")) -> dict[str, np.ndarray]:
    """The arrays of an archive that mean something here; of the matrices alone where `matrices` leaves one out."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:  # the last: of a later version of zip
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
    needed = {key for keys in pieces.values() for key in keys}
    known = needed if "attr" not in matrices else needed | (_KINDS.keys() & names)
    return read_arrays(path, str(path), {key: kind for key, kind in _KINDS.items() if key in known})


def _objective(
    path: Path,
    arrays: dict[str, np.ndarray],
    asked: ObjectiveName | None,
    loss: LossName | None,
    positive: str | None,
) -> Objective:
    if asked is None and "labels" in arrays and "targets" in arrays:
        raise GraphjouleError(
            f"{path} has both labels and targets; say `objective=classification` to predict the labels or "
            "`objective=regression` to predict the targets."
        )
    has_columns = "targets" in arrays if asked is None else asked in (Regression.name, MultiLabel.name)
    key, names_key = ("targets", "target_names") if has_columns else ("labels", "class_names")
    if key not in arrays:
        raise GraphjouleError(
            f"The file {path} has no array {key!r}; expected the classes in labels, or numbers in targets."
        )
    values, names = arrays[key], arrays.get(names_key)
    if has_columns:
        count, named = values.shape[1] if values.ndim == 2 else 1, names
        called = None if named is None else tuple(map(str, named.reshape(-1)))
        return MultiLabel(count, called) if asked == MultiLabel.name else Regression(count, loss or "squared", called)
    if names is not None and (names.ndim != 1 or names.size < 2):
        raise GraphjouleError(
            f"{path}: class_names has shape {list(names.shape)}; expected a list of two names or more, one per class."
        )
    if names is not None:
        return _of_classes(path, Classification(names.size, tuple(map(str, names))), asked, loss, positive)
    labels = int64_array(values, f"{path}: labels")
    if labels.size and labels.max() < 0 and labels.min() < -1:  # with a class, the node is named below
        raise GraphjouleError(
            f"{path}: labels holds {labels.min()}; expected the classes 0, 1, 2 and so on, and -1 where it is unknown."
        )
    objective = Classification.of(torch.from_numpy(labels))
    if objective.num_classes == 1:
        raise GraphjouleError(
            f"{path}: labels holds one class, 0; at least two are needed, or the names of all of them in class_names."
        )
    if objective.num_classes > values.size:  # a list of the classes might not fit into the memory
        raise GraphjouleError(
            f"{path}: labels holds the class {objective.num_classes - 1:,}, but there are {values.size:,} nodes; "
            "classes are counted from 0, or named in class_names."
        )
    return _of_classes(path, objective, asked, loss, positive)


def _of_classes(
    path: Path, found: Classification, asked: ObjectiveName | None, loss: LossName | None, positive: str | None
) -> Objective:
    """The objective that was asked for, with the classes that were found."""
    if asked == Ordinal.name:
        return Ordinal(found.num_classes, found.class_names, loss or "squared")
    if asked != Binary.name:
        return found
    if found.num_classes != 2:
        raise GraphjouleError(
            f"{path}: there are {found.num_classes:,} classes; with `objective=binary` there are two."
        )
    if positive is not None and positive not in found.classes:
        raise GraphjouleError(f"`positive` is {positive!r}; the classes of {path} are: {' and '.join(found.classes)}.")
    return Binary(2, found.class_names, positive=1 if positive is None else found.classes.index(positive))


def _input(path: Path, arrays: dict[str, np.ndarray], objective: Objective) -> ModelInput:
    """Features, graph, targets and names, checked against each other."""
    graph = _graph(path, arrays)
    features = _features(path, arrays)
    ids = arrays.get("node_ids", np.arange(graph.num_nodes))
    key = "labels" if isinstance(objective, Classification | Ordinal) else "targets"
    shapes = {"features": features.shape[:1], "node_ids": ids.shape}
    shapes |= {name: arrays[name].shape for name in (key, *_MASKS) if name in arrays}
    if key == "targets" and key in arrays:
        shapes[key] = arrays[key].shape[:1]  # a row of several numbers is fine
    for name, shape in shapes.items():
        _check_nodes(path, name, tuple(shape), graph.num_nodes)
    try:
        check_features(features)
    except GraphjouleError as error:
        raise GraphjouleError(f"{path}: {error}") from error
    if key not in arrays:
        targets = objective.unknown(graph.num_nodes)
    elif key == "labels":
        targets = torch.from_numpy(int64_array(arrays[key], f"{path}: labels"))
    else:
        targets = torch.from_numpy(arrays[key]).to(torch.get_default_dtype())
        if objective.out_channels == 1 and targets.numel() == len(targets):  # a column of one
            targets = targets.view(objective.unknown(len(targets)).shape)
        if targets.shape != objective.unknown(graph.num_nodes).shape:
            raise GraphjouleError(
                f"{path}: targets has shape {list(arrays[key].shape)}; the model predicts "
                f"{counted(objective.out_channels, 'number')} per node."
            )
    names = tuple(map(str, ids))
    first = {name: number for number, name in reversed(list(enumerate(names)))}
    if len(first) < len(names):
        again = next(number for number, name in enumerate(names) if first[name] != number)
        raise GraphjouleError(
            f"{path}: node_ids[{again}] is {names[again]!r}, and so is node_ids[{first[names[again]]}]; ids must "
            "differ."
        )
    return ModelInput(features, graph, targets, names)


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


def _features(path: Path, arrays: dict[str, np.ndarray]) -> Features:
    if "features" not in arrays:
        matrix = csr_of(arrays, "attr", str(path))
        check_unpacked(path, 8 * matrix.shape[1])  # a list of the columns is kept, however few are used
        return pack_features(matrix)
    dense = arrays["features"]
    if dense.ndim != 2:
        raise GraphjouleError(f"{path}: features has shape {list(dense.shape)}; expected [num_nodes, num_features].")
    return pack_features(torch.from_numpy(dense).to(torch.get_default_dtype()))


def read_arrays(path: Path, shown: str, kinds: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Named arrays of an archive, refusing one that is damaged, incomplete or holds a pickle; others stay unread.

    Args:
        path: the ``.npz`` file.
        shown: how to call it in the sentence.
        kinds: the arrays to read, each with the kinds of dtype it may have, such as `NUMBERS` or ``"b"`` for booleans.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            members = {key: members[key] for key in kinds if key in members}
            # Of the ways to pack that zip has, NumPy writes these two, and they unpack in bounded steps.
            if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in members.values()):
                raise zipfile.BadZipFile("packed in a way that NumPy does not write")
            check_unpacked(path, sum(info.file_size for info in members.values()))
            for key, info in members.items():
                with archive.open(info) as member:
                    arrays[key] = np.lib.format.read_array(member, allow_pickle=False)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise GraphjouleError(f"The file {shown} is no readable .npz archive ({error}).") from error
    except MemoryError as error:
        raise GraphjouleError(f"The file {shown} says of an array that it is larger than the memory.") from error
    except ValueError as error:
        if isinstance(error, GraphjouleError):
            raise
        # NumPy's own sentence advises allow_pickle=True, which is the one thing not to do.
        raise GraphjouleError(
            f"The file {shown} holds something other than plain arrays of numbers; pickled objects are never loaded, "
            "because they could run code."
        ) from error
    for key, kind in kinds.items():
        if key not in arrays:
            raise GraphjouleError(f"The file {shown} has no array {key!r}; expected {', '.join(kinds)}.")
        if (dtype := arrays[key].dtype).kind not in kind:
            what = "text" if dtype.kind in "US" else str(dtype)
            expected = _KIND_WORDS.get(kind, "plain numbers")
            raise GraphjouleError(f"The array {key!r} of {shown} holds {what}; expected {expected}.")
    return arrays


def csr_of(arrays: Mapping[str, np.ndarray], matrix: str, shown: str) -> sp.csr_matrix:
    """The sparse matrix of the arrays ``NAME_data``, ``NAME_indices``, ``NAME_indptr`` and ``NAME_shape``.

    Args:
        arrays: arrays of numbers, by name.
        matrix: the name.
        shown: how to call the file in the sentence.
    """
    data, *numbers = (arrays[f"{matrix}_{piece}"] for piece in CSR_PIECES)
    # SciPy would cut the fractions off.
    named = zip(numbers, CSR_PIECES[1:], strict=True)
    indices, indptr, shape = (int64_array(array, f"{shown}: {matrix}_{piece}") for array, piece in named)
    try:
        rows, columns = (int(size) for size in shape)
        csr = sp.csr_matrix((data, indices, indptr), shape=(rows, columns))
        csr.check_format(full_check=True)  # SciPy checks no index by itself, and its C loops trust them all
    except (ValueError, TypeError) as error:
        raise GraphjouleError(f"{shown}: the arrays {matrix}_* are no sparse matrix: {error}.") from error
    return csr
