"""What a run ran on: package versions and the device, in words for a record."""

import platform
from importlib import metadata

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.version import __version__

__all__ = ["describe_device", "resolve_device", "versions"]


def versions() -> dict[str, str]:
    """Versions of everything that can change a result, by package."""
    packages = {"torch_geometric": "torch-geometric", "numpy": "numpy"}
    return {
        "graphjoule": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # with its build, such as +cpu, which the metadata may leave out
        **{name: metadata.version(package) for name, package in packages.items()},
    }


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
