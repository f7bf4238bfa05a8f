"""Dirichlet energy by frequency: how much of it lies in which range of eigenvalues of ``L = I - P``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation, exact_propagation
from graphjoule.measures.spectrum.operator import Floats, Operator
from graphjoule.measures.spectrum.solve import DENSE_NODES, divide

# Many graphs have 1/2, 2/3, 3/4 .. (equal neighbours) and 1 (twins) as eigenvalues of many vectors. An edge just there
# is blurred by all their energy, so the bands end elsewhere; the one around 1 is what a single propagation wipes out.
BANDS = (0.0, 0.1, 0.3, 0.6, 0.9, 1.1, 1.4, 2.0)
_STEPS = 128  # doubling them halves the width of an edge that stays blurred
_NUMBERS_AT_ONCE = 2**24
_ON_THE_EDGE = 1e-9  # an eigenvalue this little above an edge is on it: 1 is both a common eigenvalue and a common edge
_NOTHING_LEFT = 1e-10


@dataclass(frozen=True, eq=False)
class BandEnergy:
    """Dirichlet energy of node features in bands of eigenvalues of ``L = I - P``.

    Attributes:
        edges: ends of the bands, ascending from 0 to 2; a band includes its upper end.
        energy: energy in each band; together they are the energy of the features.
        low: the energy in each band is at least this.
        high: and at most this.
        is_exact: whether all eigenvectors were computed, so that `low` and `high` are `energy`.
    """

    edges: Floats
    energy: Floats
    low: Floats
    high: Floats
    is_exact: bool


def energy_by_band(
    x: Tensor, graph: Propagation | Tensor, bands: int | Sequence[float] = BANDS, *, dense_nodes: int = DENSE_NODES
) -> BandEnergy:
    r"""Dirichlet energy of node features by frequency band.

    .. math:: E_b(X) = \sum_{\lambda_i \in b} \lambda_i \, \| u_i^\top X \|^2

    where ``u_i`` are eigenvectors of ``L = I - P``. Components of up to `dense_nodes` nodes are split exactly. For
    larger ones a Lanczos iteration from each column gives a Gauss quadrature of its energy over frequency, and the
    inequalities of Chebyshev, Markov and Stieltjes bound from it what lies below each edge. The bounds are wide where
    an edge lies on an eigenvalue with much energy.

    Args:
        x: node features, shape ``[num_nodes, channels]``.
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.
        bands: how many equal bands, or their ends, ascending from 0 to 2.
        dense_nodes: the largest component that is split exactly.

    Returns:
        The energies with their bounds.

    Example:
        >>> pair = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
        >>> energy_by_band(torch.tensor([[1.0], [-1.0]]), pair, bands=[0, 0.5, 1.5, 2]).energy.round(9)
        array([0., 2., 0.])
    """
    graph = exact_propagation(graph, x.size(0) if x.dim() == 2 else None)
    if x.dim() != 2 or x.size(0) != graph.num_nodes:
        raise GraphjouleError(
            f"The features have shape {list(x.shape)}; expected [num_nodes, channels] with {graph.num_nodes} nodes."
        )
    edges = _edges(bands)
    operator = Operator.of(graph)
    values = operator.without_kernel(x.detach().cpu().to(torch.float64).numpy())
    dense, large = divide(operator.sizes(), dense_nodes)
    energy = np.zeros(len(edges) - 1)
    for nodes, block in operator.blocks(dense):
        p, vectors = np.linalg.eigh(block)
        frequency = np.clip(1 - p[:, :-1], 0, 2)  # the last one is the kernel's
        shares = np.square(vectors.transpose(0, 2, 1)[:, :-1] @ values[nodes]).sum(axis=2)
        band = np.searchsorted(edges[1:-1] + _ON_THE_EDGE, frequency)
        energy += np.bincount(band.ravel(), (frequency * shares).ravel(), minlength=len(energy))
    if not len(large):
        return BandEnergy(edges, energy, energy, energy, is_exact=True)
    inside = np.isin(operator.component, large)
    below, least, most = _energy_below(operator.part(large), values[inside], edges[1:-1] + _ON_THE_EDGE)
    low = np.maximum(0, least[1:] - most[:-1])
    high = most[1:] - least[:-1]
    return BandEnergy(edges, energy + np.diff(below), energy + low, energy + high, is_exact=False)


def _edges(bands: int | Sequence[float]) -> Floats:
    if isinstance(bands, int):
        if bands < 1:
            raise GraphjouleError(f"bands is {bands}; expected at least one band, or their ends from 0 to 2.")
        return np.linspace(0.0, 2.0, bands + 1)
    edges = np.asarray(bands, dtype=np.float64)
    if edges.ndim != 1 or len(edges) < 2 or edges[0] != 0 or edges[-1] != 2 or not (np.diff(edges) > 0).all():
        raise GraphjouleError(f"bands is {list(bands)}; expected ascending ends from 0 to 2, such as [0, 0.5, 1, 2].")
    return edges


def _energy_below(operator: Operator, x: Floats, edges: Floats) -> Floats:
    """Energy up to each edge, with 0 before and the total after: the estimate, the least and the most, in rows."""
    below = np.zeros((3, len(edges) + 2))
    step = max(1, _NUMBERS_AT_ONCE // len(x))
    for start in range(0, x.shape[1], step):
        nodes, weights = _quadrature(operator, x[:, start : start + step])
        cumulative = np.cumsum(np.pad(weights, ((0, 0), (1, 1))), axis=1)  # [c, j] is the weight of the first j nodes
        total = cumulative[:, -1].sum()
        below += [[0, *np.zeros(len(edges)), total]] * 3
        for at, edge in enumerate(edges, start=1):
            passed = (nodes <= edge).sum(axis=1)
            for row, offset in enumerate((0, -1, 1)):
                index = np.clip(passed + offset, 0, weights.shape[1])
                below[row, at] += np.take_along_axis(cumulative, index[:, None], axis=1).sum()
    return below


def _quadrature(operator: Operator, x: Floats) -> tuple[Floats, Floats]:
    """Gauss quadrature of every column's energy over frequency: nodes, ascending, and weights, ``[columns, steps]``.

    ``L`` is symmetric in the inner product ``<u, v> = u^T L v`` too, in which the squared length of a column is its
    energy. So Lanczos in this inner product sees the energy's own distribution, at one product with ``P`` a step.
    """
    steps = min(_STEPS, len(x))
    alpha, beta = np.zeros((x.shape[1], steps)), np.zeros((x.shape[1], steps))
    image = operator.without_kernel(x - operator.matrix @ x)
    mass = np.maximum(0, (x * image).sum(axis=0))
    before, length = np.zeros_like(x), np.sqrt(mass)
    for k in range(steps):
        # A column whose length is only rounding has said all it has: it stays zero and adds nodes of no weight.
        inverse = np.where(length > _NOTHING_LEFT * (np.sqrt(mass) if k == 0 else 1), 1 / np.maximum(length, 1e-300), 0)
        x, image = x * inverse, image * inverse
        alpha[:, k] = np.square(image).sum(axis=0)
        following = operator.without_kernel(image - alpha[:, k] * x - (beta[:, k - 1] if k else 0) * before)
        before, x = x, following
        image = operator.without_kernel(x - operator.matrix @ x)
        length = np.sqrt(np.maximum(0, (x * image).sum(axis=0)))
        beta[:, k] = np.where(length > _NOTHING_LEFT, length, 0)
    return _gauss(alpha, beta[:, :-1], mass)


def _gauss(alpha: Floats, beta: Floats, mass: Floats) -> tuple[Floats, Floats]:
    """Nodes and weights from the tridiagonal matrices: eigenvalues, and squared first entries of the eigenvectors."""
    columns, steps = alpha.shape
    matrices = np.zeros((columns, steps, steps))
    at = np.arange(steps)
    matrices[:, at, at] = alpha
    matrices[:, at[1:], at[:-1]] = beta  # eigh reads the lower triangle alone
    nodes, vectors = np.linalg.eigh(matrices)
    return nodes, np.square(vectors[:, 0]) * mass[:, None]
