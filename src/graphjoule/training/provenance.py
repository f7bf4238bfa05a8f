"""Which code made a record: versions, the commit, whether its files were changed, and a hash of the files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import subprocess
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from graphjoule.version import __version__

_SOURCE = (".py", ".pyi", ".toml", ".csv", ".c")


def versions() -> dict[str, str]:
    """Everything about the code that can change a result, by name.

    Versions of packages by the package; ``source``, the hash of our own files; and where there is a checkout, its
    ``commit`` and ``tree``, which is "clean" or "changed": what counts are the files of the package, not those beside.
    """
    found = {
        "graphjoule": __version__,
        "commit": commit(),
        "tree": tree(),
        "source": source_sha256(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # with its build, such as +cpu, which the metadata may leave out
        "numpy": _installed("numpy"),
        "torch_geometric": _installed("torch-geometric"),  # there where a model of the user's own is one of its
    }
    return {name: version for name, version in found.items() if version}


@cache  # to ask for each record leaks: importlib keeps the packages of a folder for every time that it was changed
def _installed(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _package() -> Path:
    return Path(__file__).parents[1]


@cache
def source_sha256() -> str:
    """A hash of the package's files by name and content: equal for a checkout, a wheel and a copy of the same code."""
    folder = _package()
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix in _SOURCE)
    return _sha256({path.relative_to(folder).as_posix(): path.read_bytes() for path in found})


@cache
def source_of_commit(name: str) -> str | None:
    """The hash that the package's files have in a commit of this checkout; None where git does not know it.

    The name may be out of somebody's record: one that begins with ``--output=`` would be an option of git.
    """
    if not re.fullmatch(r"[0-9a-f]{4,64}", name):
        return None
    command = ["git", "archive", "--format=tar", name, "--", "."]  # of the folder that it runs in
    try:
        found = subprocess.run(command, cwd=_package(), capture_output=True, timeout=60, check=True)
        with tarfile.open(fileobj=io.BytesIO(found.stdout)) as files:
            members = [member for member in files if member.isfile() and Path(member.name).suffix in _SOURCE]
            return _sha256({member.name: (files.extractfile(member) or io.BytesIO()).read() for member in members})
    except (OSError, subprocess.SubprocessError, tarfile.TarError):
        return None


@cache
def commit_of_source(source: str) -> str | None:
    """The newest commit of this checkout in which the package's files have that hash; None where there is none."""
    if not source:
        return None
    command = ["git", "rev-list", "--full-history", "HEAD", "--", "."]
    try:
        found = subprocess.run(command, cwd=_package(), capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next((name for name in found.stdout.split() if source_of_commit(name) == source), None)


def _sha256(files: Mapping[str, bytes]) -> str:
    lines = (f"{name} {hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


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
    """The commit that this package was checked out or installed from, read from files; None where they do not say.

    A copy of a checkout without its .git may say it by the variable ``GRAPHJOULE_COMMIT``; whether that is true,
    `source_sha256` shows.
    """
    try:
        checkout = _package().parents[1]
        if (checkout / "pyproject.toml").is_file():
            git = checkout / ".git"
            return _head(git) if git.exists() else os.environ.get("GRAPHJOULE_COMMIT") or None
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
