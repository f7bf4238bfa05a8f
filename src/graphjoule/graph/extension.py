"""A graph with new nodes that read from the old ones, while nothing about the old ones changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.csr import kept_property, row_starts
from graphjoule.graph.laplacian import Laplacian
from graphjoule.graph.propagation import Propagation, WeightedPropagation
from graphjoule.graph.relations import DirectedPropagation, MixedPropagation


@dataclass(frozen=True, eq=False)
class ExtendedPropagation(WeightedPropagation):
    """A graph and new nodes after its own: rows of old nodes are as they were, new rows have degrees of their own.

    The entry of a new node i and any node j is ``a_ij / sqrt((d_i + 1) (d_j + 1))``, where an old j has its old degree;
    the entry across the diagonal is missing if j is old. So a model gives old nodes the embeddings they had, and new
    nodes what their neighbours' say. Means over all nodes, as in PairNorm, go over the old ones. It is for predicting
    alone: gradients need a symmetric operator.

    Attributes:
        num_old: how many nodes were there before.

    Example:
        >>> old = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
        >>> links = Propagation.from_edge_index(torch.tensor([[1, 2], [2, 1]]))
        >>> ExtendedPropagation.of(old, links).to_dense()
        tensor([[0.5000, 0.5000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.0000, 0.5000, 0.5000]])
    """

    num_old: int

    @classmethod
    def of(cls, old: Propagation, links: Propagation) -> ExtendedPropagation:
        """Add new nodes to a graph.

        Args:
            old: the graph.
            links: a graph of the old nodes and then the new ones, with the edges that have a new end; edges between two
                old nodes do not count.
        """
        num_old, num_nodes = old.num_nodes, links.num_nodes
        row, col, value, weight = links.new_rows(old)
        degree = torch.cat([old.degree, links.degree[num_old:]])
        # Rows of new nodes follow those of the old ones, and their entries are sorted as `links` has them.
        starts = row_starts(row - num_old, num_nodes - num_old).to(old.rowptr)
        rowptr = torch.cat([old.rowptr, old.rowptr[-1] + starts[1:]])
        values = torch.cat([old.value, value.to(old.dtype)])
        weights = torch.cat([old.entry_weight, weight])
        return cls(rowptr, torch.cat([old.col, col.int()]), values, degree, weights, num_old)

    @property
    def num_edges(self) -> int:
        """Number of edges, self-loops not counted; one that is read in one direction counts too."""
        row, col = self.row(), self.col
        one_way = int(((row >= self.num_old) & (col < self.num_old)).sum())
        return (self.col.numel() - self.num_nodes + one_way) // 2

    @kept_property
    def largest_degree(self) -> float:
        """That of the old graph: a step that is chosen by it is the one that the model was trained with."""
        return float(self.degree[: self.num_old].max()) if self.num_old else 0.0

    @kept_property
    def laplacian(self) -> Laplacian:
        """Refused: an edge that is read in one direction has no energy."""
        self.require_whole("A Dirichlet energy")

    def require_whole(self, what: str) -> NoReturn:
        """See `Propagation.require_whole`."""
        raise GraphjouleError(
            f"{what} needs a graph whose edges go both ways, and here new nodes read from old ones alone; build the "
            "graph of all nodes for it."
        )

    def global_mean(self, x: Tensor, dim: int = 0) -> Tensor:
        """The mean over the old nodes, as it was without the new ones."""
        return x.narrow(dim, 0, self.num_old).mean(dim=dim)


def links_to(neighbor: Tensor, old: Propagation, weight: float = 1.0) -> Propagation:
    """The graph that links every new node with some old ones, for `ExtendedPropagation.of`.

    Args:
        neighbor: old nodes of each new one, shape ``[num_new, k]``.
        old: the old graph; where its edges have directions, the links lead to the new nodes, and where they are of
            several types, the links are of all.
        weight: of every link.
    """
    if isinstance(old, MixedPropagation):
        return MixedPropagation.of([links_to(neighbor, part, weight) for part in old.parts])
    num_old, (num_new, k) = old.num_nodes, neighbor.shape
    new = torch.arange(num_old, num_old + num_new).repeat_interleave(k)
    weights = torch.full((num_new * k,), weight, dtype=torch.float64)
    index = torch.stack([neighbor.flatten(), new])
    if old.is_directed:
        return DirectedPropagation.of(index, weights, num_old + num_new, dtype=torch.float64)
    return Propagation.from_edge_index(index, weights, num_old + num_new, symmetrize=True, dtype=torch.float64)


def joined(old: Propagation, links: Propagation) -> Propagation:
    """The graph of all nodes and edges, in which new nodes change the degrees and embeddings of the old ones.

    Args:
        old: the graph.
        links: a graph of the old nodes and then the new ones; an edge that `old` has too adds its weight, or counts
            once where no edge weighs anything but 1.
    """
    if isinstance(old, MixedPropagation) and isinstance(links, MixedPropagation):
        return MixedPropagation.of([joined(*pair) for pair in zip(old.parts, links.parts, strict=True)])
    edges = torch.cat([graph.edge_index for graph in (old, links)], dim=1)
    weights = torch.cat([graph.entry_weight[graph.row() != graph.col] for graph in (old, links)])
    is_weighted = old.is_weighted or links.is_weighted
    build = DirectedPropagation.of if old.is_directed else Propagation.from_edge_index
    return build(edges, weights if is_weighted else None, links.num_nodes, dtype=old.dtype)
