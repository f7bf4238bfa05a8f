"""Which epoch of each run counts, and when each run has trained long enough: decided on the device, per run."""

from __future__ import annotations

import torch
from torch import Tensor


class Selection:
    """Early stopping and model selection of many runs at once, by validation alone.

    The best epoch is the first one that reaches the best score. A run stops after `patience` epochs without a better
    one, or as soon as a loss is not finite; from then on nothing about it changes. Everything is a tensor with one
    entry per run, so that the epoch loop needs no answer from the device.

    Args:
        num_runs: number of runs.
        num_scores: number of scores of an epoch; the first is the loss.
        column: which of the scores decides.
        patience: epochs without improvement after which a run stops.
        device: where the runs are.
        is_higher_better: the direction of the score that decides.
    """

    def __init__(
        self,
        num_runs: int,
        num_scores: int,
        column: int,
        patience: int,
        device: torch.device,
        *,
        is_higher_better: bool = False,
    ) -> None:
        self.column, self.patience, self.sign = column, patience, -1.0 if is_higher_better else 1.0
        never = torch.full((num_runs,), -1, dtype=torch.int64, device=device)
        self.state: dict[str, Tensor] = {
            "score": torch.full((num_runs,), torch.inf, device=device),
            "best": torch.full((num_runs, num_scores), torch.nan, device=device),
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
    def update(self, epoch: Tensor, train_loss: Tensor, scores: Tensor) -> Tensor:
        """Take in one epoch's training loss ``[runs]`` and scores ``[runs, num_scores]``.

        Returns:
            Which runs have a new best epoch, bool, shape ``[runs]``.
        """
        s, active = self.state, self.active
        finite = torch.isfinite(train_loss) & torch.isfinite(scores[:, 0])
        score = self.sign * scores[:, self.column]
        improved = active & finite & (score < s["score"])
        s["score"].copy_(torch.where(improved, score, s["score"]))
        s["best"].copy_(torch.where(improved[:, None], scores, s["best"]))
        s["best_epoch"].copy_(torch.where(improved, epoch, s["best_epoch"]))
        s["last_epoch"].copy_(torch.where(active, epoch, s["last_epoch"]))
        s["failed"].logical_or_(active & ~finite)
        s["stopped"].logical_or_(s["failed"] | (epoch - s["best_epoch"] >= self.patience))
        return improved
