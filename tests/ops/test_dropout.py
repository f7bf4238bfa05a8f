import importlib
import math

import pytest
import torch
from torch import Tensor

from graphjoule.graph.nodes import Excerpt
from graphjoule.ops import dropout, fold_in, make_key, split_key, use_backend
from graphjoule.ops.dropout import hash_halves, hash_words, keep_mask, words_of_excerpt

PS = [0.1, 0.5, 0.6, 0.9]
KEYS = torch.stack([make_key(0), make_key(1), make_key(2)])
SHAPES = [(), (0,), (1,), (3,), (5, 7), (4, 6), (3, 1, 5)]


def masks(keys: Tensor, count: int, p: float) -> Tensor:
    """One row of standardised keep decisions per key: mean 0 and variance 1 if the stream is fair."""
    kept = torch.vmap(lambda key: dropout(torch.ones(count), p, key))(keys) != 0
    return (kept.double() - (1 - p)) / math.sqrt(p * (1 - p))


def neighbouring_keys() -> Tensor:
    """Keys of neighbouring seeds, epochs and layers, 4 of each, derived as training derives them."""
    seeds = make_key(torch.arange(4))
    return torch.cat([fold_in(fold_in(seeds, epoch), layer) for epoch in range(4) for layer in range(4)])


def test_a_key_is_a_mask():
    x, key = torch.ones(50, 7), make_key(3)
    assert dropout(x, 0.5, key).equal(dropout(x, 0.5, make_key(3)))
    assert not dropout(x, 0.5, key).equal(dropout(x, 0.5, make_key(4)))


def test_the_stream_of_a_seed_is_what_it_has_always_been():
    kept = dropout(torch.ones(16), 0.5, fold_in(make_key(0), 1)).bool().int().tolist()
    assert kept == [0, 1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0]  # a change here changes every recorded result


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("runs", [1, 3, 10])
def test_a_run_has_the_same_mask_alone_and_among_others(shape, runs):
    keys = make_key(torch.arange(runs))
    x = torch.rand(runs, *shape, generator=torch.Generator().manual_seed(0))
    together = torch.vmap(lambda x, key: dropout(x, 0.4, key))(x, keys)
    shared = torch.vmap(lambda key: dropout(x[0], 0.4, key))(keys)
    for run in range(runs):
        assert together[run].equal(dropout(x[run], 0.4, make_key(run)))
        assert shared[run].equal(dropout(x[0], 0.4, make_key(run)))


def test_the_run_axis_may_be_any():
    keys = make_key(torch.arange(3))
    assert torch.vmap(lambda key: dropout(torch.ones(5), 0.5, key), in_dims=1)(keys.t()).equal(
        torch.vmap(lambda key: dropout(torch.ones(5), 0.5, key))(keys)
    )


@pytest.mark.parametrize("p", PS)
def test_the_keep_rate_is_within_five_sigma(p):
    count = 100_000
    kept = dropout(torch.ones(count), p, make_key(0)).count_nonzero()
    assert abs(kept / count - (1 - p)) < 5 * math.sqrt(p * (1 - p) / count)


