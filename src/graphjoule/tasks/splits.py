"""Which nodes train, which choose the epoch and which are scored: named, seeded and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, counted

PARTS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets of nodes; each is kept as sorted int64 indices.

    Attributes:
        name: the rule it came from, such as ``public``, ``per-class-20-30`` or ``stratified-20-0``.
        seed: what the rule was seeded with; None for a fixed split, which is the same for every seed.
        train: nodes whose labels the loss sees; never empty.
        val: nodes whose labels choose the epoch.
        test: nodes whose labels are read once, at the end.
    """

    name: str
    seed: int | None
    train: Tensor
    val: Tensor
    test: Tensor

    def __post_init__(self) -> None:
        for part in PARTS:
            index = _check_index(getattr(self, part), f"{part} part of split {self.name!r}")
            object.__setattr__(self, part, index)
        if not self.train.numel():
            raise GraphjouleError(f"The train part of split {self.name!r} is empty; at least one node must train.")
        _check_disjoint(self)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of training, validation and test nodes, of all processes together where they share a graph."""
        return self.train.numel(), self.val.numel(), self.test.numel()

    @property
    def sha256(self) -> str:
        """A fingerprint of the three index lists: equal exactly when they are, on whatever device they are."""
        digest = hashlib.sha256()
        for part in PARTS:
            index = getattr(self, part).cpu().numpy().astype("<i8")
            # The count in front of each list keeps a node at the border of two parts from meaning the same in both.
            digest.update(f"{part}:{index.size}:".encode() + index.tobytes())
        return digest.hexdigest()

    def to(self, device: torch.device | str | None) -> Split:
        """The same split on another device."""
        return Split(self.name, self.seed, self.train.to(device), self.val.to(device), self.test.to(device))


def fixed_split(name: str, train: Tensor, val: Tensor, test: Tensor) -> Split:
    """A split from three boolean masks over the nodes, the same for every seed."""
    for part, mask in zip(PARTS, (train, val, test), strict=True):
        if mask.dtype != torch.bool or mask.dim() != 1:
            raise GraphjouleError(
                f"{part}_mask has dtype {mask.dtype} and shape {list(mask.shape)}; expected one boolean per node. "
                "If it holds several splits, keep one column."
            )
    return Split(name, None, *(mask.nonzero().view(-1) for mask in (train, val, test)))


def split_of_masks(name: str, masks: Mapping[str, Tensor]) -> Split | None:
    """The split of the masks that came with some data, or None if no mask did; without ``test_mask`` no node tests.

    Args:
        name: what to call the split.
        masks: boolean masks over the nodes by their names ``train_mask``, ``val_mask`` and ``test_mask``.

    >>> split_of_masks("public", {"train_mask": torch.tensor([True, False]), "val_mask": torch.tensor([False, True])})
    Split(name='public', seed=None, train=tensor([0]), val=tensor([1]), test=tensor([], dtype=torch.int64))
    """
    if not masks:
        return None
    for needed in ("train_mask", "val_mask"):
        if needed not in masks:
            raise GraphjouleError(
                f"There is {' and '.join(masks)} but no {needed}; expected train_mask and val_mask, and test_mask if "
                "some nodes are held back, or none of the three."
            )
    train, val = masks["train_mask"], masks["val_mask"]
    return fixed_split(name, train, val, masks.get("test_mask", torch.zeros_like(train)))


def check_labelled(split: Split, is_known: Tensor) -> None:
    """Refuse a split that names a node outside the graph or one whose target is unknown."""
    known = is_known.cpu()
    for part in PARTS:
        index = getattr(split, part).cpu()
        if index.numel() and int(index[-1]) >= known.numel():
            raise GraphjouleError(
                f"The {part} part of split {split.name!r} names node {int(index[-1])}; "
                f"with {counted(known.numel(), 'node')} it must be 0 to {known.numel() - 1}."
            )
        unknown = index[~known[index]]
        if unknown.numel():
            raise GraphjouleError(
                f"The {part} part of split {split.name!r} names node {int(unknown[0])}, whose target is unknown."
            )


def _check_index(index: Tensor, what: str) -> Tensor:
    """The indices, sorted; refused if they are no list of node numbers."""
    if index.dtype != torch.int64 or index.dim() != 1:
        raise GraphjouleError(
            f"The {what} has dtype {index.dtype} and shape {list(index.shape)}; expected a list of int64 node numbers."
        )
    index = index.sort().values
    if index.numel() and int(index[0]) < 0:
        raise GraphjouleError(f"The {what} names node {int(index[0])}; node numbers start at 0.")
    return index


def _check_disjoint(split: Split) -> None:
    nodes = torch.cat([split.train, split.val, split.test])
    owner = torch.repeat_interleave(torch.arange(3), torch.tensor([getattr(split, part).numel() for part in PARTS]))
    ordered = nodes.cpu().sort(stable=True)
    same = (ordered.values.diff() == 0).nonzero().view(-1)
    if same.numel():
        at = int(same[0])
        first, second = (PARTS[int(owner[ordered.indices[i]])] for i in (at, at + 1))
        raise GraphjouleError(
            f"Split {split.name!r} names node {int(ordered.values[at])} twice, in {first} and in {second}; "
            "the parts must not overlap."
        )
