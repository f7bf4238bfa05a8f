"""GCNII (Chen et al., ICML 2020): initial residual and identity mapping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.features import Features
from graphjoule.graph import Propagation
from graphjoule.nn.base import FeatureLinear, GraphModel, check_unit_interval, is_hooked
from graphjoule.nn.encoder import Encoder
from graphjoule.ops import dropout, egnn_stack, residual_mix


class GCNIIConv(nn.Module):
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
        self.alpha, self.identity, self.dropout = alpha, identity, dropout
        self.weight = nn.Parameter(torch.empty(channels, channels))
        self.norm = nn.BatchNorm1d(channels) if batch_norm else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot weight, batch norm at its initial values."""
        nn.init.xavier_uniform_(self.weight)
        if self.norm is not None:
            self.norm.reset_parameters()

    def mapping(self) -> Tensor:
        """``(1 - b) I + b W``: the weight of the EGNN layer that this layer is."""
        identity = torch.eye(len(self.weight), dtype=self.weight.dtype, device=self.weight.device)
        return self.identity * identity + (1 - self.identity) * self.weight

    def forward(self, x: Tensor, x0: Tensor, graph: Propagation, key: Tensor | None = None) -> Tensor:
        """The layer's output, shape ``[num_nodes, channels]``; `key` turns dropout on."""
        z = residual_mix(dropout(x, self.dropout, key), x0, graph, self.alpha, self.alpha) @ self.mapping()
        return torch.relu(z if self.norm is None else self.norm(z))


class GCNII(GraphModel):
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
        alpha: float = 0.1,
        theta: float = 0.5,
        dropout: float = 0.6,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers)
        if not theta > 0:
            raise GraphjouleError(f"theta is {theta}; it must be positive.")
        self.alpha, self.theta, self.dropout = alpha, theta, dropout
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

    def forward_keyed(self, x: Features, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        """Encoder, layers, head."""
        h0 = self.encoder(x, keys[0])
        h = self._stacked(h0, graph, keys) if self._can_stack() else self._layer_by_layer(h0, graph, keys)
        scores: Tensor = self.head(h, self.dropout, keys[-1])
        return scores

    def _layer_by_layer(self, h0: Tensor, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        h = h0
        for conv, key in zip(self.convs, keys[1:-1], strict=True):
            h = conv(h, h0, graph, key)
        return h

    def _stacked(self, h0: Tensor, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        """The same in one op, which fuses the arithmetic and keeps one activation per layer."""
        weights = torch.stack([self._conv(k).mapping() for k in range(self.num_layers)])
        drops = [key for key in keys[1:-1] if key is not None]
        return egnn_stack(
            h0,
            graph,
            weights,
            torch.zeros_like(weights[:, 0]),  # max(0, z)
            c_min=self.alpha,
            beta=self.alpha,
            p=self.dropout,
            keys=torch.stack(drops) if drops else None,
            segment=self._segment(),
        )

    def _can_stack(self) -> bool:
        """Batch norm stands between product and activation; a hook wants to see every layer, or a part of one."""
        return not is_hooked(self.convs) and all(self._conv(k).norm is None for k in range(self.num_layers))

    def _segment(self) -> int | None:
        """Layers per checkpointed segment, as in EGNN: the square root of the depth beyond 64 layers."""
        return math.isqrt(self.num_layers) if self.num_layers > 64 else None

    def _conv(self, k: int) -> GCNIIConv:
        conv = self.convs[k]
        assert isinstance(conv, GCNIIConv)
        return conv

    def kept_activations(self, *, is_fused: bool) -> int:
        """The fused stack keeps one per layer, or one per segment and one per layer of a segment, and some buffers."""
        if not (is_fused and self._can_stack()):
            return super().kept_activations(is_fused=is_fused)
        segment = self._segment() or self.num_layers
        return -(-self.num_layers // segment) + segment + 16

    def parameter_group(self, name: str) -> str:
        """Convolution weights, and everything dense (encoder, head, batch norms)."""
        return "conv" if name.startswith("convs") and name.endswith(".weight") and ".norm" not in name else "dense"
