"""Certified EGNN: whether it blows up at any learning rate, whether its limits hold, its accuracy and its cost.

    python -m reproduction.experiments.certified depth --device cuda --seconds 200
    python -m reproduction.experiments.certified accuracy --device cuda
    python -m reproduction.experiments.certified cost --device cuda

`depth` trains 1,024 layers on Pubmed with 100 seeds and three learning rates, certified, and some of the seeds as the
paper has it; after the last epoch every layer of every run is held against the certificate of its weights. `accuracy`
trains the recipes of 64 layers: as they are, certified, and certified without the penalty. `cost` measures epochs with
and without in turns. Every job is a line of the record; jobs that have one are not done again.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import torch
from torch.func import functional_call

from graphjoule import Trace, fit, load_recipe, load_task
from graphjoule.theory import certify
from graphjoule.training import (
    CapturedStep,
    SeedBatch,
    architecture_of,
    build_model,
    describe_device,
    resolve_device,
    versions,
)

RATES = {0.05: range(67, 100), 0.01: range(34), 0.02: range(34, 67)}
SIDES = {"plain": {}, "certified": {"model.certified": True}}
NO_PENALTY = {"certified without penalty": {"model.certified": True, "model.gamma": 0.0}}


def jobs(part, given):
    """What identifies each line of a part."""
    if part == "depth":
        chunks = [
            (lr, list(seeds)[start : start + given.at_once])
            for start in range(0, 34, given.at_once)
            for lr, seeds in RATES.items()
        ]
        common = {"part": part, "dataset": "pubmed", "layers": given.layers, "epochs": given.epochs}
        certified = [common | {"side": "certified", "lr": lr, "seeds": seeds} for lr, seeds in chunks if seeds]
        return certified + [job | {"side": "plain"} for job in certified[: len(RATES)]]
    if part == "accuracy":
        sides = [*SIDES, *NO_PENALTY]
        return [
            {"part": part, "dataset": dataset, "layers": 64, "side": side, "seeds": list(range(given.seeds))}
            for dataset in ("pubmed", "cora")
            for side in sides
        ]
    cases = [("cora", 64, 1), ("cora", 64, 10), ("pubmed", 64, 10), ("pubmed", 1024, 10)]
    return [{"part": part, "dataset": name, "layers": k, "runs": runs} for name, k, runs in cases if k <= given.layers]


def batch_of(job, task, side, seeds, **settings):
    """The runs of one side of a job before their first epoch."""
    recipe = load_recipe("egnn", job["dataset"], job["layers"], SIDES[side] | settings).with_split_of(task)
    splits = [task.split(recipe.data.split, seed) for seed in seeds]
    return SeedBatch(architecture_of(recipe), recipe, task, seeds, splits)


def _finite(value):
    return value if math.isfinite(value) else None


def depth(job, task, given):
    """Train, then hold every layer of every run that is finite against its certificate."""
    epochs, device = job["epochs"], task.targets.device
    settings = {"train.lr": job["lr"], "train.epochs": epochs, "train.patience": epochs}
    batch = batch_of(job, task, job["side"], job["seeds"], **settings)
    step = CapturedStep(batch.train_epoch, device)
    for _ in range(epochs):
        step()
    failed = batch.selection.state["failed"].tolist()
    model = build_model(batch.recipe, task, seed=0).to(device).eval()
    with torch.no_grad(), Trace(model, task.graph, ["energy", "norm"], watch=["encoder", "convs.*"]) as trace:
        inputs = (batch.features, task.graph)
        torch.vmap(lambda flat: functional_call(model, batch.layout.unflatten(flat), inputs))(batch.parameters)
    runs, nearest = [], {"energy": [], "norm": []}
    for run, (seed, has_failed) in enumerate(zip(job["seeds"], failed, strict=True)):
        with torch.no_grad():
            for name, value in batch.layout.unflatten(batch.parameters[run]).items():
                model.get_parameter(name).copy_(value)
        curve = batch.curve[run].tolist()
        rows = trace.select(run=run)
        energies = [row.energy for row in rows.layers]
        if not all(map(math.isfinite, energies)):  # its weights say nothing any more
            runs.append({"seed": seed, "failed": True, "broken": []})
            continue
        found = certify(model, task.graph, batch.features)
        for name, ratios in nearest.items():
            first, *others = (getattr(row, name) for row in rows.layers)
            limits = [getattr(layer, name) * first for layer in found.layers]
            ratios.append([value / limit if limit else 0.0 for value, limit in zip(others, limits, strict=True)])
        runs.append(
            {
                "seed": seed,
                "failed": bool(has_failed),
                "sigma": max(layer.sigma for layer in found.layers),
                "proved": {limit.name: limit.holds for limit in found.limits},
                # None: not bounded.
                **{f"{name}_limit": _finite(found[name].value) for name in ("energy", "norm")},
                "highest_energy": max(energies) / energies[0],
                "broken": found.broken_by(rows)[:3],
                "train_loss": [row[0] for row in curve],
                "val_accuracy": max(row[2] for row in curve),
            }
        )
    # Of every layer how near the run that is nearest comes to its limit: 1 is on it.
    by_layer = {name: [round(max(layer), 5) for layer in zip(*ratios, strict=True)] for name, ratios in nearest.items()}
    return {
        "runs": runs,
        "num_failed": sum(run["failed"] for run in runs),
        "num_broken": sum(bool(run["broken"]) for run in runs),
        "nearest_by_layer": by_layer,
    }


def accuracy(job, task, given):
    """The test accuracy of a recipe, with the largest spectral norm and the certificate of every run."""
    recipe = load_recipe("egnn", job["dataset"], job["layers"], (SIDES | NO_PENALTY)[job["side"]])
    result = fit(recipe, task, job["seeds"], device=task.targets.device)
    batch = batch_of(job, task, "plain", [0])  # for the features as the recipe feeds them
    found = [certify(model.to(task.targets.device), task.graph, batch.features) for model in result.models]
    return {
        "test": [record.test.get("accuracy") for record in result.records],
        "val": [record.val.get("accuracy") for record in result.records],
        "test_mean": result.summary.test_mean,
        "test_std": result.summary.test_std,
        "epochs_run": [record.epochs_run for record in result.records],
        "sigma": [max(layer.sigma for layer in one.layers) for one in found],
        "proved": [{limit.name: limit.holds for limit in one.limits} for one in found],
        "energy_limit": [one["energy"].value for one in found],
    }


def cost(job, task, given):
    """Milliseconds of an epoch of both sides in turns, and how much more the certified one takes."""
    device, seeds = task.targets.device, list(range(job["runs"]))
    batches = {side: batch_of(job, task, side, seeds, **{"train.epochs": 10_000}) for side in SIDES}
    steps = {side: CapturedStep(batch.train_epoch, device) for side, batch in batches.items()}

    def seconds(step):
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    for step in steps.values():  # warm up and capture
        for _ in range(4):
            seconds(step)
    turns = [{side: seconds(step) for side, step in steps.items()} for _ in range(given.repeats)]
    return {
        **{f"{side}_ms": 1e3 * statistics.median(turn[side] for turn in turns) for side in SIDES},
        "cost": statistics.median(turn["certified"] / turn["plain"] for turn in turns) - 1,
        "turns": len(turns),
    }


PARTS = {"depth": depth, "accuracy": accuracy, "cost": cost}


def main():
    """Do the jobs that have no line yet, one after the other, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--layers", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=30, help="of the part depth")
    parser.add_argument("--at-once", type=int, default=17, help="runs at once of the part depth")
    parser.add_argument("--seeds", type=int, default=10, help="of the part accuracy")
    parser.add_argument("--repeats", type=int, default=30, help="of the part cost")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no job begins after this time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=Path("reproduction/results/certified"))
    given = parser.parse_args()

    begin, device = time.perf_counter(), resolve_device(given.device)
    path, tasks = given.out / f"{given.part}.jsonl", {}
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    for job in jobs(given.part, given):
        if any(job.items() <= line.items() for line in done):
            continue
        if time.perf_counter() - begin > given.seconds:
            print("time is over; run it again for the rest")
            return
        if job["dataset"] not in tasks:
            tasks[job["dataset"]] = load_task(job["dataset"], given.data_root).to(device)
        started = time.perf_counter()
        found = PARTS[given.part](job, tasks[job["dataset"]], given)
        about = {"seconds": time.perf_counter() - started, "device": describe_device(device), "versions": versions()}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(job | found | about) + "\n")
        shown = {key: value for key, value in found.items() if not isinstance(value, list | dict)}
        print(f"{job}: {shown}, {about['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
