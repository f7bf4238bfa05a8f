"""Ctrl-C that waits for the end of the epoch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether somebody has asked the training to stop at the next epoch."""

    def __init__(self) -> None:
        self.requested = False

    def request(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler: the first signal asks, a second one interrupts at once."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


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
