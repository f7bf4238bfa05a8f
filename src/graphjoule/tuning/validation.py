"""What a search may see: the task without test nodes and their labels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.tasks import Split, Task
from graphjoule.training.recipe import Recipe


@dataclass(frozen=True, eq=False)
class ValidationTask(Task):
    """A task of which only the training and validation nodes of some seeds are known.

    Attributes:
        splits: the split of every seed it was made for, its test part empty.
        has_test: whether there were test nodes before they were hidden.
    """

    splits: Mapping[int, Split] = field(default_factory=dict)
    has_test: bool = True

    @property
    def splits_sha256(self) -> str:
        """SHA-256 of all splits: the data's own does not tell which nodes train and which validate."""
        return hashlib.sha256("".join(split.sha256 for split in self.splits.values()).encode()).hexdigest()

    def split(self, name: str | None = None, seed: int = 0) -> Split:
        """The split of a seed; another rule cannot be applied, for the labels it would need are gone."""
        if name not in (None, self.default_split) or seed not in self.splits:
            raise GraphjouleError(
                f"This view of {self.name} has the split {self.default_split!r} of the seeds "
                f"{', '.join(map(str, self.splits))} and no other; {name!r} of seed {seed} was asked for."
            )
        return self.splits[seed].to(self.targets.device)


def hide_test(task: Task, recipe: Recipe, seeds: Sequence[int]) -> ValidationTask:
    """The task with every label unknown that no seed trains or validates on, so that no search can read a test label.

    Where each seed draws a split of its own, a node that tests for one seed may train for another; its label stays, but
    it is in no test part.

    Args:
        task: the whole task.
        recipe: its split and split seed say how the nodes are divided.
        seeds: the seeds that will be trained.

    >>> from graphjoule import load_recipe, load_task
    >>> seen = hide_test(load_task("digits"), load_recipe("egnn", "digits", 2), seeds=[0])
    >>> split = seen.split(seed=0)
    >>> int(seen.is_known.sum()) == split.train.numel() + split.val.numel(), split.test.numel()
    (True, 0)
    """
    recipe = recipe.with_split_of(task)
    keys = list(dict.fromkeys(seed if recipe.data.split_seed is None else recipe.data.split_seed for seed in seeds))
    whole = [task.split(recipe.data.split, key) for key in keys]
    splits = {key: replace(split, test=split.test[:0]) for key, split in zip(keys, whole, strict=True)}
    seen = torch.zeros(len(task.targets), dtype=torch.bool, device=task.targets.device)
    for split in splits.values():
        seen[split.train] = seen[split.val] = True
    fixed = {split.name: split for split in splits.values() if split.seed is None}
    targets = task.targets.clone()
    targets[~seen] = float("nan") if targets.is_floating_point() else -1
    fields = {name: getattr(task, name) for name in Task.__dataclass_fields__}
    fields |= {"targets": targets, "default_split": recipe.data.split, "fixed_splits": tuple(fixed.values())}
    return ValidationTask(**fields, splits=splits, has_test=any(split.test.numel() for split in whole))
