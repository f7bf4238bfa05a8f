"""The map from input features to the embeddings that the graph layers start from."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from graphjoule.graph.features import Features
from graphjoule.nn.base import FeatureLinear, check_choice
from graphjoule.nn.batch_norm import BatchNorm


class Encoder(nn.Module):
    """The map ``f`` from input features to ``X_0``.

    Args:
        in_channels: number of input features.
        channels: width of ``X_0``.
        kind: "linear" is dropout, linear, ReLU; "mlp" is linear, batch norm, ReLU, dropout, linear.
        dropout: dropout probability.
    """

    def __init__(self, in_channels: int, channels: int, kind: Literal["linear", "mlp"], dropout: float) -> None:
        super().__init__()
        check_choice("encoder", kind, ("linear", "mlp"))
        self.dropout = dropout
        self.first = FeatureLinear(in_channels, channels)
        self.norm = BatchNorm(channels) if kind == "mlp" else None
        self.second = FeatureLinear(channels, channels) if kind == "mlp" else None

    def forward(self, x: Features, key: Tensor | None = None) -> Tensor:
        """``X_0``, shape ``[num_nodes, channels]``."""
        if self.norm is None or self.second is None:
            return torch.relu(self.first(x, self.dropout, key))
        out: Tensor = self.second(self.norm(self.first(x)).relu(), self.dropout, key)
        return out
