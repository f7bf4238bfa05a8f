"""The Laplacian ``D - A`` of a graph: its edges, its kernel, and the quadratic forms that energies are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import native
from graphjoule.graph.csr import (
    csr_product,
    csr_tensor,
    each_run,
    full_precision,
    is_plain,
    kept_property,
    linear_map,
    outside_transforms,
    row_of_entries,
    row_starts,
    with_signature,
)

_EDGES_AT_ONCE = 2**16  # bounds the memory of the gathered differences; smaller only costs calls
QUICK_NUMEL = 2**18  # below, float64 costs microseconds

_AT_ONCE: Final = 2048  # products summed in float32, at most 1e-6 off where all are equal; 1024 take 1.7 times as long
_SAMPLE: Final = 256  # nodes whose mean is close enough: it is off by a 16th of the spread between nodes
RANGE: Final = (2.0**-80, 2.0**100)  # of ||X||^2: beyond, squares might leave that of float32

# What features must have, as parts of ||X||^2, for `QuickForm`. Errors are below 1e-6 then, and below 1e-5 where
# features are built to make all roundings agree; with less they would be larger.
LEAST_ENERGY: Final = 2.0**-8
_LEAST_REST: Final = 2.0**-12  # what the kernel leaves, where it is taken off
_ROUGH_REST: Final = 2.0**-5  # what it leaves where the features are first tried as they are


@dataclass(frozen=True, eq=False)
class Laplacian:
    """``D - A`` of an undirected graph, in float64.

    Energies are sums ``a_ij ||x_i / s_i - x_j / s_j||^2`` over edges, with a number ``s_i`` per node: `form`. They do
    not change when ``x`` moves by a multiple of ``s`` on a connected component, which is the kernel. So `form` takes
    the kernel off first and multiplies out then: what is left has nothing large in common that could cancel, and the
    inner products of neighbours cost about as much as one propagation.

    Attributes:
        rowptr: start of every row in `col` and `weight`.
        col: column of every stored entry, sorted within a row; the diagonal is always stored.
        weight: weight ``a_ij`` of every stored entry, zero on the diagonal.
        scale: ``sqrt(1 + d_i)`` of every node, which spans the kernel of ``I - P`` on each connected component.
        component: number of the connected component of every node, shape ``[num_nodes]``.
        num_components: how many connected components there are; this is the dimension of the kernel.
    """

    rowptr: Tensor
    col: Tensor
    weight: Tensor
    scale: Tensor
    component: Tensor
    num_components: int

    @classmethod
    def of(cls, rowptr: Tensor, col: Tensor, weight: Tensor, scale: Tensor) -> Laplacian:
        """Take a symmetric pattern with its diagonal, and find the components; this waits for the device."""
        num_nodes = rowptr.numel() - 1
        ones = torch.ones(col.numel(), dtype=torch.int8)
        pieces = (tensor.cpu().numpy() for tensor in (ones, col, rowptr))
        count, labels = connected_components(csr_matrix(tuple(pieces), shape=(num_nodes, num_nodes)), directed=False)
        return cls(rowptr, col, weight, scale, torch.from_numpy(labels).long().to(col.device), int(count))

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.rowptr.numel() - 1

    @kept_property
    def degree(self) -> Tensor:
        """Sum of the weights of every row, so that rows of ``D - A`` add up to zero to the last bit there is."""
        zeros = torch.zeros(self.num_nodes, dtype=torch.float64, device=self.col.device)
        return zeros.index_add(0, row_of_entries(self.rowptr), self.weight)

    @kept_property
    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Both ends and the weight of every undirected edge, once, sorted by the first end."""
        once = _edges_once(self.rowptr, self.col)
        return row_of_entries(self.rowptr)[once], self.col[once].long(), self.weight[once]

    def form(self, x: Tensor, *, normalised: bool = True) -> Tensor:
        """``sum a_ij ||x_i / s_i - x_j / s_j||^2`` over the undirected edges: the one place where energies come from.

        Never negative. The relative error is a few float64 roundings divided by the smallest non-zero eigenvalue of the
        graph, however smooth the features are; of large float32 features on a CPU (see `QuickForm`) it is 1e-6 as a
        rule and 1e-5 at the most. The gradient is one product with the Laplacian, differentiable too.

        Args:
            x: node features of any dtype, shape ``[..., num_nodes, channels]``.
            normalised: divide by ``s = sqrt(1 + d)``, the Dirichlet energy; else ``s = 1``.

        Returns:
            Float64 numbers, shape ``[...]``.
        """
        if x.size(-2) != self.num_nodes:  # a loop would read beyond the end
            raise GraphjouleError(f"The graph has {self.num_nodes} nodes but the features have {x.size(-2)} rows.")
        scaled = self.scaled(normalised=normalised)
        return _quadratic_form(x, lambda run: self._form(run, scaled), lambda run: self._product(run, scaled))

    def product(self, x: Tensor) -> Tensor:
        """``(I - P) X`` in float64, without cancelling where features are almost smooth."""
        return _self_adjoint(x, lambda run: self._product(run.double(), self.scaled()))

    def without_kernel(self, x: Tensor) -> Tensor:
        """Features less their orthogonal projection onto `scale` on each component, in float64."""
        return _self_adjoint(x, lambda run: self._rest(run.double(), self.scaled()))

    def neighbour_sum(self, y: Tensor) -> Tensor:
        """Sum of ``y_j`` over the neighbours of every node, weights aside, in float64, in the shape of the input."""
        return _self_adjoint(y, lambda run: torch.mm(self._neighbours, run.double()))

    def distances(self, y: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """``||y_i - y_j||^2`` of the undirected edges, a piece at a time: which of `edges`, and ``[..., piece]``."""
        row, col, _ = self.edges
        for start in range(0, row.numel(), _EDGES_AT_ONCE):
            piece = slice(start, start + _EDGES_AT_ONCE)
            yield piece, (y[..., row[piece], :] - y[..., col[piece], :]).square().sum(dim=-1)

    @outside_transforms()
    def scaled(self, *, normalised: bool = True) -> ScaledLaplacian:
        """``S^-1 (D - A) S^-1`` with ``s = sqrt(1 + d)``, which is ``I - P``, or with ``s = 1``; made at first use."""
        if normalised not in self._scaled:
            scale = self._column_scale if normalised else torch.ones_like(self._column_scale)
            row, col = row_of_entries(self.rowptr), self.col.long()
            entries = torch.where(row == col, self.degree[row], -self.weight) / (scale[row] * scale[col])
            own = scale[: self.num_nodes]
            squares = self._total(own.new_zeros(self.num_components).index_add(0, self.component, own.square()))
            self._scaled[normalised] = ScaledLaplacian(self.rowptr, self.col, entries, scale, self.component, squares)
        return self._scaled[normalised]

    @kept_property
    def _scaled(self) -> dict[bool, ScaledLaplacian]:
        return {}

    @property
    def _column_scale(self) -> Tensor:
        """`scale` of the node of every column."""
        return self.scale

    def _total(self, x: Tensor) -> Tensor:
        """A sum over the nodes here, made one over all nodes."""
        return x

    @kept_property
    def _pattern(self) -> Tensor:
        """The pattern of `edges` as a torch CSR matrix."""
        row, col, weight = self.edges
        shape = (self.num_nodes, self.num_nodes)
        return csr_tensor(row_starts(row, self.num_nodes), col.int(), torch.zeros_like(weight), shape)

    @kept_property
    def _neighbours(self) -> Tensor:
        """1 for every edge in both directions as a torch CSR matrix."""
        value = (row_of_entries(self.rowptr) != self.col).double()
        return csr_tensor(self.rowptr, self.col, value, (self.num_nodes, self.num_nodes))

    def _form(self, run: Tensor, scaled: ScaledLaplacian) -> Tensor:
        if run.dtype == torch.float32 and run.device.type == "cpu" and run.numel() >= QUICK_NUMEL:
            energy = scaled.quick.of(run)
            if energy is not None:
                return energy
        rest = self._rest(run, scaled)
        squares = torch.linalg.vector_norm(rest, dim=1).square_()
        # A fifth to a half of the time of a product with all of the matrix, and no memory for its result.
        products = torch.sparse.sampled_addmm(self._pattern, rest, rest.t(), beta=0).values()
        return (torch.dot(scaled.diagonal, squares) + 2 * torch.dot(scaled.beside, products)).clamp_(min=0)

    def _product(self, run: Tensor, scaled: ScaledLaplacian) -> Tensor:
        return torch.mm(scaled.matrix, self._rest(run, scaled))

    def _rest(self, run: Tensor, scaled: ScaledLaplacian) -> Tensor:
        """Features of one run less the kernel, a new matrix in float64.

        The means of float32 features are in float32: that takes off all but 1e-7 of the kernel, enough for a form.
        """
        source = run if run.dtype == torch.float32 else run.double()
        means = self._total(scaled.kernel(source.dtype).means(source).double())
        rest = run.to(torch.float64, copy=True)  # then in place: half of the cost of a form is traffic to memory
        return scaled.kernel(torch.float64).take_off(rest, means, out=rest)


class ScaledLaplacian:
    """``M = S^-1 (D - A) S^-1`` with a number ``s_i`` per node; with ``s = sqrt(1 + d)`` it is ``I - P``.

    Args:
        rowptr: start of every row, as in `Laplacian`.
        col: column of every stored entry.
        entries: the entries of ``M`` in float64; of whole weights they are exact but for one rounding, while those of
            ``I - P`` from a rounded ``P`` would not cancel.
        scale: ``s`` of the node of every column.
        component: number of the connected component of every node.
        squares: ``||s||^2`` on each connected component.
    """

    def __init__(
        self, rowptr: Tensor, col: Tensor, entries: Tensor, scale: Tensor, component: Tensor, squares: Tensor
    ) -> None:
        self.rowptr, self.col, self.entries = rowptr, col, entries
        self.scale, self.component, self.squares = scale, component, squares
        self._kernels: dict[torch.dtype, Kernel] = {}

    @kept_property
    def matrix(self) -> Tensor:
        """``M`` as a torch CSR matrix in float64."""
        return csr_tensor(self.rowptr, self.col, self.entries, (self.rowptr.numel() - 1, self.scale.numel()))

    @kept_property
    def diagonal(self) -> Tensor:
        """The diagonal of ``M``."""
        return self.entries[row_of_entries(self.rowptr) == self.col]

    @kept_property
    def beside(self) -> Tensor:
        """The entries of ``M`` of the undirected edges, each once."""
        return self.entries[_edges_once(self.rowptr, self.col)]

    @kept_property
    def quick(self) -> QuickForm:
        """``<X, M X>`` in float32."""
        return QuickForm(self)

    @outside_transforms()
    def kernel(self, dtype: torch.dtype) -> Kernel:
        """The kernel of ``M`` for features of a dtype, made at first use."""
        if dtype not in self._kernels:
            self._kernels[dtype] = Kernel(self.scale[: len(self.component)], self.component, self.squares, dtype)
        return self._kernels[dtype]


class Kernel:
    """The kernel of a `ScaledLaplacian`, multiples of ``s`` on each component, for features of one dtype."""

    def __init__(self, scale: Tensor, component: Tensor, squares: Tensor, dtype: torch.dtype) -> None:
        share = (scale / squares[component]).to(dtype)
        self.num_components, self.component = len(squares), component
        self.scale, self._share = scale.to(dtype)[:, None], share[:, None]
        if self.num_components == 1:
            self._mean = share[None]
        else:
            node = torch.argsort(component, stable=True)
            shape = (self.num_components, len(scale))
            self._mean = csr_tensor(row_starts(component, self.num_components), node.int(), share[node], shape)

    def means(self, x: Tensor) -> Tensor:
        """``sum s_i x_i / sum s_i^2`` over each component, shape ``[num_components, channels]``; of many runs too."""
        if x.dim() == 2:
            return torch.mm(self._mean, x)
        share = x * self._share  # all runs in few launches, which a GPU wants
        if self.num_components == 1:
            return share.sum(dim=1, keepdim=True)
        return share.new_zeros(len(x), self.num_components, x.size(2)).index_add_(1, self.component, share)

    def take_off(self, x: Tensor, means: Tensor, out: Tensor | None = None) -> Tensor:
        """``x_i - s_i * mean of its component``; `means` may have a single row for all nodes.

        Whatever is taken off has no energy, so means that are only close to those of `means` change no form.

        Args:
            x: features, shape ``[num_nodes, channels]`` or ``[runs, num_nodes, channels]``.
            means: what `means` gives.
            out: where to write the result, which may be `x`; by default a new tensor.
        """
        if means.size(-2) > 1:  # index_select takes a seventh of the time of means[component]
            means = torch.index_select(means, -2, self.component, out=None if out is x else out)
        return torch.addcmul(x, self.scale, means, value=-1, out=out)


class QuickForm:
    """``<X, M X>`` of a `ScaledLaplacian` in float32, where that keeps six digits, or five at the least.

    This is the fast path of `Laplacian.form`, for large float32 features on a CPU. Of the entries beside the diagonal
    one of each pair is kept, twice as large. So the form is one product, which gathers 60 % of the rows of a layer's,
    and one inner product. Roundings are 2^-24 of ``||X||^2``, so the form may not be much smaller than that. Those of
    the entries add up where all nodes have as many neighbours; what they make of ``s``, whose form is zero, shows how
    much they add to smooth features, and is subtracted. The kernel is taken off first: where there is a C compiler in
    the loop that multiplies, else where it makes out most of the features, for the price of a copy.
    """

    def __init__(self, scaled: ScaledLaplacian) -> None:
        num_nodes, row = len(scaled.component), row_of_entries(scaled.rowptr)
        once = _edges_once(scaled.rowptr, scaled.col)
        kept = once | (row == scaled.col)
        row, col = row[kept], scaled.col[kept]
        entries = torch.where(once, 2 * scaled.entries, scaled.entries)[kept]
        self._largest = float(scaled.diagonal.max()) or 1.0  # without edges all entries are zero
        self._matrix = native.Matrix(row_starts(row, num_nodes), col, (entries / self._largest).float())
        lengths = scaled.scale[row] * scaled.scale[col.long()]
        self._error = float(torch.dot(self._matrix.value.double(), lengths) / scaled.squares.sum())
        self._kernel, self._squares = scaled.kernel(torch.float32), scaled.squares
        chosen = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0))[:_SAMPLE]
        self._sample = chosen.sort().values
        sampled = scaled.scale[self._sample]
        self._sampled_square = float(sampled.square().sum())
        self._sampling = (sampled / self._sampled_square).float()[None]

    def of(self, x: Tensor) -> Tensor | None:
        """The form of float32 features, a float64 number; None where float32 is not good enough."""
        x, is_rough = x.contiguous(), False
        if self._kernel.num_components > 1:
            means = self._kernel.means(x)
            kernel = float(torch.dot(self._squares, means.double().square().sum(dim=1)))
        else:  # a sample is enough to see how much the kernel leaves of the features, and its mean takes most off
            some = x.index_select(0, self._sample)
            means = torch.mm(self._sampling, some)
            square = _size(means)
            kernel = float(self._squares) * square
            is_rough = self._sampled_square * square <= (1 - _ROUGH_REST) * _size(some)
        least = _LEAST_REST * kernel
        if native.has_layers(x, *self._matrix[:2]) and native.has_memory(x) and native.is_built():
            pieces = self._kernel.scale, means, self._kernel.component  # taken off on the way, without a copy
            energy = self._judged(native.form(self._matrix, x, *pieces), least)
        else:
            energy = self._judged(self._sums(x)) if is_rough else None
            if energy is None:
                energy = self._judged(self._sums(self._kernel.take_off(x, means)), least)
        return None if energy is None else torch.tensor(energy * self._largest, dtype=torch.float64)

    def _sums(self, x: Tensor) -> tuple[float, float]:
        """``<X, X>`` and ``<X, M X>``, rows in float32 and their sums in float64."""
        return inner_products(x, csr_product(*self._matrix, x))

    def _judged(self, sums: tuple[float, float], least: float = 0.0) -> float | None:
        """``<X, M X>`` less what the roundings of the entries add; None where it or ``||X||^2`` is too small."""
        size, product = sums
        if not (RANGE[0] < size < RANGE[1] and size >= least):
            return None
        energy = product - self._error * size
        return energy if energy >= LEAST_ENERGY * size else None


