"""Dropout of edges: an entry of the graph is masked by a hash of (key, number), never removed, so all shapes stay.

`propagate_dropped` drops the entries of ``P`` itself, each direction and each self-loop by itself, as APPNP does.
`EdgeSubset` drops undirected edges of ``A`` and normalises what is left again, as DropEdge does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.csr import csr_tensor, with_signature
from graphjoule.graph.nodes import Excerpt
from graphjoule.ops.backend import backend_for
from graphjoule.ops.dropout import keep_mask, keep_scale
from graphjoule.ops.propagate import propagate


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
    _check_features(x, graph)
    return _dropped_product(x, key, graph, _numbered(graph).operator, p)


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
        return cls(graph, p, key, _dropped_product(ones, key, graph, _numbered(graph).edges, p).rsqrt())

    def propagate(self, x: Tensor) -> Tensor:
        """The product with node features, shape ``[num_nodes, channels]``."""
        _check_features(x, self.graph)
        # Dropout divides by 1 - p, which is in the degrees too: it cancels between the scales and the product.
        edges = _numbered(self.graph).edges
        return self.scale * _dropped_product(self.scale * x, self.key, self.graph, edges, self.p)


def propagate_over(x: Tensor, graph: Propagation | EdgeSubset) -> Tensor:
    """``P X`` over a whole graph, or over a part of its edges."""
    return propagate(x, graph) if isinstance(graph, Propagation) else graph.propagate(x)


def _check_features(x: Tensor, graph: Propagation) -> None:
    if x.dim() != 2 or x.dtype != graph.dtype or x.size(0) != graph.num_nodes:
        raise GraphjouleError(
            f"Cannot propagate features of shape {list(x.shape)}, {x.dtype} over a graph of {graph.num_nodes} nodes, "
            f"{graph.dtype}; use graph.to(dtype=...) to match them."
        )


@dataclass(frozen=True, eq=False)
class _Entries:
    """A symmetric matrix on the pattern of a graph, and the numbers by which its entries draw their masks.

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


@dataclass(frozen=True, eq=False)
class _Numbered:
    """The two matrices of a graph whose entries are dropped: ``P``, and ``A`` beside an identity."""

    operator: _Entries
    edges: _Entries

    @classmethod
    def of(cls, graph: Propagation) -> _Numbered:
        position, mirror, num_total = graph.edge_ids()
        edge = torch.minimum(position, mirror)
        root = (graph.column_degree + 1).sqrt()
        adjacency = graph.value.double() * root[graph.row()] * root[graph.col.long()]
        adjacency[graph.diagonal] = 0
        edges = _Entries(adjacency.to(graph.dtype), edge, edge, 1.0, num_total)
        number = None if num_total == position.numel() else position
        return cls(_Entries(graph.value, number, mirror, 0.0, num_total), edges)


# Sorting once per graph, as `Propagation.rows` does it; an entry goes when its graph goes.
_NUMBERED: WeakKeyDictionary[Propagation, _Numbered] = WeakKeyDictionary()


def _numbered(graph: Propagation) -> _Numbered:
    if graph not in _NUMBERED:
        _NUMBERED[graph] = _Numbered.of(graph)
    return _NUMBERED[graph]


def _dropped_product(x: Tensor, key: Tensor, graph: Propagation, entries: _Entries, p: float) -> Tensor:
    """``(M * V + own I) X / (1 - p)`` with the mask ``M`` of `key`, for one run or under vmap for many."""
    out: Tensor = _DroppedProduct.apply(x[None], key[None], graph, entries, p, False)  # type: ignore[no-untyped-call]
    return out[0]


@with_signature
class _DroppedProduct(torch.autograd.Function):
    """``x [runs, n, d]``, ``keys [runs, 2]`` -> ``[runs, n, d]``; the gradient is the product with the transpose."""

    @staticmethod
    def forward(x: Tensor, keys: Tensor, graph: Propagation, entries: _Entries, p: float, transposed: bool) -> Tensor:
        number = entries.mirrored_number if transposed else entries.number
        if backend_for(x) == "triton" and graph.has_gpu_kernels:
            from graphjoule.ops.triton_gather import DROP_VALUE, gather

            return gather(
                x.contiguous(),
                graph.rows,
                entries.value,
                alpha=entries.own,
                drop=DROP_VALUE,
                p=p,
                keys=keys.contiguous(),
                value_id=number,
            )
        values = _kept_values(entries, number, p, keys)
        pattern = graph.rowptr, graph.col
        runs = zip(values, graph.gather_halo(x), strict=True)
        out = torch.stack([torch.mm(csr_tensor(*pattern, value, graph.shape), run) for value, run in runs])
        return out.add_(x, alpha=entries.own * keep_scale(p)) if entries.own else out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, keys, ctx.graph, ctx.entries, ctx.p, ctx.transposed = inputs
        ctx.save_for_backward(keys)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        settings = (ctx.graph, ctx.entries, ctx.p, not ctx.transposed)
        grad_x: Tensor = _DroppedProduct.apply(grads[0], *ctx.saved_tensors, *settings)  # type: ignore[no-untyped-call]
        return grad_x, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, keys: Tensor, *settings: Any) -> tuple[Tensor, int]:
        x, keys = (_runs_first(t, dim, info.batch_size) for t, dim in zip((x, keys), in_dims, strict=False))
        out: Tensor = _DroppedProduct.apply(x, keys, *settings)  # type: ignore[no-untyped-call]
        return out.view(info.batch_size, len(out) // info.batch_size, *out.shape[1:]), 0


def _kept_values(entries: _Entries, number: Tensor | None, p: float, keys: Tensor) -> Tensor:
    """``dropout(V)`` of every run, shape ``[runs, num_entries]``; an entry's mask is the one at its number."""
    value = entries.value
    if number is not None and entries.num_total != value.numel():  # nothing of the size of the whole graph is made
        return value * keep_mask(keys, value.shape, p, value.dtype, Excerpt(number, entries.num_total))
    mask = keep_mask(keys, value.shape, p, value.dtype)
    return value * (mask if number is None else mask.index_select(1, number))


def _runs_first(t: Tensor, dim: int | None, runs: int) -> Tensor:
    """``[runs, k, ...] -> [runs * k, ...]`` wherever vmap has put the run axis; a shared tensor is repeated."""
    t = t.expand(runs, *t.shape) if dim is None else t.movedim(dim, 0)
    return t.flatten(0, 1)
