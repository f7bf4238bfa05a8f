"""GCNII (Chen et al., ICML 2020): initial residual and identity mapping."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.nn.base import BatchNorm, Encoder, FeatureLinear, check_unit_interval, stock
from graphjoule.nn.egnn import ResidualConv, ResidualModel
from graphjoule.nn.table import Positive, Probability, UnitInterval
from graphjoule.ops import dropout, residual_mix


@stock
class GCNIIConv(ResidualConv):
    """One layer: ``X_k = relu([(1 - alpha) P X' + alpha X_0] [(1 - b) I + b W])`` with ``X' = dropout(X_{k-1})``.

    ``W`` is Glorot, as in PyG's ``GCN2Conv``.

    Args:
        channels: width of the layer.
        alpha: strength of the initial residual.
        identity: ``1 - b``, strength of the identity mapping.
        dropout: dropout probability of the input ``X_{k-1}``.
        batch_norm: put a batch norm before the ReLU.
    """

    def __init__(
        self,
        channels: int,
        *,
        alpha: float = 0.1,
        identity: float = 0.5,
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        check_unit_interval("alpha", alpha, closed=True)
        check_unit_interval("dropout", dropout, closed=False)
        self.c_min = self.beta = alpha
        self.identity, self.dropout = identity, dropout
        self.weight = nn.Parameter(torch.empty(channels, channels))
        self.norm = BatchNorm(channels) if batch_norm else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot weight, batch norm at its initial values."""
        nn.init.xavier_uniform_(self.weight)
        if self.norm is not None:
            self.norm.reset_parameters()

    def effective_weight(self) -> Tensor:
        """``(1 - b) I + b W``: the weight of the EGNN layer that this layer is."""
        identity = torch.eye(len(self.weight), dtype=self.weight.dtype, device=self.weight.device)
        return self.identity * identity + (1 - self.identity) * self.weight

    def shift(self) -> Tensor:
        """Zeros: ``max(0, z)``."""
        return torch.zeros_like(self.weight[0])

    def forward(self, x: Tensor, x0: Tensor, graph: Propagation, key: Tensor | None = None) -> Tensor:
        """The layer's output, shape ``[num_nodes, channels]``; `key` turns dropout on."""
        z = residual_mix(dropout(x, self.dropout, key), x0, graph, self.c_min, self.beta) @ self.effective_weight()
        return torch.relu(z if self.norm is None else self.norm(z))


class GCNII(ResidualModel):
    """The deep GCN with an initial residual and an identity mapping that grows with depth.

    ``X_0 = relu(dropout(X) W + b)``; `num_layers` times `GCNIIConv` with ``b_k = log(theta / k + 1)``; dropout and a
    linear head. A GCNII layer is an EGNN layer with ReLU, ``c_min = beta = alpha`` and the weight
    ``(1 - b_k) I + b_k W_k``, so it runs by the fused stack of EGNN, one activation kept per layer, where PyG's
    ``GCN2Conv`` keeps several.

    Args:
        in_channels: number of input features.
        hidden_channels: width of all layers.
        out_channels: number of classes.
        num_layers: number of graph layers.
        alpha: strength of the initial residual.
        theta: ``b_k = log(theta / k + 1)``; PyG's name for the paper's lambda.
        dropout: dropout before the encoder, every layer and the head.
        batch_norm: batch norm before each layer's ReLU.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> GCNII(16, 64, 7, num_layers=64)(torch.randn(3, 16), edge_index).shape
        torch.Size([3, 7])
    """

    parameter_group_names: ClassVar[tuple[str, ...]] = ("conv", "dense")

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        alpha: UnitInterval = 0.1,
        theta: Positive = 0.5,
        dropout: Probability = 0.6,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers)
        if not theta > 0:
            raise GraphjouleError(f"theta is {theta}; it must be positive.")
        self.alpha, self.theta = alpha, theta
        self.dropout = self.output_dropout = dropout
        self.encoder = Encoder(in_channels, hidden_channels, kind="linear", dropout=dropout)
        self.convs = nn.ModuleList(
            GCNIIConv(
                hidden_channels,
                alpha=alpha,
                identity=1 - math.log(theta / k + 1),
                dropout=dropout,
                batch_norm=batch_norm,
            )
            for k in range(1, num_layers + 1)
        )
        self.head = FeatureLinear(hidden_channels, out_channels)

    def parameter_group(self, name: str) -> str:
        """Convolution weights, and everything dense (encoder, head, batch norms)."""
        return "conv" if name.startswith("convs") and name.endswith(".weight") and ".norm" not in name else "dense"
