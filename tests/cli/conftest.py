import sys
from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def command():
    """The installed command."""
    path = Path(sys.executable).with_name("graphjoule")
    if not path.exists():
        pytest.skip(f"graphjoule is not installed beside {sys.executable}")
    return path
