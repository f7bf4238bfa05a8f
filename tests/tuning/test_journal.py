import multiprocessing
import os
import signal

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.tuning.board import Address
from graphjoule.tuning.journal import HAS_FILE_LOCKS, JournalLock, open_journal

pytestmark = pytest.mark.skipif(not HAS_FILE_LOCKS, reason="no file locks here")


def open_study(path):
    return Address(str(path), "a").open({}, "minimize").study


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


def test_a_first_line_that_was_torn_is_refused_where_nothing_cuts_it_off(tmp_path, monkeypatch):
    monkeypatch.setattr("graphjoule.tuning.journal.HAS_FILE_LOCKS", False)
    path = tmp_path / "journal.log"
    path.write_bytes(b'{"op_code":0,"wor')
    with pytest.raises(GraphjouleError, match="is no journal of a search"):
        open_journal(path)
    assert path.read_bytes() == b'{"op_code":0,"wor'


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
    with pytest.raises(GraphjouleError, match=r"mine\.txt is no journal of a search; choose another file"):
        open_journal(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_broken_line_in_the_middle_gets_a_sentence(tmp_path):
    path = tmp_path / "journal.log"
    study = open_study(path)
    study.enqueue_trial({"lr": 0.1})
    first, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, b"{broken\n", *others]))
    with pytest.raises(GraphjouleError, match="or a line of it is broken"):
        open_journal(path)


def test_a_folder_is_no_journal(tmp_path):
    with pytest.raises(GraphjouleError, match="Cannot use"):
        open_journal(tmp_path)


def test_a_place_that_cannot_be_written_gets_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GraphjouleError, match="Cannot use"):
        open_journal(tmp_path / "file" / "journal.log")
