"""Time and memory from a thousand to ten million nodes, ours and PyTorch Geometric's; clusters and processes.

    python -m reproduction.bench.scaling --device cpu --out reproduction/results/scaling/cpu.jsonl

The graphs are generated, with power-law degrees. For every size each side first runs in a process of its own, whose
peak memory counts; then both take turns in one process, where they fit together and there is time. A side that does
not fit is recorded with the reason. Sizes that the file has are not measured again. Nothing else should use the
machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from graphjoule import fit
from graphjoule.graph import Propagation
from graphjoule.ops import describe_backend
from graphjoule.parallel import joined_processes, launch, load_part, read_partition, write_partition
from graphjoule.tasks import Classification, Split, Task
from graphjoule.training import (
    CapturedStep,
    Progress,
    Recipe,
    SeedBatch,
    architecture_of,
    build_model,
    describe_device,
    free_bytes,
    is_out_of_memory,
    load_recipe,
    resolve_device,
    versions,
)
from reproduction.bench import OURS, PEERS
from reproduction.bench.cases import Case
from reproduction.bench.measure import WARM_UP, Side, Spread, Step, limited_memory, measure_sides, paired_ratio
from reproduction.bench.synthetic import PowerLawGraph
from reproduction.experiments.record import read_cells

SIZES, WAY_SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000), (10_000, 100_000, 1_000_000)
LAYERS, WIDTH = 4, 32
PEER = "pyg-csr"
PHASES = ("inference", "epoch")
"""A pass without gradients; a training step and an evaluation. In this order: a training keeps memory afterwards."""
LEAST = 3  # repeats in turns
SLOW = 10.0  # seconds: what takes longer is not made twice, so its time has the first touch of its memory in it
CLUSTERS = {"train.clusters.parts": 20, "train.clusters.per_step": 2}
METIS_NODES = 1_000_000  # beyond, METIS would take longer than all else, and nodes are cut by their numbers
WAYS = ("exact", "clusters", "processes")
PROCESSES = 2
EPOCHS, EPOCHS_BETWEEN_LOOKS = 3, {"cpu": 1, "cuda": 10}  # of the whole graph; of clusters the host sees every epoch
DATA, PARTS = "task.pt", "parts"


# What one process measures; each is a child of its own and prints JSON.


def generate(folder: Path, num_nodes: int, *, with_product: bool) -> dict[str, Any]:
    """Write the graph, and time SciPy's product with it if asked."""
    case = Case(f"scaling-{num_nodes}", "synthetic", LAYERS, graph=PowerLawGraph(num_nodes))
    task = case.task()
    graph, (split,) = task.graph, task.fixed_splits
    tensors = {name: getattr(graph, name) for name in ("rowptr", "col", "value", "degree")}
    tensors |= {"features": task.features, "targets": task.targets}
    tensors |= {name: getattr(split, name) for name in ("train", "val", "test")}
    torch.save(tensors, folder / DATA)
    found = {"nodes": num_nodes, "edges": graph.num_edges, "largest_degree": graph.largest_degree}
    return found | ({"product_ms": 1000 * scipy_seconds(graph)} if with_product else {})


def scipy_seconds(graph: Propagation) -> float:
    """Seconds of one product ``P X`` of `WIDTH` columns by SciPy, which uses one thread: a median of at most five."""
    import scipy.sparse

    numbers = (graph.value.numpy(), graph.col.numpy(), graph.rowptr.numpy())
    matrix = scipy.sparse.csr_array(numbers, shape=graph.shape)
    x = np.ones((graph.num_nodes, WIDTH), dtype=np.float32)
    seconds: list[float] = []
    while len(seconds) < 6 and sum(seconds) < SLOW / 2:  # the first one warms up, unless it is the only one
        begin = time.perf_counter()
        matrix @ x
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:] or seconds)


def load(folder: Path) -> Task:
    """The graph that `generate` wrote."""
    t = torch.load(folder / DATA)
    return Task(
        name="scaling",
        features=t["features"],
        graph=Propagation(*(t[name] for name in ("rowptr", "col", "value", "degree"))),
        targets=t["targets"],
        objective=Classification(PowerLawGraph.num_classes),
        fixed_splits=(Split("public", None, t["train"], t["val"], t["test"]),),
        default_split="public",
    )


