"""The pieces of CSR matrices against dense ones."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.graph.csr import entries_of_rows, row_of_entries, row_starts
from tests.graphs import few

lengths = st.lists(st.integers(0, 4), min_size=1, max_size=9)


def starts_of(length: list[int]) -> torch.Tensor:
    return torch.tensor([0, *length]).cumsum(0).int()


@few
@given(lengths, st.randoms(use_true_random=False))
def test_starts_are_those_of_the_rows_whatever_their_order(length, random):
    rows = [row for row, count in enumerate(length) for _ in range(count)]
    random.shuffle(rows)
    starts = row_starts(torch.tensor(rows, dtype=torch.int64), len(length))
    assert starts.dtype == torch.int32
    assert starts.equal(starts_of(length))


def test_without_entries_or_rows_starts_are_zeros():
    none = torch.zeros(0, dtype=torch.int64)
    assert row_starts(none, 3).tolist() == [0, 0, 0, 0]
    assert row_starts(none, 0).tolist() == [0]


@few
@given(lengths, st.data())
def test_entries_of_some_rows_are_theirs_in_the_order_asked_for(length, data):
    rowptr = starts_of(length)
    rows = data.draw(st.lists(st.integers(0, len(length) - 1)))  # in any order, some of them twice or none at all
    place, entry = entries_of_rows(rowptr, torch.tensor(rows, dtype=torch.int64))
    pieces = [range(int(rowptr[row]), int(rowptr[row + 1])) for row in rows]
    assert entry.tolist() == [number for piece in pieces for number in piece]
    assert place.tolist() == [number for number, piece in enumerate(pieces) for _ in piece]
    assert place.dtype == entry.dtype == torch.int64


def test_all_rows_have_all_entries():
    rowptr = starts_of([2, 0, 3])
    place, entry = entries_of_rows(rowptr, torch.arange(3))
    assert place.equal(row_of_entries(rowptr))
    assert entry.equal(torch.arange(5))
