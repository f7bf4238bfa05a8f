"""Training shared by processes, each with a part of the graph or with some clusters of it: siblings of `Trainer`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.parallel.clusters import ClusterBatch, Clusters
from graphjoule.parallel.folder import JointFolder
from graphjoule.parallel.graph import PartedPropagation
from graphjoule.parallel.group import ALONE, Group
from graphjoule.parallel.partition import cut_nodes
from graphjoule.tasks import Task
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe
from graphjoule.training.seed_batch import SeedBatch
from graphjoule.training.trainer import Trainer


def group_of(task: Task) -> Group:
    """The processes that hold the parts of a task's graph; a whole graph needs one."""
    return task.graph.group if isinstance(task.graph, PartedPropagation) else ALONE


def trainer_for(recipe: Recipe, task: Task, group: Group) -> Callable[..., Trainer]:
    """The kind of trainer for a recipe, a task and the processes that share the work."""
    if recipe.train.clusters is not None:
        return partial(ClusterTrainer, group=group)
    if group.size > 1 or isinstance(task.graph, PartedPropagation):
        return partial(PartTrainer, group=group)
    return Trainer


def run_folder(path: str | Path, group: Group) -> RunFolder:
    """The run folder of the processes that share the work."""
    return RunFolder(path) if group.size == 1 else JointFolder(path, group)


@dataclass
class SharedTrainer(Trainer):
    """A `Trainer` that several processes may share.

    Attributes:
        group: the processes.
    """

    group: Group = ALONE

    def check(self) -> None:
        """Refuse to share a model of the user's own: its random numbers come from torch, each process draws others."""
        super().check()
        if self.task.pooling is not None:
            raise GraphjouleError(
                f"Task {self.task.name!r} predicts graphs, and a part or a cluster of nodes may hold half a graph; "
                "train it in one process, without clusters."
            )
        name = self.architecture.settings.name
        if self.architecture.settings.is_own and self.group.size > 1:
            raise GraphjouleError(
                f"The model {name} is not one of graphjoule's, and only these can train in several processes; there "
                f"are {self.group.size}."
            )

    @property
    def can_halve(self) -> bool:  # type: ignore[override]
        """Processes cannot change their plan while the others wait in the middle of an epoch."""
        return self.group.size == 1

    def describe_device(self) -> str:
        """See `Trainer.describe_device`; with how many processes use one of it."""
        device = super().describe_device()
        return f"{device}, {self.group.size} processes" if self.group.size > 1 else device

    def peak_bytes(self) -> int:
        """Of the process that needs most."""
        return self.group.largest(super().peak_bytes())


@dataclass
class ClusterTrainer(SharedTrainer):
    """A trainer whose runs go over clusters of nodes, one run after the other; processes share each step."""

    def check(self) -> None:
        """Refuse clusters of a graph that is in parts already, and more clusters than nodes."""
        super().check()
        settings, nodes = self.recipe.train.clusters, self.task.num_nodes
        assert settings is not None
        self.task.graph.require_whole("Training on clusters")
        if "energy" in self.terms:
            raise GraphjouleError(
                "The term energy needs the whole graph, and a step on clusters sees a part of it; leave out one of "
                "them."
            )
        if settings.parts > nodes:
            raise GraphjouleError(
                f"train.clusters.parts is {settings.parts}; for a graph of {nodes} nodes it must be from 1 to {nodes}."
            )
        self.clusters = Clusters(cut_nodes(self.task.graph, settings.parts, settings.method))

    def make_batch(self, seeds: list[int]) -> SeedBatch:
        """See `Trainer.make_batch`."""
        splits = [self.split_of[seed] for seed in seeds]
        runs = (self.architecture, self.recipe, self.task, seeds, splits, self.clusters)
        return ClusterBatch(*runs, device=self.device, group=self.group, terms=self.terms)

    def most_at_once(self, asked: int | None, seed: int) -> int:
        """One: each run goes over the clusters in an order of its own."""
        return 1


@dataclass
class PartTrainer(SharedTrainer):
    """A trainer of which every process has a part of the graph."""

    def check(self) -> None:
        """Refuse terms that need the whole graph, and processes that would all do the same."""
        super().check()
        if "energy" in self.terms:
            self.task.graph.require_whole("`terms.energy`")
        if not isinstance(self.task.graph, PartedPropagation):
            raise GraphjouleError(
                f"There are {self.group.size} processes, each with the whole graph of {self.task.name}, and they have "
                "nothing to share; give each its part of the graph (`load_part`), or a recipe with clusters."
            )

    def make_batch(self, seeds: list[int]) -> SeedBatch:
        """See `Trainer.make_batch`."""
        splits = [self.split_of[seed] for seed in seeds]
        return PartBatch(self.architecture, self.recipe, self.task, seeds, splits, self.terms)

    def most_at_once(self, asked: int | None, seed: int) -> int:
        """The process with the least room decides for all."""
        return -self.group.largest(-super().most_at_once(asked, seed))

    def can_fuse(self, backend: str) -> bool:
        """The CPU's fused stack works on a part, the GPU's does not."""
        return backend == "cpu"

    def out_of_memory(self) -> GraphjouleError:
        """See `Trainer.out_of_memory`."""
        return GraphjouleError(
            f"Process {self.group.rank} of {self.group.size} has not enough memory on {self.device}; "
            "use more processes, fewer layers or a smaller hidden_channels."
        )


class PartBatch(SeedBatch):
    """Runs on the nodes of one process; sums over nodes go over all processes, so that all take the same step."""

    is_capturable = False  # what other processes send cannot be recorded

    @property
    def group(self) -> Group:
        """The processes."""
        return group_of(self.task)

    def _targets(self, index: Tensor) -> Tensor:
        """Targets of nodes; unknown where a process has fewer nodes for one run than for another."""
        targets = self.task.targets[index]
        unknown = torch.nan if targets.is_floating_point() else -1
        return torch.where((index < 0).view(-1, *[1] * (targets.dim() - 1)), unknown, targets)

    def _node_sums(self, values: Tensor, index: Tensor) -> Tensor:
        return torch.where((index >= 0)[:, None], values, 0).sum(dim=0)

    def _share(self, added: Tensor) -> Tensor:
        """Every process has the same terms; their gradients are added up."""
        return added / self.group.size

    def _total(self, sums: Tensor) -> Tensor:
        return self.group.total(sums)

    def _all_nodes(self, rows: Tensor) -> Tensor:
        """Rows of all processes one after the other: each adds its own to a table that is 0 elsewhere."""
        sizes = torch.zeros(self.group.size, dtype=torch.int64, device=rows.device)
        sizes[self.group.rank] = rows.size(1)
        sizes = self.group.total(sizes)
        start = int(sizes[: self.group.rank].sum())
        table = rows.new_zeros(rows.size(0), int(sizes.sum()), *rows.shape[2:])
        table[:, start : start + rows.size(1)] = rows
        return self.group.total(table)

    def _total_gradient(self, loss: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        sums = self.group.total(torch.cat([loss[:, None], gradient], dim=1))  # one call for both
        return sums[:, 0], sums[:, 1:]

    def is_stop_agreed(self, is_asked: bool) -> bool:
        """A signal may reach processes in different epochs; one that is asked stops all."""
        return self.group.any(is_asked)

    def restore(self, state: dict[str, Tensor]) -> None:
        """See `SeedBatch.restore`; a checkpoint of many processes does not say which nodes each of them has."""
        if "train_index" not in state:
            train, val = self._indices(state["seed"].tolist())
            state = state | {"train_index": train, "val_index": val}
        super().restore(state)
