"""Files that are whole or not there, folders that are ours to write in, and locks that end with their process."""

import errno
import gzip
import json
import math
import os
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from filelock import FileLock, Timeout

from graphjoule.errors import GraphjouleError, counted

try:
    import fcntl
except ImportError:  # Windows, where a file that a process holds open cannot be deleted
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "FLEETING",
    "UNFINISHED",
    "check_free",
    "each_once",
    "ensure_folder",
    "file_lock",
    "folder_lock",
    "foreign_names",
    "json_text",
    "lock_itself",
    "open_file",
    "parse_json",
    "printable",
    "read_bytes",
    "reason",
    "remove_temporaries",
    "sync_folder",
    "without_nan",
    "write_bytes",
    "write_json",
    "write_text",
]

FLEETING: Final = ".graphjoule-"
"""How the name of everything begins that a command removes when it is done; what a kill has left is ours by it."""

UNFINISHED: Final = f"{FLEETING}unfinished"
"""A file in a folder that is being written: until it is removed everything there is ours, and may be written again."""


@contextmanager
def open_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file on disk, to be read; one whose name ends in ``.gz`` is unpacked on the way.

    Raises:
        OSError: It cannot be opened, or is something else: a pipe or a device, such as an archive may unpack to, would
            be waited for or read for ever.
    """
    path, at_once = Path(path), getattr(os, "O_NONBLOCK", 0)  # a pipe that nobody writes into opens, too
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | at_once)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a file", str(path))
        if path.suffix != ".gz":
            yield file
            return
        with gzip.open(file) as unpacked:
            yield cast(BinaryIO, unpacked)


def read_bytes(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """The content of a file on disk, at most so many bytes of it; see `open_file`."""
    with open_file(path) as file:
        return file.read(most)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file so that whoever reads it, after a power cut too, meets the old content or the new, nothing between.

    Args:
        path: Where the file shall be; its folder must exist.
        data: The whole content.

    Raises:
        GraphjouleError: The file cannot be written; what stood there before is untouched.
    """
    path = Path(path)
    temporary = _temporary(path.parent)
    try:
        _write_through(temporary, data)
        os.replace(temporary, path)  # noqa: PTH105 - Path.replace is the same call under a vaguer name
        sync_folder(path.parent)
    except OSError as error:
        raise GraphjouleError(f"Cannot write {path}: {reason(error)}.") from error
    finally:
        _remove(temporary)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8, whole or not at all; see `write_bytes` and `printable`."""
    write_bytes(path, printable(text).encode())


def printable(text: str) -> str:
    r"""Text that UTF-8 can say: a byte of a path that is not UTF-8, and half a character, are written as an escape.

    >>> print(printable("runs/caf\udce9"))
    runs/caf\udce9
    """
    return text.encode(errors="backslashreplace").decode()


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    """Write an object as indented JSON, whole or not at all; numbers that are not finite become null."""
    write_text(path, json_text(obj, indent=2) + "\n")


def json_text(obj: Any, *, indent: int | None = None) -> str:
    """An object as JSON that any reader accepts.

    >>> json_text({"loss": float("nan"), "lr": 0.01})
    '{"loss": null, "lr": 0.01}'
    """
    return json.dumps(without_nan(obj), indent=indent, allow_nan=False)


def parse_json(text: str | bytes) -> Any:
    """What JSON holds; brackets in brackets, too deep for Python to follow, are a `ValueError` as other damage is."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("brackets in brackets, too many of them") from error


