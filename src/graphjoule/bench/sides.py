"""The sides of a comparison: ours, and what a user of PyTorch Geometric could pick instead."""

from __future__ import annotations

from functools import partial

import torch

from graphjoule.bench.cases import Case
from graphjoule.bench.measure import Side, Step
from graphjoule.tasks import Task
from graphjoule.training.loop import CapturedStep
from graphjoule.training.recipe import Recipe

OURS = "ours"
PEERS: dict[str, bool] = {"pyg": False, "pyg-csr": True}
"""The peers by name: whether their layers take the graph as a CSR matrix or as messages along an ``edge_index``."""


def make_sides(case: Case, task: Task, device: torch.device, peers: tuple[str, ...]) -> list[Side]:
    """Ours first, then the peers; each moves the data to the device for itself when it is built."""
    recipe = case.recipe()
    ours = Side(OURS, partial(_build_ours, recipe, task, device, case.runs))
    return [ours, *(Side(name, partial(_build_peer, recipe, task, device, fused=PEERS[name])) for name in peers)]


def _build_ours(recipe: Recipe, task: Task, device: torch.device, num_runs: int) -> Step:
    task, seeds = task.to(device), range(num_runs)
    runs = Runs(recipe, task, seeds, [task.split(recipe.data.split, seed) for seed in seeds])
    return CapturedStep(runs.train_epoch, device)


def _build_peer(recipe: Recipe, task: Task, device: torch.device, *, fused: bool) -> Step:
    from graphjoule.bench.peer import PeerTraining  # here and not above: PyTorch Geometric takes seconds

    return PeerTraining(recipe, task.to(device), fused=fused).epoch
