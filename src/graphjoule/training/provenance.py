"""Which code made a record: versions, the commit, whether its files were changed, and a hash of the files."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from graphjoule.version import __version__


def versions() -> dict[str, str]:
    """Everything about the code that can change a result, by name.

    Versions of packages by the package; ``source``, the hash of our own files; and where there is a checkout, its
    ``commit`` and ``tree``, which is "clean" or "changed": what counts are the files of the package, not those beside.
    """
    ours = {"commit": commit(), "tree": tree(), "source": source_sha256()}
    found = {
        "graphjoule": __version__,
        **{name: value for name, value in ours.items() if value},
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # with its build, such as +cpu, which the metadata may leave out
        "numpy": metadata.version("numpy"),
    }
    with suppress(metadata.PackageNotFoundError):  # it is there where a model of the user's own is one of its
        found["torch_geometric"] = metadata.version("torch-geometric")
    return found


def _package() -> Path:
    return Path(__file__).parents[1]


@cache
def source_sha256() -> str:
    """A hash of the package's files by name and content: equal for a checkout, a wheel and a copy of the same code."""
    folder, total = _package(), hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in (".py", ".pyi", ".toml", ".csv"):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return total.hexdigest()


@cache
def tree() -> str | None:
    """Whether the package's files are those of the commit: "clean" or "changed"; None where git cannot say."""
    if commit() is None:
        return None
    command = ["git", "status", "--porcelain", "--", str(_package())]
    try:
        found = subprocess.run(command, cwd=_package(), capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):  # no git here, or an installed package
        return None
    return "changed" if found.stdout.strip() else "clean"


@cache
def commit() -> str | None:
    """The commit that this package was checked out or installed from, read from files; None where they do not say."""
    try:
        checkout = _package().parents[1]
        if (checkout / "pyproject.toml").is_file():
            return _head(checkout / ".git")
        origin = metadata.distribution("graphjoule").read_text("direct_url.json")
        return str(json.loads(origin or "{}")["vcs_info"]["commit_id"])
    except (OSError, KeyError, ValueError, metadata.PackageNotFoundError):
        return None


def _head(git: Path) -> str | None:
    """The commit of a checkout, or of one of several working trees of a repository."""
    if git.is_file():
        git = git.parent / git.read_text().removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    shared = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
    for place in (git / name, shared / name):
        if place.is_file():
            return place.read_text().strip()
    packed = (line.split() for line in (shared / "packed-refs").read_text().splitlines())
    return next((line[0] for line in packed if line[1:] == [name]), None)