def recipe_of(**overrides: Any) -> Recipe:
    """EGNN's recipe for a graph of its own, of the depth and width that is measured."""
    settings = {"hidden_channels": WIDTH, "split": "public", "epochs": 10_000, "patience": 10_000, **overrides}
    return load_recipe("egnn", "synthetic", LAYERS, settings)


def our_steps(task: Task) -> dict[str, Step]:
    """What is measured of ours, by phase."""
    recipe = recipe_of()
    batch = SeedBatch(architecture_of(recipe), recipe, task, [0], [task.split("public")])
    model = build_model(recipe, task, seed=0).to(task.targets.device)
    return {
        "inference": partial(infer, model, task.features, task.graph),
        "epoch": CapturedStep(batch.train_epoch, task.targets.device),
    }


def peer_steps(task: Task) -> dict[str, Step]:
    """What is measured of the peer, by phase."""
    from reproduction.bench.peer import PeerTraining  # here and not above: PyTorch Geometric takes seconds

    training = PeerTraining(recipe_of(), task, fused=PEERS[PEER])
    return {"inference": partial(infer, training.model, training.x, training.adj, None), "epoch": training.epoch}


STEPS: dict[str, Callable[[Task], dict[str, Step]]] = {OURS: our_steps, PEER: peer_steps}


@torch.no_grad()
def infer(model: nn.Module, *inputs: Any) -> None:
    """One pass without gradients and dropout."""
    model.eval()(*inputs)


def alone(folder: Path, device: torch.device, name: str) -> dict[str, Any]:
    """Seconds and peak memory of one side, by phase; a phase that does not fit has a reason instead."""
    importlib.import_module("reproduction.bench.peer")  # for both sides, so that no peak has PyTorch Geometric in it
    found: dict[str, Any] = {"device": describe_device(device), "body": describe_backend(device)}
    found["free_bytes"] = free_bytes(device)
    before = Peak(device)
    with limited_memory(device):
        steps = STEPS[name](load(folder).to(device))
        for phase in PHASES:
            found[phase] = attempt(lambda phase=phase: timed(steps[phase], device, before))  # type: ignore[misc]
    return found


def timed(step: Step, device: torch.device, before: Peak) -> dict[str, Any]:
    """Seconds of a step after a warm-up, or of the first where that is slow, and the most memory of all of them."""
    before.reset()
    for count in range(WARM_UP[device.type]):  # noqa: B007
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - begin
        if seconds > SLOW:
            break
    return {"seconds": seconds, "is_warm": count > 0, "peak_bytes": before.read()}


