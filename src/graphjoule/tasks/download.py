"""One large file from the web: its size shown, a broken connection taken up again, and every byte checked."""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from graphjoule.errors import GraphjouleError

_ATTEMPTS = 4
_PAUSE_SECONDS = 2.0
_TIMEOUT_SECONDS = 30.0
_SECONDS_BETWEEN_LINES = 10.0
_CHUNK = 1 << 18
logger = logging.getLogger("graphjoule")


@dataclass(frozen=True)
class Remote:
    """A file on the web that never changes.

    Attributes:
        url: where it is.
        num_bytes: its size.
        sha256: its SHA-256.
    """

    url: str
    num_bytes: int
    sha256: str

    def check(self, path: Path, shown: str) -> None:
        """Refuse a file that is not this one.

        Args:
            path: the file.
            shown: how to call it in the sentence.
        """
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != self.sha256:
            raise GraphjouleError(f"The file {shown} has SHA-256 {found}, expected {self.sha256}.")


def download(remote: Remote, path: Path) -> None:
    """Download a file and check it; a connection that breaks off is taken up again where it stopped.

    Args:
        remote: what to download.
        path: where to put it. A file that stays there after an error is not to be used.
    """
    with path.open("wb") as file, _show_progress(remote) as show:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _receive(remote, file, show)
                break
            except HTTPError:  # the server has answered; it would say the same again
                raise
            except (OSError, HTTPException):
                if attempt == _ATTEMPTS:
                    raise
                time.sleep(_PAUSE_SECONDS * attempt)
    remote.check(path, remote.url)


def _receive(remote: Remote, file: BinaryIO, show: Callable[[int], None]) -> None:
    """Append to the file what is missing at its end."""
    start = file.tell()
    request = Request(remote.url, headers={"Range": f"bytes={start}-"} if start else {})
    with urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
        if start and response.status != 206:  # the server knows no ranges and starts again, so we do
            file.seek(0)
            file.truncate()
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            show(file.tell())
            if file.tell() > remote.num_bytes:
                raise GraphjouleError(f"The file {remote.url} is longer than the {remote.num_bytes:,} bytes expected.")
    if file.tell() < remote.num_bytes:
        raise ConnectionError(f"{remote.url} broke off after {file.tell():,} of {remote.num_bytes:,} bytes")


@contextmanager
def _show_progress(remote: Remote) -> Iterator[Callable[[int], None]]:
    """Gives a callback for the bytes that are there: a bar on a terminal, a log line now and then elsewhere."""
    logger.info("Downloading %s (%.0f MB)", remote.url, remote.num_bytes / 1e6)
    if not sys.stderr.isatty():
        yield _Lines(remote)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(remote.url.rpartition("/")[2], total=remote.num_bytes)
        yield lambda num_bytes: bar.update(task, completed=num_bytes)


class _Lines:
    """A log line every ten seconds."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._last = time.monotonic()

    def __call__(self, num_bytes: int) -> None:
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            logger.info("%s: %.0f %%", self._remote.url, 100 * num_bytes / self._remote.num_bytes)
