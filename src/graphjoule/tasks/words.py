"""Graphs with words as features in one ``.npz``, read straight to sparse matrices and without pickle.

Coauthor and Amazon (Shchur et al. 2018) and the full citation networks (Bojchevski & Günnemann 2018) share this layout.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch

from graphjoule.graph import Propagation
from graphjoule.tasks.arrays import CSR_PIECES, NUMBERS, csr_of, read_arrays
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.raw import RawFiles
from graphjoule.tasks.task import Task, pack_features

_KEYS = ("labels", *(f"{matrix}_{piece}" for matrix in ("adj", "attr") for piece in CSR_PIECES))
_KINDS = dict.fromkeys(_KEYS, NUMBERS)


def _check(file: str, folder: Path, shown: str) -> None:
    read_arrays(folder / file, f"{shown}/{file}", _KINDS)


def _words_files(task: str, dataset: str, name: str, file: str) -> RawFiles:
    # No SHA-256: nothing in the file can run, and re-encodings of it with the same arrays are about.
    return RawFiles(task, dataset, name, files=(file,), check=partial(_check, file))


CS = _words_files("cs", "Coauthor", "CS", "ms_academic_cs.npz")
PHYSICS = _words_files("physics", "Coauthor", "Physics", "ms_academic_phy.npz")
COMPUTERS = _words_files("computers", "Amazon", "Computers", "amazon_electronics_computers.npz")
PHOTO = _words_files("photo", "Amazon", "Photo", "amazon_electronics_photo.npz")
CORA_ML = _words_files("cora-ml", "CitationFull", "cora_ml", "cora_ml.npz")
CITESEER_FULL = _words_files("citeseer-full", "CitationFull", "citeseer", "citeseer.npz")
DBLP = _words_files("dblp", "CitationFull", "dblp", "dblp.npz")
PUBMED_FULL = _words_files("pubmed-full", "CitationFull", "pubmed", "pubmed.npz")


def load_words(raw: RawFiles, root: Path) -> Task:
    """Nodes described by whether a word occurs with them, such as authors by the keywords of their papers.

    The meaning is that of PyG's parser: a positive count becomes 1, self-loops go, an edge counts in both directions.
    PyG's goes through a dense matrix, 1.16 GB for Physics; here it is never dense.
    """
    path = raw.ensure(root) / raw.files[0]
    arrays = read_arrays(path, str(path), _KINDS)
    words, links = (csr_of(arrays, matrix, str(path)) for matrix in ("attr", "adj"))
    words.sum_duplicates()
    words.data = np.where(words.data > 0, 1, words.data)
    links = links.tocoo()
    edge_index = torch.from_numpy(np.stack([links.row, links.col]).astype(np.int64))
    labels = torch.from_numpy(arrays["labels"])
    return Task(
        name=raw.task,
        features=pack_features(words),
        graph=Propagation.from_edge_index(edge_index, num_nodes=words.shape[0], symmetrize=True),
        targets=labels,
        objective=Classification.of(labels),
    )
