"""A damped wave on the graph: depth that carries information far and keeps an energy.

Relatives: the hyperbolic form of PDE-GCN (Eliasof et al., NeurIPS 2021), GraphCON (Rusch et al., ICML 2022) and A-DGN
(Gravina et al., ICLR 2023). They have weights and a nonlinearity in every layer; here are none between encoder and
head, and so the energy, its limits and the memory are theorems (``docs/wave.md``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.nn.base import (
    BatchNorm,
    Encoder,
    FeatureLinear,
    GraphModel,
    check_choice,
    check_unit_interval,
    is_only_seen,
    is_stock,
    onlookers,
    stock,
)
from graphjoule.nn.table import NonNegative, OpenInterval, Probability, UnitInterval
from graphjoule.ops import dropout, wave_layer, wave_stack, wave_start
from graphjoule.ops.wave import HELD_LAYERS, held, in_float32, is_free


@stock
class WaveConv(nn.Module):
    """One layer: ``V <- (1 - delta) V - h ((I - P) X C + mu (X - X_0))``, then ``X <- X + h V``.

    The step ``h = step * sqrt(2 (2 - delta) / (b + mu))`` comes from the graph: no eigenvalue of ``I - P`` exceeds
    ``b``, see `Propagation.laplacian_bound`, so every `step` below 1 is stable at any depth.

    Args:
        step: share of the largest stable step, between 0 and 1.
        delta: damping: 0 conserves the energy, 1 is a diffusion.
        mu: restoring force towards ``X_0``.
    """

    def __init__(self, step: float = 0.9, delta: float = 0.1, mu: float = 0.05) -> None:
        super().__init__()
        check_unit_interval("delta", delta, closed=True)
        if not 0 < step < 1:
            raise GraphjouleError(f"step is {step}; it must be above 0 and below 1, the largest stable step.")
        if not 0 <= mu < float("inf"):
            raise GraphjouleError(f"mu is {mu}; it must be 0 or more.")
        self.step, self.delta, self.mu = step, delta, mu

    def h(self, graph: Propagation) -> float:
        """The step on a graph."""
        largest: float = (2 * (2 - self.delta) / (graph.laplacian_bound + self.mu)) ** 0.5
        return self.step * largest

    def forward(
        self, x: Tensor, v: Tensor, x0: Tensor, graph: Propagation, speed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``X`` and ``V`` after the layer, each of shape ``[num_nodes, channels]``; see `wave_layer`."""
        return wave_layer(x, v, x0, graph, h=self.h(graph), delta=self.delta, mu=self.mu, speed=speed)


