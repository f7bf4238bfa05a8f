"""Which nodes train, which choose the epoch and which are scored: named, seeded and hashed; and the rules that draw."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, counted
from graphjoule.graph.nodes import moved

PARTS = ("train", "val", "test")
_PER_CLASS = re.compile(r"per-class-(\d+)-(\d+)")
_STRATIFIED = re.compile(r"stratified-(\d+)-(\d+)")
RULES = {
    "per-class-A-B": "A training and B validation nodes of every class",
    "stratified-V-T": "of every class V percent validate and T percent test, the rest trains",
}
"""What the names mean, for error sentences."""


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

    def to(self, device: torch.device | str | None) -> Self:
        """The same split on another device."""
        return replace(self, **moved(self, device))


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
    """The indices, sorted; anything but a list of node numbers is refused."""
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


def parse_per_class(name: str) -> tuple[int, int] | None:
    """The counts A and B of a ``per-class-A-B`` rule, or None for another name.

    >>> parse_per_class("per-class-20-30")
    (20, 30)
    """
    found = _PER_CLASS.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def parse_stratified(name: str) -> tuple[int, int] | None:
    """The percentages V and T of a ``stratified-V-T`` rule, or None for another name.

    >>> parse_stratified("stratified-20-0")
    (20, 0)
    """
    found = _STRATIFIED.fullmatch(name)
    if not found:
        return None
    val, test = int(found[1]), int(found[2])
    if not val or val + test > 99:
        raise GraphjouleError(
            f"The split {name!r} leaves nothing to {'validate' if not val else 'train'}; "
            "in stratified-V-T the percentages V and T must be at least 1 and 0, and together at most 99."
        )
    return val, test


def stratified_rule(test_fraction: float) -> str:
    """The name of the rule that holds back a share of every class to test.

    >>> stratified_rule(0.25)
    'stratified-20-25'
    """
    percent = round(100 * test_fraction) if 0 <= test_fraction < 1 else -1
    if not 0 <= percent <= 79 or abs(percent - 100 * test_fraction) > 1e-9:
        raise GraphjouleError(
            f"The test fraction is {test_fraction}; expected whole percents from 0 to 0.79, such as 0.2, because 20 "
            "percent validate."
        )
    return f"stratified-20-{percent}"


def is_rule(name: str) -> bool:
    """Whether a split's name is one of the `RULES`, which `draw_split` follows."""
    return parse_per_class(name) is not None or parse_stratified(name) is not None


def draw_split(name: str, labels: Tensor, class_names: Sequence[str], seed: int, unit: str = "node") -> Split:
    """The split that a rule and a seed give.

    Args:
        name: of the rule.
        labels: class of every node, -1 where unknown; a regression has one class, see `Objective.strata`.
        class_names: of every class.
        seed: what it is drawn from.
        unit: what is split, for error sentences: "node" or "graph".
    """
    num_classes = len(class_names)
    if counts := parse_per_class(name):
        return per_class_split(labels, num_classes, *counts, seed, class_names, unit)
    percents = parse_stratified(name)
    assert percents is not None  # `is_rule` was asked
    return stratified_split(labels, num_classes, *percents, seed, unit)


def per_class_split(
    labels: Tensor,
    num_classes: int,
    num_train: int,
    num_val: int,
    seed: int,
    class_names: Sequence[str] | None = None,
    unit: str = "node",
) -> Split:
    """Draw `num_train` and `num_val` nodes of every class; the other labelled nodes are the test part.

    The sizes do not depend on the seed, so splits of many seeds can be stacked.

    Args:
        labels: class of every node, -1 where unknown.
        num_classes: number of classes; each needs ``num_train + num_val`` labelled nodes.
        num_train: training nodes per class.
        num_val: validation nodes per class.
        seed: seeds a generator of the split's own; the global ones are neither read nor moved.
        class_names: used only to name a class that has too few nodes.
        unit: see `draw_split`.
    """
    name = f"per-class-{num_train}-{num_val}"

    def sizes(label: int, num_labelled: int) -> tuple[int, int]:
        if num_labelled < num_train + num_val:
            is_named = class_names is not None and class_names[label] != str(label)
            shown = f"{label} ({class_names[label]})" if class_names and is_named else str(label)
            raise GraphjouleError(
                f"Class {shown} has {num_labelled} labelled {unit}s; split {name!r} needs at least "
                f"{num_train + num_val}."
            )
        return num_train, num_val

    train, val, test = _draw(name, labels, num_classes, seed, sizes)
    return Split(name, seed, train, val, test)


def stratified_split(
    labels: Tensor, num_classes: int, percent_val: int, percent_test: int, seed: int, unit: str = "node"
) -> Split:
    """Draw the same share of every class to validate and to test; the other labelled nodes train.

    A class with two labelled nodes or more gives at least one to validate, and with three or more at least one to test
    if any shall test; a class with one trains with it and is not validated. The sizes do not depend on the seed.

    Args:
        labels: class of every node, -1 where unknown.
        num_classes: number of classes.
        percent_val: share that chooses the epoch.
        percent_test: share that is scored at the end; 0 for none.
        seed: seeds a generator of the split's own; the global ones are neither read nor moved.
        unit: see `draw_split`.

    >>> split = stratified_split(torch.tensor([0] * 10 + [1] * 5 + [2]), 3, 20, 0, seed=0)
    >>> len(split.train), len(split.val), len(split.test)
    (13, 3, 0)
    """
    name = f"stratified-{percent_val}-{percent_test}"

    def sizes(label: int, num_labelled: int) -> tuple[int, int]:
        val = max(round(num_labelled * percent_val / 100), int(num_labelled > 1))
        test = max(round(num_labelled * percent_test / 100), int(num_labelled > 2)) if percent_test else 0
        val = min(val, max(num_labelled - 1, 0))  # one trains in any case
        return val, min(test, max(num_labelled - 1 - val, 0))

    val, test, train = _draw(name, labels, num_classes, seed, sizes)
    if not val.numel():
        if num_classes == 1:  # numbers, or several labels of a node
            raise GraphjouleError(
                f"Of {counted(int((labels >= 0).sum()), unit)} the target is known; split {name!r} needs two, so "
                "that one can train and one validate."
            )
        raise GraphjouleError(
            f"No class has two labelled {unit}s, so that one could train and one validate; split {name!r} needs one "
            "class that has. If the labels are measurements, say `objective=regression`."
        )
    return Split(name, seed, train, val, test)


def _draw(
    name: str, labels: Tensor, num_classes: int, seed: int, sizes: Callable[[int, int], tuple[int, int]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Shuffle the nodes of every class and cut them in three; `sizes` gives the first two for a class and its count."""
    if not 0 <= seed < 2**32:
        raise GraphjouleError(f"The seed of split {name!r} is {seed}; expected 0 to {2**32 - 1}.")
    # RandomState and not default_rng: NumPy's policy (NEP 19) freezes its stream for ever, so a seed names the same
    # nodes under every NumPy version. Generator may change its streams between releases.
    random = np.random.RandomState(seed)
    by_class = labels.cpu().numpy()
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for label in range(num_classes):
        nodes = np.flatnonzero(by_class == label)
        first, second = sizes(label, nodes.size)
        for part, drawn in zip(parts, np.split(random.permutation(nodes), [first, first + second]), strict=True):
            part.append(drawn)
    one, two, three = (torch.from_numpy(np.concatenate(part).astype(np.int64)) for part in parts)
    return one, two, three
