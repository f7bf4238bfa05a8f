"""Where a run broke: the first layer whose output is not finite."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphjoule.ops import fold_in
from graphjoule.training.seed_batch import Runs


@torch.no_grad()
def describe_failure(runs: Runs, run: int) -> str:
    """A sentence that names the epoch and the layer at which a failed run's loss stopped being finite.

    A run's parameters stay as they were when its loss broke, so the same forward pass can be made again and watched.
    """
    epoch = int(runs.selection.state["last_epoch"][run])
    model = runs.current_model(run).to(runs.task.labels.device)
    layer = _first_bad_parameter(model) or _first_bad_output(runs, run, model, epoch) or "the loss"
    return f"seed {runs.seeds[run]}: the loss is not finite at epoch {epoch}; the first thing not finite is {layer}"


def _first_bad_parameter(model: nn.Module) -> str | None:
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the parameter {name}"
    return None


def _first_bad_output(runs: Runs, run: int, model: nn.Module, epoch: int) -> str | None:
    """The first module to finish with an output that is not finite, in training or else in evaluation."""
    key = fold_in(runs.keys[run].to(runs.task.labels.device), epoch)
    for training in (True, False):
        seen: list[tuple[str, bool]] = []
        model.train(training)
        handles = [m.register_forward_hook(partial(_note, seen, name)) for name, m in model.named_modules() if name]
        try:
            model(runs.features, runs.task.graph, key=key)
        finally:
            for handle in handles:
                handle.remove()
        # Modules finish in the same order in every process, but rows that are not finite may be in one of them only.
        flags = torch.tensor([bad for _, bad in seen], dtype=torch.float64, device=runs.task.labels.device)
        is_bad = runs.task.graph.group.total(flags).tolist()
        if first := next((name for (name, _), bad in zip(seen, is_bad, strict=True) if bad), None):
            return f"the output of layer {first}"
    return None


def _note(seen: list[tuple[str, bool]], name: str, module: nn.Module, inputs: Any, output: Any) -> None:
    seen.append((name, isinstance(output, Tensor) and not bool(torch.isfinite(output).all())))
