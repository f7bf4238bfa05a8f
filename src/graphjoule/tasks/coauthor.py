"""Coauthor-Physics (Shchur et al. 2018), read from its ``.npz`` straight to sparse matrices and without pickle."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.tasks.raw import RawFiles
from graphjoule.tasks.task import NodeTask, count_classes, pack_features

_CSR_PIECES = ("data", "indices", "indptr", "shape")
_KEYS = ("labels", *(f"{matrix}_{piece}" for matrix in ("adj", "attr") for piece in _CSR_PIECES))


def read_arrays(path: Path, shown: str) -> dict[str, np.ndarray]:
    """The arrays of a Coauthor file, refusing one that is damaged, incomplete or holds a pickle.

    Args:
        path: the ``.npz`` file.
        shown: how to call it in the sentence.
    """
    try:
        with path.open("rb") as stream, np.lib.npyio.NpzFile(stream, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in _KEYS if key in archive}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise GraphjouleError(f"The file {shown} is no readable .npz archive ({error}).") from error
    except ValueError as error:
        # NumPy's own sentence advises allow_pickle=True, which is the one thing not to do.
        raise GraphjouleError(_not_numbers(shown)) from error
    for key in _KEYS:
        if key not in arrays:
            raise GraphjouleError(f"The file {shown} has no array {key!r}; expected {', '.join(_KEYS)}.")
        # A member that is no .npy file comes back as bytes.
        if not isinstance(arrays[key], np.ndarray) or arrays[key].dtype.kind not in "iuf":
            raise GraphjouleError(_not_numbers(shown))
    return arrays


def _not_numbers(shown: str) -> str:
    return (
        f"The file {shown} holds something other than plain arrays of numbers; pickled objects are never loaded, "
        "because they could run code."
    )


def _csr(arrays: dict[str, np.ndarray], matrix: str, shown: str) -> sp.csr_matrix:
    data, indices, indptr, shape = (arrays[f"{matrix}_{piece}"] for piece in _CSR_PIECES)
    try:
        csr = sp.csr_matrix((data, indices, indptr), shape=tuple(int(n) for n in shape))
        # SciPy checks no index by itself and its C loops trust them all.
        csr.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise GraphjouleError(f"The arrays {matrix}_* in {shown} are no sparse matrix: {error}.") from error
    return csr


def _check(folder: Path, shown: str) -> None:
    for file in PHYSICS.files:
        read_arrays(folder / file, f"{shown}/{file}")


# No SHA-256: nothing in the file can run, and re-encodings of it with the same arrays are about.
PHYSICS = RawFiles("Coauthor", "Physics", files=("ms_academic_phy.npz",), check=_check)


def load_coauthor(raw: RawFiles, root: Path) -> NodeTask:
    """Authors linked by a common paper, described by whether a keyword occurs in their papers.

    The meaning is that of PyG's parser: a positive count becomes 1, self-loops go, an edge counts in both directions.
    PyG's goes through a dense matrix, 1.16 GB for Physics; here it is never dense.
    """
    path = raw.ensure(root) / raw.files[0]
    arrays = read_arrays(path, str(path))
    words, links = (_csr(arrays, matrix, str(path)) for matrix in ("attr", "adj"))
    words.sum_duplicates()
    words.data = np.where(words.data > 0, 1, words.data)
    links = links.tocoo()
    edge_index = torch.from_numpy(np.stack([links.row, links.col]).astype(np.int64))
    labels = torch.from_numpy(arrays["labels"])
    return NodeTask(
        name=raw.name.lower(),
        features=pack_features(words),
        graph=Propagation.from_edge_index(edge_index, num_nodes=words.shape[0], symmetrize=True),
        labels=labels,
        num_classes=count_classes(labels),
    )
