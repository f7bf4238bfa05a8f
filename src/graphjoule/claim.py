"""A claim on a piece of work: held by one process, and gone with it however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graphjoule.errors import GraphjouleError
from graphjoule.files import ensure_folder, reason

try:
    import fcntl
except ImportError:  # Windows: two processes on one study are the user's own care there
    fcntl = None  # type: ignore[assignment]

__all__ = ["claim"]


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Try to be the one who holds a lock file; the system lets go of it when the process dies.

    The file stays when the claim ends: removing it would let one process lock the old file and another the new one.

    Args:
        path: The lock file; its folder is made if there is none.

    Returns:
        Whether the claim is ours, as the context's value; False if another process holds it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, claim(Path(folder, "a")) as mine, claim(Path(folder, "a")) as too:
    ...     mine, too
    (True, False)
    """
    ensure_folder(path.parent)
    try:
        lock = path.open("a")
    except OSError as error:
        raise GraphjouleError(f"Cannot make the lock file {path}: {reason(error)}.") from error
    with lock:
        if fcntl is None:
            yield True
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:  # some network disks have no locks
            raise GraphjouleError(f"Cannot lock {path}: {reason(error)}; choose a folder on another disk.") from error
        yield True
