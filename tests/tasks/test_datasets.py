import shutil
import subprocess
import sys
from importlib import import_module
from itertools import groupby
from pathlib import Path

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.tasks import DATASETS, DatasetSource, load_task, resolve_data_root

IN_SHARED = ["digits", "cora", "pubmed", "physics"]  # what the folder of raw data for tests holds


def test_the_table_is_keyed_by_name_and_says_what_each_is():
    for name, source in DATASETS.items():
        assert source.name == name
        for text in (source.group, source.description, source.split, source.origin):
            assert text
            assert "\n" not in text


def test_groups_are_in_one_piece():
    groups = [source.group for source in DATASETS.values()]
    assert [group for group, _ in groupby(groups)] == list(dict.fromkeys(groups))


def test_every_set_that_users_know_is_there():
    known = "arxiv citeseer cs computers photo wikics roman-empire amazon-ratings minesweeper tolokers questions"
    assert set(DATASETS) >= {*IN_SHARED, *known.split()}


@pytest.mark.parametrize("name", IN_SHARED)
def test_every_task_has_the_name_it_was_asked_for(data_root, name):
    task = load_task(name, data_root)
    assert task.name == name
    assert task.default_split.partition("-")[0] in DATASETS[name].split or "of every class" in DATASETS[name].split


@pytest.mark.parametrize("name", [name for name, source in DATASETS.items() if source.raw])
def test_every_task_is_named_after_its_files_and_not_there_without_them(name, tmp_path):
    assert DATASETS[name].raw.task == name
    assert not DATASETS[name].is_present(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unknown_dataset_lists_the_choices():
    with pytest.raises(
        GraphjouleError, match=r"Unknown dataset 'core'; expected one of: amazon-ratings, arxiv, .*wikics; or.*ring-D"
    ):
        load_task("core")


def test_presence(data_root, tmp_path):
    assert all(DATASETS[name].is_present(data_root) for name in IN_SHARED)
    assert [name for name, source in DATASETS.items() if source.is_present(tmp_path)] == ["digits"]
    shutil.copytree(data_root / "Cora", tmp_path / "Cora")
    assert DATASETS["cora"].is_present(tmp_path)
    (tmp_path / "Cora" / "raw").chmod(0o755)
    (tmp_path / "Cora" / "raw" / "ind.cora.y").unlink()
    assert not DATASETS["cora"].is_present(tmp_path)


def test_data_root_is_argument_then_variable_then_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHJOULE_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert resolve_data_root(str(tmp_path / "argument")) == tmp_path / "argument"
    assert resolve_data_root() == tmp_path / "variable"
    monkeypatch.setenv("GRAPHJOULE_DATA", "")
    assert resolve_data_root() == tmp_path / "cache" / "graphjoule"


@pytest.mark.parametrize("xdg", [None, "", "relative"])
def test_without_a_usable_xdg_folder_the_cache_is_in_the_home(monkeypatch, tmp_path, xdg):
    monkeypatch.delenv("GRAPHJOULE_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if xdg is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_data_root() == tmp_path / ".cache" / "graphjoule"


def test_a_home_folder_sign_is_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_data_root("~/data") == tmp_path / "data"
    assert resolve_data_root("data") == Path.cwd() / "data"


def test_the_table_and_a_wrong_name_need_neither_torch_nor_scipy_nor_scikit_learn():
    code = """
import sys
from graphjoule.tasks import DATASETS, find_dataset, resolve_data_root
[source.is_present(resolve_data_root("/nowhere")) for source in DATASETS.values()]
try:
    find_dataset("core")
except ValueError:
    sys.exit(" ".join({"torch", "scipy", "sklearn", "numpy", "pyarrow", "torch_geometric"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("source", DATASETS.values(), ids=DATASETS)
def test_every_loader_is_there(source):
    module, _, function = source.load.args[0].partition(".")
    assert callable(getattr(import_module(f"graphjoule.tasks.{module}"), function))


def test_a_dataset_of_ones_own_is_one_row(monkeypatch, tmp_path):
    row = DatasetSource("mine", "Mine", "two nodes", "public", "here", lambda root: root / "task")
    monkeypatch.setitem(DATASETS, "mine", row)
    assert load_task("mine", tmp_path) == tmp_path / "task"
