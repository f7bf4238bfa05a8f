"""The graph as the operator every layer applies: ``P = D~^-1/2 (A + I) D~^-1/2``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from graphjoule.csr import Rows, csr_tensor, row_of_entries
from graphjoule.errors import GraphjouleError
from graphjoule.laplacian import Laplacian


@dataclass(frozen=True, eq=False)
class Propagation:
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

    def __post_init__(self) -> None:
        shape = (self.num_nodes, self.num_nodes)
        object.__setattr__(self, "matrix", csr_tensor(self.rowptr, self.col, self.value, shape))
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
        num_nodes = _check_edges(edge_index, edge_weight, num_nodes)
        row, col = edge_index.cpu().long()
        weight = torch.ones(row.numel(), dtype=torch.float64) if edge_weight is None else edge_weight.cpu().double()
        kept = (row != col) & (weight > 0)
        row, col, weight = row[kept], col[kept], weight[kept]
        row, col, weight = _merge(row, col, weight, num_nodes, reduce="max" if edge_weight is None else "sum")
        if symmetrize:
            both = torch.cat([row, col]), torch.cat([col, row]), weight.repeat(2)
            row, col, weight = _merge(*both, num_nodes, reduce="max")
        else:
            _check_symmetric(row, col, weight, num_nodes)
        return cls._normalised(row, col, weight, num_nodes, dtype or torch.get_default_dtype())

    @classmethod
    def _normalised(cls, row: Tensor, col: Tensor, weight: Tensor, num_nodes: int, dtype: torch.dtype) -> Propagation:
        """P from the merged, symmetric, loop-free adjacency."""
        degree = torch.zeros(num_nodes, dtype=torch.float64).index_add_(0, row, weight)
        loop = torch.arange(num_nodes)
        row, col = torch.cat([row, loop]), torch.cat([col, loop])
        weight = torch.cat([weight, torch.ones(num_nodes, dtype=torch.float64)])
        order = torch.argsort(row * num_nodes + col)
        row, col, weight = row[order], col[order], weight[order]
        scale = (degree + 1).rsqrt()
        # The scales are multiplied first: a product of two numbers commutes exactly, so P[i, j] == P[j, i] to the bit.
        value = (weight * (scale[row] * scale[col])).to(dtype)
        rowptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
        rowptr[1:] = torch.bincount(row, minlength=num_nodes).cumsum(0)
        return cls(rowptr.int(), col.int(), value, degree)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.rowptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of undirected edges, self-loops not counted."""
        return (self.col.numel() - self.num_nodes) // 2

    @property
    def device(self) -> torch.device:
        """Where the operator lives."""
        return self.value.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the entries of ``P``."""
        return self.value.dtype

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Propagation:
        """The same operator on another device, or with entries of another dtype; itself where nothing changes."""
        value = self.value.to(device=device, dtype=dtype)
        if value is self.value:
            return self
        rowptr, col, degree = (t.to(device) for t in (self.rowptr, self.col, self.degree))
        return Propagation(rowptr, col, value, degree)

    @cached_property
    def rows(self) -> Rows:
        """The pattern with hubs apart, made at first use."""
        return Rows.of(self.rowptr, self.col)

    @cached_property
    def laplacian(self) -> Laplacian:
        """``D - A`` with the weights ``a_ij`` in float64, made at first use."""
        row, col = self.row(), self.col.long()
        scale = (1 + self.degree).sqrt()
        weight = torch.where(row == col, 0, self.value.double() * (scale[row] * scale[col]))
        # Entries of P are rounded to its dtype; whole weights are had back, as the exact degree confirms.
        whole = weight.round()
        near = torch.allclose(weight, whole, rtol=4 * torch.finfo(self.dtype).eps, atol=0)
        if near and self.degree.equal(torch.zeros_like(self.degree).index_add(0, row, whole)):
            weight = whole
        return Laplacian.of(self.rowptr, self.col, weight, scale)

    def row(self) -> Tensor:
        """Row of every stored entry, the counterpart of `col`."""
        return row_of_entries(self.rowptr)

    def to_dense(self) -> Tensor:
        """``P`` as a dense matrix, shape ``[num_nodes, num_nodes]``."""
        dense = torch.zeros(self.num_nodes, self.num_nodes, dtype=self.dtype, device=self.device)
        dense[self.row(), self.col.long()] = self.value
        return dense


def as_propagation(graph: Propagation | Tensor, num_nodes: int, like: Tensor) -> Propagation:
    """The operator of `graph`, whichever way it was given, checked against the number of nodes.

    A plain ``edge_index`` is normalised anew at every call; build a `Propagation` once where speed matters.

    Args:
        graph: a `Propagation`, or an ``edge_index`` that stores both directions of each edge.
        num_nodes: number of rows of the features it will multiply.
        like: a tensor with the dtype and device that a new operator takes.
    """
    if isinstance(graph, Tensor):
        graph = Propagation.from_edge_index(graph, num_nodes=num_nodes, dtype=like.dtype).to(like.device)
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
    return graph


def _check_edges(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int | None) -> int:
    """Refuse edges that cannot be a graph; returns the number of nodes."""
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise GraphjouleError(f"edge_index has shape {list(edge_index.shape)}; expected [2, num_edges].")
    if edge_index.dtype.is_floating_point or edge_index.dtype.is_complex or edge_index.dtype == torch.bool:
        raise GraphjouleError(
            f"edge_index has dtype {edge_index.dtype}; expected an integer dtype such as torch.int64."
        )
    largest = int(edge_index.max()) if edge_index.numel() else -1
    if num_nodes is None:
        num_nodes = largest + 1
    if num_nodes < 1:
        raise GraphjouleError(
            f"The graph has {num_nodes} nodes; at least one is needed. Pass num_nodes if it has no edges."
        )
    smallest = int(edge_index.min()) if edge_index.numel() else 0
    if smallest < 0 or largest >= num_nodes:
        wrong = smallest if smallest < 0 else largest
        raise GraphjouleError(f"edge_index names node {wrong}; with {num_nodes} nodes it must be 0 to {num_nodes - 1}.")
    if edge_weight is not None:
        _check_weights(edge_weight, edge_index.size(1))
    return num_nodes


def _check_weights(edge_weight: Tensor, num_edges: int) -> None:
    if edge_weight.shape != (num_edges,):
        raise GraphjouleError(f"edge_weight has shape {list(edge_weight.shape)}; expected [{num_edges}], one per edge.")
    wrong = ~torch.isfinite(edge_weight) | (edge_weight < 0)
    if wrong.any():
        at = int(wrong.nonzero()[0])
        value = float(edge_weight[at])
        raise GraphjouleError(f"edge_weight[{at}] is {value}; weights must be finite and not negative.")


def _merge(row: Tensor, col: Tensor, weight: Tensor, num_nodes: int, reduce: str) -> tuple[Tensor, Tensor, Tensor]:
    """One entry per (row, col), sorted; weights of duplicates are reduced in order of size.

    The order matters: summed in any other, the two directions of an edge could differ in the last bit.
    """
    by_weight = torch.argsort(weight)
    row, col, weight = row[by_weight], col[by_weight], weight[by_weight]
    key, inverse = torch.unique(row * num_nodes + col, return_inverse=True)
    merged = torch.zeros(key.numel(), dtype=torch.float64).scatter_reduce_(
        0, inverse, weight, reduce="amax" if reduce == "max" else "sum"
    )
    return key // num_nodes, key % num_nodes, merged


def _check_symmetric(row: Tensor, col: Tensor, weight: Tensor, num_nodes: int) -> None:
    order = torch.argsort(col * num_nodes + row)
    same = row.equal(col[order]) and col.equal(row[order])
    if not same:
        mirrored = torch.isin(col * num_nodes + row, row * num_nodes + col)
        at = int((~mirrored).nonzero()[0])
        found = f"the edge {int(row[at])} -> {int(col[at])} has no edge back"
    elif not weight.equal(weight[order]):
        at = int((weight != weight[order]).nonzero()[0])
        found = f"the edge {int(row[at])} -> {int(col[at])} has another weight than its edge back"
    else:
        return
    raise GraphjouleError(
        f"The graph is directed: {found}. An undirected graph is expected; "
        "pass symmetrize=True to let each edge count in both directions."
    )