def _edges_once(rowptr: Tensor, col: Tensor) -> Tensor:
    """Which stored entries stand for the undirected edges, each once.

    The column is the end with more neighbours: hubs then stay in the cache, which saves a third of a form's time on
    Pubmed. Of equals it is the later one.
    """
    row, col = row_of_entries(rowptr), col.long()
    first, second = (rowptr.diff()[end] for end in (row, col))
    return (first < second) | ((first == second) & (row < col))


# NumPy has it since 2.0; the other has no intermediate result either, and takes twice as long.
_vecdot: Final = getattr(np, "vecdot", partial(np.einsum, "ij,ij->i"))


def inner_products(x: Tensor, y: Tensor) -> tuple[float, float]:
    """``<X, X>`` and ``<X, Y>`` of float32 features on a CPU: 2,048 products at a time in float32, sums in float64.

    They are one pass over memory where there is a C compiler. NumPy's `vecdot` has no intermediate result to write
    either: 0.16 ms on Pubmed at width 64, where a product and a sum of torch take 0.44.
    """
    x, y = x.detach().contiguous(), y.detach().contiguous()
    if x.numel() >= QUICK_NUMEL and native.is_built() and native.has_memory(x) and native.has_memory(y):
        return native.inner_products(x, y, _AT_ONCE)
    return _inner_product(x, x), _inner_product(x, y)


