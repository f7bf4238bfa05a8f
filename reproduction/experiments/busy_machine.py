"""Trainings beside other busy programs: the number of threads that graphjoule chooses, against every fixed number.

    python -m reproduction.experiments.busy_machine [--out reproduction/results/busy/two-cores.json]

The load is made here: programs that do nothing but count, from before the processes that train begin, or ("late") from
a third of the training on. The sides train in turns, each in a process of its own; a fixed number that takes three
times as long as the best one is cut and not tried again. Nothing else should use the machine. About five minutes on two
cores.
"""

import argparse
import os
import select
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from graphjoule import fit, load_recipe, load_task
from graphjoule.training import versions
from reproduction.experiments.record import write_record

LOADS = ("0", "1", "2", "4", "2 late")
HOPELESS = 3.0
DEFAULT = "default"
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**5))"  # to the end of who began it


@contextmanager
def started(*command, env=None):
    """A process that ends with the block; the session is its own, as that of another program is."""
    # Without a buffer of ours: what `select` does not see, a buffer might have read already.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0} if env is not None else {}
    process = subprocess.Popen([sys.executable, *command], env=env, start_new_session=True, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def busy(number):
    """So many busy programs, as a block."""
    stack = ExitStack()
    for _ in range(number):
        stack.enter_context(started("-c", BUSY))
    return stack


def train(given):
    """One side: a training for every line of standard input. Prints a line at a third of it, then its seconds."""
    task = load_task(given.dataset, given.data_root)

    def note(progress):
        if progress.epoch == progress.epochs // 3:
            print("third", flush=True)

    def seconds(epochs, **options):
        recipe = load_recipe(given.model, given.dataset, given.layers, {"epochs": epochs, "patience": epochs})
        begin = time.perf_counter()
        fit(recipe, task, range(given.seeds), device="cpu", **options)
        return time.perf_counter() - begin

    seconds(1)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(seconds(given.epochs, on_progress=note), flush=True)


def seconds_of(side, late, most=None):
    """Ask a process for one training; `late` busy programs begin at a third of it. None after more than `most` seconds.

    What was cut goes on in its process, which is to be ended.
    """
    end = None if most is None else time.monotonic() + most

    def line():
        left = None if end is None else max(end - time.monotonic(), 0.0)
        return side.stdout.readline().decode() if select.select([side.stdout], [], [], left)[0] else None

    side.stdin.write(b"\n")
    side.stdin.flush()
    if line() != "third\n":
        return None
    with busy(late):
        found = line()
        return None if found is None else float(found)


def measure(load, sides, given):
    """Seconds of every training beside a load, by side."""
    number, late = int(load.split()[0]), load.endswith("late")
    with busy(0 if late else number), ExitStack() as stack:
        processes = {}
        for side in sides:
            env = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
            env |= {} if side == DEFAULT else {"OMP_NUM_THREADS": side}
            command = ["-m", "reproduction.experiments.busy_machine", "--train", *sys.argv[1:]]
            processes[side] = stack.enter_context(started(*command, env=env))
            assert processes[side].stdout.readline() == b"ready\n"
        found = {side: [] for side in sides}
        for _ in range(given.rounds):
            for side, process in list(processes.items()):
                medians = [statistics.median(times) for times in found.values() if times]
                most = HOPELESS * min(medians) if medians and side != DEFAULT else None
                seconds = seconds_of(process, number if late else 0, most)
                if seconds is None:
                    processes.pop(side).kill()
                else:
                    found[side].append(round(seconds, 3))
        return found


def ratio(found):
    """The median of the default over that of the best fixed number; a number whose turns were all cut is none."""
    medians = {side: statistics.median(times) for side, times in found.items() if times}
    return medians.pop(DEFAULT) / min(medians.values())


def spoken(times):
    """The median in words."""
    return f"{statistics.median(times):.1f} s" if times else "cut"


def main():
    """Measure, print, and write the record if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="egnn")
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--fixed", help="numbers of threads to compare with, 1,2,4 and so on to the cores by default")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    parser.add_argument("--train", action="store_true", help="be one of the sides")
    given = parser.parse_args()
    if given.train:
        train(given)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    powers = {1, cores, *(2**power for power in range(cores.bit_length()) if 2**power < cores)}
    fixed = given.fixed.split(",") if given.fixed else map(str, sorted(powers))
    sides = [DEFAULT, *fixed]
    record = {name: getattr(given, name) for name in ("model", "dataset", "layers", "seeds", "epochs", "rounds")}
    load_before = round(os.getloadavg()[0], 2)  # what else uses the machine
    record |= {"cores": cores, "load_before": load_before, "versions": versions(), "loads": {}}
    for load in given.loads.split(","):
        found = measure(load, sides, given)
        record["loads"][load] = {"seconds": found, "ratio": round(ratio(found), 3)}
        words = ", ".join(f"{side} {spoken(times)}" for side, times in found.items())
        print(f"{load} other busy programs: {words}; default / best {ratio(found):.2f} {found}", flush=True)
    if given.out is not None:
        write_record(given.out, record)


if __name__ == "__main__":
    main()
