"""Batch norm whose batch is all nodes of the graph, also where each process has but a part of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphjoule.graph.part import Part, current_part
from graphjoule.nn.stock import stock


@stock
class BatchNorm(nn.BatchNorm1d):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` of every channel, with mean and variance over all nodes.

    On a whole graph it is torch's own. On a part of one the sums go over all processes, so that every process has the
    statistics, the gradients and the running statistics that one process would have.

    Args:
        channels: number of channels.

    Example:
        >>> BatchNorm(1)(torch.tensor([[1.0], [3.0]])).detach().round(decimals=3)
        tensor([[-1.],
                [ 1.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """The normalised features, the shape of `x`."""
        part = current_part()
        if part is None or not self.training:
            return super().forward(x)
        mean = part.group.total(x.sum(dim=0)) / part.nodes.total
        centred = x - mean
        var = part.group.total(centred.square().sum(dim=0)) / part.nodes.total
        self._move_running_statistics(mean.detach(), var.detach(), part)
        return centred * (var + self.eps).rsqrt() * self.weight + self.bias

    def _move_running_statistics(self, mean: Tensor, var: Tensor, part: Part) -> None:
        """As torch does: the running variance is the unbiased one."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        count = part.nodes.total
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean)
            self.running_var.mul_(1 - self.momentum).add_(self.momentum * count / max(1, count - 1) * var)
