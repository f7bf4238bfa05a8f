"""`auto` with a stated time on every task that judges, and every rival on the same splits.

``python -m reproduction.corpus.auto --workers 2 --out auto.jsonl`` on a machine with 2 cores; every job has one thread,
and the budget of `auto` is the time of one core. A replicate has the split of its number: `auto` has it for all its
seeds, and the rivals have it for the seed of that number. The ledger is printed at the end, and by ``--ledger`` from
the file alone.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphjoule import GraphjouleError, fit
from graphjoule.training import Budget, parse_seconds, recipe_for
from graphjoule.tuning import assess, auto
from reproduction.corpus.jobs import read_records, run_jobs
from reproduction.corpus.ledger import auto_ledger, score_name
from reproduction.corpus.tasks import OPENED, VERDICT, load

NETWORKS = [("gcnii", 8), ("appnp", 8), ("resgcn", 8)]
"""Rivals with layers besides the 2-layer GCN, each with the settings that it has for any graph; EGNN's are those of
`search`, see `auto_ledger`."""
HALVES = {"learn": tuple(OPENED), "judge": tuple(VERDICT)}
Job = tuple[str, str, str | int, str, str, int]


def core_time(budget: str) -> Budget:
    """The budget as core time: what else the machine does then takes nothing from it."""
    return Budget(parse_seconds(budget), time.process_time)


def unit(job: Job) -> list[dict[str, Any]]:
    """The records of one replicate of `auto`, or of rivals on all replicates."""
    half, name, which, budget, device, replicates = job
    begin = time.monotonic()
    about = {"kind": "auto", "task": name, "replicate": which}
    try:
        task = load(name, judging=half == "judge")
        metric, seeds = score_name(name), range(replicates)
        settings = {} if metric == "accuracy" else {"select_on": metric}
        if isinstance(which, int):
            own = [which + 1000 * number for number in range(5)]  # the first one has the split
            found = auto(task, core_time(budget), seeds=own, settings=settings, device=device)
            test = task.split(seed=which).test
            alone = task.objective.scored(replace(found, members=[]).predict(task)[test], task.targets[test])
            what = {"chosen": found.chosen, "budget": budget, "scores": [found.test_score], "val": found.val_score}
            records = [{**about, **what, "alone": float(task.objective.metric(metric).value(*alone))}]
        elif which == "simple":
            scores: dict[str, list[float]] = {}
            for seed in seeds:  # one at a time: of several the rows have means
                result = fit(recipe_for(task, "gcn", 2, settings), task, [seed], device=device)
                for row in assess(task, result, device=device).rows:
                    scores.setdefault(row.name, []).append(row.test[metric])
            records = [{"kind": "rival", "task": name, "name": row, "scores": found} for row, found in scores.items()]
        else:
            model, layers = which.split("-")
            result = fit(recipe_for(task, model, int(layers), settings), task, seeds, device=device)
            done = [record.test[metric] for record in result.records if record.status == "done"]
            rival = f"{model} with {layers} layers"
            records = [{"kind": "rival", "task": name, "name": rival, "scores": done}]
    except (GraphjouleError, RuntimeError) as error:
        return [{**about, "kind": "failure", "why": str(error)[:300]}]
    return [*records, {**about, "kind": "time", "all": round(time.monotonic() - begin, 2)}]


def main() -> None:
    """Run what the file does not have yet, and print the ledger."""
    parser = argparse.ArgumentParser(prog="python -m reproduction.corpus.auto", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="records, JSON lines")
    parser.add_argument("--half", choices=tuple(HALVES), default="judge")
    parser.add_argument("--budget", default="2min", help="of every call of `auto`")
    parser.add_argument("--replicates", type=int, default=3, help="splits, of `auto` and of every rival")
    parser.add_argument(
        "--only", choices=("auto", "rivals"), help="one of the two; its budget is wall time, theirs not"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which nothing more is begun")
    parser.add_argument("--tasks", default="", help="some tasks, such as users,iris; all by default")
    parser.add_argument("--ledger", action="store_true", help="train nothing, print the ledger")
    given = parser.parse_args()
    names = given.tasks.split(",") if given.tasks else HALVES[given.half]
    networks = [f"{model}-{layers}" for model, layers in NETWORKS]
    done = {(record["task"], record["replicate"]) for record in read_records(given.out) if record["kind"] == "time"}
    jobs: list[Job] = [
        (given.half, name, which, given.budget, given.device, given.replicates)
        for which in (0, "simple", *networks, *range(1, given.replicates))  # every task once before one has it twice
        for name in names
        if (name, which) not in done and given.only in (None, "auto" if isinstance(which, int) else "rivals")
    ]
    if not given.ledger:
        run_jobs(unit, jobs, given.out, given.workers, given.limit)
    if text := auto_ledger(read_records(given.out)):
        print(text)


if __name__ == "__main__":
    main()
