"""APPNP (Gasteiger et al., ICLR 2019): predict first, then propagate the predictions by personalised PageRank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.nn.base import BatchNorm, FeatureLinear, GraphModel, check_unit_interval
from graphjoule.nn.table import Probability, UnitInterval
from graphjoule.ops.edge_dropout import propagate_dropped


class APPNPStep(nn.Module):
    """One step of personalised PageRank: ``Z_k = (1 - alpha) dropout(P) Z_{k-1} + alpha Z_0``.

    Args:
        alpha: probability of a return to ``Z_0``.
        edge_dropout: dropout probability of every entry of ``P``.
    """

    def __init__(self, alpha: float = 0.1, edge_dropout: float = 0.0) -> None:
        super().__init__()
        check_unit_interval("alpha", alpha, closed=True)
        check_unit_interval("edge_dropout", edge_dropout, closed=False)
        self.alpha, self.edge_dropout = alpha, edge_dropout

    def forward(self, z: Tensor, z0: Tensor, graph: Propagation, key: Tensor | None = None) -> Tensor:
        """``Z_k``, the shape of `z`; `key` turns edge dropout on."""
        return (1 - self.alpha) * propagate_dropped(z, graph, self.edge_dropout, key) + self.alpha * z0


class APPNP(GraphModel):
    """``Z_0 = relu(X W_1 + b_1) W_2 + b_2``, dropout before each product; then `num_layers` times `APPNPStep`.

    Every step drops other entries of ``P``, as the authors' own code does. PyG's ``APPNP`` drops from what the step
    before has left, so after K steps only ``(1 - p)^K`` of the entries are there, each divided by ``(1 - p)^K``.

    Args:
        in_channels: number of input features.
        hidden_channels: width of the hidden layer.
        out_channels: number of classes.
        num_layers: number of steps ``K``.
        alpha: probability of a return to ``Z_0``.
        dropout: dropout before both linear maps.
        edge_dropout: dropout of every entry of ``P``, self-loops too, anew at every step.
        batch_norm: batch norm before the ReLU.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> APPNP(16, 64, 7, num_layers=10)(torch.randn(3, 16), edge_index).shape
        torch.Size([3, 7])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        alpha: UnitInterval = 0.1,
        dropout: Probability = 0.5,
        edge_dropout: Probability = 0.5,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers)
        check_unit_interval("dropout", dropout, closed=False)
        self.dropout = dropout
        self.first = FeatureLinear(in_channels, hidden_channels)
        self.norm = BatchNorm(hidden_channels) if batch_norm else nn.Identity()
        self.second = FeatureLinear(hidden_channels, out_channels)
        self.convs = nn.ModuleList(APPNPStep(alpha, edge_dropout) for _ in range(num_layers))

    def _forward(self, x: Features, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        """The prediction of every node by itself, then the steps."""
        h = torch.relu(self.norm(self.first(x, self.dropout, keys[0])))
        z0: Tensor = self.second(h, self.dropout, keys[-1])
        z = z0
        for conv, key in zip(self.convs, keys[1:-1], strict=True):
            z = conv(z, z0, graph, key)
        return z

    def kept_activations(self, *, is_fused: bool) -> int:
        """The MLP's; the steps keep nothing for the gradient but need a few scores, which are of another width."""
        return 8 - (-8 * self.out_channels // self.hidden_channels)
