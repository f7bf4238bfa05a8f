"""EGNN with 1,024 layers on Cora: accuracy, time, peak memory, and whether the energy stays within its limits.

python -m reproduction.experiments.thousand_layers --device cuda --seeds 10 --out reproduction/results/depth
"""

import argparse
from itertools import pairwise
from pathlib import Path

import torch

from graphjoule import Trace, fit, load_recipe, load_task
from graphjoule.training import append_record, describe_device, resolve_device, versions
from reproduction.experiments.record import write_record


def layer_energies(model, task):
    """Energies of the encoder's output and of every layer's."""
    with torch.no_grad(), Trace(model, task.graph, ["energy"], watch=["encoder", "convs.*"]) as trace:
        model(task.features, task.graph)
    return [float(f"{layer.energy:.5g}") for layer in trace.layers]


def limits_held(energy, c_min, c_max):
    """How many layers keep ``c_min E(k-1) <= E(k) <= c_max E(0)``, lower and upper limit apart."""
    lower = sum(now >= c_min * before for before, now in pairwise(energy))
    upper = sum(now <= c_max * energy[0] for now in energy[1:])
    return {"lower": lower, "upper": upper, "layers": len(energy) - 1}


def main():
    """Train, trace, write the records and the energies, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=Path("reproduction/results/depth"))
    given = parser.parse_args()

    device = resolve_device(given.device)
    task = load_task("cora", given.data_root)
    recipe = load_recipe("egnn", "cora", given.layers, {"epochs": given.epochs})
    result = fit(recipe, task, range(given.seeds), device=device)
    ready = task.to(device)
    energies = [layer_energies(model.to(device), ready) for model in result.models]
    c_min, c_max = recipe.model.options["c_min"], recipe.model.options["c_max"]

    folder, name = given.out, f"egnn-cora-{given.layers}-{device.type}"
    folder.mkdir(parents=True, exist_ok=True)
    for record in result.records:
        append_record(folder / f"{name}.jsonl", record)
    summary = result.summary
    report = {
        "versions": versions(),
        "device": describe_device(device),
        "test_mean": summary.test_mean,
        "test_std": summary.test_std,
        "n": summary.n,
        "seconds": summary.seconds,
        "epochs_run": [record.epochs_run for record in result.records],
        "peak_bytes": result.records[-1].peak_bytes,
        "c_min": c_min,
        "c_max": c_max,
        "limits": [limits_held(energy, c_min, c_max) for energy in energies],
        "energy": energies,
    }
    write_record(folder / f"{name}-energy.json", report)
    print({key: report[key] for key in ("device", "test_mean", "test_std", "n", "seconds", "peak_bytes")})
    print(report["limits"])


if __name__ == "__main__":
    main()
