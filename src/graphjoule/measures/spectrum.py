"""The spectrum of ``L = I - P``: the eigenvalues that energy theory needs, and energy by frequency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation, exact_propagation
from graphjoule.measures.eigenvalues import Estimate, Floats, Integers, Operator, find_ends, largest, smallest

DENSE_NODES = 3000  # a component of this size takes about 2 s on one core
_DENSE_WORK = 2 * DENSE_NODES**3  # cubes of all dense components together, so that many large ones do not take hours

# Many graphs have 1/2, 2/3, 3/4 .. (equal neighbours) and 1 (twins) as eigenvalues of many vectors. An edge just there
# is blurred by all their energy, so the bands end elsewhere; the one around 1 is what a single propagation wipes out.
BANDS = (0.0, 0.1, 0.3, 0.6, 0.9, 1.1, 1.4, 2.0)
_STEPS = 128  # doubling them halves the width of an edge that stays blurred
_NUMBERS_AT_ONCE = 2**24
_ON_THE_EDGE = 1e-9  # an eigenvalue this little above an edge is on it: 1 is both a common eigenvalue and a common edge
_NOTHING_LEFT = 1e-10


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The eigenvalues of ``L = I - P`` that the theory needs; without edges there are none but 0, and all are None.

    Attributes:
        num_nodes: number of nodes.
        num_edges: number of undirected edges.
        num_components: number of connected components: the multiplicity of the eigenvalue 0, exactly.
        lambda_0: the smallest non-zero eigenvalue, the spectral gap; the paper's name.
        lambda_1: the non-zero eigenvalue closest to 1; the paper's name. A bound is one of its distance from 1.
        lambda_max: the largest eigenvalue, below 2.
        min_factor: the least ``(1 - lambda)^2`` over non-zero eigenvalues: the least share of energy that ``P`` leaves.
        max_factor: the largest ``(1 - lambda)^2`` over non-zero eigenvalues: the largest share that it leaves.
        twins: two neighbours with all other neighbours in common, if there are any: they make 1 an eigenvalue, exactly.
        eigenvalues: all non-zero eigenvalues with their multiplicity, ascending, if `is_complete`; else numbers each of
            which has a non-zero eigenvalue within its error.
        errors: how far each of them can be off.
        is_complete: whether these are all.
    """

    num_nodes: int
    num_edges: int
    num_components: int
    lambda_0: Estimate | None
    lambda_1: Estimate | None
    lambda_max: Estimate | None
    min_factor: Estimate | None
    max_factor: Estimate | None
    twins: tuple[int, int] | None
    eigenvalues: Floats = field(repr=False)
    errors: Floats = field(repr=False)
    is_complete: bool

    @property
    def risk(self) -> float:
        """Probability that a non-zero eigenvalue lies outside `interval`; zero when that is proved."""
        return max((end.risk for end in (self.lambda_0, self.lambda_max) if end is not None), default=0.0)

    @property
    def interval(self) -> tuple[float, float] | None:
        """An interval that holds every non-zero eigenvalue, within [0, 2]."""
        if self.lambda_0 is None or self.lambda_max is None:
            return None
        return max(0.0, self.lambda_0.low), min(2.0, self.lambda_max.high)

    def fields(self) -> dict[str, Any]:
        """Everything but the lists of eigenvalues, ready for JSON."""
        kept = {name: value for name, value in vars(self).items() if name not in ("eigenvalues", "errors")}
        return {name: asdict(value) if isinstance(value, Estimate) else value for name, value in kept.items()}


