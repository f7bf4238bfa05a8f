"""Who is at work on a trial, and whether they still live: told by locks on a shared disk, else by a pulse."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from graphjoule.files import file_lock
from graphjoule.tuning.engine import is_taken_over

__all__ = ["FileLeases", "Leases", "PulseLeases"]

_TURN_SECONDS = 0.01  # between two looks at whose turn it is


class Leases(Protocol):
    """What the queue asks of either kind."""

    def turn(self) -> AbstractContextManager[None]:
        """While it lasts, nobody else takes a trial or puts one back, where that can be had."""

    def hold(self, trial: Any) -> AbstractContextManager[None]:
        """Be known to work on an Optuna trial that is ours."""

    def is_dead(self, trial: Any) -> bool:
        """Whether the worker of a running trial, as the study lists it, is gone."""


class FileLeases:
    """A lock file per trial; the system lets go of a lock when its holder dies, so a death is seen at once.

    Args:
        folder: where the lock files are; on a disk that all workers see and that has file locks.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the lock of the queue itself: between a trial's start and its lease it must not look dead."""
        while True:
            with file_lock(self._folder / "turn.lock") as is_ours:
                if is_ours:
                    yield
                    return
            time.sleep(_TURN_SECONDS)

    @contextmanager
    def hold(self, trial: Any) -> Iterator[None]:
        """Hold the trial's lock."""
        with file_lock(self._path(trial)):
            yield

    def is_dead(self, trial: Any) -> bool:
        """Whether nobody holds the trial's lock."""
        with file_lock(self._path(trial)) as is_free:
            return is_free

    def _path(self, trial: Any) -> Path:
        return self._folder / f"trial-{trial.number}.lock"


class PulseLeases:
    """A number in the storage that a worker raises while it is alive; one that stands still for long is a dead one's.

    Each observer measures by its own clock how long a number has stood still, so the machines' clocks need not agree.
    Optuna's own heartbeat is not used: it never sees that a worker died between taking a trial and its first beat.

    Args:
        every: seconds between two beats.
        patience: seconds after which a worker that does not beat is taken for dead. Should it live after all, its
            result is not counted, for the trial is another's by then.
    """

    KEY = "pulse"

    def __init__(self, every: float = 15.0, patience: float = 120.0) -> None:
        self._every, self._patience = every, patience
        self._seen: dict[int, tuple[int | None, float]] = {}

    def turn(self) -> AbstractContextManager[None]:
        """Nobody waits: the queue's own rules settle what two workers do at once."""
        return nullcontext()

    @contextmanager
    def hold(self, trial: Any) -> Iterator[None]:
        """Raise the trial's number until the block ends."""
        is_over = threading.Event()
        thread = threading.Thread(target=self._beat, args=(trial, is_over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def is_dead(self, trial: Any) -> bool:
        """Whether its number has stood still for `patience` seconds before our eyes."""
        pulse, now = trial.user_attrs.get(self.KEY), time.monotonic()
        seen, since = self._seen.get(trial.number, (None, now))
        if trial.number not in self._seen or pulse != seen:
            self._seen[trial.number] = (pulse, now)
            return False
        return now - since > self._patience

    def _beat(self, trial: Any, is_over: threading.Event) -> None:
        count = 0
        while not is_over.is_set():
            try:
                trial.set_user_attr(self.KEY, count)
            except Exception as error:
                if is_taken_over(error):
                    return
                # A database that cannot be reached for a moment costs a beat, not the training.
            count += 1
            is_over.wait(self._every)
