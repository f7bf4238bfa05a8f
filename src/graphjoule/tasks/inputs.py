"""What a trained model is applied to: a graph with features, whose labels may all be unknown."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.tasks.pooling import Pooling
from graphjoule.tasks.task import Task


@dataclass(frozen=True, eq=False)
class ModelInput:
    """A graph to predict on.

    Attributes:
        features: finite floating-point matrix, one row per node.
        graph: the normalised operator.
        targets: what is known to be right for every node, see `Task`.
        node_ids: what the source calls every node, or graph where these are predicted.
        pooling: which graph every node is of, where graphs are predicted.
        num_old: how many of the nodes, the first ones, are those of the training graph, beside which new ones stand.
    """

    features: Features
    graph: Propagation
    targets: Tensor
    node_ids: tuple[str, ...]
    pooling: Pooling | None = None
    num_old: int = 0

    @property
    def unit(self) -> str:
        """What is predicted: "node" or "graph"."""
        return "node" if self.pooling is None else "graph"

    @classmethod
    def of(cls, task: Task) -> ModelInput:
        """The input that a task is; nodes without names are called by their number from 0."""
        ids = task.node_ids or tuple(str(number) for number in range(task.num_units))
        return cls(task.features, task.graph, task.targets, ids, task.pooling)

    def to(self, device: torch.device | str) -> ModelInput:
        """The same input on another device."""
        return replace(
            self,
            features=self.features.to(device=device),
            graph=self.graph.to(device),
            targets=self.targets.to(device),
            pooling=None if self.pooling is None else self.pooling.to(device),
        )