def spectrum(graph: Propagation | Tensor, *, dense_nodes: int = DENSE_NODES) -> Spectrum:
    r"""The eigenvalues of ``L = I - P`` that energy theory needs, each with how well it is known.

    Components of up to `dense_nodes` nodes are solved densely, in float64, and give all their eigenvalues. Larger ones
    are left to Lanczos, whose Ritz values bound the ends of the spectrum from inside; from outside the ends are proved
    by counting eigenvalues (Sylvester's law of inertia) where a sparse factorisation is cheap, and hold with a stated
    probability elsewhere. The eigenvalue closest to 1 is exact when two nodes are twins or everything is dense, and
    bounded from one side or both otherwise.

    Args:
        graph: a `Propagation` on any device and in any dtype, or an ``edge_index`` with both directions of each edge.
        dense_nodes: the largest component that is solved densely.

    Returns:
        The eigenvalues; the same for the same graph, as the random start has a fixed seed.

    Example:
        >>> import torch
        >>> path = Propagation.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
        >>> found = spectrum(path)
        >>> [round(float(value), 6) for value in found.eigenvalues], found.num_components, found.lambda_1.kind
        ([0.5, 1.166667], 1, 'exact')
    """
    if dense_nodes < 1:
        raise GraphjouleError(f"dense_nodes is {dense_nodes}; it must be at least 1.")
    graph = exact_propagation(graph)
    operator = Operator.of(graph)
    dense, large = _divide(operator.sizes(), dense_nodes)
    # The largest eigenvalue of a connected component is 1, once: it is the kernel's.
    found = [np.linalg.eigvalsh(block)[:, :-1].ravel() for _, block in operator.blocks(dense)]
    values = np.concatenate([np.empty(0), *found])
    error = operator.rounding + int(operator.sizes()[dense].max(initial=0)) * 2.0**-52
    twins = operator.twins()
    ends = find_ends(operator.part(large), has_twins=twins is not None) if len(large) else None
    lows, distances, highs = [], [], []  # of lambda, of |1 - lambda|
    if len(values):
        lows.append(Estimate.exact(float(1 - values.max()), error, "dense"))
        distances.append(Estimate.exact(float(np.abs(values).min()), error, "dense"))
        highs.append(Estimate.exact(float(1 - values.min()), error, "dense"))
    if ends is not None:
        lows.append(ends.top.shifted(1, -1))
        distances.append(ends.middle)
        highs.append(ends.bottom.shifted(1, -1))
    if twins is not None:
        distances = [Estimate(0.0, 0.0, error, "exact", method="twins")]
    lambda_0, middle, lambda_max = smallest(lows), smallest(distances), largest(highs)
    squares = [end.shifted(1, -1).squared("lower bound") for end in (lambda_0, lambda_max) if end is not None]
    known, errors = 1 - values, np.full(len(values), error)
    if ends is not None:
        known, errors = np.append(known, 1 - ends.known), np.append(errors, ends.errors)
    order = np.argsort(known)
    return Spectrum(
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        num_components=operator.num_components,
        lambda_0=lambda_0,
        lambda_1=None if middle is None else _closest_to_one(middle, known),
        lambda_max=lambda_max,
        min_factor=None if middle is None else middle.squared("upper bound"),
        max_factor=largest(squares),
        twins=twins,
        eigenvalues=np.clip(known[order], 0.0, 2.0),
        errors=errors[order],
        is_complete=ends is None,
    )


def _divide(sizes: Integers, dense_nodes: int) -> tuple[Integers, Integers]:
    """Components to solve densely, smallest first while the work allows, and those to leave to Lanczos.

    A component of one node has no eigenvalue but 0 and is in neither.
    """
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 1]
    cubes = np.cumsum(sizes[order].astype(np.float64) ** 3)
    is_dense = (sizes[order] <= dense_nodes) & (cubes <= max(_DENSE_WORK, dense_nodes**3))
    return order[is_dense], order[~is_dense]


def _closest_to_one(middle: Estimate, known: Floats) -> Estimate:
    """The eigenvalue whose distance from 1 is `middle`; its side is that of the known eigenvalue closest to 1."""
    nearest = known[np.argmin(np.abs(known - 1))] if len(known) else 1.0
    value = float(1 + np.copysign(middle.value, nearest - 1))
    # Which side of 1 it is on is only sure when it is exact.
    around, error = (value, middle.high - middle.value) if middle.kind == "exact" else (1.0, middle.high)
    return replace(middle, value=value, low=around - error, high=around + error)


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
    edges = np.linspace(0, 2, bands + 1) if isinstance(bands, int) and bands > 0 else np.array(bands, dtype=np.float64)
    if edges.ndim != 1 or len(edges) < 2 or edges[0] != 0 or edges[-1] != 2 or not (np.diff(edges) > 0).all():
        given = bands if isinstance(bands, int) else list(bands)
        raise GraphjouleError(
            f"bands is {given}; expected at least one band, or ascending ends from 0 to 2, such as [0, 0.5, 1, 2]."
        )
    operator = Operator.of(graph)
    values = operator.without_kernel(x.detach().cpu().to(torch.float64).numpy())
    dense, large = _divide(operator.sizes(), dense_nodes)
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
    # Eigenvalues of the tridiagonal matrices, and squared first entries of their eigenvectors.
    matrices, at = np.zeros((x.shape[1], steps, steps)), np.arange(steps)
    matrices[:, at, at] = alpha
    matrices[:, at[1:], at[:-1]] = beta[:, :-1]  # eigh reads the lower triangle alone
    nodes, vectors = np.linalg.eigh(matrices)
    return nodes, np.square(vectors[:, 0]) * mass[:, None]
