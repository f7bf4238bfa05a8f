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

Backend = Literal["reference", "cpu", "triton"]
_BACKENDS: tuple[Backend, ...] = ("reference", "cpu", "triton")
_forced: ContextVar[Backend | None] = ContextVar("graphjoule_body", default=None)


def backend_for(x: Tensor) -> Backend:
    """The backend for a tensor: "triton" on CUDA, "cpu" on a CPU, both for float32; "reference" for all else."""
    return _choose(x.device, x.dtype)


@contextmanager
def use_backend(name: Backend) -> Iterator[None]:
    """Let one backend run the ops within a ``with`` block, wherever it can.

    The environment variable ``GRAPHJOULE_BACKEND`` does the same for a whole program. One that cannot serve a tensor
    (Triton on a CPU) leaves it to the reference.
    """
    if name not in _BACKENDS:
        raise GraphjouleError(f"There is no backend {name!r}; choose one of {', '.join(_BACKENDS)}.")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def describe_backend(device: torch.device) -> str:
    """One line that says which backend float32 tensors on a device get."""
    backend = _choose(device, torch.float32)
    words = {"reference": "plain PyTorch", "cpu": "fused PyTorch ops for CPU", "triton": "Triton kernels"}
    return f"ops on {device.type}: {backend} ({words[backend]})"


def _choose(device: torch.device, dtype: torch.dtype) -> Backend:
    if dtype != torch.float32:
        return "reference"
    wanted = _forced.get() or os.environ.get("GRAPHJOULE_BACKEND", "auto")
    if wanted == "auto":
        wanted = "triton" if device.type == "cuda" else "cpu"
    if wanted == "triton" and has_triton() and (device.type == "cuda" or _is_interpreted()):
        return "triton"
    return "cpu" if wanted == "cpu" and device.type == "cpu" else "reference"


def has_triton() -> bool:
    """Whether Triton is installed; torch brings it along with its CUDA builds."""
    return importlib.util.find_spec("triton") is not None


def _is_interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU, which is how its kernels are tested without one."""
    return os.environ.get("TRITON_INTERPRET") == "1"
