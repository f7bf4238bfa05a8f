"""Faults at a process's own calls that change files: the k-th of them kills, fails or breaks off in the middle.

`Injector` replaces the calls in `os`, `fcntl` and `open` by ones that count what happens below a folder. With a fault
it acts at one of them; without one it only writes down what was called.
"""

import builtins
import errno
import fcntl
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KILLED = 137
KINDS = ("kill before", "kill after", "kill in the middle", "ENOSPC", "EIO", "EROFS")
_ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EROFS": errno.EROFS}
_GROWS = {"write", "open", "mkdir"}  # what a full disk refuses
_CHANGES = _GROWS | {"rename", "unlink", "rmdir", "truncate"}  # what a read-only disk refuses
_LASTS = {"ENOSPC": _GROWS, "EROFS": _CHANGES}  # such a disk stays as it is, while EIO is for once


def can_be(kind: str, call: str) -> bool:
    """Whether a fault can happen at a call."""
    if kind == "kill in the middle":
        return call == "write"
    return call in _LASTS.get(kind, {call})


@dataclass
class Injector:
    """Counts calls below a folder, and lets one fail.

    Attributes:
        root: the folder.
        kind: one of `KINDS`; None lets every call through.
        at: which call is hit, from 0.
        calls: what was called so far, such as ("write", "run/run.json").
    """

    root: Path
    kind: str | None = None
    at: int = -1
    calls: list[tuple[str, str]] = field(default_factory=list)
    _is_owed: bool = False

    def install(self) -> None:
        """Replace the calls of this process, for good: it is a fork that ends soon."""
        real_open, real_write, real_flock = os.open, os.write, fcntl.flock
        writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT

        def open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if not flags & writing:
                return real_open(path, flags, *args, **kwargs)
            return self._meet("open", path, lambda: real_open(path, flags, *args, **kwargs))

        def write(descriptor: int, data: Any) -> int:
            data = bytes(data)
            return self._meet(
                "write", descriptor, lambda: real_write(descriptor, data), lambda: real_write(descriptor, half(data))
            )

        def flock(descriptor: Any, operation: int) -> None:
            if operation & fcntl.LOCK_UN:
                return real_flock(descriptor, operation)
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            return self._meet("lock", number, lambda: real_flock(descriptor, operation))

        os.open, os.write, fcntl.flock = open_, write, flock  # type: ignore[assignment]
        for name, call in _BY_PATH.items():
            setattr(os, name, self._wrapped(getattr(os, name), call))
        builtins.open = io.open = self._open(io.open)  # type: ignore[assignment]

    def _wrapped(self, real: Callable[..., Any], call: str) -> Callable[..., Any]:
        return lambda first, *args, **kwargs: self._meet(call, first, lambda: real(first, *args, **kwargs))

    def _open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def open_(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
            if not set(mode) & set("wax+") or self._below(file) is None:
                return real(file, mode, buffering, *args, **kwargs)
            raw = self._meet("open", file, lambda: _Raw(self, file, mode.replace("b", "").replace("t", "")))
            binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return binary if "b" in mode else io.TextIOWrapper(binary, *args, **kwargs)

        return open_

    def _below(self, place: Any) -> str | None:
        """The place as seen from the root; None if it is elsewhere."""
        path = os.fsdecode(Path(f"/proc/self/fd/{place}").readlink() if isinstance(place, int) else place)
        path = os.path.abspath(path)  # noqa: PTH100 - a link is the place, not what it leads to
        root = str(self.root)
        return os.path.relpath(path, root) if path == root or path.startswith(root + os.sep) else None

    def _meet(
        self, call: str, place: Any, act: Callable[[], Any], act_by_half: Callable[[], Any] = lambda: None
    ) -> Any:
        name = self._below(place)
        if name is None:
            return act()
        number = len(self.calls)
        self.calls.append((call, name))
        kind = self.kind
        if kind is None or number < self.at:
            return act()
        if self._is_owed and number == self.at:
            self._is_owed = False
            raise OSError(_ERRORS[kind], os.strerror(_ERRORS[kind]), name)
        if number > self.at:
            if call in _LASTS.get(kind, ()):
                raise OSError(_ERRORS[kind], os.strerror(_ERRORS[kind]), name)
            return act()
        if kind == "kill before":
            os._exit(KILLED)
        if kind == "kill after":
            act()
            os._exit(KILLED)
        written = act_by_half()
        if kind == "kill in the middle":
            os._exit(KILLED)
        if written:  # as systems do: a write that got some bytes through says how many, and the next one fails
            self.at += 1
            self._is_owed = True
            return written
        raise OSError(_ERRORS[kind], os.strerror(_ERRORS[kind]), name)


_BY_PATH = {
    "replace": "rename",
    "rename": "rename",
    "unlink": "unlink",
    "remove": "unlink",
    "mkdir": "mkdir",
    "rmdir": "rmdir",
    "fsync": "sync",
    "ftruncate": "truncate",
    "truncate": "truncate",
}


class _Raw(io.FileIO):
    """A file whose writes are counted."""

    def __init__(self, injector: Injector, file: Any, mode: str) -> None:
        super().__init__(file, mode)
        self._injector = injector

    def write(self, data: Any) -> int:
        data, real = bytes(data), super().write
        written: int = self._injector._meet("write", self.fileno(), lambda: real(data), lambda: real(half(data)))
        return written

    def truncate(self, size: int | None = None) -> int:
        real = super().truncate
        cut: int = self._injector._meet("truncate", self.fileno(), lambda: real(size))
        return cut


def half(data: bytes) -> bytes:
    """What of a write reaches the disk when it breaks off."""
    return data[: len(data) // 2]
