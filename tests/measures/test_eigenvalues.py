"""Counting eigenvalues, and numbers that are known more or less well; all else is tested through `spectrum`."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.measures.eigenvalues import Estimate, Factor, Operator, largest, smallest
from tests.graphs import edge_lists, few, random_edges


@few
@given(edge_lists(), st.floats(-0.95, 0.95))
def test_eigenvalues_are_counted_right(edges, shift):
    operator = Operator.of(edges.graph64())
    factor = Factor.of(operator.matrix, shift)
    if factor is None:  # a pivot of zero
        return
    eigenvalues = torch.linalg.eigvalsh(edges.dense()).numpy()
    error = factor.error + 1e-13
    assert (eigenvalues > shift + error).sum() <= factor.num_above <= (eigenvalues > shift - error).sum()


def test_the_error_of_a_count_is_small_where_it_is_used():
    graph = random_edges(300, 600, seed=4).graph64()
    factor = Factor.of(Operator.of(graph).matrix, 0.99)
    assert factor.error < 1e-10


def test_the_smallest_of_estimates_knows_what_it_does_not_know():
    exact, bound = Estimate.exact(0.5, 1e-15, "dense"), Estimate(0.4, 0.3, 0.4, "upper bound", risk=1e-9)
    assert smallest([exact, bound]) == bound
    assert largest([exact, bound]) == exact
    unsure = Estimate(0.6, 0.45, 0.6, "upper bound", risk=1e-9)
    both = smallest([exact, unsure])
    assert (both.value, both.low, both.high, both.kind, both.risk) == (0.5, 0.45, exact.high, "upper bound", 1e-9)
    assert smallest([]) is None
