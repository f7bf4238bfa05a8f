import json
import os
import threading
import uuid
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.tuning import StorageRef, parse_ranges, read_outcome
from graphjoule.tuning.queue import MOST_DEATHS, TrialQueue, attempts_of, slot_of
from tests.forked import context

from . import killed_search
from .killed_search import DATABASE, SEARCH, cheap_value, open_storage

optuna = pytest.importorskip("optuna")

RANGES = parse_ranges(["lr=1e-3..1e-1:log", "dropout=0..0.5"])


class AllDead:
    """Leases under which every running trial looks abandoned, as after a power cut."""

    def turn(self):
        return threading.Lock()

    def hold(self, trial):
        return threading.Lock()

    def is_dead(self, trial):
        return True


def make_queue(num_trials=3, leases=None, storage=None, ranges=RANGES, **options):
    storage = storage or StorageRef(None, "a").open({}, "minimize")
    return TrialQueue(replace(storage, leases=leases or storage.leases), num_trials, ranges, **options)


def states(queue):
    return [trial.state.name for trial in queue.storage.trials()]


def attempts(queue):
    return attempts_of(queue.storage.trials())


def queue_trial(queue, slot, attempt=0, **params):
    """Put a trial in the storage, as another worker does at the same moment."""
    state, distributions = optuna.trial.TrialState.WAITING, queue._distributions
    attrs = {"slot": slot, "attempt": attempt}
    queue.storage.study.add_trial(
        optuna.create_trial(state=state, params=params, distributions=distributions, user_attrs=attrs)
    )


def test_slots_are_filled_in_order_and_then_it_is_finished():
    queue = make_queue(3)
    for slot in range(3):
        assert not queue.is_finished()
        with queue.next_trial() as trial:
            assert slot_of(trial) == slot
            assert trial.params.keys() == RANGES.keys()
            assert queue.finish(trial, float(slot))
    assert queue.is_finished()
    with queue.next_trial() as trial:
        assert trial is None
    assert states(queue) == ["COMPLETE"] * 3


def test_what_others_hold_is_waited_for_and_not_taken():
    queue = make_queue(1)
    with queue.next_trial() as first, queue.next_trial() as second:
        assert first is not None
        assert second is None
        assert not queue.is_finished()


def test_more_trials_are_more_slots():
    queue = make_queue(1)
    with queue.next_trial() as trial:
        queue.finish(trial, 1.0)
    more = make_queue(2, storage=queue.storage)
    assert not more.is_finished()
    with more.next_trial() as trial:
        assert slot_of(trial) == 1
        queue.finish(trial, 1.0)
    assert more.is_finished()


def test_a_dead_workers_trial_is_put_back_once_with_its_settings():
    queue = make_queue(2, AllDead())
    with queue.next_trial() as dead:
        drawn = dead.params
    with queue.next_trial() as trial:
        assert (slot_of(trial), trial.params) == (0, drawn)
        assert trial.number != dead.number
        assert not queue.finish(dead, 1.0)  # should it live after all, its result does not count
        assert queue.finish(trial, 2.0)
    with queue.next_trial() as trial:
        assert slot_of(trial) == 1
    assert [[t.state.name for t in tries] for tries in attempts(queue).values()] == [
        ["FAIL", "COMPLETE"],
        ["RUNNING"],
    ]


def test_a_trial_that_kills_every_worker_is_given_up():
    queue = make_queue(1, AllDead())
    for _ in range(MOST_DEATHS):
        with queue.next_trial() as trial:
            assert trial is not None
    with queue.next_trial() as trial:
        assert trial is None
    assert queue.is_finished()
    assert states(queue) == ["FAIL"] * (MOST_DEATHS - 1) + ["PRUNED"]


def test_a_trial_that_was_stopped_is_taken_up_as_often_as_it_takes():
    queue = make_queue(1)
    drawn = []
    for _ in range(MOST_DEATHS + 2):
        with queue.next_trial() as trial:
            drawn.append(trial.params)
            assert queue.put_back(trial)
    assert drawn == [drawn[0]] * len(drawn)
    assert not queue.is_finished()


