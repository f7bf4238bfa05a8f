"""ResGCN: GCN with residual connections and batch norm, the strongest plain baseline (Luo et al., NeurIPS 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.nn.base import Encoder, FeatureLinear, GraphModel, stock
from graphjoule.nn.gcn import GCNConv
from graphjoule.nn.segments import call_layer, kept_of_layers, run_layers
from graphjoule.nn.table import Probability
from graphjoule.ops import dropout


@stock
class ResGCNConv(GCNConv):
    """One layer: ``X + relu(norm(P dropout(X) W + b))``."""

    def __init__(self, channels: int, *, dropout: float = 0.0, batch_norm: bool = True) -> None:
        super().__init__(channels, channels, dropout=dropout, batch_norm=batch_norm)

    def forward(self, x: Tensor, graph: Propagation, key: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """The layer's output, shape ``[num_nodes, channels]``; `key` turns dropout on."""
        return x + super().forward(x, graph, key)


class ResGCN(GraphModel):
    """A linear encoder with ReLU, `num_layers` times `ResGCNConv`, a linear head.

    Args:
        in_channels: number of input features.
        hidden_channels: width of all layers.
        out_channels: number of classes.
        num_layers: number of graph layers.
        dropout: dropout before the encoder, every layer and the head.
        batch_norm: batch norm before each ReLU of a layer.

    Example:
        >>> import torch
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> ResGCN(16, 64, 7, num_layers=16)(torch.randn(3, 16), edge_index).shape
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
        batch_norm: bool = True,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers)
        self.dropout = dropout
        self.encoder = Encoder(in_channels, hidden_channels, kind="linear", dropout=dropout)
        self.convs = nn.ModuleList(
            ResGCNConv(hidden_channels, dropout=dropout, batch_norm=batch_norm) for _ in range(num_layers)
        )
        self.head = FeatureLinear(hidden_channels, out_channels)

    def _forward(self, x: Features, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        (h,) = run_layers(list(self.convs), call_layer, (self.encoder(x, keys[0]),), graph, keys[1:-1], self._segment())
        scores: Tensor = self.head(dropout(h, self.dropout, keys[-1]))
        return scores

    def kept_activations(self, *, is_fused: bool) -> int:
        """Those of a GCN, and the sum of every layer."""
        return kept_of_layers(list(self.convs), 4, self._segment())
