import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.measures.diversity import (
    effective_rank,
    feature_correlation,
    mean_pair_cosine,
    rank_one_distance,
    stable_rank,
)
from tests.graphs import few, normal

MEASURES = [mean_pair_cosine, effective_rank, stable_rank, feature_correlation]
shapes = st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**16))


def features(shape, rank=None):
    """Normal features, or some of lower rank, with a zero row among many."""
    rows, columns, seed = shape
    x = normal(rows, columns, seed=seed)
    if rank is not None:
        x = normal(rows, rank, seed=seed) @ normal(rank, columns, seed=seed + 1)
    if rows > 4:
        x[2] = 0
    return x


@few
@given(shapes)
def test_the_pair_cosine_is_the_mean_over_pairs(shape):
    x = features(shape)
    rows = [row for row in x if row.count_nonzero()]
    pairs = [torch.cosine_similarity(a, b, dim=0) for i, a in enumerate(rows) for b in rows[:i]]
    expected = float(sum(pairs)) / len(pairs) if pairs else 1.0
    assert float(mean_pair_cosine(x)) == pytest.approx(expected, abs=1e-14)
    assert -1 <= mean_pair_cosine(x) <= 1


@few
@given(shapes, st.sampled_from([None, 1, 2]))
def test_the_ranks_are_those_of_the_singular_values(shape, rank):
    x = features(shape, rank)
    values = torch.linalg.svdvals(x)
    values = values[values > 1e-7 * values[0]]
    share = values / values.sum()
    effective = float((-(share * share.log()).sum()).exp())
    stable = float(values.square().sum() / values[0] ** 2)
    assert float(effective_rank(x)) == pytest.approx(effective, rel=1e-6)
    assert float(stable_rank(x)) == pytest.approx(stable, rel=1e-12)
    away = float((1 - (values[0] ** 2 / values.square().sum())).clamp(min=0).sqrt())
    assert float(rank_one_distance(x)) == pytest.approx(away, abs=1e-7)
    assert 1 - 1e-12 <= stable_rank(x) <= effective_rank(x) + 1e-9 <= len(values) + 1e-8


@few
@given(shapes)
def test_the_correlation_is_that_of_numpy(shape):
    x = features(shape)
    rows, columns, _ = shape
    if rows < 2 or columns < 2:
        assert feature_correlation(x) == 0
        return
    correlation = np.abs(np.corrcoef(x.numpy(), rowvar=False))
    expected = (correlation.sum() - columns) / (columns * (columns - 1))
    assert float(feature_correlation(x)) == pytest.approx(expected, abs=1e-12)
    assert 0 <= feature_correlation(x) <= 1


def test_constant_channels_do_not_count_in_the_correlation():
    x = normal(50, 4)
    with_constants = torch.cat([x, torch.full((50, 2), 0.1), torch.zeros(50, 1)], dim=1)
    torch.testing.assert_close(feature_correlation(with_constants), feature_correlation(x), rtol=1e-12, atol=0)


@pytest.mark.parametrize("num_nodes", [3, 50, 999, 19717])
@pytest.mark.parametrize("number", [0.1, 1 / 3, 7.7])
def test_a_channel_is_constant_although_its_mean_is_rounded(num_nodes, number):
    assert feature_correlation(torch.full((num_nodes, 3), number, dtype=torch.float64)) == 0


def test_rounded_repeats_are_fully_correlated():
    x = normal(100, 1, dtype=torch.float32) @ normal(1, 5, dtype=torch.float32)
    assert float(feature_correlation(x)) == pytest.approx(1, abs=1e-12)
    assert float(effective_rank(x)) == pytest.approx(1, abs=1e-5)


def test_the_ranks_of_a_wide_and_of_a_long_matrix_are_the_same():
    x = normal(3, 40)
    torch.testing.assert_close(effective_rank(x), effective_rank(x.t()), rtol=1e-12, atol=0)
    torch.testing.assert_close(stable_rank(x), stable_rank(x.t()), rtol=1e-12, atol=0)


@pytest.mark.parametrize("measure", [mean_pair_cosine, effective_rank, stable_rank])
def test_rotating_and_scaling_the_features_changes_nothing(measure):
    x = normal(12, 5)
    rotation = torch.linalg.qr(normal(5, 5, seed=1))[0]
    torch.testing.assert_close(measure(-1e-12 * x @ rotation), measure(x), rtol=1e-12, atol=1e-15)


def test_scaling_and_shifting_channels_does_not_change_their_correlation():
    x = normal(12, 5)
    scale = torch.tensor([1e-6, -1, 2, 3, 1e6], dtype=torch.float64)
    torch.testing.assert_close(feature_correlation(x * scale + 1e-3), feature_correlation(x), rtol=1e-9, atol=0)


def test_what_zero_features_measure():
    x = torch.zeros(5, 3)
    assert [float(measure(x)) for measure in MEASURES] == [1, 0, 0, 0]
    assert effective_rank(torch.zeros(5, 0)) == stable_rank(torch.zeros(5, 0)) == 0


@pytest.mark.parametrize("measure", MEASURES)
def test_gradcheck(measure):
    x = normal(2, 7, 3).requires_grad_()
    assert torch.autograd.gradcheck(measure, x)
    assert torch.autograd.gradgradcheck(measure, x)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("make", [torch.zeros, torch.ones])
def test_the_gradient_of_degenerate_features_is_finite(measure, make):
    x = make(6, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(measure(x), x)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_features_that_are_not_finite_measure_not_a_number_in_their_run_alone(measure, wrong):
    x = normal(2, 6, 4)
    x[0, 1, 1] = wrong
    values = measure(x)
    assert values[0].isnan()
    torch.testing.assert_close(values[1], measure(x[1]))  # products of one matrix and of two differ in the last bit


@pytest.mark.parametrize("measure", MEASURES)
def test_a_vector_is_refused(measure):
    with pytest.raises(GraphjouleError, match=r"shape \[3\]; expected \[..., num_nodes, channels\]"):
        measure(torch.ones(3))
