import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from graphjoule import __version__
from graphjoule.training import environment
from graphjoule.training.environment import commit, describe_device, versions

HASH = "0123456789abcdef0123456789abcdef01234567"


def test_versions_name_everything_that_can_change_a_result():
    found = versions()
    assert set(found) - {"commit"} == {"graphjoule", "python", "torch", "torch_geometric", "numpy"}
    assert (found["graphjoule"], found["python"]) == (__version__, platform.python_version())
    assert found["torch"] == torch.__version__
    assert type(found["torch"]) is str  # torch's own is a subclass that JSON writers may not know


def test_pyg_need_not_be_installed(monkeypatch):
    def version(package):
        if package == "torch-geometric":
            raise metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(environment.metadata, "version", version)
    assert set(versions()) - {"commit"} == {"graphjoule", "python", "torch", "numpy"}


def test_devices_are_told_in_words(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert describe_device(torch.device("cpu")) == "cpu (2 threads)"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert describe_device(torch.device("cpu")) == "cpu (1 thread)"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert describe_device(torch.device("cuda")) == "NVIDIA H200"
    assert describe_device(torch.device("meta")) == "meta"


# The commit that a record names.


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A checkout whose package lies where ours does."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "src" / "graphjoule" / "training" / "environment.py"))
    commit.cache_clear()
    yield tmp_path
    commit.cache_clear()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    "files",
    [
        {".git/HEAD": HASH},
        {".git/HEAD": "ref: refs/heads/main", ".git/refs/heads/main": f"{HASH}\n"},
        {
            ".git/HEAD": "ref: refs/heads/main",
            ".git/packed-refs": f"# pack-refs\n{'f' * 40} refs/x\n{HASH} refs/heads/main\n",
        },
        {
            ".git": "gitdir: main/.git/worktrees/two\n",
            "main/.git/worktrees/two/HEAD": "ref: refs/heads/two\n",
            "main/.git/worktrees/two/commondir": "../..\n",
            "main/.git/refs/heads/two": f"{HASH}\n",
        },
    ],
    ids=["detached", "branch", "packed", "working tree"],
)
def test_the_commit_of_a_checkout_is_read_from_its_files(place, files):
    for name, text in files.items():
        write(place / name, text)
    assert commit() == versions()["commit"] == HASH


@pytest.mark.parametrize("files", [{}, {".git/HEAD": "ref: refs/heads/gone"}, {".git": "gitdir: nowhere"}], ids=str)
def test_where_the_files_do_not_say_a_commit_there_is_none(place, files):
    for name, text in files.items():
        write(place / name, text)
    assert commit() is None
    assert "commit" not in versions()


def test_a_package_that_was_installed_from_a_repository_says_its_commit(place, monkeypatch):
    (place / "pyproject.toml").unlink()
    origins = iter([json.dumps({"vcs_info": {"commit_id": HASH}}), json.dumps({"dir_info": {}}), None])
    found = SimpleNamespace(read_text=lambda name: next(origins))
    monkeypatch.setattr(metadata, "distribution", lambda name: found)
    assert [commit.__wrapped__() for _ in range(3)] == [HASH, None, None]


def test_the_commit_is_that_of_git():
    root = Path(__file__).parents[2]
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    if git.returncode or Path(environment.__file__).parents[3] != root:
        pytest.skip("no checkout")
    commit.cache_clear()
    assert commit() == git.stdout.strip()
