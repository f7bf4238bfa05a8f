"""Eigenvalues of ``P`` for `spectrum`: exact for small components, bounds for large ones, and how each is known.

Components that fit are solved densely. Of the others Lanczos finds the ends and the middle of the spectrum, which
bounds them from one side for sure and from the other up to a stated risk; where a sparse factorisation is cheap,
counting eigenvalues beyond a number (Sylvester's law of inertia) proves the other side too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.sparse import csr_matrix, diags, identity
from scipy.sparse.linalg import splu

from graphjoule.graph import Propagation

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Kind = Literal["exact", "computed", "upper bound", "lower bound"]

_ENTRIES_AT_ONCE = 2**24  # of the dense blocks that are solved together: 128 MiB
_STEPS = 400  # of Lanczos
_NUMBERS_KEPT = 2**26  # of all its basis vectors together: 512 MiB
_INVARIANT = 1e-10  # a next vector shorter than this could be rounding: the basis spans all that the start can reach
_RISK = 1e-9  # that the random start misses an end of the spectrum by more than `Krylov.missed` says
_NEAR = 0.02  # a Ritz value with a larger residual says too little to be kept
_INVERSE_STEPS = 60  # the inverse spreads the eigenvalues near the shift so far apart that few steps separate them

# By timing on one core: Pubmed's factor has 1.2 million entries and takes 0.6 s, Physics' 54 million and 77 s. How many
# there will be is not known before: graphs with many edges are not tried, and a first factor that is large is the last.
_MOST_EDGES = 50_000
_MOST_ENTRIES = 4_000_000
_UNIT = 2.0**-53


@dataclass(frozen=True)
class Estimate:
    """A number that lies between `low` and `high`, and how that is known.

    Attributes:
        value: the best single number.
        low: the true number is not smaller.
        high: the true number is not larger.
        kind: "exact" is known up to rounding; "computed" is proved on both sides; with "upper bound" the true number is
            proved to be at most `high`, with "lower bound" at least `low`, and the other side has a `risk`.
        residual: ``||P x - p x||`` of the vector behind the value: an eigenvalue is proved to lie that close.
        risk: probability that the other side of a bound does not hold, over the random start of the iteration.
        method: how it was found, in words.

    Example:
        >>> Estimate(0.75, 0.75, 0.75, "exact").shifted(2, -1)
        Estimate(value=1.25, low=1.25, high=1.25, kind='exact', residual=0.0, risk=0.0, method='')
    """

    value: float
    low: float
    high: float
    kind: Kind
    residual: float = 0.0
    risk: float = 0.0
    method: str = ""

    @classmethod
    def exact(cls, value: float, error: float, method: str) -> Estimate:
        """A number known up to a rounding error."""
        return cls(value, value - error, value + error, "exact", method=method)

    def shifted(self, offset: float, sign: Literal[1, -1]) -> Estimate:
        """``offset + sign * value``."""
        low, high = sorted((offset + sign * self.low, offset + sign * self.high))
        mirrored: dict[Kind, Kind] = {"upper bound": "lower bound", "lower bound": "upper bound"}
        kind = self.kind if sign == 1 else mirrored.get(self.kind, self.kind)
        return replace(self, value=offset + sign * self.value, low=low, high=high, kind=kind)

    def squared(self, kind: Kind) -> Estimate:
        """The square; `kind` is what a one-sided estimate becomes."""
        ends = (self.low**2, self.high**2)
        low = 0.0 if self.low < 0 < self.high else min(ends)
        kept = self.kind if self.kind in ("exact", "computed") else kind
        return replace(self, value=self.value**2, low=low, high=max(ends), kind=kept)


def smallest(estimates: list[Estimate]) -> Estimate | None:
    """The minimum of numbers that are known more or less well; None of no numbers.

    >>> clear = smallest([Estimate(1, 1, 1, "exact"), Estimate(3, 2, 3, "upper bound")])
    >>> clear.kind, smallest([clear, Estimate(3, 0.5, 3, "upper bound")])
    ('exact', Estimate(value=1, low=0.5, high=1, kind='upper bound', residual=0.0, risk=0.0, method=''))
    """
    if not estimates:
        return None
    first, *rest = sorted(estimates, key=lambda estimate: estimate.value)
    for other in rest:
        if other.low < first.high:  # it may be the smaller one after all
            kind = other.kind if first.kind == "exact" else first.kind
            low, high = min(first.low, other.low), min(first.high, other.high)
            first = replace(first, low=low, high=high, kind=kind, risk=max(first.risk, other.risk))
    return first


def largest(estimates: list[Estimate]) -> Estimate | None:
    """The maximum of numbers that are known more or less well; None of no numbers."""
    found = smallest([estimate.shifted(0, -1) for estimate in estimates])
    return None if found is None else found.shifted(0, -1)


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
                place = np.zeros(self.num_nodes, dtype=np.int64)
                place[nodes] = np.arange(size)
                rows = self.matrix[nodes.ravel()].tocoo()
                dense = np.zeros((len(nodes), size, size))
                dense[rows.row // size, rows.row % size, place[rows.col]] = rows.data
                yield nodes, dense

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
            if (self.matrix[first] != self.matrix[second]).nnz == 0:
                return first, second
        return None


def _kernel(scale: Floats, component: Integers) -> tuple[Any, Integers]:
    """Kernel vectors, one column for each component, and the components numbered from zero."""
    _, component = np.unique(component, return_inverse=True)
    norm = np.sqrt(np.bincount(component, scale**2))
    num_nodes = len(component)
    shape = (num_nodes, len(norm))
    return csr_matrix((scale / norm[component], component, np.arange(num_nodes + 1)), shape=shape), component


@dataclass(frozen=True, eq=False)
class Krylov:
    """Orthonormal rows ``q_1 .. q_k`` with ``A q_j = beta_j-1 q_j-1 + alpha_j q_j + beta_j q_j+1``.

    Attributes:
        basis: the vectors, shape ``[k, num_nodes]``.
        alpha: diagonal of the tridiagonal matrix, ``[k]``.
        beta: its off-diagonal and, last, the length of what would come next, ``[k]``.
    """

    basis: Floats
    alpha: Floats
    beta: Floats

    @property
    def is_invariant(self) -> bool:
        """Whether further steps would find nothing new."""
        return bool(self.beta[-1] <= _INVARIANT)

    def ritz(self) -> tuple[Floats, Floats]:
        """Approximate eigenvalues, ascending, and the coordinates of their vectors in the basis, in columns."""
        return eigh_tridiagonal(self.alpha, self.beta[:-1])  # type: ignore[no-any-return]

    def vector(self, coordinates: Floats) -> Floats:
        """The vector with these coordinates, of length one."""
        x = self.basis.T @ coordinates
        return x / np.linalg.norm(x)

    def flattest(self) -> Floats:
        """The vector of the basis' span that ``A`` makes shortest."""
        size = len(self.alpha)
        tall = diags([self.alpha, self.beta, self.beta[:-1]], [0, -1, 1], shape=(size + 1, size)).toarray()
        return self.vector(np.linalg.svd(tall)[2][-1])

    def missed(self) -> float:
        """How much, relative to it, the largest eigenvalue of a non-negative matrix can exceed its Ritz value.

        For a start drawn evenly from the sphere, the probability of ``theta < (1 - eps) lambda`` is at most
        ``1.648 sqrt(n) exp(-sqrt(eps) (2k - 1))`` (Kuczynski and Wozniakowski, 1992); this is ``eps`` for `_RISK`.
        """
        if self.is_invariant:
            return 0.0
        steps, num_nodes = self.basis.shape
        # One step is not counted, so that it does not matter whether the start counts as one.
        root: float = math.log(1.648 * math.sqrt(num_nodes) / _RISK) / (2 * steps - 3) if steps > 1 else 1.0
        return min(1.0, root * root)


