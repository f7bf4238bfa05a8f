"""What a run ran on: package versions and the device, in words for a record."""

import json
import platform
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.version import __version__

__all__ = ["commit", "describe_device", "resolve_device", "versions"]


def versions() -> dict[str, str]:
    """Versions of everything that can change a result, by package; and our commit, where there is a checkout of it."""
    found = {
        "graphjoule": __version__,
        **({"commit": ours} if (ours := commit()) else {}),
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # with its build, such as +cpu, which the metadata may leave out
        "numpy": metadata.version("numpy"),
    }
    with suppress(metadata.PackageNotFoundError):  # it is there where a model of the user's own is one of its
        found["torch_geometric"] = metadata.version("torch-geometric")
    return found


@cache
def commit() -> str | None:
    """The commit that this package was checked out or installed from, read from files; None where they do not say."""
    try:
        checkout = Path(__file__).parents[3]
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


def describe_device(device: torch.device) -> str:
    """The device in words: the GPU's name, or "cpu (2 threads)"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        threads = torch.get_num_threads()
        return f"cpu ({threads} thread{'s' if threads != 1 else ''})"
    return str(device)


def resolve_device(device: str | torch.device) -> torch.device:
    """The device behind "auto", "cpu" or "cuda"; a CUDA device that is not there is refused."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise GraphjouleError(f"device is {device!r}; choose one of auto, cpu, cuda.") from error
    if resolved.type not in ("cpu", "cuda"):
        raise GraphjouleError(f"device is {str(device)!r}; choose one of auto, cpu, cuda.")
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise GraphjouleError("device is 'cuda', but torch finds no CUDA device here; choose cpu or auto.")
    return resolved
