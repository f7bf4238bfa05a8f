import builtins
import sys

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.tuning.board import Address
from graphjoule.tuning.leases import FileLeases, PulseLeases
from graphjoule.tuning.search import tune
from tests.training import small_recipe, small_task

ABOUT = {"lr": 0.1, "seeds": [0, 1]}


def test_a_search_goes_on_with_what_it_is_and_nothing_else(tmp_path):
    address = Address(str(tmp_path / "deep" / "journal.log"), "a")
    address.open(ABOUT, "minimize")
    address.open(dict(ABOUT), "minimize")
    with pytest.raises(GraphjouleError) as caught:
        address.open({"lr": 0.2, "seeds": [0, 1], "new": 1}, "minimize")
    assert "was begun with something else (lr: 0.1 -> 0.2; new: nothing -> 1)" in str(caught.value)
    Address(address.storage, "another").open({"lr": 0.2}, "maximize")  # one file can hold many


def test_locks_on_a_disk_and_a_pulse_elsewhere(tmp_path):
    assert isinstance(Address(str(tmp_path / "journal.log"), "a").open({}, "minimize").leases, FileLeases)
    assert isinstance(Address(None, "a").open({}, "minimize").leases, PulseLeases)


def test_sqlite_is_refused():
    with pytest.raises(GraphjouleError, match="SQLite repeats trials when several workers share it"):
        Address("sqlite:///a.db", "a")


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".a", "a b"])
def test_a_name_is_a_word(name):
    with pytest.raises(GraphjouleError, match="cannot be called"):
        Address(None, name)


def test_passwords_are_never_shown():
    address = Address("postgresql://me:s3cret@host:5432/db?sslmode=require&password=s3cret", "a")
    assert str(address) == "postgresql://host:5432/db"


@pytest.mark.parametrize("url", ["nosuchdatabase://me:s3cret@host/db", "postgresql://me:s3cret@127.0.0.1:1/db"])
def test_a_database_that_cannot_be_used_gets_a_sentence_without_the_password(url):
    with pytest.raises(GraphjouleError) as caught:
        Address(url, "a").open({}, "minimize")
    assert str(caught.value).startswith("Cannot use ")
    assert "s3cret" not in str(caught.value)


def test_without_optuna_one_sentence_says_what_to_install(monkeypatch):
    whole = builtins.__import__

    def without(name, *others):
        if name.partition(".")[0] == "optuna":
            raise ImportError(name)
        return whole(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "optuna", raising=False)
    with pytest.raises(GraphjouleError, match=r"not installed: pip install 'graphjoule\[tune\]'"):
        tune(small_recipe(), small_task(), trials=1)


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("psycopg", "pip install 'psycopg[binary]'."),
        ("psycopg2", "pip install psycopg2-binary."),
        ("MySQLdb", "pip install mysqlclient."),
        ("pg8000", "pip install pg8000."),
    ],
)
def test_without_a_driver_one_sentence_says_what_to_install(monkeypatch, module, command):
    def without_driver(url):
        try:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        except ImportError as error:
            raise ImportError("Failed to import DB access module.") from error

    monkeypatch.setattr("optuna.storages.RDBStorage", without_driver)
    with pytest.raises(GraphjouleError) as caught:
        Address("postgresql://me:secret@host/db", "a").open({}, "minimize")
    assert str(caught.value).endswith(f"is not installed (No module named {module!r}): {command}")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "end"),
    [("postgresql://host/db", ": pip install 'psycopg[binary]'."), ("oracle://host/db", "(no wrapper available).")],
)
def test_a_driver_that_does_not_say_its_name(monkeypatch, url, end):
    def without_library(url):
        raise ImportError("Failed to import DB access module.") from ImportError("no wrapper available.\nAttempts: 3")

    monkeypatch.setattr("optuna.storages.RDBStorage", without_library)
    with pytest.raises(GraphjouleError) as caught:
        Address(url, "a").open({}, "minimize")
    assert "is not installed (no wrapper available)" in str(caught.value)
    assert str(caught.value).endswith(end)