def test_an_error_puts_the_trial_back_unless_it_is_over():
    queue = make_queue(1)
    with suppress(KeyboardInterrupt), queue.next_trial():
        raise KeyboardInterrupt
    assert states(queue) == ["FAIL"]
    with suppress(KeyboardInterrupt), queue.next_trial() as trial:
        queue.finish(trial, 1.0)
        raise KeyboardInterrupt
    assert states(queue) == ["FAIL", "COMPLETE"]


def test_an_interruption_while_settings_are_drawn_leaves_no_trial(monkeypatch):
    queue = make_queue(1)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrialQueue, "_draw", interrupted)
        with pytest.raises(KeyboardInterrupt), queue.next_trial():
            pass
    assert states(queue) == []


def test_a_trial_that_was_queued_by_a_worker_that_died_is_started_by_the_next():
    queue = make_queue(1)
    queue_trial(queue, 0, lr=0.02, dropout=0.25)
    with queue.next_trial() as trial:
        assert (slot_of(trial), trial.params) == (0, {"lr": 0.02, "dropout": 0.25})
        queue.finish(trial, 1.0)
    assert states(queue) == ["COMPLETE"]


def test_a_refused_trial_is_over():
    queue = make_queue(1)
    with queue.next_trial() as trial:
        assert queue.finish(trial, None)
    assert queue.is_finished()


def test_the_first_trial_has_the_settings_that_it_is_given_also_when_it_is_put_back():
    queue = make_queue(2, AllDead(), first={"lr": 0.02})
    drawn = []
    for _ in range(3):
        with queue.next_trial() as trial:
            assert (slot_of(trial), trial.params["lr"]) == (0, 0.02)
            drawn.append(trial.params)
    assert drawn == [drawn[0]] * 3


def test_of_two_trials_that_were_queued_at_the_same_moment_the_first_counts():
    queue = make_queue(1)
    for lr in (0.02, 0.03):
        queue_trial(queue, 0, lr=lr, dropout=0.25)
    with queue.next_trial() as trial:
        assert (trial.number, trial.params["lr"]) == (0, 0.02)
        queue.finish(trial, 1.0)
    again = make_queue(2, storage=queue.storage)
    with again.next_trial() as trial:  # the twin waits in front of it and is dropped
        assert slot_of(trial) == 1
        again.finish(trial, 1.0)
    assert states(again) == ["COMPLETE", "FAIL", "COMPLETE"]
    assert [len(tries) for tries in attempts(again).values()] == [1, 1]
    assert again.is_finished()


def test_a_trial_that_optuna_starts_from_an_empty_queue_is_dropped(monkeypatch):
    queue = make_queue(1)
    add = optuna.Study.add_trial
    calls = []

    def too_late(study, trial):  # another worker starts what we queue, before we do
        add(study, trial)
        calls.append(trial)
        if len(calls) == 1:
            study.tell(study.ask(), state=optuna.trial.TrialState.FAIL)

    monkeypatch.setattr(optuna.Study, "add_trial", too_late)
    with queue.next_trial() as trial:
        assert (slot_of(trial), trial.user_attrs["attempt"]) == (0, 1)
        queue.finish(trial, 1.0)
    assert states(queue) == ["FAIL", "FAIL", "COMPLETE"]


def test_trials_of_another_program_do_not_count_and_are_left_to_it(tmp_path):
    for storage in (None, str(tmp_path / "journal.log")):
        queue = make_queue(2, storage=StorageRef(storage, "a").open({}, "minimize"))
        study = queue.storage.study
        study.enqueue_trial({"lr": 0.02})
        running = study.ask()
        study.add_trial(optuna.create_trial(value=0.0))
        for slot in range(2):
            with queue.next_trial() as trial:
                assert slot_of(trial) == slot
                queue.finish(trial, 1.0)
        with queue.next_trial() as trial:
            assert trial is None
        assert states(queue) == ["RUNNING", "COMPLETE", "COMPLETE", "COMPLETE"]
        assert list(attempts(queue)) == [0, 1]
        assert study.tell(running, 3.0).value == 3.0
        study.enqueue_trial({"lr": 0.03})  # Optuna would start this one for us
        more = make_queue(3, storage=queue.storage)
        with pytest.raises(GraphjouleError, match="Another program has queued a trial in"), more.next_trial():
            pass
        assert study.ask().suggest_float("lr", 1e-3, 1e-1, log=True) == 0.03


