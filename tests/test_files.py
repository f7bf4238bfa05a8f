import gzip
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from graphjoule.errors import GraphjouleError
from graphjoule.files import (
    check_free,
    each_once,
    ensure_folder,
    file_lock,
    foreign_names,
    parse_json,
    read_bytes,
    remove_temporaries,
    write_bytes,
    write_json,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_and_replaced_whole_with_nothing_beside_it(tmp_path):
    path = tmp_path / "state.bin"
    write_bytes(path, b"old" * 1000)
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["state.bin"]


def test_text_is_utf8_and_json_has_no_bare_nan(tmp_path):
    write_text(tmp_path / "note.txt", "γ = 20")
    assert (tmp_path / "note.txt").read_bytes() == "γ = 20".encode()
    write_json(tmp_path / "x.json", {"a": [1.5, float("nan")], "b": (float("-inf"), 2), "c": {"d": None}})

    def refuse(word):
        raise AssertionError(word)

    read = json.loads((tmp_path / "x.json").read_text(), parse_constant=refuse)
    assert read == {"a": [1.5, None], "b": [None, 2], "c": {"d": None}}


@pytest.mark.skipif(os.name == "nt", reason="permission bits")
def test_json_that_is_too_deep_is_damaged_as_other_json():
    assert parse_json(b'{"a": [1, null]}') == {"a": [1, None]}
    for damaged in ("[" * 100_000, '{"a":' * 100_000, "", "{"):
        with pytest.raises(ValueError, match=r"brackets in brackets|Expecting|line 1"):
            parse_json(damaged)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name here")
def test_only_files_are_read_and_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for place in (tmp_path / "pipe.json", Path(os.devnull)):
        with pytest.raises(OSError, match="not a file"):
            read_bytes(place)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"0123456789"))
    (tmp_path / "link.gz").symlink_to("a.gz")
    assert (read_bytes(tmp_path / "a.gz"), read_bytes(tmp_path / "link.gz", 4)) == (b"0123456789", b"0123")


def test_a_file_is_as_readable_to_others_as_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    write_bytes(tmp_path / "ours", b"")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_failure_keeps_the_old_content_and_leaves_nothing_behind(tmp_path, monkeypatch, moment):
    path = tmp_path / "state.bin"
    write_bytes(path, b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, moment, fail)
    with pytest.raises(GraphjouleError, match=r"Cannot write .*state\.bin: no space left on device\."):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["state.bin"]


def test_an_interrupt_leaves_nothing_behind_either(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "state.bin", b"new")
    assert names(tmp_path) == []


