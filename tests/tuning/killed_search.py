"""A search whose workers are killed at random and replaced, until every trial has its result.

Imports take longer than the trials, so every worker is forked from one process.
"""

import json
import os
import random
import signal
import time
import traceback
from dataclasses import replace
from functools import partial

from graphjoule.tuning import Evaluation, Search, StorageRef, hide_test, parse_ranges, work
from graphjoule.tuning.search import evaluate
from graphjoule.tuning.storage import PulseLeases
from tests.training import small_recipe, small_task

RANGES = parse_ranges(["lr=1e-4..1e-1:log", "dropout=0..0.9", "activation=srelu,relu,linear"])
SEARCH = Search(small_recipe(), RANGES, seeds=(0, 1), seed=3)
MOST_SECONDS = 100
DATABASE = "GRAPHJOULE_TEST_DATABASE"  # where a URL says which database may be used for tests


def cheap_value(params):
    return (params["lr"] - 0.01) ** 2 + params["dropout"] + len(params["activation"])


def cheap(params, on_progress):
    """Takes as long as it likes, so that it can be killed anywhere; the value tells whether its settings were kept."""
    time.sleep(random.SystemRandom().uniform(0.01, 0.4))  # on the fastest machine, all kills fall within the search
    losses = [cheap_value(params)]
    return Evaluation(losses[0], None, {"metrics": {"val_loss": losses}, "epochs_run": [1], "seconds": 0.1})


def open_storage(folder, leases):
    seen = hide_test(small_task(), SEARCH.recipe, SEARCH.seeds)
    storage = os.environ[DATABASE] if leases == "database" else str(folder / "journal.log")
    stored = SEARCH.open(StorageRef(storage, folder.name), seen)
    if leases != "locks":
        stored = replace(stored, leases=PulseLeases(every=0.03, patience=0.8))
    return stored, seen


def logged(trial_evaluate, path, params, on_progress):
    """Writes down every evaluation that came to its end, whether or not its result counted."""
    found = trial_evaluate(params, on_progress)
    line = json.dumps({"params": params, "value": found.value}).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, line)
    os.close(descriptor)
    return found


def run_worker(folder, num_trials, leases, kind):
    stored, seen = open_storage(folder, leases)
    trial_evaluate = cheap if kind == "cheap" else partial(evaluate, SEARCH, seen, "cpu")
    work(SEARCH.queue(stored, num_trials), partial(logged, trial_evaluate, folder / "evaluations.jsonl"))


def start(*arguments):
    """The process number of a worker."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run_worker(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def num_done(folder):
    path = folder / "evaluations.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main(folder, num_trials, num_workers, num_kills, leases, kind):
    """To be run in a process that has not trained; leaves what happened in ``told.json``.

    Args:
        folder: of the search.
        num_trials: to be done.
        num_workers: at a time.
        num_kills: how many of them are killed.
        leases: locks, pulse or database.
        kind: of a trial, train or cheap.
    """
    os.fsync = lambda descriptor: None  # a killed process loses nothing it has written, synced or not
    dice, begin = random.Random(11), time.monotonic()
    alive = {start(folder, num_trials, leases, kind) for _ in range(num_workers)}
    killed, codes = 0, []
    next_kill = None
    while alive:
        if time.monotonic() - begin > MOST_SECONDS:
            raise SystemExit("the search does not come to its end")
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            alive.discard(child)
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGKILL:
                alive.add(start(folder, num_trials, leases, kind))
            else:
                codes.append(code)
        elif next_kill is not None and time.monotonic() >= next_kill:
            os.kill(dice.choice(sorted(alive)), signal.SIGKILL)
            killed, next_kill = killed + 1, None
        elif next_kill is None and killed < num_kills and num_done(folder) >= killed * num_trials / (num_kills + 1):
            next_kill = time.monotonic() + dice.uniform(0.02, 0.25)  # spread over the search, however slow it is
        else:
            time.sleep(0.005)
    told = {"killed": killed, "codes": codes, "seconds": time.monotonic() - begin}
    (folder / "told.json").write_text(json.dumps(told))
