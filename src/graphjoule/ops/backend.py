"""Which backend of the ops runs: the one place where it is chosen, and the line that says so."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import native

Backend = Literal["reference", "cpu", "native", "triton"]
_BACKENDS: tuple[Backend, ...] = ("reference", "cpu", "native", "triton")
_FEWEST = 2**17  # numbers in a tensor for which "native" is worth the half of a second that a compiler takes
_forced: ContextVar[Backend | None] = ContextVar("graphjoule_body", default=None)


def backend_for(x: Tensor) -> Backend:
    """The backend for a tensor: float32 has "triton" on CUDA, "native" or "cpu" on a CPU; all else has "reference".

    "native" is for large tensors where there is a C compiler, and what it has no loop for it does as "cpu".
    """
    has_memory = native.has_memory(x)
    backend = _choose(x.device, x.dtype, x.numel() if has_memory else 0)
    return "cpu" if backend == "native" and not has_memory else backend


@contextmanager
def use_backend(name: Backend) -> Iterator[None]:
    """Let one backend run the ops within a ``with`` block, wherever it can.

    The environment variable ``GRAPHJOULE_BACKEND`` does the same for a whole program. One that cannot serve a tensor
    (Triton on a CPU) leaves it to the reference, "native" without a C compiler to "cpu".
    """
    if name not in _BACKENDS:
        raise GraphjouleError(f"There is no backend {name!r}; choose one of {', '.join(_BACKENDS)}.")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def is_backend_chosen() -> bool:
    """Whether the user said which backend shall run."""
    return _forced.get() is not None or os.environ.get("GRAPHJOULE_BACKEND", "auto") not in ("", "auto")


def describe_backend(device: torch.device, numel: int = _FEWEST) -> str:
    """One line that says which backend float32 tensors of so many numbers on a device get, by default large ones."""
    backend = _choose(device, torch.float32, numel)
    words = {
        "reference": "plain PyTorch", "cpu": "fused PyTorch ops for CPU", "native": "loops by the C compiler",
        "triton": "Triton kernels",
    }  # fmt: skip
    return f"ops on {device.type}: {backend} ({words[backend]})"


def _choose(device: torch.device, dtype: torch.dtype, numel: int) -> Backend:
    wanted = _forced.get() or os.environ.get("GRAPHJOULE_BACKEND") or "auto"
    if wanted not in ("auto", *_BACKENDS):
        raise GraphjouleError(f"GRAPHJOULE_BACKEND is {wanted!r}; choose one of auto, {', '.join(_BACKENDS)}.")
    if dtype != torch.float32:
        return "reference"
    if wanted == "auto":
        wanted = "triton" if device.type == "cuda" else "native" if numel >= _FEWEST else "cpu"
    if wanted == "triton" and has_triton() and (device.type == "cuda" or _is_interpreted()):
        return "triton"
    if device.type != "cpu" or wanted not in ("cpu", "native"):
        return "reference"
    return "native" if wanted == "native" and native.is_built() else "cpu"


def has_triton() -> bool:
    """Whether Triton is installed; torch brings it along with its CUDA builds."""
    return importlib.util.find_spec("triton") is not None


def _is_interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU, which is how its kernels are tested without one."""
    return os.environ.get("TRITON_INTERPRET") == "1"
