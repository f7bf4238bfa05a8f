"""The matrix ``P`` of a graph in float64 for scipy, with its connected components and their kernel vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from graphjoule.graph import Propagation

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_ENTRIES_AT_ONCE = 2**24  # of the dense blocks that are solved together: 128 MiB


@dataclass(frozen=True, eq=False)
class Operator:
    """``P`` and the kernel of ``I - P``, which is known without computing: ``sqrt(1 + d)`` on each component.

    Attributes:
        matrix: ``P``, a scipy CSR matrix.
        kernel: orthonormal kernel vectors as columns, sparse, shape ``[num_nodes, num_components]``.
        component: number of the component of every node.
        rounding: how far the eigenvalues of `matrix` can be from those of the graph, as its entries are rounded.
    """

    matrix: Any
    kernel: Any
    component: Integers
    rounding: float

    @classmethod
    def of(cls, graph: Propagation) -> Operator:
        """The operator of a graph on any device and in any dtype."""
        laplacian = graph.laplacian
        row, col = graph.row().cpu(), graph.col.long().cpu()
        weight = laplacian.weight.cpu()
        # Whole weights come back exactly from a rounded P; others keep its relative error, and so do the eigenvalues.
        unit = 2.0**-53 if weight.equal(weight.round()) else torch.finfo(graph.dtype).eps / 2
        scale = (1 + laplacian.degree.cpu()).sqrt()
        value = torch.where(row == col, 1.0, weight) / (scale[row] * scale[col])
        pieces = (value.numpy(), col.numpy(), graph.rowptr.cpu().numpy())
        matrix = csr_matrix(pieces, shape=(graph.num_nodes, graph.num_nodes))
        return cls(matrix, *_kernel(scale.numpy(), laplacian.component.cpu().numpy()), rounding=16 * unit)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.component)

    @property
    def num_components(self) -> int:
        """Number of connected components, the dimension of the kernel."""
        return int(self.kernel.shape[1])

    def sizes(self) -> Integers:
        """Number of nodes of every component."""
        return np.bincount(self.component, minlength=self.num_components)

    def without_kernel(self, x: Floats) -> Floats:
        """``x`` less its part in the kernel; a vector or a matrix of columns."""
        rest: Floats = x - self.kernel @ (self.kernel.T @ x)
        return rest

    def part(self, components: Integers) -> Operator:
        """The operator of some of the components alone."""
        nodes = np.flatnonzero(np.isin(self.component, components))
        scale = np.asarray(self.kernel.sum(axis=1)).ravel()[nodes]
        matrix = self.matrix[nodes][:, nodes]
        return Operator(matrix, *_kernel(scale, self.component[nodes]), rounding=self.rounding)

    def blocks(self, components: Integers) -> Iterator[tuple[Integers, Floats]]:
        """Components as dense matrices, those of equal size together: nodes ``[b, m]`` and matrices ``[b, m, m]``."""
        sizes = self.sizes()
        order = np.argsort(self.component, kind="stable")
        start = np.concatenate([[0], np.cumsum(sizes)])
        for size in np.unique(sizes[components]):
            same = components[sizes[components] == size]
            step = max(1, _ENTRIES_AT_ONCE // int(size) ** 2)
            for at in range(0, len(same), step):
                nodes = order[start[same[at : at + step], None] + np.arange(size)]
                yield nodes, self._dense(nodes)

    def _dense(self, nodes: Integers) -> Floats:
        """The square matrices of the components whose nodes are the rows of `nodes`."""
        count, size = nodes.shape
        place = np.zeros(self.num_nodes, dtype=np.int64)
        place[nodes] = np.arange(size)
        rows = self.matrix[nodes.ravel()].tocoo()
        dense = np.zeros((count, size, size))
        dense[rows.row // size, rows.row % size, place[rows.col]] = rows.data
        return dense

    def twins(self) -> tuple[int, int] | None:
        """Two nodes with equal rows in ``P``, if there are any: ``P`` is singular, and 1 an eigenvalue of ``I - P``.

        These are neighbours that have all other neighbours in common, with equal weights, and weight 1 between them.
        """
        if not self.num_nodes:
            return None
        # Equal rows give equal sums to the last bit; candidates are then compared entry by entry.
        sums = self.matrix @ np.random.default_rng(0).standard_normal(self.num_nodes)
        order = np.argsort(sums, kind="stable")
        for at in np.flatnonzero(np.diff(sums[order]) == 0):
            first, second = sorted((int(order[at]), int(order[at + 1])))
            if _same_row(self.matrix, first, second):
                return first, second
        return None


def _kernel(scale: Floats, component: Integers) -> tuple[Any, Integers]:
    """Kernel vectors, one column for each component, and the components numbered from zero."""
    _, component = np.unique(component, return_inverse=True)
    norm = np.sqrt(np.bincount(component, scale**2))
    num_nodes = len(component)
    shape = (num_nodes, len(norm))
    return csr_matrix((scale / norm[component], component, np.arange(num_nodes + 1)), shape=shape), component


def _same_row(matrix: Any, first: int, second: int) -> bool:
    one, two = (slice(matrix.indptr[row], matrix.indptr[row + 1]) for row in (first, second))
    same_columns = np.array_equal(matrix.indices[one], matrix.indices[two])
    return same_columns and np.array_equal(matrix.data[one], matrix.data[two])
