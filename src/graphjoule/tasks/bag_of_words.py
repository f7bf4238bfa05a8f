"""Graphs with words as features in one ``.npz``, read straight to sparse matrices and without pickle.

Coauthor and Amazon (Shchur et al. 2018) and the full citation networks (Bojchevski & Günnemann 2018) share this layout.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch

from graphjoule.graph import Propagation
from graphjoule.tasks.archive import CSR_PIECES, NUMBERS, csr_of, read_arrays
from graphjoule.tasks.datasets import RawFiles
from graphjoule.tasks.download import read_raw_file
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.task import Task, pack_features

_KEYS = ("labels", *(f"{matrix}_{piece}" for matrix in ("adj", "attr") for piece in CSR_PIECES))
_KINDS = dict.fromkeys(_KEYS, NUMBERS)


def load_bag_of_words(raw: RawFiles, root: Path) -> Task:
    """Nodes described by whether a word occurs with them, such as authors by the keywords of their papers.

    The meaning is that of PyG's parser: a positive count becomes 1, self-loops go, an edge counts in both directions.
    PyG's goes through a dense matrix, 1.16 GB for Physics; here it is never dense.
    """
    path, arrays = read_raw_file(raw, root, partial(read_arrays, kinds=_KINDS))
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