def attempt(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was measured, or that memory ran out."""
    try:
        return measure()
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not is_out_of_memory(error):
            raise
        return {"failed": "out of memory"}


class Peak:
    """The most memory since `reset`, beside what was there when this was made: device memory, or that of the process.

    Of a process it is what is resident at most, as Linux counts it; elsewhere it is not known.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = 0 if device.type == "cuda" else self._resident("VmRSS")

    def reset(self) -> None:
        """Count from here."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.before is not None:
            Path("/proc/self/clear_refs").write_text("5")

    def read(self) -> int | None:
        """Bytes."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        peak = self._resident("VmHWM")
        return None if peak is None or self.before is None else peak - self.before

    @staticmethod
    def _resident(field: str) -> int | None:
        status = Path("/proc/self/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), None)


def in_turns(folder: Path, device: torch.device, budget: float) -> dict[str, Any]:
    """Seconds of both sides in turns, by phase."""
    task = load(folder).to(device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):  # the peer draws from torch's generator
        steps = {name: make(task) for name, make in STEPS.items()}
        found: dict[str, Any] = {}
        for phase in PHASES:
            sides = [Side(name, lambda name=name, phase=phase: steps[name][phase]) for name in STEPS]  # type: ignore[misc]
            measure_sides(sides, device, budget / len(PHASES), least=LEAST)
            if any(side.failure for side in sides):
                return {"failed": "out of memory together"}
            ours, peer = sides
            ratio = paired_ratio(peer, ours)
            found[phase] = {
                "repeats": len(ours.seconds),
                "ms": {side.name: spread_ms(side) for side in sides},
                "ratio": [ratio.median, ratio.low, ratio.high],
            }
    return found


def spread_ms(side: Side) -> list[float]:
    """Median and quartiles of a side in milliseconds."""
    spread = Spread.of([1000 * seconds for seconds in side.seconds])
    return [spread.median, spread.low, spread.high]


def train_way(folder: Path, device: torch.device, way: str) -> dict[str, Any]:
    """Seconds per epoch and peak memory of one way to train, from the second epoch on."""
    if way == "processes":
        return train_processes(folder, device)
    with limited_memory(device):
        before, task = Peak(device), load(folder)
        if way == "exact":
            return attempt(lambda: fitted(task, device, before, EPOCHS * EPOCHS_BETWEEN_LOOKS[device.type]))
        method = "metis" if task.num_nodes <= METIS_NODES else "blocks"
        clusters = {**CLUSTERS, "train.clusters.method": method}
        return attempt(lambda: {"method": method, **fitted(task, device, before, EPOCHS, clusters)})


def fitted(
    task: Task, device: torch.device, before: Peak, epochs: int, overrides: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Train by `fit`, and look at the clock whenever it does."""
    looks: list[tuple[int, float]] = []

    def look(progress: Progress) -> None:
        looks.append((progress.epoch, time.perf_counter()))

    before.reset()
    begin = time.perf_counter()
    result = fit(recipe_of(epochs=epochs, **overrides or {}), task, [0], device=device, on_progress=look)
    (first, start), (last, end) = looks[0], looks[-1]
    return {
        "seconds_per_epoch": (end - start) / (last - first),
        "seconds_before": start - begin - (end - start) / (last - first) * first,  # such as for the cut
        "peak_bytes": [before.read()],
        "device": result.records[0].device,
    }


def train_processes(folder: Path, device: torch.device) -> dict[str, Any]:
    """As `train_way`, in two processes with a part of the graph each; a peak for each of them.

    The parts are blocks of nodes: nodes of a generated graph are in no order, and METIS finds little more.
    """
    begin = time.perf_counter()
    write_partition(load(folder), PROCESSES, folder / PARTS, "blocks")
    seconds = time.perf_counter() - begin
    words = ["--device", device.type, "--child", "rank", str(folder)]
    ending = launch([sys.executable, "-m", "reproduction.bench.scaling", *words], PROCESSES)
    if ending.code:
        return {"failed": ending.sentence(PROCESSES)[:200]}
    ranks = [json.loads((folder / PARTS / f"rank-{rank}.json").read_text()) for rank in range(PROCESSES)]
    cut = read_partition(folder / PARTS).num_cut_edges
    peaks = [peak for rank in ranks for peak in rank["peak_bytes"]]
    return ranks[0] | {"peak_bytes": peaks, "seconds_before": seconds, "cut_edges": cut}


def train_rank(folder: Path, device: torch.device) -> dict[str, Any]:
    """One of the processes that train together; all of them write what they measured."""
    before = Peak(device)
    with joined_processes(device.type) as (group, own), limited_memory(own):
        part = load_part(folder / PARTS, group.rank, group)
        found = fitted(part, own, before, EPOCHS * EPOCHS_BETWEEN_LOOKS[own.type])
    (folder / PARTS / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))
    return found


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "generate": lambda folder, device, words: generate(folder, int(words[0]), with_product="product" in words),
    "alone": lambda folder, device, words: alone(folder, device, words[0]),
    "turns": lambda folder, device, words: in_turns(folder, device, float(words[0])),
    "way": lambda folder, device, words: train_way(folder, device, words[0]),
    "rank": lambda folder, device, words: train_rank(folder, device),
}


# The process that starts the others.


def child(given: argparse.Namespace, job: str, folder: Path, *words: object) -> dict[str, Any]:
    """What a process of its own measures; the reason in "failed" where it does not come to its end."""
    options = ["--device", given.device, "--child", job, str(folder), *map(str, words)]
    command = [sys.executable, "-m", "reproduction.bench.scaling", *options]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=given.limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {given.limit:.0f} s"}
    if done.returncode < 0:
        return {"failed": f"killed by {signal.Signals(-done.returncode).name}"}
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return {"failed": said[-1][:200] if said else f"exit code {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_size(given: argparse.Namespace, num_nodes: int, folder: Path) -> dict[str, Any]:
    """The record of one size: both sides alone, and in turns where that is possible."""
    found = child(given, "generate", folder, num_nodes, *(["product"] if given.device == "cpu" else []))
    if "failed" in found:
        return {"nodes": num_nodes, **found}
    sides = {name: child(given, "alone", folder, name) for name in STEPS}
    of_side = next((side for side in sides.values() if "failed" not in side), {})
    found |= {name: of_side[name] for name in ("device", "body", "free_bytes") if name in of_side}
    found["alone"] = {
        name: {phase: side.get(phase) or {"failed": side["failed"]} for phase in PHASES} for name, side in sides.items()
    }
    phases = [phase for side in found["alone"].values() for phase in side.values()]
    if any("failed" in phase for phase in phases):
        found["turns"] = {"failed": "a side does not fit"}
    elif (1 + LEAST) * sum(phase["seconds"] for phase in phases) > given.longest:
        found["turns"] = {"failed": "would take too long"}
    elif is_too_large(found["alone"], given.device):
        found["turns"] = {"failed": "too large together"}
    else:
        found["turns"] = child(given, "turns", folder, given.budget)
    return found


def is_too_large(sides: dict[str, dict[str, Any]], device: str) -> bool:
    """Whether both sides would not fit beside each other."""
    peaks = [max(phase["peak_bytes"] or 0 for phase in side.values()) for side in sides.values()]
    return sum(peaks) > 0.8 * free_bytes(resolve_device(device))


def measure_ways(given: argparse.Namespace, num_nodes: int, folder: Path) -> dict[str, Any]:
    """The record of one size: the whole graph, clusters, processes."""
    found = child(given, "generate", folder, num_nodes)
    if "failed" in found:
        return {"nodes": num_nodes, **found}
    found["ways"] = {way: child(given, "way", folder, way) for way in WAYS}
    return found | {"device": found["ways"]["exact"].get("device", given.device)}


def describe(row: dict[str, Any]) -> str:
    """A record in a line."""
    if "failed" in row:
        return f"{row['key']}: {row['failed']}"
    if "ways" in row:
        parts = [f"{way} {said(found, 'seconds_per_epoch')}" for way, found in row["ways"].items()]
    else:
        parts = [
            f"{name} {phase} {said(side[phase], 'seconds')}" for name, side in row["alone"].items() for phase in PHASES
        ]
        turns = row["turns"]
        parts += (
            [turns["failed"]] if "failed" in turns else [f"{phase} {turns[phase]['ratio'][0]:.2f}x" for phase in PHASES]
        )
    return f"{row['key']}: {', '.join(parts)} ({row['wall_seconds']:.0f} s)"


def said(found: dict[str, Any], name: str) -> str:
    """Seconds and the highest peak in words, or why there are none."""
    if "failed" in found:
        return str(found["failed"])
    peaks = found["peak_bytes"] if isinstance(found["peak_bytes"], list) else [found["peak_bytes"]]
    return f"{found[name]:.3g} s " + " + ".join("?" if peak is None else f"{peak / 2**30:.2f} GiB" for peak in peaks)


def numbers(text: str) -> list[int]:
    """Sizes with commas between them."""
    return [int(word) for word in text.split(",") if word]


def main() -> None:
    """Measure the sizes that the file does not have yet, each a line of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--nodes", type=numbers, default=list(SIZES), help="sizes to compare with the peer at")
    parser.add_argument("--ways", type=numbers, default=list(WAY_SIZES), help="sizes for clusters and processes")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for the turns of a size beyond the least")
    parser.add_argument("--longest", type=float, default=120.0, help="seconds that the least turns may take")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which one process is given up")
    parser.add_argument("--out", type=Path, help="append a line for each size to this .jsonl file")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        job, folder, *words = given.child
        print(json.dumps(JOBS[job](Path(folder), resolve_device(given.device), words)))
        return

    there = read_cells(given.out) if given.out else {}
    settings = {"layers": LAYERS, "width": WIDTH, "features": PowerLawGraph.num_features, "clusters": CLUSTERS}
    jobs = [(f"{given.device} {size}", measure_size, size) for size in given.nodes]
    jobs += [(f"{given.device} ways {size}", measure_ways, size) for size in given.ways]
    for key, measure, size in jobs:
        if there.get(key, {}).get("settings") == settings:
            print(f"{key}: is there")
            continue
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            row = {"key": key, "settings": settings, **measure(given, size, Path(folder))}
        row |= {"wall_seconds": round(time.perf_counter() - begin, 1), "load_average": round(os.getloadavg()[0], 2)}
        row |= {"versions": versions(), "created": datetime.now(UTC).isoformat(timespec="seconds")}
        print(describe(row), flush=True)
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
