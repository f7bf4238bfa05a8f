import threading
import time
from contextlib import ExitStack, suppress

import pytest

from graphjoule.tuning import Address, parse_ranges
from graphjoule.tuning.board import Board
from graphjoule.tuning.engine import start_waiting
from graphjoule.tuning.leases import FileLeases, PulseLeases
from graphjoule.tuning.queue import MOST_DEATHS, TrialQueue, attempts_of, count_begun, slot_of

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


def make_queue(num_trials=3, leases=None, study=None, **options):
    board = Address(None, "a").open({}, "minimize")
    return TrialQueue(Board(study or board.study, leases or board.leases), num_trials, RANGES, **options)


def states(queue):
    return [trial.state.name for trial in queue.board.study.trials]


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
    more = make_queue(2, study=queue.board.study)
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
    assert [[t.state.name for t in tries] for tries in attempts_of(queue.board.study).values()] == [
        ["FAIL", "COMPLETE"],
        ["RUNNING"],
    ]


def test_a_worker_that_died_before_all_was_drawn_leaves_what_was():
    queue = make_queue(1, AllDead())
    queue.board.study.enqueue_trial({}, user_attrs={"slot": 0, "attempt": 0})
    queue.board.study.ask().suggest_float("lr", 1e-3, 1e-1, log=True)
    drawn = queue.board.study.trials[0].params["lr"]
    queue._bury()
    queue._submit(0, attempts_of(queue.board.study)[0])
    queue.board.study.ask()  # and a second one before anything was drawn
    with queue.next_trial() as trial:
        assert trial.params["lr"] == drawn
        assert trial.params.keys() == RANGES.keys()


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


def test_an_interruption_while_settings_are_drawn_puts_the_trial_back(monkeypatch):
    queue = make_queue(1)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrialQueue, "_draw", interrupted)
        with pytest.raises(KeyboardInterrupt), queue.next_trial():
            pass
    assert states(queue) == ["FAIL"]


def test_a_refused_trial_is_over():
    queue = make_queue(1)
    with queue.next_trial() as trial:
        assert queue.refuse(trial)
    assert queue.is_finished()


def test_the_first_trial_has_the_settings_that_it_is_given_also_when_it_is_put_back():
    queue = make_queue(2, AllDead(), first={"lr": 0.02})
    queue.board.study.enqueue_trial({"lr": 0.02}, user_attrs={"slot": 0, "attempt": 0})
    queue.board.study.ask()
    with queue.next_trial() as trial:
        assert (slot_of(trial), trial.params["lr"]) == (0, 0.02)


def test_of_two_trials_that_were_made_at_the_same_moment_the_first_counts():
    queue = make_queue(1, AllDead())
    for _ in range(2):
        queue.board.study.enqueue_trial({"lr": 0.02}, user_attrs={"slot": 0, "attempt": 0})
    with queue.next_trial() as trial:
        assert trial.number == 0
        queue.finish(trial, 1.0)
    again = make_queue(2, study=queue.board.study)
    with again.next_trial() as trial:  # the twin waits in front of it and is never started
        assert slot_of(trial) == 1
        again.finish(trial, 1.0)
    assert states(again) == ["COMPLETE", "WAITING", "COMPLETE"]
    assert again.is_finished()


def test_trials_of_somebody_elses_program_do_not_count_and_are_left_to_it(tmp_path):
    for storage in (None, str(tmp_path / "journal.log")):
        queue = TrialQueue(Address(storage, "a").open({}, "minimize"), 2, RANGES)
        study = queue.board.study
        study.enqueue_trial({"lr": 0.02})
        running = study.ask()
        study.enqueue_trial({"lr": 0.03})
        study.add_trial(optuna.create_trial(value=0.0))
        for slot in range(2):
            with queue.next_trial() as trial:
                assert slot_of(trial) == slot
                queue.finish(trial, 1.0)
        with queue.next_trial() as trial:
            assert trial is None
        assert states(queue) == ["RUNNING", "WAITING", "COMPLETE", "COMPLETE", "COMPLETE"]
        assert list(attempts_of(study)) == [0, 1]
        assert study.tell(running, 3.0).value == 3.0
        assert study.ask().suggest_float("lr", 1e-3, 1e-1, log=True) == 0.03


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_trial_that_another_has_started_is_not_started_again(is_finished):
    study = make_queue(1).board.study
    study.enqueue_trial({}, user_attrs={"slot": 0, "attempt": 0})
    (waiting,) = study.get_trials()
    assert start_waiting(study, waiting).number == 0
    if is_finished:
        study.tell(0, 1.0)
    assert start_waiting(study, waiting) is None


def test_a_worker_that_is_taken_for_dead_while_settings_are_drawn_leaves_the_trial_to_others():
    class TakenOver(AllDead):
        """Leases under which the first worker sleeps for so long that another takes its trial."""

        def hold(self, trial):
            if trial.number == 0:
                trial.study.tell(0, state=optuna.trial.TrialState.FAIL)
            return threading.Lock()

    queue = make_queue(1, TakenOver())
    with queue.next_trial() as trial:
        assert trial is None
    with queue.next_trial() as trial:
        assert (slot_of(trial), trial.number) == (0, 1)


