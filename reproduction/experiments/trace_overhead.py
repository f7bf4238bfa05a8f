"""What a trace costs: a 64-layer forward pass on Pubmed with and without one, in turns, in one process.

    python -m reproduction.experiments.trace_overhead [--device cuda] [--out reproduction/results/trace/overhead.json]

Three networks: EGNN and GCN of this package, and PyG's GCN. A trace without measures is timed beside the others, to
tell what looking on costs from what the numbers cost. Where memory happens to lie makes a process faster or slower by
half, so several are made, one after the other, and the record has the medians over them and the range.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import torch
from torch_geometric.nn import GCN

from graphjoule import Trace, load_recipe, load_task
from graphjoule.graph import as_dense
from graphjoule.measures import DEFAULT_MEASURES, MEASURES
from graphjoule.training import build_model, describe_device, versions
from reproduction.experiments.record import write_record

SIDES = {"energy": ("energy",), "default measures": DEFAULT_MEASURES, "all measures": tuple(MEASURES)}
SLOW, FEW = ("default measures", "all measures", "PyG's GCN"), 3  # what is measured in a few turns only


def networks(task, layers):
    """Networks by name, each with what it is called with."""
    device = task.graph.device
    for name in ("egnn", "gcn"):
        model = build_model(load_recipe(name, task.name, layers), task, seed=0).to(device)
        yield name, model.eval(), (task.features, task.graph)
    dense = as_dense(task.features)
    model = GCN(task.num_features, 64, layers, task.out_channels).to(device)
    yield "PyG's GCN", model.eval(), (dense, task.graph.edge_index)


@torch.no_grad()
def seconds(model, inputs, graph, measures=None):
    """Seconds of one forward pass, traced unless `measures` is None, until the device is done with it."""
    begin = time.perf_counter()
    if measures is None:
        model(*inputs)
    else:
        with Trace(model, graph, measures, watch=["convs.*"]):
            model(*inputs)
    if graph.device.type == "cuda":
        torch.cuda.synchronize(graph.device)
    return time.perf_counter() - begin


def compare(model, inputs, graph, repeats, *, with_all):
    """Milliseconds of every side in turns, and the cost of each as a share of the plain pass of its own turn."""
    sides = {"plain": None, "hooks alone": (), **SIDES}
    if not with_all:
        sides = {side: sides[side] for side in ("plain", "hooks alone", "energy")}
    for measures in sides.values():  # what is made once per graph, and cold caches
        seconds(model, inputs, graph, measures)
    turns = [
        {side: seconds(model, inputs, graph, m) for side, m in sides.items() if turn < FEW or side not in SLOW}
        for turn in range(repeats)
    ]
    return {side: summary([turn for turn in turns if side in turn], side) for side in sides}


def summary(turns, side):
    """Medians over the turns: the time, and its excess over the plain pass and over the pass layer by layer."""
    return {
        "ms": round(1e3 * statistics.median(turn[side] for turn in turns), 2),
        "cost": round(statistics.median(turn[side] / turn["plain"] for turn in turns) - 1, 3),
        "cost_of_layers": round(statistics.median(turn[side] / turn["hooks alone"] for turn in turns) - 1, 3),
        "turns": len(turns),
    }


@torch.no_grad()
def bytes_per_layer(model, inputs, graph, calls=2):
    """Bytes that a trace of all measures keeps per layer and call."""
    with Trace(model, graph, tuple(MEASURES), watch=["convs.*"]) as trace:
        model(*inputs)
        rows = len(trace.layers)
        tracemalloc.start()
        for _ in range(calls):
            model(*inputs)
        trace.layers.clear()  # reading brings the numbers home; the list itself is the reader's
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    return round(kept / (rows * calls))


def measure(given):
    """One process's numbers of all networks."""
    task = load_task(given.dataset, given.data_root).to(given.device)
    found = {}
    for name, model, inputs in networks(task, given.layers):
        repeats = min(given.repeats, FEW) if name in SLOW else given.repeats
        found[name] = compare(model, inputs, task.graph, repeats, with_all=given.with_all)
        if given.with_all:
            found[name]["bytes_per_layer"] = bytes_per_layer(model, inputs, task.graph)
    return found


def one_process(given, number):
    """What another process of this file measures; the first one has all measures too, which take minutes."""
    options = ["--dataset", given.dataset, "--layers", str(given.layers), "--repeats", str(given.repeats), "--child"]
    options += ["--device", given.device]
    options += ["--data-root", str(given.data_root)] if given.data_root else []
    options += ["--with-all"] if number == 0 else []
    command = [sys.executable, "-m", "reproduction.experiments.trace_overhead", *options]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def merged(processes):
    """Medians over the processes, and between what the costs lie."""
    first = processes[0]
    record = {}
    for name, sides in first.items():
        record[name] = {"bytes_per_layer": sides["bytes_per_layer"]}
        for side in (side for side in sides if side != "bytes_per_layer"):
            rows = [process[name][side] for process in processes if side in process[name]]
            record[name][side] = {
                "ms": round(statistics.median(row["ms"] for row in rows), 2),
                "cost": round(statistics.median(row["cost"] for row in rows), 3),
                "cost_of_layers": round(statistics.median(row["cost_of_layers"] for row in rows), 3),
                "cost_range": [min(row["cost"] for row in rows), max(row["cost"] for row in rows)],
                "processes": len(rows),
            }
    return record


def main():
    """Measure, print, and write the record if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="pubmed")
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--processes", type=int, default=5, choices=range(1, 100), metavar="N")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--with-all", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given)))
        return

    processes = []
    for number in range(given.processes):
        processes.append(one_process(given, number))
        words = (f"{name} {100 * sides['energy']['cost']:+.0f} %" for name, sides in processes[-1].items())
        print(f"process {number + 1}, energy: {', '.join(words)}", flush=True)
    record = {
        "dataset": given.dataset,
        "layers": given.layers,
        "repeats": given.repeats,
        "device": describe_device(torch.device(given.device)),
        "versions": versions(),
        "networks": merged(processes),
    }
    for name, found in record["networks"].items():
        for side in SIDES:
            row = found[side]
            low, high = (f"{100 * cost:+.0f}" for cost in row["cost_range"])
            print(
                f"{name:<9}  {side:<16}  {row['ms']:8.1f} ms, the plain pass {found['plain']['ms']:.1f} ms: "
                f"{100 * row['cost']:+.0f} % ({low} to {high}), "
                f"{100 * row['cost_of_layers']:+.0f} % of the pass layer by layer"
            )
        print(f"{name:<9}  {found['bytes_per_layer']:,} bytes per layer and call with all measures")
    if given.out is not None:
        write_record(given.out, record)


if __name__ == "__main__":
    main()
