"""Many graphs as one: which graph every node is of, and one output per graph from those of its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import get_args

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, choices
from graphjoule.graph.edges import as_int64
from graphjoule.tasks.encoders import PoolingName


@dataclass(frozen=True, eq=False)
class Pooling:
    """The mean, sum or maximum of a model's outputs over the nodes of every graph.

    Outputs are pooled, not embeddings. Where the last layer is linear without a bias, as PyG's ``Linear`` after
    ``global_mean_pool``, mean and sum are the same before and after it; a bias is added once by the mean and once per
    node by the sum.

    Attributes:
        batch: number of its graph for every node, from 0, like PyG's ``batch``; every graph has a node.
        how: "mean", "sum" or "max".

    Example:
        >>> Pooling(torch.tensor([0, 0, 1]))(torch.tensor([[1.0], [3.0], [5.0]]))
        tensor([[2.],
                [5.]])
    """

    batch: Tensor
    how: PoolingName = "mean"
    sizes: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.how not in get_args(PoolingName):
            raise GraphjouleError(f"The pooling is {self.how!r}; the choices are: {choices(get_args(PoolingName))}.")
        batch = as_int64(self.batch, "The graph numbers of nodes have")
        if batch.dim() != 1 or not batch.numel() or int(batch.min()) < 0:
            raise GraphjouleError(
                f"The graph numbers of nodes have shape {list(batch.shape)}"
                + (f" and begin at {int(batch.min())}" if batch.numel() else "")
                + "; expected one number from 0 for every node."
            )
        object.__setattr__(self, "batch", batch)
        object.__setattr__(self, "sizes", torch.bincount(batch))
        if not bool(self.sizes.all()):
            empty = int((self.sizes == 0).nonzero()[0])
            raise GraphjouleError(f"Graph {empty} of {self.num_graphs} has no node; number the graphs from 0 on.")

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        return self.sizes.numel()

    def __call__(self, output: Tensor, center: Tensor | float = 0.0) -> Tensor:
        """One output per graph, shape ``[num_graphs, out_channels]``.

        Args:
            output: of every node, shape ``[num_nodes, out_channels]``.
            center: what all outputs have in common; it stays as it is, where a sum would multiply it.
        """
        output = output - center
        pooled = output.new_zeros(self.num_graphs, output.size(1))
        if self.how == "max":
            index = self.batch[:, None].expand(-1, output.size(1))
            pooled = pooled.scatter_reduce(0, index, output, "amax", include_self=False)
        else:
            pooled = pooled.index_add(0, self.batch, output)
        if self.how == "mean":
            pooled = pooled / self.sizes[:, None]
        return pooled + center

    def to(self, device: torch.device | str | None) -> Pooling:
        """The same on another device."""
        return replace(self, batch=self.batch.to(device))
