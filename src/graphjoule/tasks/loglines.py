"""The lines that say what was read from the user's files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from graphjoule.errors import counted
from graphjoule.graph import Propagation
from graphjoule.tasks.columns import shorten
from graphjoule.tasks.splits import PARTS, Split

logger = logging.getLogger("graphjoule")


def tell_graph(path: str | Path, graph: Propagation, more: Sequence[str] = ()) -> None:
    """Say how many edges and nodes there are, and how many nodes are alone."""
    alone = int((graph.degree == 0).sum())
    parts = [f"{counted(graph.num_edges, 'edge')} between {counted(graph.num_nodes, 'node')}", *more]
    parts += [f"{counted(alone, 'node')} without an edge"] if alone else []
    logger.info("%s: %s", path, ", ".join(parts))


def tell_nodes(path: str | Path, num_features: int, labels: Tensor, classes: Sequence[str]) -> None:
    """Say how many nodes, features, labels and classes there are; warn of a class with a single label."""
    num_labels = int((labels >= 0).sum())
    logger.info(
        "%s: %s, %s; %s labelled with %s (%s), %s to predict",
        path,
        counted(labels.numel(), "node"),
        counted(num_features, "feature"),
        f"{num_labels:,}",
        counted(len(classes), "class", "classes"),
        shorten(classes),
        f"{labels.numel() - num_labels:,}",
    )
    counts = torch.bincount(labels[labels >= 0], minlength=len(classes))
    if single := [name for name, count in zip(classes, counts.tolist(), strict=True) if count == 1]:
        logger.warning(
            "%s: one labelled node alone in %s: it trains, and nothing validates what is learnt of it",
            path,
            f"the classes {shorten(single)}" if len(single) > 1 else f"the class {single[0]}",
        )


def tell_split(path: str | Path, split: Split) -> None:
    """Say how many nodes of a split that came with the data train, validate and test."""
    train, val, test = (f"{getattr(split, part).numel():,}" for part in PARTS)
    logger.info(
        "%s: its masks are the split %r: %s to train, %s to validate, %s to test", path, split.name, train, val, test
    )