def test_settings_depend_on_the_seed_and_the_slot_alone_before_there_is_anything_to_learn_from():
    def drawn(seed, order):
        queue = make_queue(3, seed=seed)
        with queue.next_trial() as a, queue.next_trial() as b, queue.next_trial() as c:
            return [trial.params for trial in (a, b, c)]

    assert drawn(0, 1) == drawn(0, 2)
    assert drawn(0, 1) != drawn(1, 1)
    assert len({str(params) for params in drawn(0, 1)}) == 3


# Leases.


class Running:
    number = 7

    def __init__(self, **user_attrs):
        self.user_attrs = user_attrs


def test_a_lock_is_held_while_the_block_lasts(tmp_path):
    leases = FileLeases(tmp_path / "leases")
    assert leases.is_dead(Running())
    with leases.hold(Running()):
        assert not FileLeases(tmp_path / "leases").is_dead(Running())
    assert leases.is_dead(Running())


def test_turns_are_taken_one_at_a_time(tmp_path):
    inside, most = [], []

    def take():
        with FileLeases(tmp_path).turn():
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


def test_a_pulse_that_stands_still_for_long_is_a_dead_ones(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("graphjoule.tuning.leases.time.monotonic", lambda: now[0])
    leases = PulseLeases(every=1, patience=10)
    told = []
    for second, pulse in [(0, None), (9, None), (9.5, 0), (19, 0), (19.2, 1), (29.1, 1), (29.3, 1)]:
        now[0] = second
        told.append(leases.is_dead(Running(**({} if pulse is None else {"pulse": pulse}))))
    assert told == [False] * 6 + [True]
    now[0] = 100.0
    assert not PulseLeases(patience=10).is_dead(Running(pulse=1))  # one who has just come has seen nothing yet


def test_a_worker_that_never_came_to_its_first_beat_is_found_dead(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("graphjoule.tuning.leases.time.monotonic", lambda: now[0])
    leases = PulseLeases(patience=10)
    assert not leases.is_dead(Running())
    now[0] = 10.5
    assert leases.is_dead(Running())


def test_a_pulse_beats_while_the_block_lasts_and_a_bad_moment_of_the_database_costs_a_beat_only():
    beats = []

    class Trial:
        def set_user_attr(self, key, value):
            beats.append((key, value))
            if value == 0:
                raise ConnectionError

    with PulseLeases(every=0.005).hold(Trial()):
        deadline = time.monotonic() + 20
        while len(beats) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
    counted = len(beats)
    assert beats[:3] == [("pulse", 0), ("pulse", 1), ("pulse", 2)]
    time.sleep(0.03)
    assert len(beats) == counted


def test_the_pulse_of_a_trial_that_was_given_away_stops():
    class Trial:
        calls = 0

        def set_user_attr(self, key, value):
            self.calls += 1
            raise RuntimeError("Trial#0 has already finished and can not be updated.")

    trial = Trial()
    with PulseLeases(every=0.001).hold(trial):
        time.sleep(0.05)
    assert trial.calls == 1


@pytest.mark.parametrize("value", [float("nan"), None])
def test_a_value_that_is_none_is_an_error_of_ours_and_not_taken_over(value):
    queue = make_queue(1)
    with queue.next_trial() as trial, pytest.raises(ValueError):
        queue.finish(trial, value)


# Settings that can be counted.


FEW = parse_ranges(["activation=srelu,relu,linear", "batch_norm=true,false"])


def few(num_trials=6, leases=None, study=None, **options):
    board = Address(None, "a").open({}, "minimize")
    return TrialQueue(Board(study or board.study, leases or board.leases), num_trials, FEW, **options)


def settings(queue):
    return [tuple(tries[-1].params[name] for name in FEW) for tries in attempts_of(queue.board.study).values()]


@pytest.mark.parametrize("seed", range(5))
def test_no_slot_has_the_settings_of_another(seed):
    queue = few(seed=seed, first={"activation": "linear", "batch_norm": False})
    while not queue.is_finished():
        with queue.next_trial() as trial:
            queue.finish(trial, 1.0)
    assert settings(queue)[0] == ("linear", False)
    assert len(set(settings(queue))) == len(settings(queue)) == 6
    assert "FAIL" in states(queue)  # something was drawn twice, and then given up
    assert all(count_begun(tries) == 1 for tries in attempts_of(queue.board.study).values())


def test_settings_that_others_are_trying_are_not_drawn():
    queue = few()
    with ExitStack() as held:
        tried = [held.enter_context(queue.next_trial()).params for _ in range(6)]
        assert len({tuple(params.values()) for params in tried}) == 6


def test_where_more_trials_are_asked_for_than_there_are_settings_they_repeat():
    queue = few(8)
    for _ in range(8):
        with queue.next_trial() as trial:
            queue.finish(trial, 1.0)
    assert queue.is_finished()
    assert len(set(settings(queue))) == 6


def test_a_dead_workers_settings_are_kept_for_it_although_its_slot_had_a_repeat():
    alive = few(6)
    for _ in range(5):
        with alive.next_trial() as trial:
            alive.finish(trial, 1.0)
    dying = few(6, AllDead(), alive.board.study)
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
        queue.board.study.enqueue_trial(same, user_attrs={"slot": slot, "attempt": 0})
    with queue.next_trial() as first, queue.next_trial() as second:
        assert (slot_of(first), first.params) == (0, same)
        assert slot_of(second) == 1
        assert second.params != same
