import builtins
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import replace

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.tuning import StorageRef, parse_ranges
from graphjoule.tuning.queue import TrialQueue
from graphjoule.tuning.search import Evaluation, tune, work
from graphjoule.tuning.storage import JournalLock, LockLeases, PulseLeases
from tests.training import small_recipe, small_task

optuna = pytest.importorskip("optuna")

ABOUT = {"lr": 0.1, "seeds": [0, 1]}


def test_a_search_goes_on_with_what_it_is_and_nothing_else(tmp_path):
    ref = StorageRef(str(tmp_path / "deep" / "journal.log"), "a")
    ref.open(ABOUT, "minimize")
    ref.open(dict(ABOUT), "minimize")
    with pytest.raises(GraphjouleError) as caught:
        ref.open({"lr": 0.2, "seeds": [0, 1], "new": 1}, "minimize")
    assert "was begun with something else (lr: 0.1 -> 0.2; new: nothing -> 1)" in str(caught.value)
    StorageRef(ref.storage, "another").open({"lr": 0.2}, "maximize")  # one file can hold many


def test_locks_on_a_disk_and_a_pulse_elsewhere(tmp_path):
    assert isinstance(StorageRef(str(tmp_path / "journal.log"), "a").open({}, "minimize").leases, LockLeases)
    assert isinstance(StorageRef(None, "a").open({}, "minimize").leases, PulseLeases)


def test_sqlite_is_refused():
    with pytest.raises(GraphjouleError, match="SQLite repeats trials when several workers share it"):
        StorageRef("sqlite:///a.db", "a")


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".a", "a b"])
def test_a_name_is_a_word(name):
    with pytest.raises(GraphjouleError, match="cannot be called"):
        StorageRef(None, name)


def test_passwords_are_never_shown():
    ref = StorageRef("postgresql://me:s3cret@host:5432/db?sslmode=require&password=s3cret", "a")
    assert str(ref) == "postgresql://host:5432/db"


@pytest.mark.parametrize("url", ["nosuchdatabase://me:s3cret@host/db", "postgresql://me:s3cret@127.0.0.1:1/db"])
def test_a_database_that_cannot_be_used_gets_a_sentence_without_the_password(url):
    with pytest.raises(GraphjouleError) as caught:
        StorageRef(url, "a").open({}, "minimize")
    assert str(caught.value).startswith("Cannot use ")
    assert "s3cret" not in str(caught.value)


def test_without_optuna_one_sentence_says_what_to_install(monkeypatch):
    whole = builtins.__import__

    def without(name, *others):
        if name.partition(".")[0] == "optuna":
            raise ImportError(name)
        return whole(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "optuna", raising=False)
    with pytest.raises(GraphjouleError, match=r"not installed: pip install 'graphjoule\[tune\]'"):
        tune(small_recipe(), small_task(), trials=1)


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("psycopg", "pip install 'psycopg[binary]'."),
        ("psycopg2", "pip install psycopg2-binary."),
        ("MySQLdb", "pip install mysqlclient."),
        ("pg8000", "pip install pg8000."),
    ],
)
def test_without_a_driver_one_sentence_says_what_to_install(monkeypatch, module, command):
    def without_driver(url):
        try:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        except ImportError as error:
            raise ImportError("Failed to import DB access module.") from error

    monkeypatch.setattr("optuna.storages.RDBStorage", without_driver)
    with pytest.raises(GraphjouleError) as caught:
        StorageRef("postgresql://me:secret@host/db", "a").open({}, "minimize")
    assert str(caught.value).endswith(f"is not installed (No module named {module!r}): {command}")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "end"),
    [("postgresql://host/db", ": pip install 'psycopg[binary]'."), ("oracle://host/db", "(no wrapper available).")],
)
def test_a_driver_that_does_not_say_its_name(monkeypatch, url, end):
    def without_library(url):
        raise ImportError("Failed to import DB access module.") from ImportError("no wrapper available.\nAttempts: 3")

    monkeypatch.setattr("optuna.storages.RDBStorage", without_library)
    with pytest.raises(GraphjouleError) as caught:
        StorageRef(url, "a").open({}, "minimize")
    assert "is not installed (no wrapper available)" in str(caught.value)
    assert str(caught.value).endswith(end)


# A journal file.


def open_study(path):
    return StorageRef(str(path), "a").open({}, "minimize").study


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_line_that_was_torn_is_cut_off_and_the_search_goes_on(tmp_path, cut):
    path = tmp_path / "journal.log"
    study = open_study(path)
    study.enqueue_trial({"lr": 0.1}, user_attrs={"slot": 0})
    whole = path.read_bytes()
    study.enqueue_trial({"lr": 0.2}, user_attrs={"slot": 1})
    path.write_bytes(path.read_bytes()[:-cut])  # the power went in the middle of the last line
    again = open_study(path)
    assert [trial.user_attrs["slot"] for trial in again.trials] == [0]
    again.enqueue_trial({"lr": 0.3}, user_attrs={"slot": 2})
    assert path.read_bytes().startswith(whole)
    assert [trial.user_attrs["slot"] for trial in open_study(path).trials] == [0, 2]


