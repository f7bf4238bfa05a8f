import json
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from graphjoule import __version__
from graphjoule.training import provenance
from graphjoule.training.provenance import commit, commit_of_source, source_of_commit, source_sha256, tree, versions

CODE = {"commit", "tree"}  # of a checkout alone

HASH = "0123456789abcdef0123456789abcdef01234567"


def test_versions_name_everything_that_can_change_a_result():
    found = versions()
    assert set(found) - CODE == {"graphjoule", "source", "python", "torch", "torch_geometric", "numpy"}
    assert (found["graphjoule"], found["python"]) == (__version__, platform.python_version())
    assert found["torch"] == torch.__version__
    assert type(found["torch"]) is str  # torch's own is a subclass that JSON writers may not know


def test_packages_are_looked_up_once(monkeypatch):
    """importlib keeps what it found for every time that a folder was changed: a slow leak where each record asks."""
    before = versions()
    monkeypatch.setattr(metadata, "version", lambda name: pytest.fail(f"{name} is looked up again"))
    assert versions() == before


def test_pyg_need_not_be_installed(monkeypatch):
    def version(package):
        if package == "torch-geometric":
            raise metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(provenance, "_installed", provenance._installed.__wrapped__)
    assert set(versions()) - CODE == {"graphjoule", "source", "python", "torch", "numpy"}


# The commit that a record names.


def forget():
    for known in (commit, tree, source_sha256, source_of_commit, commit_of_source):
        known.cache_clear()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A checkout whose package lies where ours does."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "src" / "graphjoule" / "training" / "provenance.py"))
    forget()
    yield tmp_path
    forget()


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
    if git.returncode or Path(provenance.__file__).parents[3] != root:
        pytest.skip("no checkout")
    commit.cache_clear()
    assert commit() == git.stdout.strip()


# Whether the files are those of the commit, and which files they are.


def test_a_changed_file_of_the_package_is_told_and_one_beside_it_is_not(place):
    git = shutil.which("git")
    if git is None:
        pytest.skip("no git")
    write(place / "src/graphjoule/a.py", "a = 1\n")

    def run(*words):
        subprocess.run([git, "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=place, check=True)

    run("init", "-q")
    run("add", ".")
    run("commit", "-qm", "one")
    (place / "notes.txt").touch()
    assert versions()["tree"] == "clean"
    before = source_sha256()
    forget()
    write(place / "src/graphjoule/a.py", "a = 2\n")
    assert versions()["tree"] == "changed"
    assert source_sha256() != before
    assert source_of_commit(commit()) == before  # a commit can be held against what it is said to be
    assert source_of_commit("0" * 40) is None
    assert commit_of_source(source_sha256()) is None
    run("commit", "-qam", "two")
    forget()
    assert commit_of_source(source_sha256()) == commit() != commit_of_source(before)
    assert source_of_commit(commit_of_source(before)) == before


def test_a_copy_without_git_may_say_its_commit(place, monkeypatch):
    monkeypatch.setenv("GRAPHJOULE_COMMIT", HASH)
    assert (commit(), tree()) == (HASH, None)
    forget()
    write(place / ".git/HEAD", "f" * 40)
    assert commit() == "f" * 40


def test_the_hash_of_the_source_is_that_of_names_and_contents_alone(place):
    write(place / "src/graphjoule/nn/b.py", "b = 1\n")
    first = source_sha256()
    assert len(first) == 64
    assert "tree" not in versions()
    forget()
    write(place / "src/graphjoule/nn/__pycache__/b.cpython-311.pyc", "bytes")
    assert source_sha256() == first
    forget()
    (place / "src/graphjoule/nn/b.py").rename(place / "src/graphjoule/nn/c.py")
    assert source_sha256() != first


def test_a_commit_of_somebodys_record_is_no_option_of_git(tmp_path):
    """``git archive --output=FILE`` would empty the file."""
    (tmp_path / "mine").write_text("precious")
    for name in (f"--output={tmp_path / 'mine'}", f"--output={tmp_path / 'new'}", "--help", "HEAD", ""):
        assert source_of_commit(name) is None
    assert (tmp_path / "mine").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
