"""GCN, the graph convolutional network (Kipf and Welling, ICLR 2017): the plain network that depth kills."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.nn.base import BatchNorm, FeatureLinear, GraphModel, check_choice, check_unit_interval, stock
from graphjoule.nn.segments import call_layer, kept_of_layers, run_layers
from graphjoule.nn.table import Probability
from graphjoule.ops.edge_dropout import EdgeSubset, propagate_over


@stock
class _GlorotLinear(FeatureLinear):
    """No bias, Glorot weight, drawn once: a draw thrown away would make construction differ from a reset."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)


@stock
class GCNConv(nn.Module):
    """One layer: ``act(P dropout(X) W + b)`` with Glorot ``W`` and zero ``b``.

    Our own and not PyG's because the graph is normalised once for all layers and the features may be sparse.

    Args:
        in_channels: number of input channels.
        out_channels: number of output channels.
        activation: "relu" or "linear".
        dropout: dropout probability of the input.
        batch_norm: put a batch norm before the activation.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        activation: Literal["relu", "linear"] = "relu",
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        check_unit_interval("dropout", dropout, closed=False)
        check_choice("activation", activation, ("relu", "linear"))
        self.dropout = dropout
        self.linear = _GlorotLinear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels))
        self.norm = BatchNorm(out_channels) if batch_norm else nn.Identity()
        self.activation = nn.ReLU() if activation == "relu" else nn.Identity()

    def reset_parameters(self) -> None:
        """Glorot weight, zero bias, batch norm at its initial values."""
        self.linear.reset_parameters()
        nn.init.zeros_(self.bias)
        if isinstance(self.norm, nn.BatchNorm1d):
            self.norm.reset_parameters()

    def forward(self, x: Features, graph: Propagation | EdgeSubset, key: Tensor | None = None) -> Tensor:
        """The layer's output, shape ``[num_nodes, out_channels]``; `key` turns dropout on."""
        z = propagate_over(self.linear(x, self.dropout, key), graph) + self.bias
        out: Tensor = self.activation(self.norm(z))
        return out


class GCN(GraphModel):
    """``X_k = relu(P X_{k-1} W_k + b_k)``, dropout before each layer, no activation after the last.

    The bias stays where a batch norm makes it idle, as in PyG's networks: models with and without one look alike.

    Args:
        in_channels: number of input features.
        hidden_channels: width of the hidden layers.
        out_channels: number of classes.
        num_layers: number of graph layers.
        dropout: dropout before every layer.
        batch_norm: batch norm before each ReLU.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> GCN(16, 64, 7, num_layers=2)(torch.randn(3, 16), edge_index).shape
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
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        hidden = [GCNConv(i, o, dropout=dropout, batch_norm=batch_norm) for i, o in pairwise(widths[:-1])]
        self.convs = nn.ModuleList([*hidden, GCNConv(*widths[-2:], activation="linear", dropout=dropout)])

    def _forward(self, x: Features, graph: Propagation | EdgeSubset, keys: Sequence[Tensor | None]) -> Tensor:
        """All layers; the first may take sparse features."""
        first, *others = self.convs
        return run_layers(others, call_layer, (first(x, graph, keys[1]),), graph, keys[2:-1], self._segment())[0]

    def kept_activations(self, *, is_fused: bool) -> int:
        """Three per layer (input and its mask, ReLU), one per normalisation, and what a step makes in between."""
        return kept_of_layers(list(self.convs), 3, self._segment())
