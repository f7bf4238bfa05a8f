import pytest
import torch

from graphjoule.ops import limit_spectral_norm
from graphjoule.ops.spectral import spectral_norm_bound
from tests.graphs import normal


def norms(weights):
    return torch.linalg.matrix_norm(weights.double(), ord=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (5, 3), (48, 48)])
def test_no_weight_exceeds_its_limit_whatever_its_size(shape, dtype):
    ones = torch.ones(*shape, dtype=dtype)  # all in one direction
    noise = torch.stack([normal(*shape, seed=seed, dtype=dtype) for seed in range(4)])
    near = torch.eye(*shape, dtype=dtype) + 0.05 * noise.sign()  # Adam's first step with a large learning rate
    weights = torch.cat([noise, near, ones[None]])
    for size in (1e-30, 1e-3, 0.7, 1.0, 1.2, 1.7, 3.0, 40.0, 1e15, 1e30):
        for limit in (0.5, 1.0, 3.0):
            held = limit_spectral_norm(size * weights, limit)
            assert held.dtype == dtype
            assert float(norms(held).max()) <= limit


def test_weights_are_scaled_no_more_than_they_must():
    u, _, v = torch.linalg.svd(normal(6, 6))
    for values in ([1.3, 1.05, 1.0, 0.8, 0.3, 0.0], [1.3, 1.3, 1.3, 1.3, 1.3, 1.3]):
        s = torch.tensor(values, dtype=torch.float64)
        held = limit_spectral_norm(u @ torch.diag(2 * s) @ v, 2.0)
        torch.testing.assert_close(held, u @ torch.diag(2 * s / 1.3) @ v, rtol=0, atol=1e-4)


def test_weights_below_the_limit_stay_to_the_bit_and_zeros_stay_zero():
    q = torch.linalg.qr(normal(8, 8))[0]
    assert limit_spectral_norm(0.6 * q, 0.61).equal(0.6 * q)
    torch.testing.assert_close(limit_spectral_norm(0.6 * q, 0.6), 0.6 * q, rtol=0, atol=1e-4)
    assert limit_spectral_norm(torch.zeros(3, 3)).eq(0).all()


def test_every_weight_of_a_batch_has_its_own_limit():
    weights, limits = normal(2, 3, 4, 4), torch.tensor([[1.0, 2.0, 3.0], [0.1, 0.2, 0.3]], dtype=torch.float64)
    held = limit_spectral_norm(weights, limits)
    for index in ((0, 0), (1, 2)):
        torch.testing.assert_close(held[index], limit_spectral_norm(weights[index], float(limits[index])))


def test_a_weight_that_is_not_finite_spoils_no_other():
    weights = torch.stack([torch.eye(3), torch.full((3, 3), torch.nan)])
    held = limit_spectral_norm(weights)
    assert held[0].isfinite().all()
    assert held[1].isnan().all()


def test_norms_of_many_squarings_are_bounds_that_are_met():
    weights = torch.stack([normal(6, 6, seed=k) * 10.0 ** (100 * k - 200) for k in range(5)] + [torch.eye(6).double()])
    exact = torch.linalg.matrix_norm(weights, ord=2)
    found = spectral_norm_bound(torch.cat([weights, torch.zeros(1, 6, 6).double()]), 40)
    assert found[-1] == 0
    assert bool((found[:-1] >= exact * (1 - 1e-14)).all())
    torch.testing.assert_close(found[:-1], exact, rtol=1e-11, atol=0)
