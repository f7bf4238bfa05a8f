"""A million nodes and ten million edges from Parquet on a small machine: check, train, predict, time and memory.

    python -m reproduction.experiments.million_nodes [--out reproduction/results/million/two-cores.json]

Two Parquet files are generated: customers of five classes, with ten columns of numbers, categories, dates and missing
values, and links between them, most within a class and many to a few hubs. The commands then run as a user runs them,
each in a process of its own, whose seconds and largest resident size the system reports when it ends. Five epochs teach
a network little, so the record has no accuracy. Needs a system with `os.wait4`, such as Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reproduction.experiments.record import write_record

CLASSES = ("new", "loyal", "quiet", "busy", "leaving")
LABELLED, MISSING, WITHIN = 0.5, 0.05, 0.7  # shares: nodes with a label, blank values, links within a class


def node_table(num_nodes: int, random: np.random.Generator) -> pa.Table:
    """Customers: an id in text, six numbers, a boolean, two categories, a date, and a label that half of them have."""
    kind = np.arange(num_nodes) % len(CLASSES)

    def column(values: np.ndarray, share: float = 0.0, dtype: pa.DataType | None = None) -> pa.Array:
        return pa.array(values, dtype, mask=random.random(num_nodes) < share)

    def number(step: float) -> np.ndarray:
        return random.normal(step * kind, 2.0)

    cities = np.array([f"city-{i}" for i in range(20)])
    days = np.datetime64("2020-01-01") + random.integers(0, 2000, num_nodes)
    return pa.table(
        {
            "id": pa.array(np.char.add("customer-", np.arange(num_nodes).astype(str))),
            "age": column(random.integers(18, 90, num_nodes), MISSING),
            "income": column(random.lognormal(8.0, 0.5, num_nodes), MISSING),
            "visits": column(random.poisson(1.0 + kind)),
            "balance": column(number(0.4)),
            "rating": column(number(-0.2), MISSING),
            "minutes": column(number(0.1)),
            "is_member": column(random.random(num_nodes) < 0.3),
            "city": column(random.choice(cities, num_nodes), MISSING),
            "plan": column(random.choice(np.array(["basic", "extra", "family"]), num_nodes)),
            "joined": column(days, MISSING, pa.date32()),
            "label": column(np.array(CLASSES)[kind], 1 - LABELLED),
        }
    )


def edge_table(num_nodes: int, num_edges: int, ids: pa.Array, random: np.random.Generator) -> pa.Table:
    """Different links between different nodes; the target is a hub more often the smaller its number is."""
    drawn = num_edges + num_edges // 4  # some come twice or lead back
    source = random.integers(0, num_nodes, drawn)
    target = (num_nodes * random.random(drawn) ** 2).astype(np.int64)
    same = target - target % len(CLASSES) + source % len(CLASSES)  # the class of the source, if that node is there
    target = np.where((random.random(drawn) < WITHIN) & (same < num_nodes), same, target)
    low, high = np.minimum(source, target), np.maximum(source, target)
    key = np.unique((low * num_nodes + high)[low != high])
    key = random.permutation(key)[:num_edges]
    if len(key) < num_edges:
        raise SystemExit(f"{num_nodes} nodes have too few different pairs for {num_edges} edges; ask for fewer.")
    return pa.table({"source": ids.take(pa.array(key // num_nodes)), "target": ids.take(pa.array(key % num_nodes))})


def write_files(folder: Path, num_nodes: int, num_edges: int) -> tuple[Path, Path]:
    """Write both tables; the same sizes give the same files."""
    random = np.random.default_rng(0)
    nodes, edges = folder / "nodes.parquet", folder / "edges.parquet"
    table = node_table(num_nodes, random)
    pq.write_table(table, nodes)
    pq.write_table(edge_table(num_nodes, num_edges, table["id"].combine_chunks(), random), edges)
    return nodes, edges


def run(folder: Path, *words: str) -> dict[str, Any]:
    """Run ``graphjoule WORDS`` in a folder and measure it; a command that fails ends the experiment."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "graphjoule", *words], cwd=folder)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"graphjoule {words[0]} ended with exit code {process.returncode}.")
    return {
        "command": " ".join(["graphjoule", *words]),
        "seconds": round(time.perf_counter() - begin, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_gib": round(used.ru_maxrss / 2**20, 2),  # Linux counts in KiB
    }


def main() -> None:
    """Generate, run the commands, print a line for each, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-nodes", type=int, default=1_000_000)
    parser.add_argument("--num-edges", type=int, default=10_000_000)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    given = parser.parse_args()

    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = time.perf_counter()
        paths = write_files(folder, given.num_nodes, given.num_edges)
        print(f"generated in {time.perf_counter() - begin:.0f} s", flush=True)
        size = {path.name: path.stat().st_size for path in paths}
        nodes, edges = (path.name for path in paths)
        depth = ["--layers", str(given.layers), "--epochs", str(given.epochs)]
        commands = {
            "check": ["data", "check", nodes, edges],
            "train": ["train", "--nodes", nodes, "--edges", edges, *depth, "--device", "cpu", "--out", "run"],
            "predict": ["predict", "run", "--device", "cpu", "--out", "predictions.csv"],
        }
        parts = {}
        for part, words in commands.items():
            parts[part] = run(folder, *words)
            print(f"{part}: {parts[part]}", flush=True)
        (trained,) = map(json.loads, (folder / "run" / "records.jsonl").read_text(encoding="utf-8").splitlines())
        with (folder / "predictions.csv").open(encoding="utf-8") as lines:
            num_predictions = sum(1 for _ in lines) - 1

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    record = {
        "num_nodes": given.num_nodes,
        "num_edges": given.num_edges,
        "layers": given.layers,
        "hidden_channels": trained["recipe"]["model"]["hidden_channels"],
        "epochs": trained["epochs_run"],
        "epochs_seconds": round(trained["seconds"], 1),  # of those of the training
        "file_bytes": size,
        "parts": parts,
        "num_predictions": num_predictions,
        "machine": f"{os.cpu_count()} shared CPU cores, {memory / 2**30:.0f} GiB",
        "load_average": [load[0], os.getloadavg()[0]],  # of others too: before and after
        "versions": trained["versions"],
    }
    print(json.dumps(record, indent=2))
    if given.out is not None:
        write_record(given.out, record)


if __name__ == "__main__":
    main()
