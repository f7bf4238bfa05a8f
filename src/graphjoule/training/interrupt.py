"""Ctrl-C that waits for the end of the epoch."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ECHO_SECONDS = 1.0  # `timeout`, job schedulers and wrappers signal a program and then its group: twice at once


class StopRequest:
    """Whether somebody has asked the training to stop at the next epoch."""

    def __init__(self) -> None:
        self.requested = False
        self._asked_at = 0.0

    def request(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler: the first signal asks, one that comes later than its echo interrupts at once."""
        now = time.monotonic()
        if self.requested and now - self._asked_at > _ECHO_SECONDS:
            raise KeyboardInterrupt
        if not self.requested:
            self.requested, self._asked_at = True, now


@contextmanager
def deferred_interrupt() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request that the epoch loop reads, so that a saved state is never half an epoch.

    Signals can only be handled in the main thread; elsewhere this does nothing.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(signum, request.request) for signum in signals]
    try:
        yield request
    finally:
        for signum, handler in zip(signals, before, strict=True):
            signal.signal(signum, handler)
