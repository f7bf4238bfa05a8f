"""Datasets that come with several public splits: they are called ``public-0``, ``public-1`` and so on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.splits import PARTS, Split, fixed_split


def public_splits(shown: str, num_nodes: int, masks: Sequence[np.ndarray]) -> tuple[Split, ...]:
    """The splits whose masks are the rows of boolean matrices ``[num_splits, num_nodes]``.

    Args:
        shown: how to call the file they come from in the sentence.
        num_nodes: number of nodes.
        masks: three matrices: which nodes train, which choose the epoch, and which are scored.

    >>> rows = np.eye(3, dtype=bool)
    >>> [split.name for split in public_splits("masks.npz", 3, [rows[:2], rows[1:], rows[[2, 0]]])]
    ['public-0', 'public-1']
    """
    num_splits = masks[0].shape[0] if masks[0].ndim else 0
    if not num_splits or any(mask.shape != (num_splits, num_nodes) for mask in masks):
        shapes = ", ".join(f"{part} {list(mask.shape)}" for part, mask in zip(PARTS, masks, strict=True))
        raise GraphjouleError(
            f"The masks in {shown} have the shapes {shapes}; expected three times [number of splits, {num_nodes}]."
        )
    rows = zip(*(torch.from_numpy(mask) for mask in masks), strict=True)
    return tuple(fixed_split(f"public-{number}", *row) for number, row in enumerate(rows))