def test_what_a_kill_has_left_is_removed_and_what_only_looks_like_it_is_not(tmp_path, monkeypatch):
    for name in (".mine.tmp", ".state.bin.0123abcd.tmp", "notes.tmp", ".graphjoule-parts-2", ".graphjoule"):
        (tmp_path / name).touch()
    before = names(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("graphjoule.files._remove", lambda path: None)
        patch.setattr(os, "replace", lambda *_: None)
        write_bytes(tmp_path / "state.bin", b"half")
    assert len(names(tmp_path)) == len(before) + 1
    remove_temporaries(tmp_path)
    assert names(tmp_path) == before


def test_bad_places_are_one_sentence(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "folder").mkdir()
    for path in [tmp_path / "missing" / "x", tmp_path / "file" / "x", tmp_path / "folder", Path()]:
        with pytest.raises(GraphjouleError, match=r"^Cannot write [^\n]*\.$"):
            write_text(path, "x")
    for path in [tmp_path / "file", tmp_path / "file" / "below"]:
        with pytest.raises(GraphjouleError, match=r"^Cannot use [^\n]* as an output folder: [^\n]*\.$"):
            ensure_folder(path)
    assert names(tmp_path) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "not a folder"


def test_ensure_folder_makes_parents_accepts_an_existing_one_and_leaves_it_empty(tmp_path):
    folder = ensure_folder(tmp_path / "a" / "b")
    assert folder == ensure_folder(str(folder))
    assert folder.is_dir()
    assert names(folder) == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    try:
        for path in [tmp_path, tmp_path / "below"]:
            with pytest.raises(GraphjouleError, match="permission denied"):
                ensure_folder(path)
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that even root cannot write in")
def test_a_folder_where_even_root_cannot_write_is_refused():
    for path in ["/proc", "/proc/graphjoule"]:
        with pytest.raises(GraphjouleError, match="output folder"):
            ensure_folder(path)


def test_of_paths_to_one_file_the_file_itself_is_kept(tmp_path):
    for name in ("b", "d"):
        (tmp_path / name).touch()
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    given = [tmp_path / name for name in ("d", "a", "b", "loop", "d")]
    assert each_once(given) == [tmp_path / name for name in ("d", "b", "loop")]
    assert each_once([tmp_path / "a"]) == [tmp_path / "a"]


# Locks.


def test_the_lock_file_stays_and_can_be_locked_again(tmp_path):
    path = tmp_path / "new" / "lock"
    with file_lock(path) as is_ours:
        assert is_ours
        inode = path.stat().st_ino
        with file_lock(path) as is_theirs:
            assert not is_theirs
    with file_lock(path) as is_ours:
        assert is_ours
        assert path.stat().st_ino == inode


def test_the_lock_of_a_process_that_died_is_free(tmp_path):
    path = tmp_path / "lock"
    code = f"""
import os
from pathlib import Path
from graphjoule.files import file_lock
held = file_lock(Path({str(path)!r}))
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


def test_a_lock_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "lock").mkdir()
    with (
        pytest.raises(GraphjouleError, match=r"^Cannot lock .*lock: is a directory; choose .*\.$"),
        file_lock(tmp_path / "lock"),
    ):
        pass


@pytest.mark.parametrize("error", [OSError(95, os.strerror(95)), NotImplementedError("FileSystem has no flock")])
def test_a_disk_without_locks_is_a_sentence(tmp_path, monkeypatch, error):
    def refuse(*_, **options):
        raise error

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with (
        pytest.raises(GraphjouleError, match=r"^Cannot lock .*; choose a folder on another disk\.$"),
        file_lock(tmp_path / "lock"),
    ):
        pass


# A command begins only where nothing of anybody else's is, and says what there is.


def test_a_new_and_an_empty_folder_are_free_and_stay_as_they_are(tmp_path):
    check_free(tmp_path)
    check_free(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["b.csv"], "holds b.csv, which this command did not begin"),
        (["b.csv", "a.csv"], "holds a.csv and 1 other thing, which this command did not begin"),
        ([".git", "b.csv", ".half.tmp"], "holds .git and 2 other things, which this command did not begin"),
    ],
)
def test_what_is_there_is_said_and_what_to_do(tmp_path, names, said):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(GraphjouleError) as caught:
        check_free(tmp_path)
    assert said in str(caught.value)
    assert str(caught.value).endswith("choose a new or an empty folder with `out`.")


def test_what_a_kill_can_leave_is_not_foreign(tmp_path):
    for name in (".lock", ".graphjoule-0123abcd.tmp", ".graphjoule-parts-2"):
        (tmp_path / name).touch()
    assert foreign_names(tmp_path) == [".lock"]
    check_free(tmp_path, own=[".lock"])


def test_a_file_is_left_to_who_makes_the_folder(tmp_path):
    (tmp_path / "file").touch()
    check_free(tmp_path / "file")
    with pytest.raises(GraphjouleError, match="Cannot use"):
        ensure_folder(tmp_path / "file")


def test_a_folder_that_cannot_be_looked_into_is_a_sentence(tmp_path, monkeypatch):
    def fail(path):
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(type(tmp_path), "iterdir", fail)
    with pytest.raises(GraphjouleError, match=r"as an output folder: permission denied\.$"):
        check_free(tmp_path)
