"""`fit`: train a recipe on a task with one or many seeds, and tell the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from graphjoule.environment import resolve_device
from graphjoule.errors import GraphjouleError
from graphjoule.group import Group
from graphjoule.nn import GraphModel
from graphjoule.ops import describe_body
from graphjoule.recipe import Recipe
from graphjoule.records import Record, Summary, summarise
from graphjoule.tasks import NodeTask
from graphjoule.training.campaign import Campaign
from graphjoule.training.folder import RunFolder
from graphjoule.training.joint_folder import JointFolder
from graphjoule.training.loop import Progress

logger = logging.getLogger("graphjoule")


@dataclass(frozen=True)
class FitResult:
    """The records of all runs in the order of their seeds, and their models."""

    records: list[Record]
    models: list[GraphModel]
    folder: Path | None = None

    @property
    def summary(self) -> Summary:
        """Mean and spread over the runs."""
        return summarise(self.records)


def fit(
    recipe: Recipe,
    task: NodeTask,
    seeds: Sequence[int] = (0,),
    *,
    device: str | torch.device = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    runs_at_once: int | None = None,
    checkpoint_every: int = 50,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    group: Group | None = None,
) -> FitResult:
    """Train a recipe on a task, all seeds in one program, by the paper's protocol.

    Validation chooses each run's epoch and when it stops; test labels are read once per run, after that. A split may
    have no test nodes; then a record has no test accuracy. The same seed gives the same run alone or among others, in
    one process or in many, up to rounding, which a long training can make visible; and to the bit on a CPU if the same
    seeds train together in as many processes. Calls may run in several threads at once: torch's global generator is
    neither read nor moved.

    Args:
        recipe: every setting, see `load_recipe`.
        task: the graph, features, labels and splits.
        seeds: one run each.
        device: "auto" (CUDA if there is one), "cpu" or "cuda".
        out: folder for records, models and checkpoints; None writes nothing.
        resume: go on with what `out` holds, where another call was killed or interrupted.
        runs_at_once: how many runs to train together; by default as many as fit in memory, and one where the recipe has
            clusters. What `resume` goes on with stays together as it was.
        checkpoint_every: epochs between two checkpoints.
        on_progress: called about once an epoch with the mean losses.
        group: the processes that share the steps on clusters, which the recipe must have; all of them make this call,
            with the whole task. By default those that hold the graph together.

    Returns:
        Records and models of all seeds.

    Raises:
        GraphjouleError: something given cannot be used; nothing has been written then.
        TrainingInterrupted: Ctrl-C; the state is saved if there is an `out`.
    """
    _check_positive(runs_at_once=runs_at_once, checkpoint_every=checkpoint_every)
    if recipe.clusters is not None and runs_at_once not in (None, 1):
        raise GraphjouleError(f"runs_at_once is {runs_at_once}; runs on clusters train one after the other.")
    where = resolve_device(device)
    recipe = recipe.with_split_of(task)
    # A graph that is trained on in clusters may be too large for the device; it stays in host memory.
    task = task.to(where if recipe.clusters is None else "cpu")
    group = group or task.graph.group
    training = Campaign(recipe, task, where, group, _check_seeds(seeds), checkpoint_every, on_progress)
    logger.info("%s", describe_body(where))
    if out is None:
        training.run(runs_at_once)
    else:
        folder = training.folder = RunFolder(out) if group.size == 1 else JointFolder(out, group)
        folder.check(recipe, training.facts, training.draw_split, resume=resume)
        with folder.open():
            training.run(runs_at_once)
    path = None if training.folder is None else training.folder.path
    return FitResult([training.records[seed] for seed in training.seeds], training.all_models(), path)


def _check_seeds(seeds: Sequence[int]) -> list[int]:
    seeds = list(seeds)
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0 or max(seeds) >= 2**32:
        raise GraphjouleError(f"seeds are {seeds}; expected one or more different numbers from 0 to {2**32 - 1}.")
    return seeds


def _check_positive(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise GraphjouleError(f"{name} is {count}; it must be at least 1.")
