"""Where a search is stored, so that every worker sees it: a journal file, a database by URL, or this process's memory.

Optuna stores the trials; this file adds what killed workers showed to be missing:

- Optuna's journal locks are files that a killed worker leaves behind, and the others wait half a minute for each. A
  lock of the system (filelock) ends with its holder.
- A line that was cut off by a full disk or a power cut runs into the next one, and then nobody can read the journal.
- Its heartbeat works with databases only, beats only inside `Study.optimize`, and never notices a worker that died
  before its first beat. Here a lock per trial, or a pulse in a database, shows which workers are alive.
- A journal that is damaged, removed or emptied meanwhile ends in all kinds of exceptions, or in none. Here it is
  always one sentence.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from graphjoule.errors import GraphjouleError
from graphjoule.files import ensure_folder, file_lock, lock_itself, reason
from graphjoule.training.recipe import LATER

_ABOUT = "graphjoule"  # the study's attribute that says what it searches
_BEGINNING = b'{"op_code":'  # of every line that Optuna writes
_POLL_SECONDS = 0.01  # between two attempts to take a lock that another worker holds
_SECOND_TRY_SECONDS = 1.0
_PACKAGES = {"psycopg": "'psycopg[binary]'", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}  # by module


def import_optuna() -> Any:
    """The package, or a sentence that says how to install it."""
    try:
        import optuna
    except ImportError as error:
        raise GraphjouleError(
            "A search needs Optuna, which is not installed: pip install 'graphjoule[tune]'."
        ) from error
    return optuna


@contextmanager
def quiet() -> Iterator[None]:
    """Let Optuna print warnings only, and not that some of its options are experimental in version 4."""
    optuna = import_optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


@dataclass(frozen=True)
class StorageRef:
    """Where to find a search.

    Attributes:
        storage: path of a journal file, or the URL of a database; None is this process's memory.
        name: the search's name there; one storage can hold many searches.
    """

    storage: str | None
    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise GraphjouleError(
                f"The search cannot be called {self.name!r}: expected letters, digits, '.', '_', '-'."
            )
        if self.storage is not None and self.storage.startswith("sqlite"):
            raise GraphjouleError(
                "SQLite repeats trials when several workers share it, so a search is not stored there: choose with "
                "`storage` a file such as runs/tune/journal.log, or the URL of a PostgreSQL or MySQL database."
            )

    @property
    def is_url(self) -> bool:
        """Whether it is a database.

        >>> StorageRef("postgresql://host/db", "a").is_url, StorageRef("runs/journal.log", "a").is_url
        (True, False)
        """
        return self.storage is not None and "://" in self.storage

    @property
    def journal(self) -> Path | None:
        """The journal file, if it is one."""
        return None if self.storage is None or self.is_url else Path(self.storage)

    @property
    def file_names(self) -> tuple[str, ...]:
        """What the journal and the locks beside it are called; nothing if there is no journal."""
        name = self.journal and self.journal.name
        return (name, f"{name}.lock", f"{name}.leases") if name else ()

    def __str__(self) -> str:
        """For messages: never with a password."""
        if self.storage is None or not self.is_url:
            return self.storage or "memory"
        scheme, _, rest = self.storage.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"

    def open(self, about: Mapping[str, Any], direction: str) -> SearchStorage:
        """Continue the search of this name, or begin it.

        Args:
            about: what makes the search this search, as JSON can hold it; if it was begun with something else, it is
                refused.
            direction: "minimize" or "maximize".
        """
        optuna = import_optuna()
        leases: LockLeases | PulseLeases = PulseLeases()
        with quiet(), sentences(self):
            if self.journal is not None:
                if self.journal.exists() and (fault := _journal_fault(self.journal)):  # before anything is added
                    raise GraphjouleError(f"{self} {fault}; choose another file with `storage`.")
                ensure_folder(self.journal.parent)
                self.journal.touch()
                lock = JournalLock(self.journal)
                with lock:  # cuts off half a line, which Optuna would read
                    leases = LockLeases(self.journal.with_name(f"{self.journal.name}.leases") / self.name, lock)
                journal = optuna.storages.journal
                backend = journal.JournalStorage(journal.JournalFileBackend(str(self.journal), lock_obj=lock))
            else:
                backend = _open_database(self) if self.is_url else optuna.storages.InMemoryStorage()
            try:  # `create_study` would add a line to the journal even where the study exists
                study = optuna.load_study(study_name=self.name, storage=backend)
            except KeyError:
                study = optuna.create_study(
                    study_name=self.name, storage=backend, direction=direction, load_if_exists=True
                )
            if _ABOUT not in study.user_attrs:
                study.set_user_attr(_ABOUT, dict(about))
            begun = study.user_attrs[_ABOUT]  # read again: two workers may have begun it at the same moment
        if not isinstance(begun, Mapping) or [one.name.lower() for one in study.directions] != [direction]:
            raise GraphjouleError(
                f"The search {self.name!r} in {self} was begun by something else than graphjoule; choose another "
                "`storage` or `name`."
            )
        if changed := differences(begun, about):
            raise GraphjouleError(
                f"The search {self.name!r} in {self} was begun with something else ({'; '.join(changed)}); choose "
                "another `storage` or `name`."
            )
        return SearchStorage(self, study, leases)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What makes two searches different, by their `Search.about`; not an option that is younger than the first.

    >>> differences({"seeds": [0], "lr": 0.1}, {"seeds": [0, 1], "lr": 0.1, "model.activations": "float32"})
    ['seeds: [0] -> [0, 1]']
    """
    before = {f"model.{name}": value for name, value in LATER.items() if f"model.{name}" in now} | dict(before)
    pairs = {key: (before.get(key, "nothing"), now.get(key, "nothing")) for key in {**before, **now}}
    return [f"{key}: {old} -> {new}" for key, (old, new) in pairs.items() if old != new]