def test_a_worker_that_was_taken_for_dead_cannot_store_a_result():
    queue = make_queue(1)
    with queue.next_trial() as trial:
        queue.storage.end(trial, "FAIL")
        assert not queue.finish(trial, 1.0, {"seconds": 1.0})
        assert not queue.put_back(trial)
    with queue.next_trial() as again:
        assert (slot_of(again), again.number, again.params) == (0, 1, trial.params)


def test_settings_depend_on_the_seed_and_the_slot_alone_before_there_is_anything_to_learn_from():
    def drawn(seed, order):
        queue = make_queue(3, seed=seed)
        with queue.next_trial() as a, queue.next_trial() as b, queue.next_trial() as c:
            return [trial.params for trial in (a, b, c)]

    assert drawn(0, 1) == drawn(0, 2)
    assert drawn(0, 1) != drawn(1, 1)
    assert len({str(params) for params in drawn(0, 1)}) == 3


def test_a_value_that_is_not_a_number_is_an_error_of_ours_and_not_taken_over():
    queue = make_queue(1)
    with queue.next_trial() as trial, pytest.raises(ValueError):
        queue.finish(trial, float("nan"))


# Settings that can be counted.


FEW = parse_ranges(["activation=srelu,relu,linear", "batch_norm=true,false"])


def few(num_trials=6, leases=None, storage=None, **options):
    return make_queue(num_trials, leases, storage, FEW, **options)


def settings(queue):
    return [tuple(tries[-1].params[name] for name in FEW) for tries in attempts(queue).values()]


@pytest.mark.parametrize("seed", range(5))
def test_no_slot_has_the_settings_of_another(seed):
    queue = few(seed=seed, first={"activation": "linear", "batch_norm": False})
    while not queue.is_finished():
        with queue.next_trial() as trial:
            queue.finish(trial, 1.0)
    assert settings(queue)[0] == ("linear", False)
    assert len(set(settings(queue))) == len(settings(queue)) == 6
    assert states(queue) == ["COMPLETE"] * 6


def test_settings_that_others_are_trying_are_not_drawn():
    queue = few()
    with ExitStack() as held:
        tried = [held.enter_context(queue.next_trial()).params for _ in range(6)]
        assert len({tuple(params.values()) for params in tried}) == 6


def test_there_are_no_more_trials_than_settings():
    queue = few(8)
    assert queue.num_trials == 6
    while not queue.is_finished():
        with queue.next_trial() as trial:
            queue.finish(trial, 1.0)
    assert len(set(settings(queue))) == len(states(queue)) == 6


def test_a_dead_workers_settings_are_kept_for_it_although_its_slot_had_a_repeat():
    alive = few(6)
    for _ in range(5):
        with alive.next_trial() as trial:
            alive.finish(trial, 1.0)
    dying = few(6, AllDead(), alive.storage)
    drawn = []
    for _ in range(MOST_DEATHS):
        with dying.next_trial() as trial:
            drawn.append((slot_of(trial), trial.params))
    assert all(one == drawn[0] for one in drawn)
    with dying.next_trial() as trial:
        assert trial is None  # given up after as many deaths as any other
    assert dying.is_finished()
    assert len(set(settings(dying))) == 6


def test_the_earlier_slot_keeps_what_two_workers_have_drawn_at_the_same_moment():
    queue, same = few(2), {"activation": "relu", "batch_norm": True}
    for slot in (0, 1):
        queue_trial(queue, slot, **same)
    with queue.next_trial() as first, queue.next_trial() as second:
        assert (slot_of(first), first.params) == (0, same)
        assert slot_of(second) == 1
        assert second.params != same
        assert len(attempts(queue)[1]) == 1


