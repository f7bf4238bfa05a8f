"""A study on the embedded digits, whole, killed again and again, and shared by two processes.

Imports take longer than the trainings, so every process of the test is forked from one, after a short study.
"""

import json
import os
import random
import shutil
import signal
import time
from functools import cache
from pathlib import Path

from graphjoule.studies import find_study, plan_study, work
from graphjoule.tasks import load_task

KILLS = 3
SETTINGS = {"hidden_channels": 8, "epochs": 15, "patience": 15}


load = cache(load_task)


def run_study(out: Path, **settings: int) -> None:
    cells = find_study("table1").cells(["digits"], ["egnn", "gcn"], [2], SETTINGS | settings)
    refused = work(plan_study(cells, range(3), out, load), load, device="cpu", checkpoint_every=2)
    assert not refused, refused


def start(out: Path) -> int:
    """The process number of a child that works on the study."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run_study(out)
            code = 0
        finally:
            os._exit(code)
    return child


def finish(*children: int) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main(folder: Path) -> None:
    """To be run in a process that has not trained; leaves what happened in ``told.json``."""
    os.fsync = lambda descriptor: None  # a killed process loses nothing it has written, synced or not
    run_study(folder / "first", epochs=1)  # imports what a training needs, once for all
    begin = time.monotonic()
    codes = finish(start(folder / "whole"))
    whole = time.monotonic() - begin

    moments = [random.Random(7).uniform(0.2, 1.0) for _ in range(KILLS)]
    killed: list[int] = []
    share = 0.8  # of the time that the whole takes, for all kills together: none of them can end, unless
    while killed != [-signal.SIGKILL] * KILLS:  # other programs that slowed the whole down are gone
        shutil.rmtree(folder / "killed", ignore_errors=True)
        killed = []
        for moment in moments:
            child = start(folder / "killed")
            time.sleep(share * whole * moment / sum(moments))
            os.kill(child, signal.SIGKILL)
            killed += finish(child)
        share /= 2
    codes += finish(start(folder / "killed"))

    shared = [start(folder / "shared") for _ in range(2)]
    codes += finish(*shared)

    victim, survivor = start(folder / "inherited"), start(folder / "inherited")
    time.sleep(0.4 * whole)
    os.kill(victim, signal.SIGKILL)
    killed += finish(victim)
    codes += finish(survivor)
    (folder / "told.json").write_text(json.dumps({"codes": codes, "killed": killed, "seconds": whole}))