@dataclass(frozen=True)
class SearchStorage:
    """An open search: Optuna's study, and which of its trials have a live worker."""

    ref: StorageRef
    study: Any
    leases: LockLeases | PulseLeases

    def trials(self) -> list[Any]:
        """All trials in the order of their numbers, as Optuna's `FrozenTrial`."""
        with sentences(self.ref):
            return list(self.study.get_trials(deepcopy=False))

    def end(self, trial: Any, state: str, value: float | None = None, facts: Mapping[str, Any] | None = None) -> bool:
        """End a running trial with its facts; False if another worker has ended it otherwise."""
        wanted = import_optuna().trial.TrialState[state]
        try:
            with quiet(), sentences(self.ref):
                for name, fact in (facts or {}).items():  # first, so that a trial with a result has them
                    trial.set_user_attr(name, fact)
                ended = self.study.tell(trial.number, value, state=wanted, skip_if_finished=True)
        except RuntimeError:  # Optuna's for a trial that has ended, in version 5 a subclass
            return False
        return bool(ended.state == wanted and (value is None or ended.value == value))


@contextmanager
def sentences(ref: StorageRef) -> Iterator[None]:
    """Turn whatever a storage raises about itself into a sentence; other errors pass."""
    try:
        yield
    except GraphjouleError:
        raise
    except (OSError, NotImplementedError) as error:
        what = f"{ref} as the journal of a search" if ref.journal else str(ref)
        why = reason(error) if isinstance(error, OSError) else "this disk has no locks"
        raise GraphjouleError(f"Cannot use {what}: {why}.") from error
    except Exception as error:
        if ref.journal is not None and (fault := _journal_fault(ref.journal)):
            raise GraphjouleError(f"{ref} {fault}.") from error
        is_of_database = ref.is_url and type(error).__module__.startswith(("sqlalchemy", "optuna"))
        if not is_of_database or isinstance(error, RuntimeError):  # the second is for a trial that has ended
            raise
        raise GraphjouleError(_database_fault(ref, error)) from error


# A journal file.


