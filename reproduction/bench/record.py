"""What a measurement says: one record per case and peer, one JSON line each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from graphjoule import GraphjouleError
from graphjoule.ops import describe_backend
from graphjoule.tasks import Task
from graphjoule.training import describe_device, versions
from reproduction.bench.cases import Case
from reproduction.bench.floor import floor_bytes
from reproduction.bench.measure import Side, Spread, paired_ratio

Quartiles = tuple[float, float]


class BenchRecord(BaseModel):
    """One case measured against one peer.

    Attributes:
        format: Version of this list of fields.
        case: The case's name.
        model: What was trained; EGNN in records that do not say.
        curve: The scaling curve it is a point of, if any.
        peer: The peer's name, a key of `PEERS`.
        body: Which body of the ops ours ran, in words.
        device: In words.
        versions: Package versions.
        nodes: Number of nodes.
        edges: Number of undirected edges.
        layers: Depth.
        width: Hidden channels.
        runs: Runs that ours trained at once; the peer trains one.
        repeats: Repeats behind the medians, the same for both sides.
        ours_ms: Median time of an epoch (training step and evaluation) of all runs together; None if it failed.
        ours_spread_ms: Its quartiles.
        ours_peak_bytes: The most device memory ours held; None on a CPU.
        ours_failure: Why ours could not be measured.
        peer_ms: Median time of an epoch of the peer's one run; None if it failed.
        peer_spread_ms: Its quartiles.
        peer_peak_bytes: The most device memory the peer held; None on a CPU.
        peer_failure: Why the peer could not be measured.
        ratio: Median over the repeats of the peer's time per run over ours: how many times faster ours is.
        ratio_spread: Its quartiles.
        median_ratio: The peer's median time per run over our median; None in old records.
        floor_bytes: What an epoch of all runs must move, see `reproduction.bench.floor`; None in old records.
        bytes_per_second: How fast the device copied large memory just then; None in old records.
        created: When it was measured, UTC.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    format: Literal[1] = 1
    case: str
    model: str = "egnn"
    curve: str | None = None
    peer: str
    body: str
    device: str
    versions: dict[str, str] = Field(default_factory=versions)
    nodes: int
    edges: int
    layers: int
    width: int
    runs: int
    repeats: int
    ours_ms: float | None = None
    ours_spread_ms: Quartiles | None = None
    ours_peak_bytes: int | None = None
    ours_failure: str | None = None
    peer_ms: float | None = None
    peer_spread_ms: Quartiles | None = None
    peer_peak_bytes: int | None = None
    peer_failure: str | None = None
    ratio: float | None = None
    ratio_spread: Quartiles | None = None
    median_ratio: float | None = None
    floor_bytes: int | None = None
    bytes_per_second: float | None = None
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def floor_ms(self) -> float | None:
        """How long the device takes to move the floor's bytes."""
        if self.floor_bytes is None or self.bytes_per_second is None:
            return None
        return 1000 * self.floor_bytes / self.bytes_per_second

    @property
    def floor_share(self) -> float | None:
        """How much of our time the floor is: 1 is all that can be had from memory, more is what caches held."""
        return None if self.floor_ms is None or not self.ours_ms else self.floor_ms / self.ours_ms

    @classmethod
    def of(cls, case: Case, task: Task, device: torch.device, ours: Side, peer: Side, speed: float) -> Self:
        """The record of two sides that were measured together, on a device that copies `speed` bytes a second."""
        both = ours.seconds and peer.seconds
        recipe = case.recipe()
        medians = [_side_fields("side", side)["side_ms"] for side in (peer, ours)]
        ratio = paired_ratio(peer, ours, factor=case.runs) if both else None
        return cls(
            case=case.name,
            model=case.model,
            curve=case.curve,
            peer=peer.name,
            body=describe_backend(device),
            device=describe_device(device),
            nodes=task.num_nodes,
            edges=task.graph.num_edges,
            layers=case.num_layers,
            width=recipe.model.hidden_channels,
            runs=case.runs,
            repeats=max(len(ours.seconds), len(peer.seconds)),
            **_side_fields("ours", ours),
            **_side_fields("peer", peer),
            ratio=None if ratio is None else ratio.median,
            ratio_spread=None if ratio is None else (ratio.low, ratio.high),
            median_ratio=case.runs * medians[0] / medians[1] if both else None,
            floor_bytes=floor_bytes(task, recipe, case.runs),
            bytes_per_second=speed,
        )


def file_of(record: BenchRecord) -> str:
    """The name of the file for all records of one device and one commit.

    A commit whose files were changed has a file of its own.
    """
    commit, tree = record.versions.get("commit", "unknown"), record.versions.get("tree", "clean")
    device = re.sub(r"[^a-z0-9]+", "-", record.device.lower()).strip("-")
    return f"{device}-{commit[:12]}{'' if tree == 'clean' else '-' + tree}.jsonl"


def append_bench_records(path: str | os.PathLike[str], records: Iterable[BenchRecord]) -> None:
    """Append records to a ``.jsonl`` file, made if there is none; in a folder, to that of their device and commit."""
    try:
        if Path(path).is_dir():
            for record in records:
                append_bench_records(Path(path) / file_of(record), [record])
            return
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(record.model_dump_json() + "\n" for record in records)
    except OSError as error:
        raise GraphjouleError(f"Cannot append bench records to {path}: {error}.") from error


def read_bench_records(path: str | os.PathLike[str]) -> list[BenchRecord]:
    """The records of a file, in order."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise GraphjouleError(f"Cannot read bench records from {path}: {error}.") from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(BenchRecord.model_validate_json(line))
        except ValidationError as error:
            raise GraphjouleError(f"{path}, line {number} is not a bench record.") from error
    return records


def _side_fields(prefix: str, side: Side) -> dict[str, Any]:
    time = Spread.of([1000 * seconds for seconds in side.seconds]) if side.seconds else None
    return {
        f"{prefix}_ms": None if time is None else time.median,
        f"{prefix}_spread_ms": None if time is None else (time.low, time.high),
        f"{prefix}_peak_bytes": side.peak_bytes,
        f"{prefix}_failure": side.failure,
    }
