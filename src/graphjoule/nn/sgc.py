"""SGC, the simplified graph convolution (Wu et al., ICML 2019): a linear classifier on smoothed features."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.nn.base import BatchNorm, FeatureLinear, GraphModel
from graphjoule.ops import propagate


class Propagate(nn.Module):
    """One step without parameters: ``P X``. A module so that `Trace` sees every step."""

    def forward(self, x: Tensor, graph: Propagation) -> Tensor:
        """``P X``, the shape of `x`."""
        return propagate(x, graph)


class SGC(GraphModel):
    """``P^K X W``: no activations, no hidden weights, no bias, no dropout.

    Computed as ``P^K (X W)``, the same function: scores have few channels and sparse features stay sparse, where
    ``P^K X`` is dense. PyG's ``SGConv`` multiplies in the other order and keeps ``P^K X`` in the layer; this one has
    nothing to keep, so it can be given another graph at any time.

    Args:
        in_channels: number of input features.
        hidden_channels: not used, there is nothing hidden.
        out_channels: number of classes.
        num_layers: number of steps ``K``.
        batch_norm: batch norm of the scores; there are no successive layers to put one between.

    Example:
        >>> import torch
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> SGC(16, 64, 7, num_layers=2)(torch.randn(3, 16), edge_index).shape
        torch.Size([3, 7])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers)
        self.linear = FeatureLinear(in_channels, out_channels, bias=False)
        self.convs = nn.ModuleList(Propagate() for _ in range(num_layers))
        self.norm = BatchNorm(out_channels) if batch_norm else nn.Identity()

    def _forward(self, x: Features, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        """The linear map, then every step; nothing is dropped."""
        h = self.linear(x)
        for conv in self.convs:
            h = conv(h, graph)
        scores: Tensor = self.norm(h)
        return scores

    def kept_activations(self, *, is_fused: bool) -> int:
        """A step keeps nothing for the gradient; a few scores in between, which are of another width."""
        return -(-8 * self.out_channels // self.hidden_channels)
