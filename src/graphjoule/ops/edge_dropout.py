"""Dropout of edges: an entry of the graph is masked by a hash of (key, number), never removed, so all shapes stay.

`propagate_dropped` drops the entries of ``P`` itself, each direction and each self-loop by itself, as APPNP does.
`EdgeSubset` drops undirected edges of ``A`` and normalises what is left again, as DropEdge does.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.csr import csr_matmul, csr_tensor, linear_map, of_all_runs
from graphjoule.graph.nodes import Excerpt
from graphjoule.ops.backend import backend_for
from graphjoule.ops.dropout import keep_mask, keep_scale
from graphjoule.ops.propagate import check_rows, propagate


def propagate_dropped(x: Tensor, graph: Propagation, p: float, key: Tensor | None) -> Tensor:
    """``dropout(P) X``: every stored entry of ``P`` is dropped by itself, self-loops too; ``P X`` if `key` is None.

    Args:
        x: node features, shape ``[num_nodes, channels]``.
        graph: the operator ``P``.
        p: probability that an entry is set to zero, in [0, 1); kept ones are divided by ``1 - p``.
        key: dropout key, None for evaluation.

    Returns:
        Shape ``[num_nodes, channels]``; for the gradient only the key is kept.

    Example:
        >>> from graphjoule.ops import make_key
        >>> graph = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
        >>> propagate_dropped(torch.eye(2), graph, 0.5, make_key(0))
        tensor([[1., 1.],
                [1., 0.]])
    """
    if key is None or p == 0:
        return propagate(x, graph)
    check_rows(x, graph)
    return _dropped_product(x, key, graph, 0, p)


@dataclass(frozen=True, eq=False)
class EdgeSubset:
    """A random part of a graph's edges as an operator: ``D~^-1/2 (A' + I) D~^-1/2`` with the degrees of ``A'``.

    ``A'`` keeps each undirected edge with probability ``1 - p``, in both directions or in none, so the operator is
    symmetric like ``P``. Self-loops are never dropped.

    Attributes:
        graph: the whole graph.
        p: probability that an edge is dropped.
        key: dropout key that names the subset.
        scale: ``D~^-1/2``, up to the factor ``sqrt(1 - p)`` that the product takes back, shape ``[num_nodes, 1]``.
    """

    graph: Propagation
    p: float
    key: Tensor
    scale: Tensor

    @classmethod
    def draw(cls, graph: Propagation, p: float, key: Tensor) -> EdgeSubset:
        """The subset that a key names.

        >>> from graphjoule.ops import make_key
        >>> graph = Propagation.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
        >>> EdgeSubset.draw(graph, 0.5, make_key(2)).propagate(torch.eye(3)).round(decimals=4)
        tensor([[1.0000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000],
                [0.0000, 0.5000, 0.5000]])
        """
        ones = torch.ones(graph.num_nodes, 1, dtype=graph.dtype, device=graph.device)
        return cls(graph, p, key, _dropped_product(ones, key, graph, 1, p).rsqrt())

    @property
    def has_gpu_kernels(self) -> bool:
        """See `Nodes`."""
        return self.graph.has_gpu_kernels

    @property
    def drawn(self) -> tuple[Tensor, ...]:
        """See `Propagation.drawn`."""
        return self.key, self.scale

    def redrawn(self, *drawn: Tensor) -> EdgeSubset:
        """See `Propagation.redrawn`."""
        return EdgeSubset(self.graph, self.p, *drawn)

    def propagate(self, x: Tensor) -> Tensor:
        """The product with node features, shape ``[num_nodes, channels]``."""
        check_rows(x, self.graph)
        # Dropout divides by 1 - p, which is in the degrees too: it cancels between the scales and the product.
        return self.scale * _dropped_product(self.scale * x, self.key, self.graph, 1, self.p)


def propagate_over(x: Tensor, graph: Propagation | EdgeSubset) -> Tensor:
    """``P X`` over a whole graph, or over a part of its edges."""
    return propagate(x, graph) if isinstance(graph, Propagation) else graph.propagate(x)


@dataclass(frozen=True, eq=False)
class _Entries:
    """A matrix on the pattern of a graph, and the numbers by which its entries draw their masks.

    Attributes:
        value: the entries.
        number: number of every entry; None is its position.
        mirrored_number: number of the entry across the diagonal, which the transpose has in this place.
        own: factor of an identity matrix that is added and never dropped.
        num_total: how many numbers there are; more than entries where these are some rows of a larger matrix.
    """

    value: Tensor
    number: Tensor | None
    mirrored_number: Tensor
    own: float
    num_total: int


# Sorting once per graph, as `Propagation.rows` does it; an entry goes when its graph goes.
_NUMBERED: WeakKeyDictionary[Propagation, tuple[_Entries, _Entries]] = WeakKeyDictionary()


def _numbered(graph: Propagation) -> tuple[_Entries, _Entries]:
    """The two matrices of a graph whose entries are dropped: ``P``, and ``A`` beside an identity."""
    if graph not in _NUMBERED:
        position, mirror, num_total = graph.edge_ids()
        edge = torch.minimum(position, mirror)
        root = (graph.column_degree + 1).sqrt()
        adjacency = graph.value.double() * root[graph.row()] * root[graph.col.long()]
        adjacency[graph.diagonal] = 0
        number = None if num_total == position.numel() else position
        _NUMBERED[graph] = (
            _Entries(graph.value, number, mirror, 0.0, num_total),
            _Entries(adjacency.to(graph.dtype), edge, edge, 1.0, num_total),
        )
    return _NUMBERED[graph]


def _dropped_product(
    x: Tensor, key: Tensor, graph: Propagation, which: int, p: float, *, transposed: bool = False
) -> Tensor:
    """``(M * V + own I) X / (1 - p)`` with the mask ``M`` of `key`; the gradient is the product with the transpose.

    Args:
        x: node features.
        key: dropout key.
        graph: the pattern; of the transposed product that of the transposed graph.
        which: ``P`` or ``A``, see `_numbered`.
        p: dropout probability.
        transposed: let every entry draw by the number of the one across the diagonal.
    """
    entries = _numbered(graph)[which]
    number, value = entries.mirrored_number if transposed else entries.number, entries.value

    def product(x: Tensor, keys: Tensor) -> Tensor:
        if backend_for(x) == "triton" and graph.has_gpu_kernels:
            from graphjoule.ops.triton_gather import DROP_VALUE, gather

            x, keys = x.contiguous(), keys.contiguous()
            return gather(x, graph.rows, value, alpha=entries.own, drop=DROP_VALUE, p=p, keys=keys, value_id=number)
        if number is not None and entries.num_total != value.numel():  # nothing of the size of the whole graph is made
            mask = keep_mask(keys, value.shape, p, value.dtype, Excerpt(number, entries.num_total))
        else:
            mask = keep_mask(keys, value.shape, p, value.dtype)
            mask = mask if number is None else mask.index_select(1, number)
        runs = zip(value * mask, graph.gather_halo(x), strict=True)
        out = torch.stack([csr_matmul(csr_tensor(graph.rowptr, graph.col, v, graph.shape), run) for v, run in runs])
        return out.add_(x, alpha=entries.own * keep_scale(p)) if entries.own else out

    def adjoint(grad: Tensor, key: Tensor) -> Tensor:
        return _dropped_product(grad, key, graph.transposed, which, p, transposed=not transposed)

    return linear_map(x, of_all_runs(product, 2), key, adjoint=adjoint)