@pytest.mark.parametrize("left", [1, 10, 11, 30, -2, -1])
def test_a_first_line_that_was_torn_is_cut_off_and_the_search_begins(tmp_path, left):
    path = tmp_path / "journal.log"
    open_study(path)
    first = path.read_bytes().splitlines(keepends=True)[0]
    path.write_bytes(first[:left])
    open_study(path).enqueue_trial({"lr": 0.1}, user_attrs={"slot": 0})
    assert [trial.user_attrs["slot"] for trial in open_study(path).trials] == [0]
    assert path.read_bytes().splitlines()[0].startswith(b'{"op_code":')


def hold_and_wait(path, is_held):
    JournalLock(path).acquire()
    is_held.set()
    signal.pause()


def test_a_killed_holder_does_not_keep_the_lock(tmp_path):
    path = tmp_path / "journal.log"
    path.touch()
    context = multiprocessing.get_context("fork")
    is_held = context.Event()
    holder = context.Process(target=hold_and_wait, args=(path, is_held))
    holder.start()
    assert is_held.wait(30)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    lock = JournalLock(path)
    assert lock.acquire()  # at once, where Optuna's own lock would wait for half a minute
    lock.release()


OTHERS = [
    b"notes without an end",
    b"a,b\n1,2\n",
    b"[1, 2]\n",
    b'{"a": 1}\n',
    b'{"a": 1',
    b'{"op_code":\n',
    b"\xff\xfe\n",
]


@pytest.mark.parametrize("content", OTHERS)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "mine.txt"
    path.write_bytes(content)
    with pytest.raises(GraphjouleError, match=r"mine\.txt is not a journal of a search; choose another file"):
        open_study(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_broken_line_in_the_middle_gets_a_sentence(tmp_path):
    path = tmp_path / "journal.log"
    study = open_study(path)
    study.enqueue_trial({"lr": 0.1})
    first, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, b"{broken\n", *others]))
    with pytest.raises(GraphjouleError, match="is damaged: line 2 cannot be read"):
        open_study(path)


def test_a_folder_is_no_journal(tmp_path):
    with pytest.raises(GraphjouleError, match="Cannot use"):
        open_study(tmp_path)


def test_a_place_that_cannot_be_written_gets_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GraphjouleError, match="Cannot use"):
        open_study(tmp_path / "file" / "journal.log")


def test_a_pipe_is_no_journal(tmp_path):
    os.mkfifo(tmp_path / "journal.log")
    with pytest.raises(GraphjouleError, match=r"journal.log is not a file; choose another file with `storage`"):
        open_study(tmp_path / "journal.log")


@pytest.mark.parametrize("about", ["null", "[1]", '"words"'])
def test_a_search_that_says_nothing_of_what_it_searches_is_refused(tmp_path, about):
    path = tmp_path / "journal.log"
    entry = '{"op_code":%d,"worker_id":"a",%s}\n'
    begun = entry % (0, '"study_name":"a","directions":[1]')
    path.write_text(begun + entry % (2, f'"study_id":0,"user_attr":{{"graphjoule":{about}}}'))
    with pytest.raises(GraphjouleError, match="was begun by something else than graphjoule; choose another"):
        StorageRef(str(path), "a").open(ABOUT, "minimize")


# A journal that fails while a search is running.


def remove(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


def shorten(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))


def replace_by_another(path):
    content = path.read_bytes()
    path.rename(path.with_name("before.log"))
    path.write_bytes(content)


def add(line):
    def fault(path):
        with path.open("ab") as file:
            file.write(line + b"\n")

    return fault


FAULTS = {
    "removed": (remove, "Cannot use .*journal.log as the journal of a search: no such file or directory"),
    "emptied": (empty, "journal.log was emptied, cut short or replaced while the search was running; put"),
    "cut short": (shorten, "was emptied, cut short or replaced"),
    "replaced": (replace_by_another, "was emptied, cut short or replaced"),
    "words": (add(b"my notes"), r"damaged: line \d+ cannot be read"),
    "an empty line": (add(b""), r"damaged: line \d+ cannot be read"),
    "bytes": (add(b"\xff\x00"), r"damaged: line \d+ cannot be read"),
    "a list": (add(b"[1]"), r"damaged: line \d+ cannot be read"),
    "brackets in brackets": (add(b"[" * 100_000), r"damaged: line \d+ cannot be read"),
    "another table": (add(b'{"a": 1}'), r"damaged: line \d+ cannot be read"),
    "an unknown entry": (add(b'{"op_code": 99, "worker_id": "a"}'), "damaged: a line cannot be used"),
    "half an entry": (add(b'{"op_code": 4}'), "damaged: a line cannot be used"),
}
RANGES = parse_ranges(["lr=1e-3..1e-1:log"])


