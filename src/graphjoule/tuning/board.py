"""Where a search is kept so that every worker sees it: a journal file, a database by URL, or this process's memory."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphjoule.errors import GraphjouleError
from graphjoule.tuning.engine import import_optuna, quiet
from graphjoule.tuning.journal import HAS_FILE_LOCKS, open_journal
from graphjoule.tuning.leases import FileLeases, Leases, PulseLeases

__all__ = ["Address", "Board", "changes"]

_SECOND_TRY_SECONDS = 1.0
_PACKAGES = {"psycopg": "'psycopg[binary]'", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}  # by module
_ABOUT = "graphjoule"  # the study's attribute that says what it searches


@dataclass(frozen=True)
class Address:
    """Where to find a search.

    Attributes:
        storage: path of a journal file, or a database's URL; None keeps it in memory, for this process alone.
        name: the search's name there; one storage can hold many.
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
                "SQLite repeats trials when several workers share it, so a search is not kept there: give --storage a "
                "file such as runs/tune/journal.log, or the URL of a PostgreSQL or MySQL database."
            )

    @property
    def is_url(self) -> bool:
        """Whether it is a database.

        >>> Address("postgresql://host/db", "a").is_url, Address("runs/journal.log", "a").is_url
        (True, False)
        """
        return self.storage is not None and "://" in self.storage

    @property
    def file_names(self) -> tuple[str, ...]:
        """What the journal and the locks beside it are called; nothing if there is no journal."""
        if self.storage is None or self.is_url:
            return ()
        journal = Path(self.storage).name
        return journal, f"{journal}.lock", f"{journal}.leases"

    def __str__(self) -> str:
        """For messages: never with a password."""
        if self.storage is None or not self.is_url:
            return self.storage or "memory"
        scheme, _, rest = self.storage.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"

    def open(self, about: dict[str, Any], direction: str) -> Board:
        """Go on with the search of this name, or begin it.

        Args:
            about: what makes the search this search, as JSON can hold it; one that was begun with something else is
                refused.
            direction: "minimize" or "maximize".
        """
        study = self._open_study(self._open_storage(), direction)
        if _ABOUT not in study.user_attrs:
            study.set_user_attr(_ABOUT, about)
        _check_same(study.user_attrs[_ABOUT], about, self)  # read again: two may have begun it at the same moment
        return Board(study, self._leases())

    def _open_study(self, storage: Any, direction: str) -> Any:
        optuna = import_optuna()
        with quiet():
            try:  # creating one that is there would leave a line in the journal
                return optuna.load_study(study_name=self.name, storage=storage)
            except KeyError:
                return optuna.create_study(
                    study_name=self.name, storage=storage, direction=direction, load_if_exists=True
                )

    def _open_storage(self) -> Any:
        if self.storage is None:
            return import_optuna().storages.InMemoryStorage()
        if not self.is_url:
            return open_journal(Path(self.storage))
        return _open_database(self.storage, str(self))

    def _leases(self) -> Leases:
        if self.storage is None or self.is_url or not HAS_FILE_LOCKS:
            return PulseLeases()
        journal = Path(self.storage)
        return FileLeases(journal.with_name(f"{journal.name}.leases") / self.name)


@dataclass(frozen=True)
class Board:
    """An open search: Optuna's study, and who is at work on which of its trials."""

    study: Any
    leases: Leases


def _open_database(url: str, shown: str, *, is_second_try: bool = False) -> Any:
    optuna = import_optuna()
    try:
        with quiet():
            return optuna.storages.RDBStorage(url)
    except ImportError as error:
        missing = error.__cause__ or error.__context__ or error  # Optuna's own error does not name the module
        said = str(missing).partition("\n")[0].rstrip(".")
        raise GraphjouleError(
            f"Cannot use {shown}: the package that talks to such a database is not installed ({said})"
            f"{_remedy(missing, shown)}."
        ) from error
    except Exception as error:  # every driver has errors of its own, all of them about this one address
        if not is_second_try:  # two workers that come first make the tables at the same moment, and one of them fails
            time.sleep(_SECOND_TRY_SECONDS)
            return _open_database(url, shown, is_second_try=True)
        why = str(getattr(error, "orig", None) or error).strip().splitlines()
        raise GraphjouleError(f"Cannot use {shown}: {why[0] if why else type(error).__name__}.") from error


def _remedy(missing: BaseException, shown: str) -> str:
    """How to install a driver; one of PostgreSQL's without its library does not say a module's name."""
    module = getattr(missing, "name", None) or ("psycopg" if shown.startswith("postgresql") else "")
    module = module.partition(".")[0]
    return f": pip install {_PACKAGES.get(module, module)}" if module else ""


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What makes two searches different, by what their `Search.about` says.

    >>> changes({"seeds": [0], "lr": 0.1}, {"seeds": [0, 1], "lr": 0.1})
    ['seeds: [0] -> [0, 1]']
    """
    absent = "nothing"
    return [
        f"{key}: {before.get(key, absent)} -> {now.get(key, absent)}"
        for key in {**before, **now}
        if before.get(key, absent) != now.get(key, absent)
    ]


def _check_same(before: dict[str, Any], now: dict[str, Any], where: Address) -> None:
    if changed := changes(before, now):
        raise GraphjouleError(
            f"The search {where.name!r} in {where} was begun with something else ({'; '.join(changed)}); choose "
            "another --storage or --name."
        )
