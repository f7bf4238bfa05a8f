"""The journal file that workers share: Optuna's, with a lock that dies with its holder and a tail that heals."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from graphjoule.errors import GraphjouleError
from graphjoule.files import ensure_folder, reason
from graphjoule.tuning.engine import import_optuna

try:
    import fcntl
except ImportError:  # Windows: Optuna's own lock, which a dead worker holds for half a minute
    fcntl = None  # type: ignore[assignment]

__all__ = ["HAS_FILE_LOCKS", "JournalLock", "open_journal"]

HAS_FILE_LOCKS = fcntl is not None
_BEGINNING = b'{"op_code":'  # of every line that Optuna writes


class JournalLock:
    """What Optuna takes before it appends a line: a lock of the system's on a file beside the journal.

    Optuna's own lock is a file that a killed worker leaves behind. And should a worker or the power go in the middle of
    a line, that line and the next would be one that nobody can read: whoever takes the lock cuts the torn line off. No
    one has read it, for a line counts only with its end.

    Args:
        journal: the journal file.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._path = journal.with_name(f"{journal.name}.lock")
        self._file: BinaryIO | None = None

    def acquire(self) -> bool:
        """Wait until nobody else appends."""
        file = self._path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            _cut_torn_line(self._journal)
        except OSError:
            file.close()
            raise
        self._file = file
        return True

    def release(self) -> None:
        """Let the next one append."""
        assert self._file is not None
        self._file.close()  # this lets go of the lock too
        self._file = None


def open_journal(path: Path) -> Any:
    """Optuna's storage on a journal file, made if there is none.

    Args:
        path: the file; its folder is made too.

    Raises:
        GraphjouleError: it cannot be written, or it is a file of something else.
    """
    storages = import_optuna().storages.journal
    _check_is_journal(path)
    ensure_folder(path.parent)
    lock = JournalLock(path) if HAS_FILE_LOCKS else storages.JournalFileOpenLock(str(path))
    try:
        return storages.JournalStorage(storages.JournalFileBackend(str(path), lock_obj=lock))
    except OSError as error:
        raise GraphjouleError(f"Cannot use {path} as a search's journal: {reason(error)}.") from error
    except (ValueError, KeyError) as error:
        raise GraphjouleError(f"{path} is no journal of a search, or a line of it is broken: {error}.") from error


def _check_is_journal(path: Path) -> None:
    """Refuse a file that is no journal before anything is appended to it, or cut off."""
    try:
        if not path.exists() or path.stat().st_size == 0:
            return
        with path.open("rb") as file:
            first = file.readline(1 << 20)
    except OSError as error:
        raise GraphjouleError(f"Cannot use {path} as a search's journal: {reason(error)}.") from error
    if not (_is_entry(first) or _is_torn_entry(first)):
        raise GraphjouleError(f"{path} is no journal of a search; choose another file with --storage.")


def _is_entry(line: bytes) -> bool:
    try:
        return "op_code" in json.loads(line)
    except (ValueError, TypeError):
        return False


def _is_torn_entry(line: bytes) -> bool:
    """Whether it is how a journal's first line begins: the lock cuts it off before anything is appended."""
    is_alike = line.startswith(_BEGINNING) or _BEGINNING.startswith(line)
    return HAS_FILE_LOCKS and is_alike and not line.endswith(b"\n")


def _cut_torn_line(path: Path) -> None:
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
