"""The floor of an epoch: the bytes that it must move whatever computes it, and how fast this device moves bytes."""

from __future__ import annotations

import time

import torch

from graphjoule.tasks import Task
from graphjoule.training import Recipe

_FORWARD, _BACKWARD, _EVALUATION = 4, 5, 3
"""Activations per layer. Forward reads ``X`` and ``X_0`` and writes ``M``, which the backward pass needs, and the next
``X``; backward reads the gradient and ``M``, reads and writes the sum that goes to ``X_0``, and writes the gradient of
the input; an evaluation keeps no ``M``."""
_ADAM = 7  # reads weight, gradient and two moments, writes all but the gradient
_NUMBER, _ENTRY = 4, 8  # bytes of a number, and of an entry of P with its column
_COPIED = {"cpu": 2**27, "cuda": 2**30}  # bytes: beyond any cache
_COPIES = 5


def floor_bytes(task: Task, recipe: Recipe, runs: int) -> int:
    """Bytes that one epoch of all runs must read and write, training step and evaluation.

    Every activation of a layer is moved once for each of its uses, every entry of ``P`` once for all runs, every weight
    as Adam needs it; what is gathered twice comes from a cache, and encoder and head count as nothing. So it is below
    what any program can do that does not hold several layers in a cache at once.

    Args:
        task: the graph.
        recipe: an EGNN or a GCNII.
        runs: how many train together.
    """
    width, layers = recipe.model.hidden_channels, recipe.model.num_layers
    activation, entries = task.num_nodes * width * _NUMBER, (task.num_nodes + 2 * task.graph.num_edges) * _ENTRY
    per_layer = runs * (_FORWARD + _BACKWARD + _EVALUATION) * activation + 3 * entries
    return layers * (per_layer + runs * _ADAM * width * width * _NUMBER)


def bytes_per_second(device: torch.device) -> float:
    """How fast a device copies large memory, bytes read and bytes written together: the best of a few tries."""
    source = torch.ones(_COPIED[device.type] // _NUMBER, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(_COPIES):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return 2 * source.nbytes / min(seconds)