# Workers that are killed at random: every trial has exactly one result, and none is lost.


FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def kill_workers(folder, num_trials, num_workers, num_kills, leases, kind):
    """Runs the script; gives the storage that it left."""
    process = context().Process(
        target=killed_search.main, args=(folder, num_trials, num_workers, num_kills, leases, kind)
    )
    process.start()
    process.join(150)
    assert process.exitcode == 0
    told = json.loads((folder / "told.json").read_text())
    assert told["killed"] == num_kills
    assert told["codes"] == [0] * num_workers
    return open_storage(folder, leases)[0]


def assert_each_exactly_once(storage, num_trials):
    """Of all trials that the storage holds, whether or not they count for us, each slot has one with a result."""
    trials = storage.trials()
    counted = {trial.number for tries in attempts_of(trials).values() for trial in tries}
    assert {trial.state.name for trial in trials if trial.number in counted} <= {"COMPLETE", "FAIL"}
    # Of what two workers have queued at the same moment the second is dropped, and never trained.
    dropped = [trial for trial in trials if trial.number not in counted]
    assert all(trial.state.name != "COMPLETE" and "metrics" not in trial.user_attrs for trial in dropped)
    results = Counter(trial.user_attrs["slot"] for trial in trials if trial.state.name == "COMPLETE")
    assert results == Counter(range(num_trials))
    for tries in attempts_of(trials).values():
        assert tries[0].params.keys() == killed_search.RANGES.keys()
        assert all(trial.params == tries[0].params for trial in tries)  # put back with the settings that it had
    outcome = read_outcome(storage, SEARCH.recipe)
    assert [row.slot for row in outcome.rows] == list(range(num_trials))
    assert outcome.best.value == min(row.value for row in outcome.rows)
    return outcome


def evaluations(folder):
    return [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]


@FORKS
def test_trainings_whose_workers_are_killed_are_each_recorded_once(tmp_path):
    storage = kill_workers(tmp_path, 6, 2, 2, "locks", "train")
    outcome = assert_each_exactly_once(storage, 6)
    assert sum(row.num_attempts - 1 for row in outcome.rows) <= 2
    # The same settings train to the same value, so a result that was written down is that of its settings.
    for row in outcome.rows:
        assert any(one["params"] == row.params and one["value"] == row.value for one in evaluations(tmp_path))


@pytest.mark.slow
@FORKS
def test_where_there_are_no_locks_a_pulse_tells_the_same(tmp_path):
    storage = kill_workers(tmp_path, 8, 2, 2, "pulse", "cheap")
    outcome = assert_each_exactly_once(storage, 8)
    assert all(row.value == cheap_value(row.params) for row in outcome.rows)


@FORKS
@pytest.mark.skipif(DATABASE not in os.environ, reason=f"no database: {DATABASE} is not set")
def test_4_workers_share_a_database(tmp_path):
    folder = tmp_path / f"killed-{uuid.uuid4().hex[:8]}"  # the search's name there
    folder.mkdir()
    open_storage(folder, "database")
    storage = kill_workers(folder, 60, 4, 15, "database", "cheap")
    outcome = assert_each_exactly_once(storage, 60)
    assert all(row.value == cheap_value(row.params) for row in outcome.rows)


@FORKS
@pytest.mark.slow
@pytest.mark.parametrize("leases", ["locks", "pulse"])
def test_4_workers_150_trials_and_40_kills(tmp_path, leases):
    storage = kill_workers(tmp_path, 150, 4, 40, leases, "cheap")
    outcome = assert_each_exactly_once(storage, 150)
    assert all(row.value == cheap_value(row.params) for row in outcome.rows)
    lost = sum(trial.state.name == "FAIL" for trial in storage.trials())
    assert lost >= 10, "hardly a worker was killed in the middle of a trial"
    if leases == "locks":  # nothing was trained twice but what a worker had in hand when it was killed
        assert len(evaluations(tmp_path)) <= 150 + 40
        assert lost <= 40
