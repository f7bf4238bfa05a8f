import shutil
from pathlib import Path

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.tasks import DATASETS, load_task, resolve_data_root


def test_the_table_is_keyed_by_name_and_says_what_each_is():
    assert set(DATASETS) == {"cora", "pubmed", "physics", "digits"}
    for name, source in DATASETS.items():
        assert source.name == name
        assert source.description
        assert "\n" not in source.description + source.origin


def test_every_task_has_the_name_it_was_asked_for(data_root):
    for name in DATASETS:
        assert load_task(name, data_root).name == name


def test_unknown_dataset_lists_the_choices():
    with pytest.raises(GraphjouleError, match="Unknown dataset 'core'; expected one of: cora, digits, physics, pubmed"):
        load_task("core")


def test_presence(data_root, tmp_path):
    assert all(source.is_present(data_root) for source in DATASETS.values())
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
