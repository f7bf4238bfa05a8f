"""``python -m tests.faults.leak --fits 1000 --out leak.json``: does memory grow with the number of trainings?"""

import argparse
import gc
import json
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from graphjoule.fitting import fit
from tests.training import small_recipe, small_task

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def slope_of_fits(num_fits: int, warm_up: int = 50) -> tuple[float, float]:
    """Bytes that the resident size grows by with a training, by least squares, and twice its standard error."""
    task, recipe, sizes = small_task(), small_recipe("egnn", epochs=3), []
    for number in range(warm_up + num_fits):
        fit(recipe, task, [number])
        if number >= warm_up:
            gc.collect()
            sizes.append(resident())
    x = np.arange(len(sizes)) - (len(sizes) - 1) / 2
    y = np.array(sizes, dtype=float)
    slope = float((x * y).sum() / (x * x).sum())
    rest = y - y.mean() - slope * x
    error = float(np.sqrt((rest**2).sum() / (len(x) - 2) / (x * x).sum()))
    return slope, 2 * error


def main() -> None:
    """Measure, print, write the record."""
    parser = argparse.ArgumentParser(description="The slope of the resident size over many trainings.")
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    slope, interval = slope_of_fits(options.fits)
    record = {"fits": options.fits, "bytes_per_fit": round(slope, 1), "interval": round(interval, 1)}
    print(json.dumps(record))
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
