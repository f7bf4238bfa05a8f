"""Deep networks tuned with equal effort on the paper's graphs, chosen by validation alone; `tuned.toml` is the plan.

    python -m reproduction.experiments.tuned search --datasets pubmed cora --device cuda --workers 5 --seconds 400
    python -m reproduction.experiments.tuned winners --datasets pubmed cora --device cuda --workers 2 --seconds 150
    python -m reproduction.experiments.tuned ablation --datasets pubmed cora --device cuda --workers 2
    python -m reproduction.experiments.tuned cost --device cuda --models egnn

Every part goes on where it was stopped. ``search`` is `graphjoule.tuning.tune` per graph and network, several at once
on one GPU (under MPS they share it); its journals are in ``--state``, in the repository until it is done, and a line
per trial, with the code that made it, is left in ``DATASET-MODEL.trials.jsonl``. ``winners`` trains the best of a
finished search with ten seeds that were not searched with, and reads their test nodes, once:
``DATASET-MODEL.runs.jsonl.gz``, with the energy of every layer and both limits in ``DATASET-MODEL.energies.jsonl``.
``ablation`` takes one ingredient away at a time, ``cost`` times an epoch. `reproduction.pages.tuned` has the tables.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import statistics
import time
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphjoule import GraphjouleError, Trace, fit, limits, load_recipe, load_task
from graphjoule.graph import normalize_rows
from graphjoule.studies import Protocol
from graphjoule.tasks import Task
from graphjoule.terms import ConsistencySettings
from graphjoule.training import (
    CapturedStep,
    Recipe,
    SeedBatch,
    architecture_of,
    describe_device,
    resolve_device,
    versions,
)
from graphjoule.tuning import parse_ranges, tune, with_settings
from reproduction.bench.measure import Side, measure_sides, paired_ratio

__all__ = ["DATASETS", "FOLDER", "PLAN", "main", "read_lines"]

PLAN: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FOLDER = Path(__file__).resolve().parents[1] / "results" / "tuned"
STATE = FOLDER / "journals"
PROTOCOL = Protocol(**PLAN["protocol"])
DATASETS = ("pubmed", "cora", "physics")


def start(model: str, dataset: str) -> Recipe:
    """Where a search begins: the published settings, and those of the plan."""
    return load_recipe(model, dataset, PLAN["layers"][model], PLAN["settings"])


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def winner(folder: Path, dataset: str, model: str) -> Recipe:
    """The recipe of the trial that validates best, once all trials are done."""
    trials = read_lines(folder / f"{dataset}-{model}.trials.jsonl")
    if len(trials) < PLAN["search"]["trials"]:
        raise GraphjouleError(f"{model} on {dataset}: {len(trials)} of {PLAN['search']['trials']} trials are done.")
    best = max((trial for trial in trials if trial["value"] is not None), key=lambda trial: trial["value"])
    return with_settings(start(model, dataset), best["params"])


def energies(network: nn.Module, recipe: Recipe, task: Task) -> dict[str, Any]:
    """The energy of every layer on the task's device; of EGNN how many layers are within both limits, and by how much.

    A least slack below 1 says by what factor a limit is broken.
    """
    network.to(task.targets.device)  # `fit` returns its models on the CPU
    x = normalize_rows(task.features) if recipe.data.normalize_features else task.features
    watch = ["encoder", "convs.*"] if hasattr(network, "encoder") else ["convs.*"]
    trace = Trace.of(network, task.graph, (x, task.graph), ["energy"], watch=watch)
    found: dict[str, Any] = {"energies": [float(f"{row.energy:.6g}") for row in trace.layers]}
    if recipe.model.name == "egnn":
        held = limits(trace, recipe.model.options["c_min"], recipe.model.options["c_max"])
        slacks = [min(layer.lower_slack, layer.upper_slack) for layer in held.layers]
        found |= {"layers_within": sum(s >= 1 - 1e-6 for s in slacks), "least_slack": float(f"{min(slacks):.4g}")}
    return found


# The parts; each returns a sentence.


def search(dataset: str, model: str, folder: Path, device: str, end: float, state: Path) -> str:
    """Try settings until the budget or the time is spent."""
    plan, name = PLAN["search"], f"{dataset}-{model}"
    state.mkdir(parents=True, exist_ok=True)
    ranges = PLAN["ranges"]["all"] | PLAN["ranges"][model]
    found = tune(
        start(model, dataset),
        load_task(dataset),
        parse_ranges(f"{key}={text}" for key, text in ranges.items()),
        trials=plan["trials"],
        seeds=plan["seeds"],
        seed=plan["seed"],
        storage=state / f"{name}.journal",
        device=device,
        timeout=max(0.0, end - time.time()),
    )
    fields = ("slot", "params", "value", "metrics", "seconds", "failure")
    path = folder / f"{name}.trials.jsonl"
    known = {line["slot"]: line for line in read_lines(path)}  # by the code of an earlier call
    made_by = {"device": describe_device(resolve_device(device)), "versions": versions()}
    rows = [known.get(row.slot) or {field: getattr(row, field) for field in fields} | made_by for row in found.rows]
    lines = [json.dumps(row, default=dict) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    best = f", best {100 * found.best.value:.2f}" if found.ranked else ""
    return f"{len(lines)} of {plan['trials']} trials{best}"


def winners(dataset: str, model: str, folder: Path, device: str, end: float, state: Path) -> str:
    """Train the best settings with fresh seeds, and measure every layer."""
    path = folder / f"{dataset}-{model}.runs.jsonl.gz"
    if path.exists():
        return "done before"
    recipe, task = winner(folder, dataset, model), load_task(dataset)
    cited = PROTOCOL.cited("tuned", {})
    (folder / f"tuned-{PROTOCOL.sha256[:8]}.protocol.json").write_text(PROTOCOL.text("tuned"), encoding="utf-8")
    result = fit(recipe, task, PLAN["winner"]["seeds"], device=device, protocol=cited)
    task = task.to(resolve_device(device))
    x = normalize_rows(task.features) if recipe.data.normalize_features else task.features
    lines, mean = [], torch.zeros((), device=task.targets.device)
    for record, network in zip(result.records, result.models, strict=True):
        lines.append(json.dumps({"seed": record.seed, **energies(network, recipe, task)}))
        with torch.no_grad():
            mean = mean + network.eval()(x, task.graph).softmax(dim=-1) / len(result.models)
    if recipe.data.split == "public":  # one split for all, so that their mean can be scored; reported apart
        split = task.split("public")
        right = (mean.argmax(dim=-1) == task.targets).double()
        scores = {part: float(right[getattr(split, part)].mean()) for part in ("val", "test")}
        lines.append(json.dumps({"ensemble": len(result.models), **scores}))
    (folder / f"{dataset}-{model}.energies.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    part = path.with_suffix(".part")
    texts = "".join(f"{record.model_dump_json()}\n" for record in result.records)
    part.write_bytes(gzip.compress(texts.encode(), mtime=0))
    part.rename(path)
    tests = [record.test["accuracy"] for record in result.records if record.test]
    return f"test {100 * statistics.fmean(tests):.2f} of {len(tests)} runs"


def ablation(dataset: str, model: str, folder: Path, device: str, end: float, state: Path) -> str:
    """The best settings without one ingredient, and the published ones with consistency."""
    path = folder / f"{dataset}-{model}.ablation.jsonl"
    done = {line["variant"] for line in read_lines(path)}
    best, task = winner(folder, dataset, model), load_task(dataset)
    for variant, changes in PLAN["ablation"]["variants"].items():
        if variant in done or time.time() > end:
            continue
        recipe = start(model, dataset) if changes.get("published") else best
        plain = {key: None if value == "none" else value for key, value in changes.items() if key != "published"}
        records = fit(
            recipe.with_settings(plain) if plain else recipe, task, PLAN["winner"]["seeds"], device=device
        ).records
        scores = {part: [round(getattr(r, part)["accuracy"], 5) for r in records] for part in ("val", "test")}
        line = {"variant": variant, **scores, "epochs": [record.epochs_run for record in records]}
        line |= {"device": describe_device(resolve_device(device)), "versions": versions()}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        done.add(variant)
    return f"{len(done)} of {len(PLAN['ablation']['variants'])} variants"


def cost(dataset: str, model: str, folder: Path, device: str, end: float, state: Path) -> str:
    """Time an epoch of ten runs with two and with four views beside the plain epoch, in turns."""
    where = resolve_device(device)
    task, plain = load_task(dataset).to(where), load_recipe(model, dataset, PLAN["layers"][model])
    seeds = PLAN["winner"]["seeds"]
    splits = [task.split(plain.data.split, seed) for seed in seeds]

    def build(views: int) -> CapturedStep:
        terms = {"consistency": ConsistencySettings(views=views)} if views > 1 else {}
        batch = SeedBatch(architecture_of(plain), plain, task, seeds, splits, terms)
        return CapturedStep(batch.train_epoch, where)

    sides = {views: Side(f"{views} views", partial(build, views)) for views in (1, 2, 4)}
    measure_sides(list(sides.values()), where, min(10.0, max(0.0, end - time.time())))
    line: dict[str, Any] = {"dataset": dataset, "model": model, "layers": plain.model.num_layers, "runs": len(seeds)}
    for views, side in sides.items():
        ratio = paired_ratio(side, sides[1])
        line[f"{views} views"] = {
            "ms": round(1000 * statistics.median(side.seconds), 3),
            "ratio": round(ratio.median, 3),
            "quartiles": [round(ratio.low, 3), round(ratio.high, 3)],
            "peak_bytes": side.peak_bytes,
        }
    line |= {"device": describe_device(where), "versions": versions()}
    with (folder / "cost.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return f"{line['1 views']['ms']} ms, four views {line['4 views']['ratio']} times that"


PARTS: dict[str, Callable[..., str]] = {"search": search, "winners": winners, "ablation": ablation, "cost": cost}


def _unit(part: str, folder: Path, state: Path, device: str, end: float, threads: int, cell: tuple[str, str]) -> str:
    torch.set_num_threads(threads)
    begin = time.time()
    try:
        said = PARTS[part](*cell, folder, device, end, state) if begin < end else "no time left"
    except (GraphjouleError, RuntimeError) as error:  # the others on this GPU train on
        said = str(error)[:300]
    return f"{cell[1]} on {cell[0]}: {said}, {time.time() - begin:.0f} s"


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--datasets", nargs="+", default=DATASETS, choices=DATASETS)
    parser.add_argument("--models", nargs="+", default=list(PLAN["layers"]), choices=list(PLAN["layers"]))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the device")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after these nothing more is begun")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the records")
    parser.add_argument("--state", type=Path, default=STATE, help="of the journals of searches that are not done")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    end = min(time.time() + args.seconds, 1e12)
    models = PLAN["ablation"]["models"] if args.part == "ablation" else args.models
    cells = [(dataset, model) for dataset in args.datasets for model in models]
    work = partial(
        _unit, args.part, args.folder, args.state, args.device, end, max(1, torch.get_num_threads() // args.workers)
    )
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        for said in pool.imap_unordered(work, cells):
            print(said, flush=True)


if __name__ == "__main__":
    main()
