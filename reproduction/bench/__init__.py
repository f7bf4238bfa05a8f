"""How fast training is: every case runs ours and a PyTorch Geometric peer in one process, interleaved and warm."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import torch

from graphjoule import GraphjouleError
from graphjoule.tasks import Task
from graphjoule.training import CapturedStep, Recipe, SeedBatch, architecture_of, resolve_device
from reproduction.bench.cases import CASES, CURVES, Case, find_case, find_curves
from reproduction.bench.floor import bytes_per_second
from reproduction.bench.measure import Side, Step, measure_sides
from reproduction.bench.record import BenchRecord, append_bench_records, read_bench_records
from reproduction.bench.synthetic import CitationGraph, citation_edges

__all__ = [
    "CASES",
    "CURVES",
    "PEERS",
    "BenchRecord",
    "Case",
    "CitationGraph",
    "append_bench_records",
    "citation_edges",
    "find_case",
    "find_curves",
    "make_sides",
    "read_bench_records",
    "run_cases",
]

OURS = "ours"
PEERS: dict[str, bool] = {"pyg": False, "pyg-csr": True}
"""The peers by name: whether their layers take the graph as a CSR matrix or as messages along an ``edge_index``."""


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
        raise GraphjouleError(f"Unknown peer {unknown[0]!r}; expected one of: {', '.join(sorted(PEERS))}.")
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
    speed = bytes_per_second(device)
    return [BenchRecord.of(case, task, device, ours, peer, speed) for peer in others]


def make_sides(case: Case, task: Task, device: torch.device, peers: tuple[str, ...]) -> list[Side]:
    """Ours first, then the peers; each moves the data to the device for itself when it is built."""
    recipe = case.recipe()
    ours = Side(OURS, partial(_build_ours, recipe, task, device, case.runs))
    return [ours, *(Side(name, partial(_build_peer, recipe, task, device, fused=PEERS[name])) for name in peers)]


def _build_ours(recipe: Recipe, task: Task, device: torch.device, num_runs: int) -> Step:
    task, seeds = task.to(device), range(num_runs)
    batch = SeedBatch(
        architecture_of(recipe), recipe, task, seeds, [task.split(recipe.data.split, seed) for seed in seeds]
    )
    return CapturedStep(batch.train_epoch, device)


def _build_peer(recipe: Recipe, task: Task, device: torch.device, *, fused: bool) -> Step:
    from reproduction.bench.peer import PeerTraining  # here and not above: PyTorch Geometric takes seconds

    return PeerTraining(recipe, task.to(device), fused=fused).epoch
