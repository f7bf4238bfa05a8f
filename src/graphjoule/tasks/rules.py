"""The rules that draw a split from the labels and a seed, each by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.splits import Split

_PER_CLASS = re.compile(r"per-class-(\d+)-(\d+)")
_STRATIFIED = re.compile(r"stratified-(\d+)-(\d+)")
RULES = {
    "per-class-A-B": "A training and B validation nodes of every class",
    "stratified-V-T": "of every class V percent validate and T percent test, the rest trains",
}
"""What the names mean, for error sentences."""


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


def stratified_rule(test_fraction: float, val_percent: int = 20) -> str:
    """The name of the rule that holds back a share of every class to test.

    >>> stratified_rule(0.25)
    'stratified-20-25'
    """
    percent = round(100 * test_fraction) if 0 <= test_fraction < 1 else -1
    if not 0 <= percent <= 99 - val_percent or abs(percent - 100 * test_fraction) > 1e-9:
        raise GraphjouleError(
            f"The test fraction is {test_fraction}; expected whole percents from 0 to {(99 - val_percent) / 100}, "
            f"such as 0.2, because {val_percent} percent validate."
        )
    return f"stratified-{val_percent}-{percent}"


def is_rule(name: str) -> bool:
    """Whether a split's name is one of the `RULES`, which `draw_split` follows."""
    return parse_per_class(name) is not None or parse_stratified(name) is not None


def draw_split(name: str, labels: Tensor, class_names: Sequence[str], seed: int) -> Split:
    """The split that a rule and a seed give.

    Args:
        name: of the rule.
        labels: class of every node, -1 where unknown; a regression has one class, see `Objective.strata`.
        class_names: of every class.
        seed: what it is drawn from.
    """
    num_classes = len(class_names)
    if counts := parse_per_class(name):
        return per_class_split(labels, num_classes, *counts, seed, class_names)
    percents = parse_stratified(name)
    assert percents is not None  # `is_rule` was asked
    return stratified_split(labels, num_classes, *percents, seed)


def per_class_split(
    labels: Tensor,
    num_classes: int,
    num_train: int,
    num_val: int,
    seed: int,
    class_names: Sequence[str] | None = None,
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
    """
    name = f"per-class-{num_train}-{num_val}"

    def sizes(label: int, num_labelled: int) -> tuple[int, int]:
        if num_labelled < num_train + num_val:
            is_named = class_names is not None and class_names[label] != str(label)
            shown = f"{label} ({class_names[label]})" if class_names and is_named else str(label)
            raise GraphjouleError(
                f"Class {shown} has {num_labelled} labelled nodes; split {name!r} needs at least {num_train + num_val}."
            )
        return num_train, num_val

    train, val, test = _draw(name, labels, num_classes, seed, sizes)
    return Split(name, seed, train, val, test)


def stratified_split(labels: Tensor, num_classes: int, percent_val: int, percent_test: int, seed: int) -> Split:
    """Draw the same share of every class to validate and to test; the other labelled nodes train.

    A class with two labelled nodes or more gives at least one to validate, and with three or more at least one to test
    if any shall test; a class with one trains with it and is not validated. The sizes do not depend on the seed.

    Args:
        labels: class of every node, -1 where unknown.
        num_classes: number of classes.
        percent_val: share that chooses the epoch.
        percent_test: share that is scored at the end; 0 for none.
        seed: seeds a generator of the split's own; the global ones are neither read nor moved.

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
        raise GraphjouleError(
            f"No class has two labelled nodes, so that one could train and one validate; split {name!r} needs one "
            "class that has. If the labels are measurements, they are no classes."
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