def open_queue(path, num_trials=4):
    return TrialQueue(StorageRef(str(path), "a").open({}, "minimize"), num_trials, RANGES)


def value_of(params, on_progress):
    return Evaluation(params["lr"], None, {"metrics": {"val_loss": [params["lr"]]}})


@pytest.mark.parametrize("case", FAULTS)
def test_a_journal_that_fails_meanwhile_gets_a_sentence(tmp_path, case):
    fault, said = FAULTS[case]
    path, calls = tmp_path / "journal.log", []

    def evaluate(params, on_progress):
        calls.append(params)
        if len(calls) == 2:
            fault(path)
        return value_of(params, on_progress)

    with pytest.raises(GraphjouleError, match=said):
        work(open_queue(path), evaluate)
    assert len(calls) == 2  # nothing is trained whose result cannot be stored


@pytest.mark.parametrize("case", [case for case, (_, said) in FAULTS.items() if "damaged" in said])
def test_a_damaged_journal_is_refused_and_left_as_it_is(tmp_path, case):
    path = tmp_path / "journal.log"
    work(open_queue(path, 2), value_of)
    FAULTS[case][0](path)
    content = path.read_bytes()
    with pytest.raises(GraphjouleError, match=r"journal.log is .*damaged: "):
        open_queue(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("num_bytes_lost", [0, 10])
def test_a_search_continues_after_the_disk_was_full(tmp_path, monkeypatch, num_bytes_lost):
    path, calls = tmp_path / "journal.log", []

    def full(descriptor):
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - num_bytes_lost)  # the line is not written to its end
        raise OSError(28, "No space left on device")

    def evaluate(params, on_progress):
        calls.append(params)
        if len(calls) == 2:
            monkeypatch.setattr(os, "fsync", full)
        return value_of(params, on_progress)

    with pytest.raises(GraphjouleError, match=r"Cannot use .*journal\.log as the journal .*: no space left on device"):
        work(open_queue(path), evaluate)
    monkeypatch.undo()
    queue = open_queue(path)
    work(queue, value_of)
    done = [trial for trial in queue.storage.trials() if trial.state.name == "COMPLETE"]
    assert sorted(trial.user_attrs["slot"] for trial in done) == [0, 1, 2, 3]
    assert calls[1] in [trial.params for trial in done]  # with the settings that it had


def test_a_database_that_fails_meanwhile_gets_a_sentence_without_the_password(monkeypatch):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    storage = StorageRef(None, "a").open({}, "minimize")
    storage = replace(storage, ref=StorageRef("postgresql://me:s3cret@host/db", "a"))

    def gone(*arguments, **options):
        raise sqlalchemy.exc.OperationalError("SELECT", {}, Exception("server closed the connection"))

    monkeypatch.setattr(optuna.Study, "get_trials", gone)
    with pytest.raises(GraphjouleError) as caught:
        storage.trials()
    assert str(caught.value) == "Cannot use postgresql://host/db: server closed the connection."


# Leases.


class Running:
    number = 7

    def __init__(self, **user_attrs):
        self.user_attrs = user_attrs


def test_a_lock_is_held_while_the_block_lasts(tmp_path):
    lock = JournalLock(tmp_path / "journal.log")
    leases = LockLeases(tmp_path / "leases", lock)
    assert leases.is_dead(Running())
    with leases.hold(Running()):
        assert not LockLeases(tmp_path / "leases", lock).is_dead(Running())
    assert leases.is_dead(Running())


def test_deleting_the_lock_file_lets_no_second_worker_in(tmp_path):
    journal = tmp_path / "journal.log"
    journal.write_bytes(b'{"op_code":0}\n')
    entered = threading.Event()

    def second():
        with JournalLock(journal):
            entered.set()

    mine = JournalLock(journal)
    with mine:
        (tmp_path / "journal.log.lock").unlink()
        with mine:  # once more, as in a turn
            thread = threading.Thread(target=second, daemon=True)
            thread.start()
            assert not entered.wait(0.3)
        assert not entered.wait(0.1)
    assert entered.wait(5)
    thread.join()


def test_a_journal_that_is_gone_in_a_turn_leaves_the_turn_as_it_was(tmp_path):
    journal = tmp_path / "journal.log"
    journal.touch()
    lock = JournalLock(journal)
    with lock:
        journal.unlink()
        with pytest.raises(FileNotFoundError):
            lock.acquire()
    journal.touch()
    with JournalLock(journal):
        pass


def test_turns_are_taken_one_at_a_time(tmp_path):
    inside, most = [], []
    (tmp_path / "journal.log").touch()

    def take():
        with LockLeases(tmp_path, JournalLock(tmp_path / "journal.log")).turn():
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
    monkeypatch.setattr("graphjoule.tuning.storage.time.monotonic", lambda: now[0])
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
    monkeypatch.setattr("graphjoule.tuning.storage.time.monotonic", lambda: now[0])
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
