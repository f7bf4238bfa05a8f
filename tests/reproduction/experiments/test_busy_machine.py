"""The benchmark beside busy programs: its load ends with it, and its ratio is of medians."""

import pytest

from reproduction.experiments.busy_machine import BUSY, busy, ratio, seconds_of, started

SIDE = (
    "import time\nfor _ in iter(input, None): print('third', flush=True); time.sleep({pause}); print(0.25, flush=True)"
)


def test_the_default_is_compared_with_the_best_fixed_number():
    found = {"default": [3.0, 9.0, 2.0], "1": [2.0, 2.5, 2.0], "2": []}  # of two threads every turn was cut
    assert ratio(found) == pytest.approx(1.5)


def test_the_load_ends_with_the_block():
    with started("-c", BUSY) as process, busy(0):
        assert process.poll() is None
    assert process.returncode == -9


@pytest.mark.parametrize(("pause", "most", "found"), [(0, None, 0.25), (0, 30, 0.25), (60, 0.5, None)])
def test_a_hopeless_training_is_cut(pause, most, found):
    with started("-u", "-c", SIDE.format(pause=pause), env={}) as side:
        assert seconds_of(side, late=0, most=most) == found
