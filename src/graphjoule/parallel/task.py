"""What one process has of a task and of its splits, in its own numbers, with the facts of the whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import check_features
from graphjoule.tasks import Split, Task
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.splits import PARTS, draw_split, is_rule
from graphjoule.training.saving import read_tensors

TARGETS_KIND = "labels of a partition"
"""What the file of all targets is called in its header."""


@dataclass(frozen=True, eq=False)
class SplitPart(Split):
    """The nodes of a split that one process has, as rows of its part; any of the three may be empty.

    Attributes:
        counts: number of training, validation and test nodes of the whole split.
        whole_sha256: fingerprint of the whole split.
    """

    counts: tuple[int, int, int]
    whole_sha256: str

    def __post_init__(self) -> None:
        """Nothing to check: the whole split was, and a part of it may be empty."""

    @classmethod
    def of(cls, split: Split, nodes: Tensor) -> SplitPart:
        """The part of a split whose nodes are among `nodes`, which are sorted."""
        whole = [getattr(split, part).cpu() for part in PARTS]
        train, val, test = (_rows_of(index, nodes.cpu()) for index in whole)
        num_train, num_val, num_test = (index.numel() for index in whole)
        return cls(split.name, split.seed, train, val, test, (num_train, num_val, num_test), split.sha256)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of training, validation and test nodes of all processes."""
        return self.counts

    @property
    def sha256(self) -> str:
        """Fingerprint of the whole split: a record is the same whoever trained."""
        return self.whole_sha256

    def to(self, device: torch.device | str | None) -> SplitPart:
        """The same on another device."""
        return replace(self, **{part: getattr(self, part).to(device) for part in PARTS})


def _rows_of(index: Tensor, nodes: Tensor) -> Tensor:
    """Rows of those nodes in `index` that are among the sorted `nodes`."""
    row = torch.searchsorted(nodes, index)
    found = row < nodes.numel()
    found[found.clone()] = nodes[row[found]] == index[found]
    return row[found]


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskPart(Task):
    """The features, labels and rows of ``P`` of one process's nodes, behind the attributes of a whole task.

    Attributes:
        whole: facts of the whole task.
        nodes: number in the whole graph of every row, sorted.
        labels_path: the labels of all nodes, read only to draw a split by a rule.
        partition_id: the partition that the part, and so the file of labels, must be of.
    """

    whole: TaskFacts
    nodes: Tensor
    labels_path: Path
    partition_id: str

    def __post_init__(self) -> None:
        # The whole task was checked when it was cut; a part may have no label at all.
        check_features(self.features)
        if not self.targets.is_floating_point():
            object.__setattr__(self, "targets", self.targets.long())

    def split(self, name: str | None = None, seed: int = 0) -> Split:
        """This process's part of a split; see `Task.split`."""
        name = self.default_split if name is None else name
        fixed = {split.name for split in self.fixed_splits}
        if name in fixed or not is_rule(name):
            return super().split(name, seed)
        whole = draw_split(name, *self.objective.strata(self.all_targets()), seed)
        return SplitPart.of(whole, self.nodes).to(self.targets.device)

    def all_targets(self) -> Tensor:
        """The targets of the whole task, in whose numbers a split is drawn."""
        tensors, about = read_tensors(self.labels_path, TARGETS_KIND)
        if about.get("id") != self.partition_id:
            raise GraphjouleError(
                f"{self.labels_path} is of another partition than the parts; make it again with `graphjoule partition`."
            )
        targets = tensors["labels"]
        return targets if targets.is_floating_point() else targets.long()

    def facts(self) -> TaskFacts:
        """The facts of the whole task."""
        return self.whole