class Wave(GraphModel):
    """``X_0 = f(X)``; `num_layers` times `WaveConv` from the velocity of `wave_start`; a head.

    The energy ``J = (1 - delta / 2) |V|^2 + E(X) + mu |X - X_0|^2 - h <V, (I - P) X + mu (X - X_0)>`` loses
    ``delta / 2 |V_k + V_{k-1}|^2`` in a layer and nothing without damping. And no mode of ``P`` ever exceeds its start:
    ``|X_k| <= |X_0|`` and ``E(X_k) + mu |X_k - X_0|^2 <= E(X_0)`` at every layer of any depth, for any weights.

    Training needs the memory of a few layers at any depth, see `graphjoule.ops.wave_stack`.

    Args:
        in_channels: number of input features.
        hidden_channels: width of all layers.
        out_channels: number of classes.
        num_layers: number of graph layers.
        step: share of the largest stable step, between 0 and 1; on a ring a front moves so many hops per layer.
        delta: damping: 0 conserves the energy; 1 is APPNP but for the step.
        mu: restoring force towards ``X_0``.
        speeds: "equal", or "spread": channel j of d has the squared speed ``j / d``, so that one depth shows the wave
            at many times.
        dropout: dropout of the encoder's input.
        output_dropout: dropout before the head.
        encoder: "linear" is dropout, linear, ReLU; "mlp" is linear, batch norm, ReLU, dropout, linear.
        head: "linear", or "mlp": batch norm (waves that went far are faint), twice linear and ReLU, linear.

    Example:
        >>> model = Wave(16, 64, 7, num_layers=1000, delta=0.0)
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> model(torch.randn(3, 16), edge_index).shape
        torch.Size([3, 7])
    """

    needs_undirected: ClassVar[bool] = True  # eigenvalues that are not real make a wave grow without end

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        step: OpenInterval = 0.9,
        delta: UnitInterval = 0.1,
        mu: NonNegative = 0.05,
        speeds: Literal["equal", "spread"] = "equal",
        dropout: Probability = 0.5,
        output_dropout: Probability = 0.5,
        encoder: Literal["linear", "mlp"] = "linear",
        head: Literal["linear", "mlp"] = "linear",
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers)
        check_unit_interval("dropout", dropout, closed=False)
        check_unit_interval("output_dropout", output_dropout, closed=False)
        check_choice("speeds", speeds, ("equal", "spread"))
        check_choice("head", head, ("linear", "mlp"))
        self.output_dropout, self.speeds = output_dropout, speeds
        self.encoder = Encoder(in_channels, hidden_channels, kind=encoder, dropout=dropout)
        self.convs = nn.ModuleList(WaveConv(step, delta, mu) for _ in range(num_layers))
        self.norm = self.hidden = None
        if head == "mlp":
            self.norm = BatchNorm(hidden_channels)
            linears = (FeatureLinear(hidden_channels, hidden_channels) for _ in range(2))
            self.hidden = nn.Sequential(*(module for linear in linears for module in (linear, nn.ReLU())))
        self.head = FeatureLinear(hidden_channels, out_channels)

    def _forward(self, x: Features, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        """Encoder, layers, head."""
        h = self.propagated(self.encoder(x, keys[0]), graph)
        h = dropout(h if self.norm is None else self.norm(h), self.output_dropout, keys[-1])
        scores: Tensor = self.head(h if self.hidden is None else self.hidden(h))
        return scores

    def propagated(self, x0: Tensor, graph: Propagation) -> Tensor:
        """The last ``X`` of all layers."""
        first, speed = self.layers()[0], self.channel_speeds(x0)
        settings = (first.step, first.delta, first.mu)
        show = onlookers(self.convs, graph)
        if all(
            is_stock(conv, or_seen=show is not None) and (conv.step, conv.delta, conv.mu) == settings
            for conv in self.layers()
        ):
            # The same in one op, which keeps no activation.
            h, delta, mu = first.h(graph), first.delta, first.mu
            return wave_stack(x0, graph, len(self.convs), h=h, delta=delta, mu=mu, speed=speed, show=show)
        if not all(map(is_only_seen, self.convs)):  # what a hook or another layer changes is left as it is
            return self._by_layers(x0, graph, math.inf)
        hold_every = HELD_LAYERS if is_free(x0, graph, min(conv.mu for conv in self.layers())) else math.inf
        if x0.dtype in (torch.bfloat16, torch.float16):  # as in `wave_stack`
            return self._by_layers(x0.float(), in_float32(graph), hold_every).to(x0.dtype)
        return self._by_layers(x0, graph, hold_every)

    def _by_layers(self, x0: Tensor, graph: Propagation, hold_every: float) -> Tensor:
        """`propagated` layer by layer, so that hooks see them; every so many layers the wave is `held`."""
        first, speed = self.layers()[0], self.channel_speeds(x0)
        x, v = x0, wave_start(x0, graph, h=first.h(graph), delta=first.delta, speed=speed)
        for k, conv in enumerate(self.convs):
            if k and k % hold_every == 0:
                x, v = held(x, graph, x0), held(v, graph)
            x, v = conv(x, v, x0, graph, speed)
        return x

    def channel_speeds(self, like: Tensor) -> Tensor | None:
        """The diagonal of ``C``, shape ``[channels]``; None where all are 1."""
        if self.speeds == "equal":
            return None
        return torch.arange(1, self.hidden_channels + 1, dtype=like.dtype, device=like.device) / self.hidden_channels

    def layers(self) -> list[WaveConv]:
        """The graph layers, with their type."""
        return list(self.convs)  # type: ignore[arg-type]

    def kept_activations(self, *, is_fused: bool) -> int:
        """Four of the layers and some of encoder and head, at any depth, unless layers are called one by one."""
        return 16 if is_fused else super().kept_activations(is_fused=is_fused)