def _inner_product(x: Tensor, y: Tensor) -> float:
    first, second = x.view(-1).numpy(), y.view(-1).numpy()
    whole = len(first) - len(first) % _AT_ONCE
    with np.errstate(all="ignore"):  # the caller looks at NaN and infinity
        sums = _vecdot(first[:whole].reshape(-1, _AT_ONCE), second[:whole].reshape(-1, _AT_ONCE))
        return float(sums.sum(dtype=np.float64) + np.dot(first[whole:].astype(np.float64), second[whole:]))


def _size(x: Tensor) -> float:
    """``||X||^2`` to five digits; infinite or zero where float32 has no room for it."""
    flat = x.view(-1)
    size = float(torch.dot(flat, flat))
    return math.inf if math.isnan(size) else size


OfOneRun = Callable[[Tensor], Tensor]
"""A function of the features of one run, shape ``[num_nodes, channels]``."""


def _self_adjoint(x: Tensor, function: OfOneRun) -> Tensor:
    """A self-adjoint linear map of every run's features, of the map's dtype; its gradient is the same map."""
    return linear_map(x, lambda runs: each_run(function, runs))


def _quadratic_form(x: Tensor, form: OfOneRun, product: OfOneRun) -> Tensor:
    """``<X, M X>`` of every run's features from a `form` that is as exact as can be; its gradient is ``2 M X``."""
    with full_precision(x):
        if is_plain():
            return each_run(form, x)
        out: Tensor = _QuadraticForm.apply(x, form, product)  # type: ignore[no-untyped-call]
        return out


@with_signature
class _QuadraticForm(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, form: OfOneRun, product: OfOneRun) -> Tensor:
        return each_run(form, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, OfOneRun, OfOneRun], output: Tensor) -> None:
        x, _, ctx.product = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return (2 * grads[0][..., None, None] * _self_adjoint(x, ctx.product)).to(x.dtype), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None, None], x: Tensor, form: OfOneRun, product: OfOneRun
    ) -> tuple[Tensor, int]:
        return _quadratic_form(x.movedim(in_dims[0], 0), form, product), 0
