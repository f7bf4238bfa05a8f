"""What watching every layer costs a training: `fit` with and without `LayerWatch`, in turns, in one process.

    python -m reproduction.experiments.live_overhead --device cuda [--out reproduction/results/trace/live-cuda.json]

Epochs are fixed and nothing is written. `graphjoule train --live` and the TensorBoard callback look in the same way.
Two limits are measured: the default, and looks every ten epochs whatever they cost.
"""

import argparse
import statistics
import time
from pathlib import Path

from graphjoule import fit, load_recipe, load_task
from graphjoule.training import LayerWatch, describe_device, resolve_device, versions
from reproduction.experiments.record import write_record

SIDES = {"plain": None, "at most 5 % of the time": 0.05, "every ten epochs": 1.0}


def seconds(given, task, device, most):
    """Clock and processor seconds of one training, and how often it was looked at."""
    recipe = load_recipe(given.model, given.dataset, given.layers, {"epochs": given.epochs, "patience": given.epochs})
    looks = []
    callbacks = [] if most is None else [LayerWatch(lambda epoch, rows: looks.append(epoch), most=most)]
    begin, processor = time.perf_counter(), time.process_time()
    fit(recipe, task, range(given.runs), device=device, callbacks=callbacks)
    return time.perf_counter() - begin, time.process_time() - processor, len(looks)


def main():
    """Measure, print the ratios, and write the record if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="egnn")
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    given = parser.parse_args()
    device, task = resolve_device(given.device), load_task(given.dataset)
    seconds(given, task, device, 1.0)  # kernels are chosen and compiled
    turns = [{side: seconds(given, task, device, most) for side, most in SIDES.items()} for _ in range(given.repeats)]
    names = ("model", "dataset", "layers", "runs", "epochs", "repeats")
    record = {name: getattr(given, name) for name in names} | {"device": describe_device(device), "sides": {}}
    for side in SIDES:
        clock, processor, looks = (statistics.median(turn[side][k] for turn in turns) for k in range(3))
        ratio, of_processor = (
            statistics.median(turn[side][k] / turn["plain"][k] for turn in turns) for k in range(2)
        )  # of a turn's own plain training: others may be using the machine
        record["sides"][side] = {
            **{"seconds": round(clock, 3), "processor_seconds": round(processor, 3), "looks": looks},
            **{"ratio": round(ratio, 3), "processor_ratio": round(of_processor, 3)},
        }
        print(f"{side}: {clock:.2f} s, {looks:.0f} looks, ratio {ratio:.3f} ({of_processor:.3f} of processor time)")
    if given.out is not None:
        write_record(given.out, record | {"versions": versions()})


if __name__ == "__main__":
    main()
