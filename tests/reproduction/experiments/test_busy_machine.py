"""The benchmark beside busy programs: its load ends with it, and its ratio is of medians."""

import pytest

from reproduction.experiments.busy_machine import BUSY, busy, ratio, started


def test_the_default_is_compared_with_the_best_fixed_number():
    found = {"default": [3.0, 9.0, 2.0], "1": [2.0, 2.5, 2.0], "2": [40.0]}
    assert ratio(found) == pytest.approx(1.5)


def test_the_load_ends_with_the_block():
    with started("-c", BUSY) as process, busy(0):
        assert process.poll() is None
    assert process.returncode == -9
