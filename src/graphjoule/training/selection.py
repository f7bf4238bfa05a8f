"""Which epoch of each run counts, and when each run has trained long enough: decided on the device, per run."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

SelectOn = Literal["val_loss", "val_accuracy"]


class Selection:
    """Early stopping and model selection of many runs at once, by validation alone.

    The best epoch is the first one that reaches the lowest validation loss (or highest accuracy). A run stops after
    `patience` epochs without a better one, or as soon as a loss is not finite; from then on nothing about it changes.
    Everything is a tensor with one entry per run, so that the epoch loop needs no answer from the device.

    Args:
        num_runs: number of runs.
        select_on: what decides.
        patience: epochs without improvement after which a run stops.
        device: where the runs are.
    """

    def __init__(self, num_runs: int, select_on: SelectOn, patience: int, device: torch.device) -> None:
        self.select_on, self.patience = select_on, patience
        worst = torch.full((num_runs,), torch.inf, device=device)
        never = torch.full((num_runs,), -1, dtype=torch.int64, device=device)
        self.state: dict[str, Tensor] = {
            "score": worst,
            "val_loss": worst.clone(),
            "val_accuracy": torch.zeros_like(worst),
            "best_epoch": never,
            "last_epoch": never.clone(),
            "stopped": torch.zeros(num_runs, dtype=torch.bool, device=device),
            "failed": torch.zeros(num_runs, dtype=torch.bool, device=device),
        }

    @property
    def active(self) -> Tensor:
        """Which runs still train."""
        return ~self.state["stopped"]

    @torch.no_grad()
    def update(self, epoch: Tensor, train_loss: Tensor, val_loss: Tensor, val_accuracy: Tensor) -> Tensor:
        """Take in one epoch's results, each of shape ``[runs]``; returns which runs have a new best epoch."""
        s, active = self.state, self.active
        finite = torch.isfinite(train_loss) & torch.isfinite(val_loss)
        score = val_loss if self.select_on == "val_loss" else -val_accuracy
        improved = active & finite & (score < s["score"])
        s["score"].copy_(torch.where(improved, score, s["score"]))
        s["val_loss"].copy_(torch.where(improved, val_loss, s["val_loss"]))
        s["val_accuracy"].copy_(torch.where(improved, val_accuracy, s["val_accuracy"]))
        s["best_epoch"].copy_(torch.where(improved, epoch, s["best_epoch"]))
        s["last_epoch"].copy_(torch.where(active, epoch, s["last_epoch"]))
        s["failed"].logical_or_(active & ~finite)
        s["stopped"].logical_or_(s["failed"] | (epoch - s["best_epoch"] >= self.patience))
        return improved
