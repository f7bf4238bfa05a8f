"""The mask of some rows of a tensor is that of the same rows of the whole, whoever hashes it."""

import importlib

import pytest
import torch
from graphjoule.graph.part import Excerpt, Part, computing_on, current_part

from graphjoule.ops import dropout, make_key
from graphjoule.ops.dropout import keep_mask, words_of_excerpt

from .tasks import Sized

KEYS = torch.stack([make_key(0), make_key(1), make_key(2)])


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


def test_dropout_knows_the_part_that_is_computed_on():
    x, key, rows = torch.ones(10, 4), make_key(7), torch.tensor([1, 4, 9])
    whole = dropout(x, 0.5, key)
    part = Part(Excerpt(rows, 10), Sized(2))
    with computing_on(part):
        assert current_part() is part
        assert dropout(x[rows], 0.5, key).equal(whole[rows])
        with computing_on(None):
            assert dropout(x, 0.5, key).equal(whole)
    assert current_part() is None


def test_the_part_is_forgotten_after_an_error():
    def fail():
        with computing_on(Part(Excerpt(torch.arange(1), 2), Sized(2))):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert current_part() is None
