"""How many runs fit in memory at once, and how much was used."""

from __future__ import annotations

from pathlib import Path

import torch

from graphjoule.ops import body_for
from graphjoule.tasks import NodeTask
from graphjoule.training.objective import build_model
from graphjoule.training.recipe import Recipe

_SHARE = 0.6  # of the memory that is free; the rest is for features, other programs and what a count forgets
_COPIES_OF_PARAMETERS = 8  # parameters, gradient, two moments, the best ones, and what a step makes in between


def runs_that_fit(recipe: Recipe, task: NodeTask, num_runs: int) -> int:
    """How many of `num_runs` runs to train at once so that they fit in the device's free memory."""
    model, device = build_model(recipe, task, seed=0), task.labels.device
    like = next(model.parameters())
    body = body_for(torch.empty(0, dtype=like.dtype, device=device))
    is_held = recipe.constraint is not None  # its hooks want to see every layer, and it keeps a product of each
    is_fused = not is_held and (body == "cpu" or (body == "triton" and task.graph.part is None))
    kept = model.kept_activations(is_fused=is_fused) + is_held * recipe.num_layers
    activation = task.num_nodes * recipe.hidden_channels * like.itemsize
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    per_run = activation * kept + parameters * _COPIES_OF_PARAMETERS
    fitting = max(1, min(num_runs, int(_SHARE * free_bytes(device) / per_run)))
    return -task.graph.group.largest(-fitting)  # the process with the least room decides for all


def free_bytes(device: torch.device) -> int:
    """Memory that can still be had on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [limit for limit in (_available_ram(), _container_limit()) if limit is not None]
    return min(limits, default=4 * 2**30)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory could not be had: CUDA says so with a class of its own, the CPU only in words."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def peak_bytes(device: torch.device) -> int:
    """The most memory used so far: allocated tensors on a GPU, resident size of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _available_ram() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _container_limit() -> int | None:
    """What a control group leaves of its limit, where there is one."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used))
