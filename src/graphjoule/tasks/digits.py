"""Scikit-learn's embedded handwritten digits as a neighbour graph: the task that needs no download."""

from __future__ import annotations

from pathlib import Path

import torch

from graphjoule.graph import Propagation
from graphjoule.tasks.knn import knn_edge_index
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.task import Task

NUM_NEIGHBORS = 8
_LARGEST_PIXEL = 16


def load_digits(root: Path | None = None) -> Task:
    """1,797 images of 8 x 8 pixels in 0..1; an image is linked with its 8 nearest and with those it is nearest to.

    Args:
        root: not read; every loader takes the data root.
    """
    from sklearn import datasets  # here and not above: it takes a second

    pixels, labels = datasets.load_digits(return_X_y=True)
    features = torch.from_numpy(pixels / _LARGEST_PIXEL).to(torch.get_default_dtype())
    return Task(
        name="digits",
        features=features,
        graph=Propagation.from_edge_index(
            knn_edge_index(features, NUM_NEIGHBORS), num_nodes=features.size(0), symmetrize=True
        ),
        targets=torch.from_numpy(labels).long(),
        objective=Classification(10, tuple("0123456789")),
        default_split="per-class-5-10",
    )
