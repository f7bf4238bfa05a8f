"""PairNorm (Zhao and Akoglu, ICLR 2020): a GCN whose layers keep the total distance between all pairs of nodes."""

from __future__ import annotations

from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.graph.nodes import current_nodes
from graphjoule.nn.base import stock
from graphjoule.nn.gcn import GCN
from graphjoule.nn.table import Positive, Probability

_EPS = 1e-5  # PyG's


@stock
class PairNorm(nn.Module):
    """Centre the nodes, then scale them: ``X_c = X - mean(X)``, ``s X_c / sqrt(mean_i ||x_c_i||^2)``.

    Our own and not PyG's, whose layer is the same and whose mean over a batch's nodes is one scatter more.

    Args:
        scale: the root of the mean squared norm of a node afterwards, ``s``.

    Example:
        >>> import torch
        >>> PairNorm()(torch.tensor([[1.0, 5.0], [3.0, 5.0]])).round(decimals=3)
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        if not scale > 0:
            raise GraphjouleError(f"scale is {scale}; it must be positive.")
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """The normalised features, the shape of `x`."""
        nodes = current_nodes()
        centred = x - nodes.global_mean(x)
        factor = self.scale * (nodes.global_mean(centred.square().sum(dim=1)) + _EPS).rsqrt()
        return centred * factor.expand(x.size(1))  # so its gradient is summed by channel, alike with any threads


class PairNormGCN(GCN):
    """A `GCN` with `PairNorm` between each layer's product and its ReLU, but not after the last layer.

    PyG's ``GCN(norm="PairNorm")`` takes the hidden width for the scale, 64 times what the paper's comparison has.

    Args:
        in_channels: number of input features.
        hidden_channels: width of the hidden layers.
        out_channels: number of classes.
        num_layers: number of graph layers.
        dropout: dropout before every layer.
        scale: scale of every `PairNorm`.

    Example:
        >>> import torch
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> PairNormGCN(16, 64, 7, num_layers=16)(torch.randn(3, 16), edge_index).shape
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
        scale: Positive = 1.0,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers, dropout=dropout)
        for conv in self.convs[:-1]:
            conv.norm = PairNorm(scale)
