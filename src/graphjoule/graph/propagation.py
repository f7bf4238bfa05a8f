"""The graph as the operator every layer applies: ``P = D~^-1/2 (A + I) D~^-1/2``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.csr import (
    Rows,
    csr_matmul,
    csr_tensor,
    entries_of_rows,
    kept_property,
    outside_transforms,
    row_of_entries,
    row_starts,
)
from graphjoule.graph.edges import check_edges, check_fixed, check_symmetric, merge_edges, with_loops
from graphjoule.graph.laplacian import Laplacian
from graphjoule.graph.nodes import Nodes, moved

LEAST_BOUND = 1e-3
"""See `Propagation.laplacian_bound`."""


@dataclass(frozen=True, eq=False)
class Propagation(Nodes):
    """The normalised adjacency ``P = D~^-1/2 (A + I) D~^-1/2`` of an undirected graph, with ``D~ = D + I``.

    Built once per graph, kept as CSR with 32-bit indices, exactly symmetric, so that the backward product of a layer is
    the same product again.

    Attributes:
        rowptr: start of every row in `col` and `value`, shape ``[num_nodes + 1]``.
        col: column of every stored entry, sorted within a row; the diagonal is always stored.
        value: the entries of ``P``.
        degree: weighted degree ``d_i`` of every node *without* the self-loop, in float64.
        matrix: the same as a torch CSR matrix.
        diagonal: position of every diagonal entry in `value`.

    Example:
        >>> graph = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
        >>> graph.to_dense()
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """

    rowptr: Tensor
    col: Tensor
    value: Tensor
    degree: Tensor
    matrix: Tensor = field(init=False, repr=False)
    diagonal: Tensor = field(init=False, repr=False)

    is_directed: ClassVar[bool] = False  # whether an edge counts in one direction alone, so that P is not symmetric
    has_known_kernel: ClassVar[bool] = True  # whether that of `laplacian.scaled()`, sqrt(1 + d), is that of I - P

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", csr_tensor(self.rowptr, self.col, self.value, self.shape))
        object.__setattr__(self, "diagonal", (self.row() == self.col).nonzero().flatten())

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        num_nodes: int | None = None,
        *,
        symmetrize: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Propagation:
        """Build the operator from PyG's ``edge_index``.

        Self-loops are dropped before the identity is added. Duplicate edges are merged: they count once without weights
        and add up with weights. Edges of weight zero are no edges.

        Args:
            edge_index: integer tensor of shape ``[2, num_edges]``; an undirected edge is stored in both directions.
            edge_weight: finite, non-negative weight of every edge, shape ``[num_edges]``.
            num_nodes: number of nodes; by default the largest index plus one.
            symmetrize: make a directed graph undirected: an edge weighs the larger of its two directions.
            dtype: dtype of the entries of ``P``, computed in float64 and rounded once; by default torch's default.
        """
        if dtype is not None and not dtype.is_floating_point:
            raise GraphjouleError(f"dtype is {dtype}; the entries of P are fractions: expected one like torch.float32.")
        check_fixed(edge_weight)  # here, for outside of a transform nothing has a derivative
        with outside_transforms():
            (row, col), given, num_nodes = check_edges(edge_index, edge_weight, num_nodes)
            weight = torch.ones(row.numel(), dtype=torch.float64) if given is None else given
            kept = (row != col) & (weight > 0)
            row, col, weight = row[kept], col[kept], weight[kept]
            row, col, weight = merge_edges(row, col, weight, num_nodes, reduce="max" if edge_weight is None else "sum")
            if symmetrize:
                both = torch.cat([row, col]), torch.cat([col, row]), weight.repeat(2)
                row, col, weight = merge_edges(*both, num_nodes, reduce="max")
            else:
                check_symmetric(row, col, weight, num_nodes)
            row, col, weight, degree = with_loops(row, col, weight, num_nodes, 1.0)
            scale = (degree + 1).rsqrt()
            # The scales are multiplied first: a product of two numbers commutes exactly, so P[i, j] == P[j, i] to the
            # bit.
            value = (weight * (scale[row] * scale[col])).to(dtype or torch.get_default_dtype())
            return cls(row_starts(row, num_nodes), col.int(), value, degree)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.rowptr.numel() - 1

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns, the same unless these are some rows of a larger operator."""
        return self.num_nodes, self.num_nodes

    @property
    def num_edge_types(self) -> int:
        """How many types of edges have operators of their own; 1 where all are one."""
        return 1

    @property
    def num_edges(self) -> int:
        """Number of undirected edges, self-loops not counted."""
        return (self.col.numel() - self.num_nodes) // 2

    @kept_property
    def edge_index(self) -> Tensor:
        """Both directions of every edge, without self-loops, as PyG modules take them: int64, ``[2, 2 num_edges]``.

        Sorted by the first end, then by the second. Duplicates are merged and directed graphs made undirected, as in
        ``P``.
        """
        row, col = self.row(), self.col.long()
        return torch.stack([row, col])[:, row != col]

    @property
    def entry_weight(self) -> Tensor:
        """Weight ``a_ij`` of every stored entry, float64, with zeros on the diagonal."""
        return self.laplacian.weight

    @kept_property
    def edge_weight(self) -> Tensor:
        """Weight ``a_ij`` of every column of `edge_index`, in the dtype of ``P``; 1 for edges given without weights."""
        return self.entry_weight[self.row() != self.col].to(self.dtype)

    @property
    def transposed(self) -> Propagation:
        """``P^T``, by which gradients go back: ``P`` itself."""
        return self

    @property
    def undirected(self) -> Propagation:
        """The graph that energies are measured on: this one."""
        return self

    def new_rows(self, old: Propagation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows, columns, values and weights of the entries that new nodes add to a graph whose own do not change.

        Args:
            old: the graph; this one has its nodes first, and the new ones after them.
        """
        row, col, weight = self.row(), self.col.long(), self.entry_weight
        is_new = row >= old.num_nodes
        row, col, weight = row[is_new], col[is_new], weight[is_new]
        scale = (torch.cat([old.degree, self.degree[old.num_nodes :]]) + 1).rsqrt()
        return row, col, torch.where(row == col, 1.0, weight) * (scale[row] * scale[col]), weight

    @kept_property
    def is_weighted(self) -> bool:
        """Whether an edge weighs anything but 1, up to the rounding of ``P``."""
        weight = self.edge_weight
        return not torch.allclose(weight, torch.ones_like(weight), rtol=0, atol=8 * torch.finfo(self.dtype).eps)

    @property
    def device(self) -> torch.device:
        """Where the operator lives."""
        return self.value.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the entries of ``P``."""
        return self.value.dtype

    @outside_transforms()
    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same operator on another device, or with entries of another dtype; itself where nothing changes."""
        value = self.value.to(device=device, dtype=dtype)
        return self if value is self.value else replace(self, **moved(self, device, value=value))

    def __deepcopy__(self, memo: Any) -> Self:
        """Itself: it never changes."""
        return self

    def gather_halo(self, x: Tensor) -> Tensor:
        """The features of all nodes that the columns name, which may be more than those of the rows.

        Args:
            x: features of the rows, shape ``[..., num_nodes, channels]``.

        Returns:
            Shape ``[..., num_columns, channels]``; of a whole graph `x` itself.
        """
        return x

    def product(self, x: Tensor) -> Tensor:
        """``P X`` in plain torch, shape ``[num_nodes, channels]``; `graphjoule.ops.propagate` chooses faster ways.

        Args:
            x: features of all nodes that the columns name, shape ``[num_columns, channels]``.
        """
        return csr_matmul(self.matrix, x)

    def mixed(self, a: float, alpha: float) -> Tensor:
        """The entries of ``a P + alpha I``, which has the pattern of ``P``, to be read only.

        They are kept until another mixture is asked for: all layers of a network ask for the same.
        """
        key, value = self._mixture.get("latest", (None, self.value))
        if key != (a, alpha):
            with outside_transforms():
                value = a * self.value
                value[self.diagonal] += alpha
            self._mixture["latest"] = ((a, alpha), value)
        return value

    @kept_property
    def _mixture(self) -> dict[str, tuple[tuple[float, float], Tensor]]:
        return {}

    @kept_property
    def largest_degree(self) -> float:
        """The largest weighted degree, of the whole graph; waits for the device once."""
        return float(self.degree.max()) if self.num_nodes else 0.0

    @property
    def laplacian_bound(self) -> float:
        """A number that no eigenvalue of ``I - P`` exceeds: ``2 d / (1 + d)`` with the largest degree ``d``.

        By Gershgorin's circles: ``I - P`` is similar to ``I - D~^-1 (A + I)``, whose row of a node of degree ``d`` has
        ``d / (1 + d)`` on the diagonal and as much beside it. Rings of even length reach it. It is never below 0.001,
        so that what is divided by it is a number where there are no edges.

        Example:
            >>> ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
            >>> Propagation.from_edge_index(ring, symmetrize=True).laplacian_bound
            1.3333333333333333
        """
        return max(2 * self.largest_degree / (1 + self.largest_degree), LEAST_BOUND)

    @kept_property
    def rows(self) -> Rows:
        """The pattern with hubs apart, made at first use."""
        return Rows.of(self.rowptr, self.col)

    @kept_property
    def laplacian(self) -> Laplacian:
        """``D - A`` with the weights ``a_ij`` in float64, made at first use."""
        scale = (1 + self.degree).sqrt()
        return Laplacian.of(self.rowptr, self.col, self._weights(scale), scale)

    def _weights(self, scale: Tensor) -> Tensor:
        """The weights ``a_ij`` from the entries of ``P`` and ``sqrt(1 + d)`` of every column; rows come first."""
        row, col = self.row(), self.col.long()
        weight = torch.where(row == col, 0, self.value.double() * (scale[row] * scale[col]))
        # Entries of P are rounded to its dtype; whole weights are restored, as the exact degree confirms.
        whole = weight.round()
        near = torch.allclose(weight, whole, rtol=4 * torch.finfo(self.dtype).eps, atol=0)
        if near and self.degree.equal(torch.zeros_like(self.degree).index_add(0, row, whole)):
            return whole
        return weight

    @property
    def column_degree(self) -> Tensor:
        """Weighted degree of every node that the columns name, those of the rows first."""
        return self.degree

    def edge_ids(self) -> tuple[Tensor, Tensor, int]:
        """The number of every stored entry, that of the entry across the diagonal, and how many numbers there are."""
        position = torch.arange(self.col.numel(), dtype=torch.int32, device=self.device)
        # Entries are sorted by row, then column; a stable sort by column puts each in its mirror image's place.
        return position, torch.argsort(self.transposed.col, stable=True).int(), self.col.numel()

    @outside_transforms()
    def induced(self, nodes: Tensor) -> Propagation:
        """The rows and columns of ``P`` that belong to some nodes, its entries as they are.

        A neighbour that is there weighs what it weighs in the whole graph; one that is not there is missing. To
        normalise the subgraph anew, so that the neighbours at hand weigh more, was worse by validation on Physics: in
        seven pairs of runs on clusters (2 and 8 layers, 50 clusters, 1 and 5 per step) its loss was 10 to 34 % higher,
        its accuracy never higher (``operator-*.json`` in ``reproduction/results/clusters``).

        Args:
            nodes: which nodes, ascending.

        Returns:
            The operator with node ``nodes[i]`` as number i, and with the degrees of the whole graph. Where neighbours
            are missing it is an `InducedPropagation`.

        Example:
            >>> path = Propagation.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 3]]), symmetrize=True)
            >>> path.induced(torch.tensor([0, 1, 3])).to_dense()
            tensor([[0.5000, 0.4082, 0.0000],
                    [0.4082, 0.3333, 0.0000],
                    [0.0000, 0.0000, 0.5000]])
        """
        number = torch.full((self.num_nodes,), -1, dtype=torch.int32, device=self.device)
        number[nodes] = torch.arange(len(nodes), dtype=torch.int32, device=self.device)
        row, entry = entries_of_rows(self.rowptr, nodes)
        col = number[self.col[entry].long()]
        kept = col >= 0
        row, col, value = row[kept], col[kept], self.value[entry[kept]]
        kind = Propagation if self.has_known_kernel and bool(kept.all()) else InducedPropagation
        return kind(row_starts(row, len(nodes)), col, value, self.degree[nodes])

    def blocks(self, count: int) -> list[tuple[int, int]]:
        """Cut the nodes into at most `count` runs that no edge joins, about as long as each other.

        Returns:
            The first node of every run and that after its last, in order.

        Example:
            >>> Propagation.from_edge_index(torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])).blocks(2)
            [(0, 2), (2, 4)]
        """
        if count < 2:
            return [(0, self.num_nodes)]
        # No earlier node reads from beyond a cut and no later one from before it; columns are sorted within a row.
        farthest = self.col[self.rowptr[1:].long() - 1].cummax(dim=0).values
        nearest = self.col[self.rowptr[:-1].long()].flip(0).cummin(dim=0).values.flip(0)
        node = torch.arange(self.num_nodes, device=self.device)
        ends = ((farthest == node) & (nearest.roll(-1) == (node + 1) % self.num_nodes)).nonzero()[:, 0] + 1
        piece = ends * count // (self.num_nodes + 1)
        return list(pairwise([0, *ends[piece.diff(append=piece[-1:] + 1) > 0].tolist()]))

    @property
    def drawn(self) -> tuple[Tensor, ...]:
        """The tensors of a random choice among the edges, which `redrawn` takes; a graph of all edges has none."""
        return ()

    def redrawn(self, *drawn: Tensor) -> Self:
        """The operator of the same graph with other tensors of a choice; of all edges itself."""
        return self

    def require_whole(self, what: str) -> None:
        """Refuse what needs the whole graph where this is not all of it.

        Args:
            what: what needs it, the subject of a sentence.
        """

    def row(self) -> Tensor:
        """Row of every stored entry, the counterpart of `col`."""
        return row_of_entries(self.rowptr)

    def to_dense(self) -> Tensor:
        """``P`` as a dense matrix, shape ``[num_nodes, num_nodes]``."""
        dense = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        dense[self.row(), self.col.long()] = self.value
        return dense


@dataclass(frozen=True, eq=False)
class InducedPropagation(Propagation):
    """A part of a graph whose nodes have neighbours outside of it, see `Propagation.induced`.

    A node has the degree of the whole graph but not all of its neighbours, so that ``P`` shrinks ``sqrt(1 + d)``.
    """

    has_known_kernel = False


@dataclass(frozen=True, eq=False)
class WeightedPropagation(Propagation):
    """An operator whose entries and degrees do not give the weights of the edges, so that it keeps them.

    Attributes:
        weight: ``a_ij`` of every stored entry, with zeros on the diagonal, float64.
    """

    weight: Tensor
    has_known_kernel = False

    @property
    def entry_weight(self) -> Tensor:
        """See `Propagation.entry_weight`."""
        return self.weight

    @kept_property
    def edge_index(self) -> Tensor:
        """Every edge as PyG modules take it: from the node that is read, to the node that reads it."""
        row, col = self.row(), self.col.long()
        return torch.stack([col, row])[:, row != col]


def as_propagation(
    graph: Propagation | Tensor, num_nodes: int, like: Tensor, edge_weight: Tensor | None = None
) -> Propagation:
    """The operator of `graph`, a `Propagation` or an ``edge_index``, checked against the number of nodes.

    A plain ``edge_index`` is normalised anew at every call; build a `Propagation` once where speed matters.

    Args:
        graph: a `Propagation`, or an ``edge_index`` that stores both directions of each edge.
        num_nodes: number of rows of the features it will multiply.
        like: a tensor with the dtype and device that a new operator takes.
        edge_weight: weight of every edge of an ``edge_index``; a `Propagation` has its own.
    """
    if isinstance(graph, Tensor):
        graph = Propagation.from_edge_index(graph, edge_weight, num_nodes, dtype=like.dtype).to(like.device)
    elif not isinstance(graph, Propagation):
        raise GraphjouleError(
            f"The graph is of type {type(graph).__name__}; expected a Propagation, or an edge_index as a tensor."
        )
    elif edge_weight is not None:
        raise GraphjouleError("edge_weight was given beside a Propagation, which has its own weights; leave it out.")
    if graph.num_nodes != num_nodes:
        raise GraphjouleError(f"The graph has {graph.num_nodes} nodes but the features have {num_nodes} rows.")
    return graph


def exact_propagation(graph: Propagation | Tensor, num_nodes: int | None = None) -> Propagation:
    """The operator of `graph` for theory, where no features set its dtype: of an ``edge_index`` it is in float64.

    Args:
        graph: a `Propagation`, or an ``edge_index`` that stores both directions of each edge.
        num_nodes: number of nodes of an ``edge_index``; by default the largest it names plus one.
    """
    if isinstance(graph, Tensor):
        return Propagation.from_edge_index(graph, num_nodes=num_nodes, dtype=torch.float64)
    if not isinstance(graph, Propagation):
        raise GraphjouleError(f"The graph is of type {type(graph).__name__}; expected a Propagation or an edge_index.")
    graph.require_whole("This")
    return graph
