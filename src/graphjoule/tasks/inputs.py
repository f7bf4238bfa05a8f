"""What a trained model is applied to: a graph with features, whose labels may all be unknown."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.tasks.task import Task


@dataclass(frozen=True, eq=False)
class ModelInput:
    """A graph to predict on.

    Attributes:
        features: finite floating-point matrix, one row per node.
        graph: the normalised operator.
        targets: what is known to be right for every node, see `Task`.
        node_ids: what the source calls every node.
    """

    features: Features
    graph: Propagation
    targets: Tensor
    node_ids: tuple[str, ...]

    @classmethod
    def of(cls, task: Task) -> ModelInput:
        """The input that a task is; nodes without names are called by their number from 0."""
        ids = task.node_ids or tuple(str(number) for number in range(task.num_nodes))
        return cls(task.features, task.graph, task.targets, ids)

    def to(self, device: torch.device | str) -> ModelInput:
        """The same input on another device."""
        return ModelInput(
            self.features.to(device=device), self.graph.to(device), self.targets.to(device), self.node_ids
        )
