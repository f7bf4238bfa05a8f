"""DropEdge (Rong et al., ICLR 2020): a GCN that trains on another random part of the edges at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.nn.base import check_unit_interval
from graphjoule.nn.gcn import GCN
from graphjoule.nn.table import Probability
from graphjoule.ops.edge_dropout import EdgeSubset


class DropEdgeGCN(GCN):
    """A `GCN` whose training steps see ``D~^-1/2 (A' + I) D~^-1/2`` of a new random subset ``A'`` of the edges.

    One subset serves all layers of a step; evaluation sees the whole graph. Each undirected edge is kept or dropped as
    a whole and by its own draw. The released code of DropEdge draws a fixed number of directions instead, which makes
    the graph directed; the paper's ``A`` is symmetric.

    Args:
        in_channels: number of input features.
        hidden_channels: width of the hidden layers.
        out_channels: number of classes.
        num_layers: number of graph layers.
        dropout: dropout before every layer.
        edge_dropout: probability that an edge is dropped.
        batch_norm: batch norm before each ReLU.

    Example:
        >>> import torch
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> DropEdgeGCN(16, 64, 7, num_layers=2)(torch.randn(3, 16), edge_index).shape
        torch.Size([3, 7])
    """

    needs_undirected: ClassVar[bool] = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        dropout: Probability = 0.5,
        edge_dropout: Probability = 0.2,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers, dropout=dropout, batch_norm=batch_norm)
        check_unit_interval("edge_dropout", edge_dropout, closed=False)
        self.edge_dropout = edge_dropout

    @classmethod
    def check_graph(cls, graph: Propagation) -> None:
        """See `GraphModel.check_graph`: what is left of the edges is normalised as one graph."""
        super().check_graph(graph)
        if graph.num_edge_types > 1:
            graph.require_whole("DropEdge")

    def _forward(  # type: ignore[override]
        self, x: Features, graph: Propagation, keys: Sequence[Tensor | None]
    ) -> Tensor:
        """All layers on one subset, which ``keys[0]`` names: a GCN has no encoder to use it."""
        if (key := keys[0]) is None or self.edge_dropout == 0:
            return super()._forward(x, graph, keys)
        return super()._forward(x, EdgeSubset.draw(graph, self.edge_dropout, key), keys)
