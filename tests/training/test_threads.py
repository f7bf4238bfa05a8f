"""The number of threads: measured, watched, never seen in a result, and the user's own where there is one."""

import math
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch

from graphjoule import fit
from graphjoule.graph import Propagation
from graphjoule.nn.table import MODELS
from graphjoule.tasks import Classification, Task
from graphjoule.training import Record, TrainingInterrupted, threads
from graphjoule.training.recipe import load_recipe
from graphjoule.training.threads import SPLIT_SUMS, ThreadWatch, fastest, measured
from tests.training import make_batch, same_bits, small_recipe, small_task


@pytest.fixture
def five_threads(monkeypatch) -> Iterator[None]:
    """Torch as on a machine with five cores whose user has chosen no number.

    Here and below it has one thread, or more than two: on two cores OpenMP's threads spin for each other if they are
    two, and a busy machine would make seconds of milliseconds.
    """
    for name in threads._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "num_cores", lambda: 5)
    monkeypatch.setattr(threads, "_first", {})
    monkeypatch.setattr(threads, "_latest", {})
    monkeypatch.setattr(threads, "_part", None)
    torch.set_num_threads(5)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def wide_task() -> Task:
    """So many nodes and channels that torch splits most operations, and products whose bits its libraries change."""
    generator = torch.Generator().manual_seed(0)
    n = SPLIT_SUMS // 32
    return Task(
        name="wide",
        features=torch.randn(n, 40, generator=generator),
        graph=Propagation.from_edge_index(torch.randint(0, n, (2, 2 * n), generator=generator), symmetrize=True),
        targets=torch.randint(0, 3, (n,), generator=generator),
        objective=Classification(3),
        default_split="stratified-30-30",
    )


def measure_in_turn(monkeypatch, *numbers: int) -> None:
    """Let every look at the clock find that it is time to measure, and the measurements find these numbers."""
    found = cycle(numbers)
    monkeypatch.setattr(threads, "_SHARE", math.inf)
    monkeypatch.setattr(threads, "fastest", lambda *how: next(found))
    monkeypatch.setattr(threads, "measured", lambda *size: None)


# What a result shows of it.


@pytest.mark.parametrize(("model", "num_seeds"), [*((model, 1) for model in MODELS), ("egnn", 2), ("resgcn", 2)])
def test_no_result_shows_that_the_number_changed(wide_task, five_threads, monkeypatch, model, num_seeds):
    recipe = load_recipe(model, "wide", 2, {"hidden_channels": 64, "epochs": 2, "split": "stratified-30-30"})
    measure_in_turn(monkeypatch, 3, 5, 1)
    watched = make_batch(recipe, wide_task, range(num_seeds))
    with ThreadWatch(watched) as watch:
        for _ in range(2):
            watch.adapt()
            watched.train_epoch()
    torch.set_num_threads(watch.number)
    steady = make_batch(recipe, wide_task, range(num_seeds), epochs=2)
    assert watch.number == 3
    assert all(watched.snapshot()[name].equal(value) for name, value in steady.snapshot().items())


def test_batch_norms_show_it_so_the_number_stays(wide_task, five_threads, monkeypatch):
    measure_in_turn(monkeypatch, 1, 5)
    settings = {"hidden_channels": 64, "epochs": 1, "split": "stratified-30-30"}
    with ThreadWatch(make_batch(load_recipe("resgcn", "wide", 2, settings), wide_task, [0])) as watch:
        assert watch.is_watched
        watch.adapt()
        assert not watch.is_watched
        assert torch.get_num_threads() == watch.number == 1


def test_a_training_changes_its_number_and_gives_the_same_bits(five_threads, monkeypatch):
    measure_in_turn(monkeypatch, 1, 5, 3)
    recipe, task, seen = small_recipe(), small_task(), []
    watched = fit(recipe, task, range(2), on_progress=lambda progress: seen.append(torch.get_num_threads()))
    assert seen == [5, 3, 1, 5, 3]  # the first measurement is what it begins with
    assert torch.get_num_threads() == 5
    assert watched.records[0].device == "cpu (1 thread)"
    torch.set_num_threads(1)
    alone = fit(recipe, task, range(2))
    assert all(same_bits(a, b) for a, b in zip(watched.models, alone.models, strict=True))
    assert watched.records[0].curve == alone.records[0].curve


def test_runs_that_leave_bring_back_the_first_number(five_threads, monkeypatch):
    measure_in_turn(monkeypatch, 3)
    batch = make_batch(small_recipe(), small_task(), range(3))
    with ThreadWatch(batch) as watch:
        watch.is_watched, watch._alike = True, {3, 5}
        torch.set_num_threads(5)
        batch.keep([0, 1])
        monkeypatch.setattr(watch, "_fastest", lambda: torch.get_num_threads())
        watch.adapt()
        assert torch.get_num_threads() == 3
        assert watch._alike == {3}


@pytest.mark.parametrize("overrides", [{"terms.energy.c_min": 0.2}, {}])
def test_what_cannot_be_repeated_keeps_its_number_and_is_resumed_with_it(
    five_threads, monkeypatch, tmp_path, overrides
):
    measure_in_turn(monkeypatch, 3, 1, 5)
    if not overrides:  # as many nodes as torch splits a sum of
        monkeypatch.setattr(threads, "SPLIT_SUMS", 30)
    recipe, task, seen = small_recipe(**overrides), small_task(), []

    def train(folder: str, **options: Any) -> Record:
        threads._first.clear()  # as in another process
        note = lambda progress: seen.append(torch.get_num_threads())  # noqa: E731
        return fit(recipe, task, out=tmp_path / folder, on_progress=note, **options).records[0]

    with pytest.raises(TrainingInterrupted):
        train("cut", should_stop=lambda: len(seen) == 2)
    assert train("cut", resume=True).device == "cpu (3 threads)"
    assert seen == [3] * 5
    assert train("other").device == "cpu (1 thread)"
    assert seen[5:] == [1] * 5


