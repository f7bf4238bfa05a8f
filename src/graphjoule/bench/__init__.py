"""How fast training is: every case runs ours and a PyTorch Geometric peer in one process, interleaved and warm."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from graphjoule.bench.cases import CASES, CURVES, Case, find_case, find_curves
from graphjoule.bench.measure import measure_sides
from graphjoule.bench.record import BenchRecord, append_bench_records, read_bench_records
from graphjoule.bench.sides import PEERS, make_sides
from graphjoule.errors import GraphjouleError, choices
from graphjoule.training.environment import resolve_device

__all__ = [
    "CASES",
    "CURVES",
    "PEERS",
    "BenchRecord",
    "Case",
    "append_bench_records",
    "find_case",
    "find_curves",
    "read_bench_records",
    "run_cases",
]


def run_cases(
    cases: Iterable[str | Case],
    device: str | torch.device = "auto",
    budget: float = 30.0,
    *,
    runs: int | None = None,
    peers: Sequence[str] = tuple(PEERS),
    data_root: str | os.PathLike[str] | None = None,
    on_case: Callable[[list[BenchRecord]], None] = lambda records: None,
) -> list[BenchRecord]:
    """Measure cases one after the other.

    Args:
        cases: names or cases; a name is one of `CASES`, a point of a curve, or DATASET-LAYERS.
        device: "auto" (CUDA if there is one), "cpu" or "cuda".
        budget: seconds of timed repeats per case; loading and warming up come on top, and five repeats are the least.
        runs: how many runs ours trains at once, instead of what the case says.
        peers: what to compare with, keys of `PEERS`.
        data_root: where datasets are or go.
        on_case: called with a case's records, one per peer, as soon as they are there.

    Returns:
        One record per case and peer.
    """
    if runs is not None and runs < 1:
        raise GraphjouleError(f"runs is {runs}; it must be at least 1.")
    if unknown := [name for name in peers if name not in PEERS]:
        raise GraphjouleError(f"Unknown peer {unknown[0]!r}; expected one of: {choices(PEERS)}.")
    chosen = [find_case(case) if isinstance(case, str) else case for case in cases]
    where = resolve_device(device)
    records = []
    for case in chosen:
        case = case if runs is None else replace(case, runs=runs)
        of_case = _run_case(case, where, budget, tuple(peers), data_root)
        on_case(of_case)
        records += of_case
    return records


def _run_case(
    case: Case,
    device: torch.device,
    budget: float,
    peers: tuple[str, ...],
    data_root: str | os.PathLike[str] | None,
) -> list[BenchRecord]:
    task = case.task(data_root)
    ours, *others = sides = make_sides(case, task, device, peers)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):  # the peer draws from torch's generator
        measure_sides(sides, device, budget)
    return [BenchRecord.of(case, task, device, ours, peer) for peer in others]
