"""``python -m tests.faults.leak --fits 10000 --out leak.json``: does memory grow with trainings and traces?"""

import argparse
import gc
import json
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from graphjoule import Trace, fit
from tests.training import small_recipe, small_task

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def slope_of_fits(num_fits: int, warm_up: int = 100, every: int = 25) -> tuple[float, float]:
    """Bytes that the resident size grows by with a training and a trace of its model, and twice the standard error.

    By least squares over the size after every 25th, when cycles have been collected.
    """
    task, recipe, sizes = small_task(), small_recipe("egnn", epochs=1), []
    for number in range(warm_up + num_fits):
        model = fit(recipe, task, [number]).models[0]
        with Trace(model, task.graph), torch.no_grad():
            model(task.features, task.graph)
        if number % every == 0:
            gc.collect()
            sizes += [resident()] if number >= warm_up else []
    x = every * (np.arange(len(sizes)) - (len(sizes) - 1) / 2)
    y = np.array(sizes, dtype=float)
    slope = float((x * y).sum() / (x * x).sum())
    rest = y - y.mean() - slope * x
    error = float(np.sqrt((rest**2).sum() / (len(x) - 2) / (x * x).sum()))
    return slope, 2 * error


def main() -> None:
    """Measure, print, write the record."""
    parser = argparse.ArgumentParser(description="The slope of the resident size over many trainings and traces.")
    parser.add_argument("--fits", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    begin = time.process_time()
    slope, interval = slope_of_fits(options.fits)
    record = {
        "fits": options.fits,
        "bytes_per_fit": round(slope, 1),
        "interval": round(interval, 1),
        "cpu_seconds": round(time.process_time() - begin),
    }
    print(json.dumps(record))
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
