"""Edges that keep their direction, and edges of several types: operators beside that of one undirected graph.

Both are for models that take any linear operator. Dirichlet energies and bounds are about symmetric operators of one
graph; they are measured on the graph in which edges count in both directions and types are merged: `undirected`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, Self

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.csr import kept_property, outside_transforms, row_starts
from graphjoule.graph.edges import check_edges, check_fixed, merge_edges, with_loops
from graphjoule.graph.laplacian import Laplacian
from graphjoule.graph.propagation import Propagation, WeightedPropagation


@dataclass(frozen=True, eq=False)
class RelationPropagation(WeightedPropagation):
    """What operators of directed and of typed edges have in common."""

    @kept_property
    def transposed(self) -> Propagation:
        """``P^T``, by which gradients go back; itself where ``P`` is symmetric."""
        if not self.is_directed:
            return self
        order = torch.argsort(self.col, stable=True)  # entries are sorted by row, then column
        col, value, weight = self.row()[order].int(), self.value[order], self.weight[order]
        back = DirectedPropagation(row_starts(self.col.long(), self.num_nodes), col, value, self.degree, weight)
        back.__dict__["transposed"] = self
        return back

    @property
    def num_edges(self) -> int:
        """Number of edges, self-loops not counted; of directed ones each direction counts."""
        return (self.col.numel() - self.num_nodes) // (1 if self.is_directed else 2)

    @kept_property
    def undirected(self) -> Propagation:
        """The graph in which every edge counts in both directions and all types are one: the energies are its own."""
        weight = self.weight[self.row() != self.col]
        graph = Propagation.from_edge_index(self.edge_index, weight, self.num_nodes, symmetrize=True, dtype=self.dtype)
        return graph.to(self.device)

    @kept_property
    def laplacian(self) -> Laplacian:
        """That of the `undirected` graph."""
        return self.undirected.laplacian

    def induced(self, nodes: Tensor) -> NoReturn:
        """Refused, see `require_whole`."""
        self.require_whole("A part of a graph")

    def require_whole(self, what: str) -> NoReturn:
        """See `Propagation.require_whole`."""
        raise GraphjouleError(
            f"{what} needs one undirected graph, and here edges keep their direction or are of several types; take "
            "`direction=both` and merge the types."
        )


@dataclass(frozen=True, eq=False)
class DirectedPropagation(RelationPropagation):
    """``P = D_in~^-1 (A^T + I)``: a node takes the mean of itself and of the nodes whose edges lead to it.

    Rows sum to 1. A node that no edge leads to keeps its features.

    Example:
        >>> DirectedPropagation.of(torch.tensor([[0, 1], [1, 2]])).to_dense()
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.0000, 0.5000, 0.5000]])
    """

    is_directed = True

    @classmethod
    def of(
        cls,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        num_nodes: int | None = None,
        *,
        dtype: torch.dtype | None = None,
    ) -> DirectedPropagation:
        """Build it from PyG's ``edge_index``, sources in the first row, as `Propagation.from_edge_index` does.

        Args:
            edge_index: integer tensor of shape ``[2, num_edges]``.
            edge_weight: finite, non-negative weight of every edge, shape ``[num_edges]``.
            num_nodes: number of nodes; by default the largest index plus one.
            dtype: dtype of the entries of ``P``; by default torch's default.
        """
        check_fixed(edge_weight)
        with outside_transforms():
            (source, target), given, num_nodes = check_edges(edge_index, edge_weight, num_nodes)
            weight = torch.ones(source.numel(), dtype=torch.float64) if given is None else given
            kept = (source != target) & (weight > 0)
            row, col, weight = merge_edges(
                target[kept], source[kept], weight[kept], num_nodes, reduce="max" if given is None else "sum"
            )
            row, col, weight, degree = with_loops(row, col, weight, num_nodes, 0.0)
            value = (torch.where(row == col, 1.0, weight) / (degree + 1)[row]).to(dtype or torch.get_default_dtype())
            return cls(row_starts(row, num_nodes), col.int(), value, degree, weight)

    def new_rows(self, old: Propagation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `Propagation.new_rows`; a row here depends on no other node's degree."""
        row, is_new = self.row(), self.row() >= old.num_nodes
        return row[is_new], self.col.long()[is_new], self.value.double()[is_new], self.weight[is_new]


@dataclass(frozen=True, eq=False)
class MixedPropagation(RelationPropagation):
    """``P = 1/R sum_r P_r``: every type of edges has an operator of its own, normalised by itself, and an equal voice.

    Merged into one graph, a type with many edges would drown the others.

    Attributes:
        parts: the operators of the types, on the same nodes.

    Example:
        >>> likes = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=3)
        >>> knows = Propagation.from_edge_index(torch.tensor([[1, 2], [2, 1]]), num_nodes=3)
        >>> MixedPropagation.of([likes, knows]).to_dense()
        tensor([[0.7500, 0.2500, 0.0000],
                [0.2500, 0.5000, 0.2500],
                [0.0000, 0.2500, 0.7500]])
    """

    parts: tuple[Propagation, ...]

    @classmethod
    def of(cls, parts: Sequence[Propagation]) -> MixedPropagation:
        """The mean of operators, all directed or all not."""
        row, col, value, weight = _mean_entries([_entries(part) for part in parts], parts[0].num_nodes)
        degree = torch.stack([part.degree for part in parts]).sum(dim=0)
        return cls(
            row_starts(row, parts[0].num_nodes), col.int(), value.to(parts[0].dtype), degree, weight, tuple(parts)
        )

    @property
    def num_edge_types(self) -> int:
        """See `Propagation.num_edge_types`."""
        return len(self.parts)

    @property
    def is_directed(self) -> bool:  # type: ignore[override]
        """Whether the types' operators are."""
        return self.parts[0].is_directed

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """See `Propagation.to`; the types' operators go with it."""
        made = super().to(device, dtype)
        return made if made is self else replace(made, parts=tuple(part.to(device, dtype) for part in self.parts))

    def new_rows(self, old: Propagation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `Propagation.new_rows`: the mean of what every type says."""
        assert isinstance(old, MixedPropagation)
        pairs = zip(self.parts, old.parts, strict=True)
        return _mean_entries([part.new_rows(before) for part, before in pairs], self.num_nodes)


Entries = tuple[Tensor, Tensor, Tensor, Tensor]


def _entries(graph: Propagation) -> Entries:
    return graph.row(), graph.col.long(), graph.value.double(), graph.entry_weight


def _mean_entries(parts: Sequence[Entries], num_nodes: int) -> Entries:
    """Rows, columns, mean values and added weights of matrices, sorted by row and column."""
    row, col, value, weight = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    merged_row, merged_col, mean = merge_edges(row, col, value / len(parts), num_nodes, reduce="sum")
    return merged_row, merged_col, mean, merge_edges(row, col, weight, num_nodes, reduce="sum")[2]
