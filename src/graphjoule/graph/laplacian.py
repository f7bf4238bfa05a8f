"""The Laplacian ``D - A`` of a graph: its edges, its kernel, and the quadratic forms that energies are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from graphjoule.graph.csr import csr_tensor, row_of_entries, row_starts
from graphjoule.graph.quick_form import QuickForm
from graphjoule.graph.self_adjoint import quadratic_form, self_adjoint

_EDGES_AT_ONCE = 2**16  # bounds the memory of the gathered differences; smaller only costs calls
_QUICK_NUMEL = 2**18  # below, float64 costs microseconds


@dataclass(frozen=True, eq=False)
class Laplacian:
    """``D - A`` of an undirected graph, in float64.

    Energies are sums ``a_ij ||y_i - y_j||^2`` over edges, where ``y`` are the features divided by a number per node.
    They do not change when ``y`` moves by a constant on a connected component, which is the kernel. So `form` takes the
    mean of each component off first and multiplies out then: what is left has nothing large in common that could
    cancel, and the inner products of neighbours cost about as much as one propagation.

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

    @cached_property
    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Both ends and the weight of every undirected edge, once, sorted by the first end.

        The second end is the one with more neighbours: hubs then stay in the cache, which saves a third of a form's
        time on Pubmed. Of equals it is the later one.
        """
        row, col = row_of_entries(self.rowptr), self.col.long()
        first, second = (self.rowptr.diff()[end] for end in (row, col))
        once = (first < second) | ((first == second) & (row < col))
        return row[once], col[once], self.weight[once]

    @cached_property
    def degree(self) -> Tensor:
        """Sum of the weights of every row, so that rows of ``D - A`` add up to zero to the last bit there is."""
        zeros = torch.zeros(self.num_nodes, dtype=torch.float64, device=self.col.device)
        return zeros.index_add(0, row_of_entries(self.rowptr), self.weight)

    def form(self, x: Tensor, scale: Tensor) -> Tensor:
        """``sum a_ij ||x_i / scale_i - x_j / scale_j||^2`` over the undirected edges.

        Never negative. The relative error is a few float64 roundings divided by the smallest non-zero eigenvalue of the
        graph, however smooth the features are; of large float32 features on a CPU it is 1e-6 as a rule and 1e-5 at the
        most. The gradient is one product with the Laplacian, differentiable too.

        Args:
            x: node features of any dtype, shape ``[..., num_nodes, channels]``.
            scale: positive float64 numbers, shape ``[num_nodes]``.

        Returns:
            Float64 numbers, shape ``[...]``.
        """
        return quadratic_form(x, lambda run: self._form(run, scale), lambda run: self._product(run, scale))

    def without_kernel(self, x: Tensor) -> Tensor:
        """Features less their orthogonal projection onto `scale` on each component, in float64, shape as given."""

        def rest(run: Tensor) -> Tensor:
            return self._centred(run.double(), self.scale).mul_(self.scale[:, None])

        return self_adjoint(x, rest)

    def neighbour_sum(self, y: Tensor) -> Tensor:
        """Sum of ``y_j`` over the neighbours of every node, weights aside, in float64, shape as given."""
        return self_adjoint(y, lambda run: torch.mm(self._neighbours, run.double()))

    def distances(self, y: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """``||y_i - y_j||^2`` of the undirected edges, a piece at a time: which of `edges`, and ``[..., piece]``."""
        row, col, _ = self.edges
        for start in range(0, row.numel(), _EDGES_AT_ONCE):
            piece = slice(start, start + _EDGES_AT_ONCE)
            yield piece, (y[..., row[piece], :] - y[..., col[piece], :]).square().sum(dim=-1)

    def _centred(self, run: Tensor, scale: Tensor) -> Tensor:
        """``y = x / scale`` less the mean of each component, where nodes count as in the kernel; a new matrix."""
        mean = self.means(run, scale)
        y = run.to(torch.float64, copy=True)  # then in place: half of the cost of a form is traffic to memory
        inverse = scale.reciprocal()[:, None]
        if len(mean) == 1:  # one pass less
            return torch.addcmul(-mean, y, inverse, out=y)
        return y.mul_(inverse).sub_(mean[self.component])

    def means(self, run: Tensor, scale: Tensor) -> Tensor:
        """Mean of ``x / scale`` over each component in float64, shape ``[num_components, channels]``.

        Summed in float32 where the features are: that takes off all but 1e-7 of it, which will do.
        """
        if self.num_components == 1:
            source = run if run.dtype == torch.float32 else run.double()
            return torch.mm((self._share / scale).to(source.dtype)[None], source).double()
        return torch.mm(self._pool, run.double() / scale[:, None])

    @cached_property
    def _share(self) -> Tensor:
        """What part of the squared kernel vector of its component each node has."""
        squares = self.scale.square()
        total = squares.new_zeros(self.num_components).index_add(0, self.component, squares)
        return squares / total[self.component]

    @cached_property
    def _pool(self) -> Tensor:
        """The matrix of the means of all components."""
        node = torch.argsort(self.component, stable=True)
        rowptr = row_starts(self.component, self.num_components)
        return csr_tensor(rowptr, node.int(), self._share[node], (self.num_components, self.num_nodes))

    @cached_property
    def _pattern(self) -> Tensor:
        """The pattern of `edges` as a torch CSR matrix."""
        row, col, weight = self.edges
        shape = (self.num_nodes, self.num_nodes)
        return csr_tensor(row_starts(row, self.num_nodes), col.int(), torch.zeros_like(weight), shape)

    @cached_property
    def _neighbours(self) -> Tensor:
        """1 for every edge in both directions as a torch CSR matrix."""
        value = (row_of_entries(self.rowptr) != self.col).double()
        return csr_tensor(self.rowptr, self.col, value, (self.num_nodes, self.num_nodes))

    @cached_property
    def _quick(self) -> QuickForm:
        """The form in float32."""
        return QuickForm(self.edges, self.degree, self.scale, self.component, self.num_components)

    @cached_property
    def _matrix(self) -> Tensor:
        """``D - A`` as a torch CSR matrix."""
        row = row_of_entries(self.rowptr)
        value = torch.where(row == self.col, self.degree[row], -self.weight)
        return csr_tensor(self.rowptr, self.col, value, (self.num_nodes, self.num_nodes))

    def _form(self, run: Tensor, scale: Tensor) -> Tensor:
        if run.dtype == torch.float32 and run.device.type == "cpu" and run.numel() >= _QUICK_NUMEL:
            energy = self._quick.of(run, scale, self.means(run, scale) if self.num_components > 1 else None)
            if energy is not None:
                return energy
        y = self._centred(run, scale)
        squares = torch.linalg.vector_norm(y, dim=1).square_()
        products = torch.sparse.sampled_addmm(self._pattern, y, y.t(), beta=0).values()
        return (torch.dot(self.degree, squares) - 2 * torch.dot(self.edges[2], products)).clamp_(min=0)

    def _product(self, run: Tensor, scale: Tensor) -> Tensor:
        return torch.mm(self._matrix, self._centred(run, scale)).div_(scale[:, None])
