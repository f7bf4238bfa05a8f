"""The spectrum of a graph: dense and exact where components are small, Lanczos and counting where they are large."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation, exact_propagation
from graphjoule.measures.spectrum.estimate import Estimate, largest, smallest
from graphjoule.measures.spectrum.large import Ends, find_ends
from graphjoule.measures.spectrum.operator import Floats, Integers, Operator

DENSE_NODES = 3000  # a component of this size takes about 2 s on one core
_DENSE_WORK = 2 * DENSE_NODES**3  # cubes of all dense components together, so that many large ones do not take hours


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
    dense, large = divide(operator.sizes(), dense_nodes)
    values, error = _dense_values(operator, dense)
    twins = operator.twins()
    ends = find_ends(operator.part(large), has_twins=twins is not None) if len(large) else None
    lambda_0, middle, lambda_max = _combined(values, error, ends, twins is not None)
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


def divide(sizes: Integers, dense_nodes: int) -> tuple[Integers, Integers]:
    """Components to solve densely, smallest first while the work allows, and those to leave to Lanczos.

    A component of one node has no eigenvalue but 0 and is in neither.
    """
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 1]
    cubes = np.cumsum(sizes[order].astype(np.float64) ** 3)
    is_dense = (sizes[order] <= dense_nodes) & (cubes <= max(_DENSE_WORK, dense_nodes**3))
    return order[is_dense], order[~is_dense]


def _dense_values(operator: Operator, components: Integers) -> tuple[Floats, float]:
    """Eigenvalues of ``P`` outside the kernel, and a bound of their rounding error."""
    # The largest eigenvalue of a connected component is 1, once: it is the kernel's.
    found = [np.linalg.eigvalsh(block)[:, :-1].ravel() for _, block in operator.blocks(components)]
    size = int(operator.sizes()[components].max()) if len(components) else 0
    return np.concatenate([np.empty(0), *found]), operator.rounding + size * 2.0**-52


def _combined(
    values: Floats, error: float, ends: Ends | None, has_twins: bool
) -> tuple[Estimate | None, Estimate | None, Estimate | None]:
    """``lambda_0``, ``|1 - lambda_1|`` and ``lambda_max`` of all components together."""
    lows, distances, highs = [], [], []
    if len(values):
        lows.append(Estimate.exact(float(1 - values.max()), error, "dense"))
        distances.append(Estimate.exact(float(np.abs(values).min()), error, "dense"))
        highs.append(Estimate.exact(float(1 - values.min()), error, "dense"))
    if ends is not None:
        lows.append(ends.top.shifted(1, -1))
        distances.append(ends.middle)
        highs.append(ends.bottom.shifted(1, -1))
    if has_twins:
        distances = [Estimate(0.0, 0.0, error, "exact", method="twins")]
    return smallest(lows), smallest(distances), largest(highs)


def _closest_to_one(middle: Estimate, known: Floats) -> Estimate:
    """The eigenvalue whose distance from 1 is `middle`; its side is that of the known eigenvalue closest to 1."""
    nearest = known[np.argmin(np.abs(known - 1))] if len(known) else 1.0
    value = float(1 + np.copysign(middle.value, nearest - 1))
    # Which side of 1 it is on is only sure when it is exact.
    around, error = (value, middle.high - middle.value) if middle.kind == "exact" else (1.0, middle.high)
    return replace(middle, value=value, low=around - error, high=around + error)
