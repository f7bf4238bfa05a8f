"""JKNet, the jumping knowledge network (Xu et al., ICML 2018): every node picks from all layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.nn.base import FeatureLinear, GraphModel, check_unit_interval
from graphjoule.nn.gcn import GCNConv
from graphjoule.nn.segments import kept_of_layers, run_layers
from graphjoule.nn.table import Probability
from graphjoule.ops import dropout


class JKNet(GraphModel):
    """GCN layers ``X_k = dropout(relu(P X_{k-1} W_k + b_k))``, then a linear head on ``max_k X_k``, channel by channel.

    The input is not dropped. The maximum is taken as the layers come, so no stack of all layers is made; PyG's
    ``JumpingKnowledge("max")`` makes one and gives the same numbers.

    Args:
        in_channels: number of input features.
        hidden_channels: width of all layers.
        out_channels: number of classes.
        num_layers: number of graph layers.
        dropout: dropout after every layer.
        batch_norm: batch norm before each ReLU.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> JKNet(16, 64, 7, num_layers=16)(torch.randn(3, 16), edge_index).shape
        torch.Size([3, 7])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        dropout: Probability = 0.5,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers)
        check_unit_interval("dropout", dropout, closed=False)
        self.dropout = dropout
        widths = [in_channels, *[hidden_channels] * num_layers]
        self.convs = nn.ModuleList(GCNConv(i, o, batch_norm=batch_norm) for i, o in pairwise(widths))
        self.head = FeatureLinear(hidden_channels, out_channels)

    def _forward(self, x: Features, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        """All layers and their maximum, head."""

        def step(
            conv: Callable[..., Tensor], state: tuple[Tensor, ...], graph: Any, key: Tensor | None
        ) -> tuple[Tensor, ...]:
            h = dropout(conv(state[0], graph), self.dropout, key)
            return h, torch.maximum(state[1], h)

        first, *others = self.convs
        h = dropout(first(x, graph), self.dropout, keys[1])
        _, largest = run_layers(others, step, (h, h), graph, keys[2:-1], self._segment())
        scores: Tensor = self.head(largest)
        return scores

    def kept_activations(self, *, is_fused: bool) -> int:
        """Those of a GCN, and the maximum so far at every layer."""
        return kept_of_layers(list(self.convs), 4, self._segment(), num_state=2)
