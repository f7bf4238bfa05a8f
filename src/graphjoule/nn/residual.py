"""What EGNN and GCNII share: an encoder, layers that mix in its output, a head; all layers in one op where possible."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.nn.base import FeatureLinear, GraphModel
from graphjoule.nn.encoder import Encoder
from graphjoule.nn.stock import is_stock
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
    def effective_weight(self) -> Tensor:
        """``W``, shape ``[channels, channels]``."""

    @abstractmethod
    def shift(self) -> Tensor | None:
        """The shifts ``b`` of the activation ``max(b, z)``, shape ``[channels]``; None for the identity."""

    def stack_coefficients(self) -> tuple[float, float, float] | None:
        """`c_min`, `beta` and `dropout` if an `egnn_stack` with them computes this layer as it is now, else None.

        A batch norm stands between product and activation, a hook wants to see the layer or its gradient, and a
        coefficient that is a tensor may have a gradient of its own.
        """
        if not is_stock(self) or self.norm is not None:
            return None
        c_min, beta, p = self.c_min, self.beta, self.dropout
        are_numbers = isinstance(c_min, float | int) and isinstance(beta, float | int) and isinstance(p, float | int)
        return (c_min, beta, p) if are_numbers else None


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
        stack = self._stack()
        if stack is None:
            h = self._layer_by_layer(h0, graph, keys)
        else:  # the same in one op, which fuses the arithmetic and keeps one activation per layer
            drops = [key for key in keys[1:-1] if key is not None]
            h = stack(h0, graph, keys=torch.stack(drops) if drops else None, segment=self._segment())
        scores: Tensor = self.head(h, self.output_dropout, keys[-1])
        return scores

    def _layer_by_layer(self, h0: Tensor, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        h = h0
        for conv, key in zip(self.convs, keys[1:-1], strict=True):
            h = conv(h, h0, graph, key)
        return h

    def _stack(self) -> Callable[..., Tensor] | None:
        """The layers as they are now in one op; None if they must be called one by one."""
        found = {conv.stack_coefficients() if isinstance(conv, ResidualConv) else None for conv in self.convs}
        coefficients = found.pop() if len(found) == 1 else None
        if coefficients is None:
            return None
        convs, width = self.layers(), self.hidden_channels
        weights = [conv.effective_weight() for conv in convs]
        shifts = [shift for conv in convs if (shift := conv.shift()) is not None]
        dtype = weights[0].dtype
        are_alike = (
            len(shifts) in (0, len(convs))
            and all(weight.shape == (width, width) and weight.dtype == dtype for weight in weights)
            and all(shift.shape == (width,) and shift.dtype == dtype for shift in shifts)
        )
        if not are_alike:
            return None
        c_min, beta, p = coefficients
        of_all = torch.stack(shifts) if shifts else None
        return partial(egnn_stack, weights=torch.stack(weights), shifts=of_all, c_min=c_min, beta=beta, p=p)

    def _segment(self) -> int | None:
        """Layers per checkpointed segment."""
        if self.checkpoint == "auto":
            return math.isqrt(self.num_layers) if self.num_layers > 64 else None
        return self.checkpoint

    def layers(self) -> list[ResidualConv]:
        """The graph layers, with their type."""
        return list(self.convs)  # type: ignore[arg-type]

    def effective_weights(self) -> Tensor:
        """``W`` of all layers, shape ``[num_layers, channels, channels]``."""
        return torch.stack([conv.effective_weight() for conv in self.layers()])

    def kept_activations(self, *, is_fused: bool) -> int:
        """The fused stack keeps one per layer, or one per segment and one per layer of a segment, and some buffers."""
        if not is_fused or self._stack() is None:
            return super().kept_activations(is_fused=is_fused)
        segment = self._segment() or self.num_layers
        return -(-self.num_layers // segment) + segment + 16
