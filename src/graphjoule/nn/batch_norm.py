"""Batch norm whose batch is all nodes of the graph."""

from __future__ import annotations

from torch import Tensor, nn

from graphjoule.graph.nodes import current_nodes
from graphjoule.nn.stock import stock


@stock
class BatchNorm(nn.BatchNorm1d):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` of every channel, with mean and variance over all nodes.

    Torch's own, unless the nodes at hand are not all nodes of the graph; then the graph sums over the others too.

    Args:
        channels: number of channels.

    Example:
        >>> import torch
        >>> BatchNorm(1)(torch.tensor([[1.0], [3.0]])).detach().round(decimals=3)
        tensor([[-1.],
                [ 1.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """The normalised features, the shape of `x`."""
        return current_nodes().batch_norm(x, self) if self.training else super().forward(x)