@pytest.mark.parametrize("p", [*PS, 1e-6, 1 / 3, 0.99999, 1 - 1e-9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_scale_times_the_chance_to_be_kept_is_one(p, dtype):
    scales = dropout(torch.ones(400_000, dtype=dtype), p, make_key(0)).unique()
    scale = float(scales[-1])
    chance = (2**16 - min(round(p * 2**16), 2**16 - 1)) / 2**16  # p in steps of 2^-16, never 1
    assert abs(chance - (1 - p)) <= 2**-16
    assert abs(scale * chance - 1) < 2 * torch.finfo(dtype).eps
    assert scales.numel() <= 2


@pytest.mark.parametrize("p", PS)
def test_neighbouring_elements_are_uncorrelated(p):
    count = 20_000
    mask = masks(neighbouring_keys(), count, p)
    for lag in (1, 2, 3, 63, 64, 65, count // 2 - 1, count // 2, count // 2 + 1):
        z = (mask[:, lag:] * mask[:, :-lag]).sum(dim=1) / math.sqrt(count - lag)
        assert z.abs().max() < 5
        assert abs(z.mean()) < 5 / math.sqrt(len(z))


@pytest.mark.parametrize("p", PS)
def test_neighbouring_seeds_epochs_and_layers_are_uncorrelated(p):
    count = 20_000
    mask = masks(neighbouring_keys(), count, p)
    z = (mask @ mask.t() / math.sqrt(count))[*torch.triu_indices(len(mask), len(mask), offset=1)]
    assert z.abs().max() < 5.5
    assert abs(z.mean()) < 5 / math.sqrt(len(z))
    assert abs(z.var() - 1) < 5 * math.sqrt(2 / len(z))


def test_no_key_and_no_probability_are_the_identity():
    x = torch.rand(3)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, make_key(0)) is x


def test_the_global_generator_is_never_touched():
    before = torch.get_rng_state()
    dropout(torch.ones(10), 0.5, split_key(fold_in(make_key(0), 1), 3)[2])
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shape_is_kept_and_only_the_number_of_elements_matters(shape):
    x = torch.ones(shape, dtype=torch.float64)
    dropped = dropout(x, 0.5, make_key(1))
    assert dropped.shape == x.shape
    assert dropped.flatten().equal(dropout(x.flatten(), 0.5, make_key(1)))


@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_every_place_is_fair_and_places_are_uncorrelated_over_many_keys(count):
    keys = make_key(torch.arange(20_000))
    mask = masks(keys, count, 0.6)
    z = mask.t() @ mask / math.sqrt(len(keys))
    assert (mask.sum(dim=0) / math.sqrt(len(keys))).abs().max() < 5
    assert (z - z.diag().diag()).abs().max() < 5


def test_every_dtype_drops_the_same_elements():
    drops = [dropout(torch.ones(99, dtype=dtype), 0.5, make_key(0)) for dtype in (torch.float32, torch.float64)]
    assert drops[0].bool().equal(drops[1].bool())
    assert drops[1].dtype == torch.float64


def test_the_gradient_is_the_mask():
    x = torch.rand(5, 7, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(dropout(x, 0.5, make_key(0)).sum(), x)
    assert gradient.equal(dropout(torch.ones_like(x), 0.5, make_key(0)))
    assert torch.autograd.gradcheck(lambda x: dropout(x, 0.5, make_key(0)), x)


def test_the_gradient_of_many_runs_is_each_runs_mask():
    keys = make_key(torch.arange(3))
    x = torch.rand(3, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.vmap(lambda x, key: dropout(x, 0.5, key))(x, keys).sum(), x)
    assert gradient.equal(torch.vmap(lambda key: dropout(torch.ones(5), 0.5, key))(keys))


def test_a_hundred_thousand_keys_are_all_distinct():
    per_epoch = fold_in(make_key(torch.arange(100))[:, None], torch.arange(100, dtype=torch.int32))
    keys = fold_in(per_epoch[:, :, None], torch.arange(10, dtype=torch.int32)).view(-1, 2)
    every = torch.cat([keys, per_epoch.view(-1, 2), make_key(torch.arange(100))])
    assert keys.shape == (100_000, 2)
    assert len(every.unique(dim=0)) == len(every)
    for word in keys.t():  # each word alone is as spread out as 32 random bits: about 1.2 pairs in 1e5 collide
        assert len(word.unique()) > 100_000 - 10


def test_all_64_bits_of_a_seed_count():
    seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**62, 2**63 - 1, -1, -(2**63)]
    keys = torch.stack([make_key(seed) for seed in seeds])
    assert len(keys.unique(dim=0)) == len(seeds)
    assert make_key(torch.tensor(seeds)).equal(keys)
    assert keys.dtype == torch.int32


def test_keys_of_many_runs_are_those_of_each_run():
    keys = make_key(torch.arange(5))
    assert fold_in(keys, 7).equal(torch.stack([fold_in(make_key(seed), 7) for seed in range(5)]))
    assert fold_in(keys, torch.tensor(7)).equal(fold_in(keys, 7))
    assert torch.vmap(lambda key: fold_in(key, 7))(keys).equal(fold_in(keys, 7))


def test_split_keys_are_folds_and_none_splits_into_none():
    key = make_key(0)
    assert torch.stack(list(split_key(key, 4))).equal(torch.stack([fold_in(key, k) for k in range(4)]))
    assert split_key(None, 3) == [None, None, None]


def test_halves_are_those_of_the_words():
    keys = make_key(torch.tensor([0, 2**40 + 7, 3]))
    words = hash_words(keys, 1000)
    halves = hash_halves(torch.arange(1000, dtype=torch.int32), keys, torch.empty(3, 2, 1000, dtype=torch.int32))
    assert torch.equal(halves[:, 0], words & 0xFFFF)
    assert torch.equal(halves[:, 1], (words >> 16) & 0xFFFF)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1,), (7,), (5, 7), (300, 64)])