# Which number.


@pytest.mark.parametrize(
    ("seconds", "most", "number"),
    [
        ({1: 1.0, 2: 0.95}, 2, 1),  # not worth it
        ({1: 1.0, 2: 0.6}, 2, 2),
        ({1: 1.0, 2: 9.0}, 2, 1),
        ({1: 8.0, 2: 4.0, 4: 2.0, 6: 1.5}, 6, 6),
        ({1: 8.0, 2: 4.0, 4: 6.0}, 16, 2),
        ({}, 1, 1),
    ],
)
def test_the_number_is_doubled_while_that_is_faster(seconds, most, number):
    assert fastest(most, seconds.__getitem__) == number


def test_a_hopeless_number_is_left_early():
    calls = []
    assert fastest(2, lambda number: calls.append(number) or 100.0**number) == 1
    assert calls == [1, 2] * 2


def test_one_that_is_clearly_slower_is_left_before_all_blocks():
    calls = []
    assert fastest(2, lambda number: calls.append(number) or 2.0 ** (number - 1)) == 1
    assert calls == [1, 2] * 5  # until then, twice as long is not more than 6 / (blocks - 1) times


def test_beside_other_programs_it_looks_longer_before_more_threads_are_called_faster():
    """What has slept is let run for a while, so that two threads seem faster until the others have their turn."""
    calls = []

    def seconds(number: int) -> float:
        calls.append(number)
        return 1e-3 if number == 1 else 6e-4 if len(calls) < 60 else 5e-3

    assert fastest(2, seconds) == 2
    calls.clear()
    assert fastest(2, seconds, 0.2) == 1
    assert len(calls) < 150


@pytest.mark.parametrize(
    ("line", "is_crowded"), [("0.00 0.01 0.05 2/80 7\n", False), ("2.0 1.0 0.5 3/80 7\n", True), ("", False)]
)
def test_other_programs_are_seen_where_the_system_says_so(monkeypatch, line, is_crowded):
    monkeypatch.setattr(threads.Path, "read_text", lambda path: line)
    assert threads.is_crowded(2) == is_crowded


def test_a_system_that_says_nothing_is_taken_for_idle(monkeypatch):
    monkeypatch.setattr(threads, "Path", lambda name: Path("/nowhere"))
    assert not threads.is_crowded(0)


def test_a_measurement_takes_milliseconds():
    assert 0 < measured(300, 16, 1)(1) < 1


def test_it_is_measured_again_after_fifty_times_as_long(five_threads, monkeypatch):
    now, measurements = [0.0], []

    def measure(most: int, seconds: object, least_seconds: float) -> int:
        now[0] += 1.0
        measurements.append(most)
        return 3

    monkeypatch.setattr(threads, "fastest", measure)
    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(threads, "measured", lambda *size: None)
    with ThreadWatch(make_batch(small_recipe(), small_task(), [0])) as watch:
        now[0] = 50.9
        watch.adapt()
        assert len(measurements) == 1
        now[0] = 51.1
        watch.adapt()
    assert measurements == [5, 5]


def test_it_is_measured_again_once_an_epoch_takes_twice_as_long(five_threads, monkeypatch):
    now, measurements = [1.0], []

    def measure(*how: object) -> int:
        measurements.append(round(now[0], 1))
        now[0] += 1e-3
        return 3

    monkeypatch.setattr(threads, "fastest", measure)
    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(threads, "measured", lambda *size: None)
    monkeypatch.setattr(threads, "_SHARE", 1e-9)  # by the clock alone never again
    monkeypatch.setattr(threads, "_EARLY_SHARE", 1e-3)  # a second after each
    with ThreadWatch(make_batch(small_recipe(), small_task(), [0])) as watch:
        now[0] += 1e-3
        watch.adapt()
        for seconds in (1.0, 1.1, 1.9, 2.1, 2.1, 2.1, 4.5):  # the third one from the end is as usual by now
            now[0] += seconds
            watch.adapt()
        assert measurements == [1.0, 7.1, 15.8]
        monkeypatch.setattr(threads, "_EARLY_SHARE", 1e-4)  # ten seconds after each, however slow the epochs are
        threads._latest.clear()
        watch.adapt()
        for seconds in (1.0, 2.5, 1.0, 2.5, 1.0, 2.5, 1.0):
            now[0] += seconds
            watch.adapt()
    assert len(measurements) == 4 + 1


# Whose number.


def test_the_users_number_stays(five_threads, monkeypatch):
    assert not threads.is_number_chosen()
    monkeypatch.setattr(threads, "fastest", lambda *how: pytest.fail("measured"))
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads.is_number_chosen()
    fit(small_recipe(), small_task())
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(3)
    assert threads.is_number_chosen()
    seen = []
    fit(small_recipe("resgcn"), small_task(), on_progress=lambda progress: seen.append(torch.get_num_threads()))
    assert set(seen) == {3}


def test_processes_share_the_threads_and_may_choose_fewer(five_threads):
    threads.share_threads(3)
    assert torch.get_num_threads() == 1
    assert not threads.is_number_chosen()
    torch.set_num_threads(4)
    assert threads.is_number_chosen()
    threads.share_threads(3)
    assert torch.get_num_threads() == 4
