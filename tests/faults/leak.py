"""``python -m tests.faults.leak --fits 10000 --out leak.json``: does memory grow with trainings and traces?"""

import argparse
import ctypes
import gc
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from graphjoule import Trace, fit
from tests.training import small_recipe, small_task

_PAGE = os.sysconf("SC_PAGE_SIZE")


class _MallocInfo(ctypes.Structure):
    """What glibc's `mallinfo2` returns: `mapped` and `used` bytes are those a program has not given back."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "free", "small", "blocks", "mapped", "most", "freed", "used", "unused", "top")
    ]


_mallinfo2 = ctypes.CDLL(None).mallinfo2
_mallinfo2.restype = _MallocInfo


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def allocated() -> int:
    """Bytes that malloc has given out: what stays of a training. Those that it keeps for itself are only resident."""
    found = _mallinfo2()
    return int(found.used + found.mapped)


MEASURES = {"resident": resident, "allocated": allocated, "python_blocks": sys.getallocatedblocks}


def grown_by_names(number: int) -> int:
    """What malloc gives out for so many interned names that nobody keeps.

    A training makes and drops two or three. Python takes a dropped name out of its table and leaves the place; once all
    places are used the table is made anew, twice as large if it was more than a third full, which it is no more then.
    """
    gc.collect()
    before = allocated()
    for one in range(number):
        sys.intern(f"a name that nobody keeps, {one}")
    gc.collect()
    return allocated() - before


def slopes_of_fits(num_fits: int, warm_up: int = 100, every: int = 25) -> dict[str, tuple[float, float]]:
    """What each of `MEASURES` grows by with a training and a trace of its model, and twice the standard error.

    By least squares over the size after every 25th, when cycles have been collected.
    """
    task, recipe = small_task(), small_recipe("egnn", epochs=1)
    sizes = {name: np.zeros(num_fits // every) for name in MEASURES}  # a list of numbers would grow itself
    for number in range(warm_up + num_fits):
        model = fit(recipe, task, [number]).models[0]
        with Trace(model, task.graph), torch.no_grad():
            model(task.features, task.graph)
        if number % every == 0:
            gc.collect()
            for name, measure in MEASURES.items() if number >= warm_up else ():
                sizes[name][(number - warm_up) // every] = measure()
    return {name: _slope(every, found) for name, found in sizes.items()}


def _slope(every: int, y: np.ndarray) -> tuple[float, float]:
    x = every * (np.arange(len(y)) - (len(y) - 1) / 2)
    slope = float((x * y).sum() / (x * x).sum())
    rest = y - y.mean() - slope * x
    error = float(np.sqrt((rest**2).sum() / (len(x) - 2) / (x * x).sum()))
    return slope, 2 * error


def main() -> None:
    """Measure, print, write the record."""
    parser = argparse.ArgumentParser(description="The slopes of memory over many trainings and traces.")
    parser.add_argument("--fits", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    begin = time.process_time()
    slopes_of_fits(200)  # so that everything is imported and every cache is full
    names = {"first_100_000": grown_by_names(100_000), "next_1_000_000": grown_by_names(1_000_000)}
    slopes = slopes_of_fits(options.fits)
    record = {
        "fits": options.fits,
        "bytes_of_dropped_names": names,
        **{name: {"per_fit": round(slope, 2), "interval": round(twice, 2)} for name, (slope, twice) in slopes.items()},
        "cpu_seconds": round(time.process_time() - begin),
    }
    print(json.dumps(record))
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
