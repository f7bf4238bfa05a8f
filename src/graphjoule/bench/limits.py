"""A bound on memory for a measurement, so that running out of it is an error and not the end of the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from graphjoule.training.trainer import free_bytes, is_out_of_memory

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_SHARE = 0.9  # of the free memory; the rest is for the system and the neighbours


@contextmanager
def limited_memory(device: torch.device) -> Iterator[None]:
    """On a CPU, refuse allocations beyond the memory that is free now; a GPU's allocator refuses by itself.

    Linux promises more memory than it has and kills the process that takes it, and every result with it.
    """
    used = _address_space()
    if device.type != "cpu" or resource is None or used is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + int(_SHARE * free_bytes(device))
    known = [limit for limit in (soft, hard, wanted) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def is_out_of_memory_error(error: BaseException) -> bool:
    """Whether an error says that memory ran out, be it torch's or Python's own."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_out_of_memory(error))


def _address_space() -> int | None:
    """Bytes of address space this process has, where the system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux
        return None
    return pages * resource.getpagesize() if resource is not None else None
