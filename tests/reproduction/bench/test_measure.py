import gc
import weakref

import pytest
import torch

from reproduction.bench.cases import MAX_EPOCHS
from reproduction.bench.measure import (
    MAX_REPEATS,
    MAX_STEPS_PER_TURN,
    MIN_REPEATS,
    WARM_UP,
    Side,
    Spread,
    limited_memory,
    measure_sides,
    paired_ratio,
)

CPU = torch.device("cpu")
WARM = WARM_UP["cpu"]


class World:
    """A clock that only steps move, and the order in which they were called."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def clock(self):
        return self.now

    def side(self, name, *seconds, scale=lambda world: 1.0):
        """A side whose steps take the given seconds, the last one for ever."""
        durations = list(seconds)

        def step():
            self.calls.append(name)
            self.now += scale(self) * (durations.pop(0) if len(durations) > 1 else durations[0])

        return Side(name, lambda: step)


@pytest.fixture
def world():
    return World()


def test_sides_take_turns_after_a_warm_up(world):
    sides = [world.side("ours", 1.0), world.side("pyg", 2.0), world.side("pyg-csr", 1.5)]
    measure_sides(sides, CPU, 0.0, world.clock)
    warm = ["ours"] * WARM + ["pyg"] * WARM + ["pyg-csr"] * WARM
    assert world.calls == warm + ["ours", "pyg", "pyg-csr"] * MIN_REPEATS


def test_the_warm_up_is_not_in_the_result(world):
    slow_start = world.side("ours", *[100.0] * WARM, 3.0)
    measure_sides([slow_start], CPU, 0.0, world.clock)
    assert slow_start.seconds == [3.0] * MIN_REPEATS


def test_median_and_quartiles(world):
    side = world.side("ours", *[9.0] * WARM, 5.0, 1.0, 2.0, 4.0, 3.0)
    measure_sides([side], CPU, 0.0, world.clock)
    assert Spread.of(side.seconds) == Spread(median=3.0, low=2.0, high=4.0)


def test_the_ratio_is_paired_so_a_slow_spell_of_the_machine_cancels(world):
    def spell(world):
        return 10.0 if len(world.calls) > 8 else 1.0

    ours, peer = world.side("ours", 1.0, scale=spell), world.side("pyg", 4.0, scale=spell)
    measure_sides([ours, peer], CPU, 0.0, world.clock)
    assert len(set(ours.seconds)) == 2  # the spell began between two repeats
    assert paired_ratio(peer, ours) == Spread(4.0, 4.0, 4.0)
    assert paired_ratio(peer, ours, factor=16) == Spread(64.0, 64.0, 64.0)


@pytest.mark.parametrize(
    ("budget", "repeats"),
    [(0.0, MIN_REPEATS), (15.0, MIN_REPEATS), (29.9, 9), (30.0, 10), (30.5, 10), (1e9, MAX_REPEATS)],
)
def test_repeats_fill_the_budget_and_no_more(world, budget, repeats):
    sides = [world.side("ours", 1.0), world.side("pyg", 2.0)]
    measure_sides(sides, CPU, budget, world.clock)
    assert [len(side.seconds) for side in sides] == [repeats, repeats]


@pytest.mark.parametrize(("seconds", "steps"), [(1.0, 1), (0.05, 1), (0.02, 3), (1e-4, 50)])
def test_a_short_step_is_timed_several_at_once(world, seconds, steps):
    side = world.side("ours", seconds)
    measure_sides([side], CPU, 0.0, world.clock)
    assert side.steps_per_turn == steps
    assert world.calls == ["ours"] * (WARM + MIN_REPEATS * steps)
    assert side.seconds == pytest.approx([seconds] * MIN_REPEATS)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        MemoryError(),
    ],
    ids=["cuda", "cpu", "python"],
)
@pytest.mark.parametrize("when", ["build", "step"])
def test_a_side_that_runs_out_of_memory_says_so_and_the_others_go_on(world, error, when):
    def fail():
        raise error

    ours, peer, other = (
        world.side("ours", 1.0),
        Side("pyg", fail if when == "build" else lambda: fail),
        world.side("b", 2.0),
    )
    measure_sides([ours, peer, other], CPU, 0.0, world.clock)
    assert (peer.failure, peer.seconds) == ("out of memory", ())
    assert (ours.failure, other.failure) == (None, None)
    assert paired_ratio(other, ours).median == 2.0


def test_what_a_failed_side_held_is_let_go(world):
    held = []

    def build():
        big = torch.zeros(3)
        held.append(weakref.ref(big))
        raise MemoryError

    measure_sides([Side("pyg", build)], CPU, 0.0, world.clock)
    gc.collect()
    assert held[0]() is None


def test_any_other_error_is_not_swallowed(world):
    def build():
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        measure_sides([Side("pyg", build)], CPU, 0.0, world.clock)


def test_no_side_makes_more_epochs_than_the_recipes_allow():
    assert max(WARM_UP.values()) + MAX_REPEATS * MAX_STEPS_PER_TURN < MAX_EPOCHS


def test_memory_is_limited_on_a_cpu_for_a_while(monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr("reproduction.bench.measure.free_bytes", lambda device: 2**30)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with limited_memory(CPU), pytest.raises(RuntimeError, match="can't allocate memory"):
        torch.empty(2**32, dtype=torch.uint8)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