class JournalLock:
    """The lock that Optuna takes before it adds a line, as the `lock_obj` of its journal.

    Whoever takes it cuts off a last line without an end: nobody has read that line. A journal that was removed,
    replaced or cut short since the last time is refused, for Optuna would add to it and lose all that was there. Who
    has it can take it again: a block with the lock is a worker's turn. The journal itself is locked too, where the disk
    can: whoever deletes the lock file beside it lets no second worker in.

    Args:
        journal: the journal file, which exists.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._lock = FileLock(f"{journal}.lock")
        self._seen: tuple[int, int] | None = None
        self._held: list[IO[bytes]] = []  # one for each time that it was taken; the first is locked

    def acquire(self) -> bool:
        """Wait until no other worker adds a line."""
        self._lock.acquire(poll_interval=_POLL_SECONDS)
        try:
            file = self._journal.open("r+b", buffering=0)
        except BaseException:
            self._lock.release()
            raise
        self._held.append(file)
        try:
            if len(self._held) == 1:
                lock_itself(file.fileno(), wait=True)
            size, inode = file.seek(0, os.SEEK_END), os.fstat(file.fileno()).st_ino
            if self._seen is not None and (inode != self._seen[1] or size < self._seen[0]):
                raise GraphjouleError(
                    f"{self._journal} was emptied, cut short or replaced while the search was running; put the "
                    "file back, or begin again in another `storage`."
                )
            file.seek(max(0, size - 1))
            if size and file.read(1) != b"\n":
                file.seek(0)
                size = file.read().rfind(b"\n") + 1
                file.truncate(size)
            self._seen = (size, inode)
        except BaseException:
            self.release()
            raise
        return True

    def release(self) -> None:
        """Let the next worker add a line."""
        self._held.pop().close()  # the first lets go of the journal
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


def _journal_fault(path: Path) -> str | None:
    """What is wrong with a journal, its last line apart, which may be cut off; None if it can be read."""
    journal, line = import_optuna().storages.journal, b""
    if not (path.is_file() or path.is_dir()):  # opening a pipe would wait for ever; a folder says so itself
        return "is not a file"
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                is_entry = "op_code" in dict(json.loads(line))
            except (ValueError, TypeError, RecursionError):
                is_entry = False
            is_torn = not line.endswith(b"\n") and (line.startswith(_BEGINNING) or _BEGINNING.startswith(line))
            if not (is_entry or is_torn):
                return "is not a journal of a search" if number == 1 else f"is damaged: line {number} cannot be read"
    try:
        if line.endswith(b"\n"):
            journal.JournalStorage(journal.JournalFileBackend(str(path)))
    except Exception as error:  # whatever Optuna meets in a line that looks like its own
        return f"is damaged: a line cannot be used ({type(error).__name__}: {error})"
    return None


# A database.


def _open_database(ref: StorageRef) -> Any:
    for is_last in (False, True):
        try:
            return import_optuna().storages.RDBStorage(ref.storage)
        except ImportError as error:
            missing = error.__cause__ or error.__context__ or error  # Optuna's own error does not name the module
            said = str(missing).partition("\n")[0].rstrip(".")
            # A driver of PostgreSQL without its library does not name a module.
            module = getattr(missing, "name", None) or ("psycopg" if str(ref).startswith("postgresql") else "")
            module = module.partition(".")[0]
            remedy = f": pip install {_PACKAGES.get(module, module)}" if module else ""
            raise GraphjouleError(
                f"Cannot use {ref}: the package that talks to such a database is not installed ({said}){remedy}."
            ) from error
        except Exception as error:  # every driver has errors of its own, all of them about this one database
            if is_last:
                raise GraphjouleError(_database_fault(ref, error)) from error
            # Two workers that come first create the tables at the same moment, and one of them fails.
            time.sleep(_SECOND_TRY_SECONDS)
    return None


def _database_fault(ref: StorageRef, error: Exception) -> str:
    cause = error.__cause__ if type(error).__module__.startswith("optuna") and error.__cause__ else error
    said = str(getattr(cause, "orig", None) or cause).strip().partition("\n")[0].rstrip(".")
    return f"Cannot use {ref}: {said or type(error).__name__}."


# Which trials have a live worker.


@dataclass(frozen=True)
class LockLeases:
    """A lock file per trial; the system releases a lock when its holder dies, so a death is seen at once.

    Attributes:
        folder: where the lock files are; on a disk that all workers see and that has file locks.
        lock: held for a turn.
    """

    folder: Path
    lock: JournalLock

    def turn(self) -> AbstractContextManager[Any]:
        """While it lasts, no other worker takes a trial or puts one back: a trial that just began has no lock yet."""
        return self.lock

    def hold(self, trial: Any) -> AbstractContextManager[Any]:
        """Show that this process works on a trial."""
        return file_lock(self.folder / f"trial-{trial.number}.lock")

    def is_dead(self, trial: Any) -> bool:
        """Whether the worker of a running trial is gone: nobody holds the lock."""
        with self.hold(trial) as is_free:
            return bool(is_free)


class PulseLeases:
    """A number in the storage that a worker raises while it is alive; after a death it stands still.

    Each observer measures by its own clock how long a number has stood still, so the machines' clocks need not agree.

    Args:
        every: seconds between two beats.
        patience: seconds without a beat after which a worker is taken for dead. Should it live after all, its result is
            not counted, for by then another worker has the trial.
    """

    def __init__(self, every: float = 15.0, patience: float = 120.0) -> None:
        self._every, self._patience = every, patience
        self._seen: dict[int, tuple[int | None, float]] = {}

    def turn(self) -> AbstractContextManager[Any]:
        """Nobody waits: the queue's rules settle what two workers do at the same moment."""
        return nullcontext()

    @contextmanager
    def hold(self, trial: Any) -> Iterator[None]:
        """Raise the trial's number until the block ends."""
        is_over = threading.Event()

        def beat() -> None:
            count = 0
            while not is_over.is_set():
                try:
                    trial.set_user_attr("pulse", count)
                except RuntimeError:  # another worker has ended the trial
                    return
                except Exception:  # a storage that fails for a moment costs a beat, not the training
                    pass
                count += 1
                is_over.wait(self._every)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def is_dead(self, trial: Any) -> bool:
        """Whether its number has stood still for `patience` seconds while we watched."""
        pulse, now = trial.user_attrs.get("pulse"), time.monotonic()
        if trial.number not in self._seen or self._seen[trial.number][0] != pulse:
            self._seen[trial.number] = (pulse, now)
        return now - self._seen[trial.number][1] > self._patience