def test_triton_draws_the_same_masks_as_the_reference(shape):
    keys = make_key(torch.arange(3)).cuda()
    x = torch.randn(3, *shape, device="cuda", requires_grad=True)
    results = {}
    for backend in ("reference", "triton"):
        with use_backend(backend):
            out = torch.vmap(lambda x, key: dropout(x, 0.6, key))(x, keys)
        results[backend] = (out, torch.autograd.grad(out.square().sum(), x)[0])
    for ours, truth in zip(results["triton"], results["reference"], strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-6, atol=0)


# Some rows of a tensor: their mask is that of the same rows of the whole.


@pytest.mark.parametrize("shape", [(7, 3), (8, 4), (5, 1), (1, 1), (9,), (6, 2, 3)])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_masks_of_rows_are_rows_of_the_mask(shape, p):
    whole = keep_mask(KEYS, shape, p, torch.float32)
    rows = torch.randperm(shape[0], generator=torch.Generator().manual_seed(0))[: (shape[0] + 1) // 2]
    part = keep_mask(KEYS, (len(rows), *shape[1:]), p, torch.float32, Excerpt(rows, shape[0]))
    assert part.equal(whole[:, rows])


def test_many_rows_are_hashed_some_at_a_time(monkeypatch):
    module = importlib.import_module("graphjoule.ops.dropout")  # the package has a function of that name
    monkeypatch.setattr(module, "_ELEMENTS_AT_ONCE", 10)
    whole = keep_mask(KEYS, (50, 4), 0.4, torch.float64)
    rows = torch.arange(0, 50, 2)
    assert keep_mask(KEYS, (25, 4), 0.4, torch.float64, Excerpt(rows, 50)).equal(whole[:, rows])


def test_no_rows_have_an_empty_mask():
    empty = Excerpt(torch.empty(0, dtype=torch.int64), 5)
    assert keep_mask(KEYS, (0, 4), 0.4, torch.float32, empty).shape == (3, 0, 4)


def test_numbers_beyond_32_bits_count_on():
    """A tensor of 2^33 elements cannot be made here; its words can be worked out by hand."""
    total, width = 2**31, 4
    rows = torch.tensor([0, 5, 2**30 - 1, 2**30, 2**31 - 1])
    word, is_high = words_of_excerpt(Excerpt(rows, total), width)
    for row, words, highs in zip(rows.tolist(), word.tolist(), is_high.tolist(), strict=True):
        for column in range(width):
            element, half = row * width + column, total * width // 2
            expected = element - half if element >= half else element
            assert highs[column] == (element >= half)
            assert words[column] == (expected + 2**31) % 2**32 - 2**31