def lanczos(apply: Callable[[Floats], Floats], operator: Operator, steps: int | None = None) -> Krylov:
    """Run the iteration with every vector made orthogonal to all before, so that rounding does not spoil the theory.

    Args:
        apply: the product with ``P``, or with a function of it.
        operator: whose kernel is kept out of all vectors; what is left has one dimension at least.
        steps: the most steps; fewer are taken where the vectors would not fit into memory.
    """
    size = operator.num_nodes
    most = min(steps or _STEPS, max(2, _NUMBERS_KEPT // size), size - operator.num_components)
    basis, alpha, beta = np.empty((most, size)), np.zeros(most), np.zeros(most)
    q = operator.without_kernel(np.random.default_rng(0).standard_normal(size))
    for k in range(most):
        basis[k] = q / np.linalg.norm(q)
        q = apply(basis[k])
        alpha[k] = basis[k] @ q
        for _ in range(2):  # twice is enough, whatever the first pass cancelled
            q = operator.without_kernel(q - basis[: k + 1].T @ (basis[: k + 1] @ q))
        beta[k] = np.linalg.norm(q)
        if beta[k] <= _INVARIANT:
            break
    return Krylov(basis[: k + 1], alpha[: k + 1], beta[: k + 1])


@dataclass(frozen=True, eq=False)
class Factor:
    """``s I - P = L D L^T`` with a bound of its rounding error.

    Attributes:
        num_above: the number of negative pivots, which is the number of eigenvalues of ``P`` above ``s``.
        error: the count is right for a matrix that is at most this far from ``P`` in the spectral norm.
        is_affordable: whether it was small enough for more of its kind.
    """

    num_above: int
    error: float
    is_affordable: bool
    _solver: Any

    @classmethod
    def of(cls, matrix: Any, shift: float) -> Factor | None:
        """Factor with pivots from the diagonal; None where that breaks down or would be too large."""
        if (matrix.nnz - matrix.shape[0]) // 2 > _MOST_EDGES:
            return None
        shifted = (shift * identity(matrix.shape[0]) - matrix).tocsc()
        options = {"SymmetricMode": True, "Equil": False}
        try:
            solver = splu(shifted, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
        except (RuntimeError, MemoryError):  # a pivot of zero
            return None
        if not np.array_equal(solver.perm_r, solver.perm_c):
            return None
        lower, upper = solver.L.tocsr(), solver.U.tocsr()
        pivots = upper.diagonal()
        # ||L D L^T - (s I - P)|| is at most |L| |U| times the roundings of a sum, and |L| |U - D L^T|.
        roundings = (int(np.diff(lower.indptr).max()) + 2) * _UNIT
        ones, asymmetry = np.ones(len(pivots)), upper - diags(pivots) @ lower.T
        error = (roundings * (abs(lower) @ (abs(upper) @ ones)) + abs(lower) @ (abs(asymmetry) @ ones)).max()
        return cls(int((pivots < 0).sum()), float(error), lower.nnz <= _MOST_ENTRIES, solver)

    def solve(self, x: Floats) -> Floats:
        """``(s I - P)^-1 x``."""
        solution: Floats = self._solver.solve(x)
        return solution


@dataclass(frozen=True, eq=False)
class Ends:
    """What is known of the eigenvalues ``p`` of ``P`` outside the kernel.

    Attributes:
        top: the largest.
        bottom: the smallest.
        middle: the smallest ``|p|``.
        known: numbers with an eigenvalue near each.
        errors: how near.
    """

    top: Estimate
    bottom: Estimate
    middle: Estimate
    known: Floats
    errors: Floats

    def with_known(self, found: list[Estimate], slack: float) -> Ends:
        """The same with these values among the known ones."""
        known = np.append(self.known, [estimate.value for estimate in found])
        errors = np.append(self.errors, [estimate.residual + slack for estimate in found])
        return replace(self, known=known, errors=errors)


def find_ends(operator: Operator, *, has_twins: bool) -> Ends:
    """Bounds by Lanczos, tightened to proved intervals where a sparse factorisation is cheap.

    Args:
        operator: components that are too large to be solved densely.
        has_twins: the middle is known to be 0, so no work is put into it.
    """
    krylov = lanczos(lambda x: operator.matrix @ x, operator)
    values, coordinates = krylov.ritz()
    slack = operator.rounding + 1e-14 * math.sqrt(operator.num_nodes)
    if krylov.is_invariant:  # up to what was taken for rounding
        slack += float(krylov.beta[-1])
    # Gershgorin: a row of the similar matrix D~^-1 (A + I) has 1 / (1 + d) on the diagonal and d / (1 + d) off it.
    floor = float(2 * operator.matrix.diagonal().min() - 1)
    top = _end(operator, krylov, coordinates[:, -1], 1, slack, 1.0)
    bottom = _end(operator, krylov, coordinates[:, 0], -1, slack, -floor)
    middle = _middle(operator, krylov.flattest(), slack)
    residuals = np.abs(krylov.beta[-1] * coordinates[-1])
    near = residuals <= _NEAR
    ends = Ends(top, bottom, middle, values[near], residuals[near] + slack)
    return _proved(operator, ends, slack, has_twins=has_twins)


def _end(
    operator: Operator, krylov: Krylov, coordinates: Floats, sign: Literal[1, -1], slack: float, most: float
) -> Estimate:
    """The largest eigenvalue of ``sign * P``, which the Ritz value bounds from below; `most` bounds it from above."""
    value, residual = _rayleigh(operator, krylov.vector(coordinates))
    value = sign * value
    missed = krylov.missed()
    high = most if missed >= 1 else min(most, (1 + value) / (1 - missed) - 1 + slack)
    found = Estimate(value, value - slack, max(high, value + slack), "lower bound", residual, _RISK, "Lanczos")
    return found.shifted(0, sign)


def _middle(operator: Operator, x: Floats, slack: float) -> Estimate:
    """``min |p|`` is at most ``||P x|| / ||x||`` for any ``x`` outside the kernel."""
    x = operator.without_kernel(x)
    length = float(np.linalg.norm(operator.matrix @ x) / np.linalg.norm(x))
    _, residual = _rayleigh(operator, x / np.linalg.norm(x))
    return Estimate(length, 0.0, length + slack, "upper bound", residual, 0.0, "Lanczos")


def _rayleigh(operator: Operator, x: Floats) -> tuple[float, float]:
    """``p = x^T P x`` and the residual ``||P x - p x||`` of a vector of length one, made orthogonal to the kernel."""
    x = operator.without_kernel(x)
    x = x / np.linalg.norm(x)
    image = operator.matrix @ x
    value = float(x @ image)
    return value, float(np.linalg.norm(image - value * x))


def _proved(operator: Operator, ends: Ends, slack: float, *, has_twins: bool) -> Ends:
    """The same with both sides proved, as far as factorisations stay small."""
    beyond = Factor.of(operator.matrix, 1 + 1e-8)  # so near to 1 that the gap is resolved even on a long path
    if beyond is None or not beyond.is_affordable:
        return ends
    ends = replace(
        ends,
        top=_proved_top(operator, beyond, ends.top, slack),
        bottom=_proved_bottom(operator, ends.bottom, slack),
    )
    found = ends if has_twins else _proved_middle(operator, ends, slack)
    return found.with_known([ends.top, ends.bottom], slack)


def _nearest(operator: Operator, factor: Factor) -> tuple[float, float]:
    """The eigenvalue nearest to the factor's shift and its residual, by Lanczos on the inverse."""
    krylov = lanczos(factor.solve, operator, _INVERSE_STEPS)
    values, coordinates = krylov.ritz()
    return _rayleigh(operator, krylov.vector(coordinates[:, np.argmax(np.abs(values))]))


def _proved_top(operator: Operator, beyond: Factor, top: Estimate, slack: float) -> Estimate:
    value, residual = _nearest(operator, beyond)
    if value >= top.value and residual <= top.residual:
        high = max(value + slack, top.high)
        top = Estimate(value, value - slack, high, top.kind, residual, top.risk, "inverse Lanczos")
    shift = top.value + max(2 * top.residual, 1e-4 * (1 - top.value))
    factor = Factor.of(operator.matrix, shift)
    if factor is None or factor.num_above != operator.num_components or shift + factor.error >= 1:
        return top
    return _counted(top, top.value - slack, shift + factor.error + slack)


def _proved_bottom(operator: Operator, bottom: Estimate, slack: float) -> Estimate:
    shift = bottom.value - max(2 * bottom.residual, 1e-6)
    factor = Factor.of(operator.matrix, shift)
    if factor is None or factor.num_above != operator.num_nodes:
        return bottom
    return _counted(bottom, shift - factor.error - slack, bottom.value + slack)


def _proved_middle(operator: Operator, ends: Ends, slack: float) -> Ends:
    factor = Factor.of(operator.matrix, 1e-7)  # not 0: the matrix may well be singular
    if factor is None:
        return ends
    value, residual = _nearest(operator, factor)
    distance = abs(value)
    if distance + residual > ends.middle.high:
        return ends
    middle = Estimate(distance, 0.0, distance + residual + slack, "upper bound", residual, 0.0, "inverse Lanczos")
    ends = ends.with_known([replace(middle, value=value)], slack)
    gap = distance - max(2 * residual, 1e-4 * distance)
    below, above = (Factor.of(operator.matrix, shift) for shift in (-gap, gap))
    if gap > 0 and below is not None and above is not None and below.num_above == above.num_above:
        middle = _counted(middle, max(0.0, gap - max(below.error, above.error) - slack), middle.high)
    return replace(ends, middle=middle)


def _counted(found: Estimate, low: float, high: float) -> Estimate:
    """The same value with both sides proved."""
    return Estimate(found.value, low, high, "computed", found.residual, 0.0, f"{found.method}, counted")
