"""The Lanczos iteration from a random start, and what it proves about the ends of a spectrum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh_tridiagonal

from graphjoule.measures.spectrum.operator import Floats, Operator

_STEPS = 400
_NUMBERS_KEPT = 2**26  # of all basis vectors together: 512 MiB
_INVARIANT = 1e-10  # a next vector shorter than this could be rounding: the basis spans all that the start can reach
RISK = 1e-9


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
        values, vectors = eigh_tridiagonal(self.alpha, self.beta[:-1])
        return values, vectors

    def vector(self, coordinates: Floats) -> Floats:
        """The vector with these coordinates, of length one."""
        x = self.basis.T @ coordinates
        return x / np.linalg.norm(x)

    def flattest(self) -> Floats:
        """The vector of the basis' span that ``A`` makes shortest."""
        size = len(self.alpha)
        tall = np.zeros((size + 1, size))
        tall[np.arange(size), np.arange(size)] = self.alpha
        tall[np.arange(1, size + 1), np.arange(size)] = self.beta
        tall[np.arange(size - 1), np.arange(1, size)] = self.beta[:-1]
        return self.vector(np.linalg.svd(tall)[2][-1])

    def missed(self) -> float:
        """How much, relative to it, the largest eigenvalue of a non-negative matrix can exceed its Ritz value.

        For a start drawn evenly from the sphere, the probability of ``theta < (1 - eps) lambda`` is at most
        ``1.648 sqrt(n) exp(-sqrt(eps) (2k - 1))`` (Kuczynski and Wozniakowski, 1992); this is ``eps`` for `RISK`.
        """
        if self.is_invariant:
            return 0.0
        steps, num_nodes = self.basis.shape
        # One step is given away, so that it does not matter whether the start counts as one.
        root: float = math.log(1.648 * math.sqrt(num_nodes) / RISK) / (2 * steps - 3) if steps > 1 else 1.0
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
