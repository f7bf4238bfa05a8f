"""Jobs side by side whose records go into one file; the same call again goes on where the last one was stopped."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

from graphjoule.training import versions

Records = list[dict[str, Any]]


def read_records(path: Path) -> Records:
    """The records of a file, packed or not, without a line that a kill cut short; of no file, none."""
    if not path.exists():
        return []
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found = []
    for line in content.decode().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def run_jobs(
    unit: Callable[[Any], Records], jobs: Sequence[Any], out: Path, workers: int, limit: float = float("inf")
) -> None:
    """Run every job in a process of a pool, and write its records as it ends.

    Nothing is begun when the time is up, or once a GPU has failed. What runs is let end: a process that is killed while
    it shares a GPU can break the work of the others there.

    Args:
        unit: from a job to its records; the last one says what it was, and "why" it failed or how many seconds "all" of
            it took. The commit of the code is added to it.
        jobs: what to do, in this order.
        out: the file that records are added to.
        workers: processes, each with one thread.
        limit: seconds after which nothing more is begun.
    """
    begin, left, running, is_broken = time.monotonic(), list(jobs), set[Future[Records]](), False
    out.parent.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    with (
        out.open("a", encoding="utf-8") as file,
        ProcessPoolExecutor(workers, spawn, torch.set_num_threads, (1,)) as pool,
    ):
        while left or running:
            while left and len(running) < workers and time.monotonic() - begin < limit and not is_broken:
                running.add(pool.submit(unit, left.pop(0)))
            if not running:
                print(f"stopped with {len(left)} jobs left; the same command goes on", flush=True)
                return
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for records in (future.result() for future in ended):
                code = versions()
                records[-1] |= {"commit": code.get("commit"), "tree": code.get("tree")}
                file.writelines(json.dumps(record) + "\n" for record in records)
                file.flush()
                last = records[-1]
                why = last.get("why", "")
                is_broken |= "CUDA error" in why or "[CUDA]" in why
                what = ", ".join(str(last[key]) for key in ("task", "depth", "replicate") if key in last)
                said = why or f"{last['all']:.1f} s"
                print(f"{time.monotonic() - begin:6.0f} s  {what}: {said}", flush=True)
