"""Cora, CiteSeer and PubMed, the citation networks of Yang et al. (2016), from their raw files.

The files are pickles, which run code when they are read. Only bytes with a known hash reach the unpickler, and it looks
up only the names that arrays need.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.tasks.datasets import RawFiles
from graphjoule.tasks.download import ensure_files
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.splits import Split
from graphjoule.tasks.task import Task, pack_features

_NUM_VAL = 500  # papers after those that train
_RECONSTRUCT = np.empty(0).__reduce__()[0]  # a private function of NumPy, which has moved with version 2
_NAMES = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("scipy.sparse.csr", "csr_matrix"): sp.csr_matrix,
    ("scipy.sparse._csr", "csr_matrix"): sp.csr_matrix,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


def read_checked(expected: Mapping[str, str | None], folder: Path, shown: str) -> dict[str, bytes]:
    """The content of every file by name, refusing one that does not have the expected SHA-256.

    A file is read once, and what was hashed is what is returned: its path may name another file a moment later.
    """
    contents = {}
    for file, sha256 in expected.items():
        try:
            contents[file] = (folder / file).read_bytes()
        except OSError as error:
            raise GraphjouleError(f"The file {shown}/{file} cannot be read ({error.strerror}).") from error
        found = hashlib.sha256(contents[file]).hexdigest()
        if found != sha256:
            raise GraphjouleError(
                f"The file {shown}/{file} has SHA-256 {found}, expected {sha256}; it was not read, because it is a "
                "pickle and a changed one could run code."
            )
    return contents


def load_planetoid(raw: RawFiles, root: Path) -> Task:
    """A citation network with its public split; words as stored, papers linked if either cites the other.

    The meaning is that of PyG's reader, which opens paths by itself and unpickles whatever it finds there, and so is
    not used; neither is the ``processed`` folder that its dataset class keeps beside the raw files, so the data root
    may be read-only. Papers that stand in the graph alone, 15 in CiteSeer, have no words and no label; PyG calls them
    class 0, here they are unlabelled.
    """
    folder = ensure_files(raw, root)
    contents = read_checked(raw.sha256, folder, str(folder))
    prefix = f"ind.{raw.task}."
    test = np.array(contents[f"{prefix}test.index"].split(), dtype=np.int64)
    parts = ("tx", "allx", "y", "ty", "ally", "graph")
    tx, allx, y, ty, ally, cited = (
        unpickle_arrays(contents[prefix + part], f"{folder}/{prefix}{part}") for part in parts
    )
    # Test papers come last, in the order of test.index; a number that it leaves out is in no other file either.
    paper = np.concatenate([np.arange(len(ally)), test])
    num_papers = int(paper.max()) + 1
    words = sp.vstack([allx, tx], format="coo")
    words = sp.csr_matrix((words.data, (paper[words.row], words.col)), shape=(num_papers, words.shape[1]))
    labels = torch.full((num_papers,), -1)
    labels[paper] = torch.from_numpy(np.concatenate([ally, ty]).argmax(axis=1))
    links = [(source, target) for source, targets in cited.items() for target in targets]
    val = range(len(y), len(y) + _NUM_VAL)
    return Task(
        name=raw.task,
        features=pack_features(words),
        graph=Propagation.from_edge_index(torch.tensor(links).t(), num_nodes=num_papers, symmetrize=True),
        targets=labels,
        objective=Classification(ally.shape[1]),
        fixed_splits=(Split("public", None, torch.arange(len(y)), torch.tensor(val), torch.from_numpy(test)),),
        default_split="public",
    )


class _ArrayUnpickler(pickle.Unpickler):
    """Looks names up in the table above; nothing is imported, so nothing else can be called."""

    def __init__(self, content: bytes, shown: str) -> None:
        super().__init__(io.BytesIO(content), encoding="latin1")  # how Python 2's text holds the bytes of an array
        self._shown = shown

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _NAMES[module, name]
        except KeyError:
            raise GraphjouleError(
                f"The pickle {self._shown} asks for {module}.{name}, which could run code; expected arrays, sparse "
                "matrices and lists of numbers alone."
            ) from None


def unpickle_arrays(content: bytes, shown: str) -> Any:
    """What a pickle of arrays, CSR matrices, lists and dictionaries holds; one that asks for more is refused.

    It takes the content and no path, so that what was checked is what is read; `shown` is how sentences call it.
    """
    try:
        return _ArrayUnpickler(content, shown).load()
    except GraphjouleError:
        raise
    # What a crafted stream makes the unpickler, NumPy and SciPy raise is open-ended; to the user it is one.
    except Exception as error:
        raise GraphjouleError(f"The pickle {shown} cannot be read ({type(error).__name__}: {error}).") from error