def without_nan(obj: Any) -> Any:
    """A copy of nested mappings, lists and tuples in which every number that is not finite is None.

    JSON has no word for NaN or infinity; Python writes them bare, and then strict readers refuse the whole file.

    >>> without_nan({"curve": (1.0, float("inf"))})
    {'curve': [1.0, None]}
    """
    if isinstance(obj, Mapping):
        return {key: without_nan(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [without_nan(value) for value in obj]
    return None if isinstance(obj, float) and not math.isfinite(obj) else obj


def ensure_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder where there is none, and make sure that files can be written in it.

    Args:
        path: The folder; its parents are created too.

    Returns:
        The folder as a `Path`.

    Raises:
        GraphjouleError: It cannot be created or written to.
    """
    path = Path(path)
    probe = _temporary(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()  # asking for permissions is not enough: root is told yes, a read-only disk says no
    except OSError as error:
        raise GraphjouleError(f"Cannot use {path} as an output folder: {reason(error)}.") from error
    finally:
        _remove(probe)
    return path


def remove_temporaries(folder: Path) -> None:
    """Remove the half-written files that killed processes left in a folder; whoever calls must know that none lives."""
    for path in folder.glob(f"{FLEETING}*.tmp"):
        path.unlink(missing_ok=True)


def _temporary(folder: Path) -> Path:
    return folder / f"{FLEETING}{secrets.token_hex(4)}.tmp"


def _write_through(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make a new name in a folder survive a power cut, where the system can; the file itself is safe without."""
    with suppress(OSError):  # Windows cannot open a folder, some network disks cannot sync one
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    with suppress(OSError):  # when its folder is not one it was never made; the first error is the one to tell
        path.unlink(missing_ok=True)


def reason(error: OSError) -> str:
    """The system's words for what went wrong, to end an error sentence with."""
    return (error.strerror or str(error)).lower()


@contextmanager
def file_lock(path: Path) -> Iterator[bool]:
    """Try to hold a lock file; the system lets go of it when the process dies.

    The file stays when the lock ends: removing it would let one process lock the old file and another the new one.

    Args:
        path: The lock file; its folder is made if there is none.

    Returns:
        Whether the lock is ours, as the context's value; False if another process or thread holds it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with file_lock(Path(folder, "a")) as mine, file_lock(Path(folder, "a")) as too:
    ...         mine, too
    (True, False)
    """
    ensure_folder(path.parent)
    lock = FileLock(path, is_singleton=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    except (OSError, NotImplementedError) as error:  # some network disks have no locks
        why = reason(error) if isinstance(error, OSError) else "this disk has no locks"
        raise GraphjouleError(f"Cannot lock {path}: {why}; choose a folder on another disk.") from error
    try:
        yield True
    finally:
        lock.release()


@contextmanager
def folder_lock(folder: Path, name: str) -> Iterator[bool]:
    """Try to hold a folder: by a lock file in it, and by the folder itself.

    Whoever deletes the lock file lets nobody in: the folder is still locked, where the disk can lock folders.

    Args:
        folder: the folder; made if there is none.
        name: of the lock file.

    Returns:
        Whether the folder is ours, as the context's value.
    """
    with file_lock(folder / name) as is_ours:
        if not is_ours or fcntl is None:
            yield is_ours
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            yield lock_itself(descriptor) is not False
        finally:
            os.close(descriptor)  # this lets go of the lock too


def lock_itself(descriptor: int, *, wait: bool = False) -> bool | None:
    """Lock an open file or folder itself, until it is closed: unlike a lock file beside it, nobody can delete that.

    Args:
        descriptor: of the open file or folder.
        wait: until whoever holds it lets go.

    Returns:
        Whether the lock is ours; None where the system, or a network disk, has no such locks.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def check_free(folder: Path, own: Collection[str] = ()) -> None:
    """Refuse to begin in a folder that holds what we did not write, so that nothing of it can be overwritten.

    Every command that fills a folder calls this before its first file, unless the folder's own description says that
    the command, or an earlier call of it, has begun there. From then on the names that it uses there are its own.

    Args:
        folder: where to begin; it need not exist.
        own: names that a kill can leave before that description is there.

    Raises:
        GraphjouleError: something else is there, or the folder cannot be looked into.
    """
    if not (folder / UNFINISHED).is_file() and (found := foreign_names(folder, own)):
        others = f" and {counted(len(found) - 1, 'other thing')}" if len(found) > 1 else ""
        raise GraphjouleError(
            f"{folder} holds {found[0]}{others}, which this command did not begin; choose a new or an empty folder "
            "with `out`."
        )


def foreign_names(folder: Path, own: Collection[str] = ()) -> list[str]:
    """The names in a folder that are neither among `own` nor of files that are ours while they are written."""
    try:
        return sorted(
            path.name
            for path in (folder.iterdir() if folder.is_dir() else ())
            if path.name not in own and not path.name.startswith(FLEETING)
        )
    except OSError as error:
        raise GraphjouleError(f"Cannot use {folder} as an output folder: {reason(error)}.") from error


def each_once(paths: Iterable[Path]) -> list[Path]:
    """The paths in their order, of those that lead to the same file only one: the file itself before a link to it."""
    paths = list(dict.fromkeys(paths))
    kept: dict[str, Path] = {}
    for path in sorted(paths, key=Path.is_symlink):
        kept.setdefault(os.path.realpath(path), path)
    chosen = set(kept.values())
    return [path for path in paths if path in chosen]
