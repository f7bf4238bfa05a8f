"""Training shared by processes, each with a part of the graph or with some clusters of it: siblings of `Trainer`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.nn import GraphModel
from graphjoule.parallel.clusters import ClusterBatch, Clusters
from graphjoule.parallel.graph import PartedPropagation
from graphjoule.parallel.group import ALONE, Group
from graphjoule.parallel.partition import cut_nodes
from graphjoule.tasks import Task
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe
from graphjoule.training.seed_batch import SeedBatch
from graphjoule.training.trainer import Trainer


def shared_training(
    recipe: Recipe, task: Task, group: Group | None
) -> tuple[Callable[..., Trainer], Callable[[str | Path], RunFolder]]:
    """The kind of trainer for a recipe, a task and the processes that share the work, and of their run folder.

    Without a `group` the processes are those that hold the parts of the graph, one alone if it is whole.
    """
    parted = isinstance(task.graph, PartedPropagation)
    group = group or (task.graph.group if isinstance(task.graph, PartedPropagation) else ALONE)
    folder = RunFolder if group.size == 1 else partial(JointFolder, group=group)
    if recipe.train.clusters is None and group.size == 1 and not parted:
        return Trainer, folder
    return partial(PartTrainer if recipe.train.clusters is None else ClusterTrainer, group=group), folder


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
    def is_first(self) -> bool:
        """See `Trainer.is_first`."""
        return self.group.is_first

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
        return backend in ("cpu", "native")

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
        assert isinstance(self.task.graph, PartedPropagation)
        return self.task.graph.group

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


_OF_EACH_PROCESS = ("train_index", "val_index")  # of a checkpoint; everything else is the same on all


class JointFolder(RunFolder):
    """A `RunFolder` that only the first process touches, so that the others need not even see its disk.

    All processes make every call and wait for it, so they go the same way, and none goes on before a file is whole:
    one that ended earlier, on Ctrl-C, would be taken for a failure, and the first be ended while it writes.

    Args:
        path: the folder.
        group: the processes.
    """

    def __init__(self, path: str | Path, group: Group) -> None:
        super().__init__(path)
        self._group = group
        self._own = RunFolder(path)  # of the first process: methods of this class that call each other would call all

    def _by_first(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._group.from_first(lambda: getattr(self._own, name)(*args, **kwargs))

    check = partialmethod(_by_first, "check")
    about = partialmethod(_by_first, "about")
    begin = partialmethod(_by_first, "begin")
    records = partialmethod(_by_first, "records")
    add = partialmethod(_by_first, "add")
    evaluated = partialmethod(_by_first, "evaluated")
    write_evaluation = partialmethod(_by_first, "write_evaluation")
    write_card = partialmethod(_by_first, "write_card")
    drop_checkpoint = partialmethod(_by_first, "drop_checkpoint")

    @property
    def is_taken(self) -> bool:
        """See `RunFolder.is_taken`."""
        return self._group.from_first(lambda: self._own.is_taken)

    @contextmanager
    def open(self) -> Iterator[None]:
        """See `RunFolder.open`."""
        with ExitStack() as stack:
            self._group.from_first(lambda: stack.enter_context(self._own.open()))
            yield

    def save_checkpoint(self, state: dict[str, Tensor], recipe: Recipe, group: Sequence[int], seconds: float) -> None:
        """See `RunFolder.save_checkpoint`; without what each process has for itself."""
        shared = {name: value for name, value in state.items() if name not in _OF_EACH_PROCESS}
        self._group.from_first(lambda: self._own.save_checkpoint(shared, recipe, group, seconds))

    def load_checkpoint(self, recipe: Recipe, group: Sequence[int]) -> tuple[dict[str, Tensor], float] | None:
        """See `RunFolder.load_checkpoint`."""
        found = self._group.from_first(lambda: self._own.load_checkpoint(recipe, group))
        if found is None:
            return None
        state, seconds = found
        return {name: value for name, value in state.items() if name not in _OF_EACH_PROCESS}, seconds

    def load_model(self, seed: int, model: GraphModel) -> GraphModel:
        """See `RunFolder.load_model`."""
        model.load_state_dict(self._group.from_first(lambda: self._own.load_model(seed, model).state_dict()))
        return model
