import os
import subprocess
import sys

import pytest

from graphjoule import claim as module
from graphjoule.errors import GraphjouleError
from graphjoule.files import file_lock

needs_locks = pytest.mark.skipif(module.fcntl is None, reason="this system has no such locks")


@needs_locks
def test_the_lock_file_stays_and_can_be_claimed_again(tmp_path):
    path = tmp_path / "new" / "lock"
    with file_lock(path) as is_ours:
        assert is_ours
        inode = path.stat().st_ino
        with file_lock(path) as is_theirs:
            assert not is_theirs
    with file_lock(path) as is_ours:
        assert is_ours
        assert path.stat().st_ino == inode


@needs_locks
def test_the_claim_of_a_process_that_died_is_free(tmp_path):
    path = tmp_path / "lock"
    code = f"""
import os
from pathlib import Path
from graphjoule.files import file_lock
held = claim(Path({str(path)!r}))
assert held.__enter__()
print("held", flush=True)
os.read(0, 1)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with file_lock(path) as is_ours:
            assert not is_ours
        process.kill()
    with file_lock(path) as is_ours:
        assert is_ours


def test_where_there_are_no_locks_the_claim_is_always_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "fcntl", None)
    with file_lock(tmp_path / "lock") as first, claim(tmp_path / "lock") as second:
        assert (first, second) == (True, True)


def test_a_lock_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "lock").mkdir()
    with (
        pytest.raises(GraphjouleError, match=r"^Cannot make the lock file .*lock: is a directory\.$"),
        claim(tmp_path / "lock"),
    ):
        pass


@needs_locks
def test_a_disk_without_locks_is_a_sentence(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(95, os.strerror(95))

    monkeypatch.setattr(module.fcntl, "flock", refuse)
    with (
        pytest.raises(GraphjouleError, match=r"^Cannot lock .*; choose a folder on another disk\.$"),
        claim(tmp_path / "lock"),
    ):
        pass
