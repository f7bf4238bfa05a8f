"""Memory and time of a deep network's training: all activations kept, and one per segment with the rest computed again.

    python -m reproduction.experiments.lean_memory [--device cuda] [--layers 1024] [--runs 10] [--out FILE]

Cora, all runs at once. Each side is a process of its own, because a peak is never taken back: on a GPU that of torch's
own count, on a CPU what the process had resident at most, its libraries and data with it. A side that does not fit is
recorded as such.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

import torch

from graphjoule import fit, load_recipe, load_task
from graphjoule.nn import GraphModel
from graphjoule.training import describe_device, resolve_device, versions
from reproduction.experiments.record import write_record

NETWORKS = ("gcn", "pairnorm", "jknet", "dropedge")
SIDES = {"all layers": None, "segments": "auto"}


def measure(given, name, side):
    """Peak and seconds per epoch of one side, measured in this process."""
    GraphModel.checkpoint = SIDES[side]
    task, device = load_task("cora", given.data_root), resolve_device(given.device)
    recipe = load_recipe(name, "cora", given.layers, {"epochs": given.epochs})
    result = fit(recipe, task, range(given.runs), device=device, runs_at_once=given.runs)
    on_gpu = device.type == "cuda"
    peak = result.records[-1].peak_bytes if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    losses = [record.curve["train_loss"][-1] for record in result.records]
    return {"peak_bytes": peak, "seconds": round(result.summary.seconds, 2), "losses": losses}


def in_a_process(given, name, side):
    """What another process of this file measures; its last words where it fails."""
    options = ["--device", given.device, "--layers", str(given.layers), "--runs", str(given.runs)]
    options += ["--epochs", str(given.epochs), "--child", name, side]
    options += ["--data-root", str(given.data_root)] if given.data_root else []
    command = [sys.executable, "-m", "reproduction.experiments.lean_memory", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return {"failed": said[-1][:200] if said else f"ended by signal {-done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def main():
    """Measure, print, and write the record if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS, metavar="NAME")
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES, metavar="SIDE")
    parser.add_argument("--layers", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given, *given.child)))
        return

    found = {}
    for name in given.networks:
        found[name] = {side: in_a_process(given, name, side) for side in given.sides}
        for side, row in found[name].items():
            words = row.get("failed") or f"{row['peak_bytes'] / 2**30:.2f} GiB, {row['seconds']:.1f} s"
            print(f"{name:<9}  {side:<10}  {words}", flush=True)
    record = {
        "dataset": "cora",
        "layers": given.layers,
        "runs": given.runs,
        "epochs": given.epochs,
        "device": describe_device(torch.device(resolve_device(given.device))),
        "versions": versions(),
        "networks": found,
    }
    if given.out is not None:
        write_record(given.out, record)


if __name__ == "__main__":
    main()
