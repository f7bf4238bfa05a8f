"""What EGNN and GCNII share: an encoder, layers that mix in its output, a head; all layers in one op where possible."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.nn.base import FeatureLinear, GraphModel
from graphjoule.nn.encoder import Encoder
from graphjoule.ops import egnn_stack


class ResidualConv(nn.Module):
    """A layer ``act([(1 - c_min) P X' + alpha X' + beta X_0] W)``, as `egnn_stack` makes many of them.

    Attributes:
        c_min: strength of all residual connections together.
        beta: the part of it that goes to ``X_0``.
        dropout: dropout probability of the input.
        norm: the batch norm before the activation, if there is one.
    """

    c_min: float
    beta: float
    dropout: float
    norm: nn.BatchNorm1d | None

    @abstractmethod
    def mapping(self) -> Tensor:
        """``W``, shape ``[channels, channels]``."""

    @abstractmethod
    def shift(self) -> Tensor | None:
        """The shifts ``b`` of the activation ``max(b, z)``, shape ``[channels]``; None for the identity."""

    def is_hooked(self) -> bool:
        """Whether a hook wants to see the layer or a part of it."""
        return _has_hooks(self) or self.has_hooks_inside()

    def has_hooks_inside(self) -> bool:
        """Whether a hook wants to see a part of the layer."""
        return any(_has_hooks(part) for part in self.children())


def _has_hooks(module: nn.Module) -> bool:
    is_of_all = nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    return bool(module._forward_hooks or module._forward_pre_hooks or is_of_all)


class ResidualModel(GraphModel):
    """Encoder, residual layers, head.

    A subclass sets `encoder`, `convs`, `head` and `output_dropout`.
    """

    checkpoint: Literal["auto"] | int | None = "auto"
    """Layers per checkpointed segment, None to keep every layer; "auto" is sqrt(num_layers) beyond 64 layers."""
    encoder: Encoder
    convs: nn.ModuleList
    head: FeatureLinear
    output_dropout: float

    def _forward(self, x: Features, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        """Encoder, layers, head."""
        h0 = self.encoder(x, keys[0])
        h = self._stacked(h0, graph, keys) if self._can_stack() else self._layer_by_layer(h0, graph, keys)
        scores: Tensor = self.head(h, self.output_dropout, keys[-1])
        return scores

    def _layer_by_layer(self, h0: Tensor, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        h = h0
        for conv, key in zip(self.convs, keys[1:-1], strict=True):
            h = conv(h, h0, graph, key)
        return h

    def _stacked(self, h0: Tensor, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        """The same in one op, which fuses the arithmetic and keeps one activation per layer."""
        convs = self.layers()
        shifts = [shift for conv in convs if (shift := conv.shift()) is not None]
        drops = [key for key in keys[1:-1] if key is not None]
        return egnn_stack(
            h0,
            graph,
            self.mappings(),
            torch.stack(shifts) if shifts else None,
            c_min=convs[0].c_min,
            beta=convs[0].beta,
            p=convs[0].dropout,
            keys=torch.stack(drops) if drops else None,
            segment=self._segment(),
        )

    def _can_stack(self) -> bool:
        """Batch norm stands between product and activation; a hook wants to see every layer, or a part of one."""
        return all(conv.norm is None and not conv.is_hooked() for conv in self.layers())

    def _segment(self) -> int | None:
        """Layers per checkpointed segment."""
        if self.checkpoint == "auto":
            return math.isqrt(self.num_layers) if self.num_layers > 64 else None
        return self.checkpoint

    def layers(self) -> list[ResidualConv]:
        """The graph layers, with their type."""
        return list(self.convs)  # type: ignore[arg-type]

    def mappings(self) -> Tensor:
        """``W`` of all layers, shape ``[num_layers, channels, channels]``."""
        return torch.stack([conv.mapping() for conv in self.layers()])

    def kept_activations(self, *, is_fused: bool) -> int:
        """The fused stack keeps one per layer, or one per segment and one per layer of a segment, and some buffers."""
        if not (is_fused and self._can_stack()):
            return super().kept_activations(is_fused=is_fused)
        segment = self._segment() or self.num_layers
        return -(-self.num_layers // segment) + segment + 16
