"""What helps EGNN with 32 layers beside consistency, one ingredient at a time, by validation alone; `ingredients.toml`.

    python -m reproduction.experiments.ingredients --device cuda --workers 4 --seconds 200

A line per variant and graph, in the plan's order of hope, is added to ``--out`` as soon as it is there; a variant that
has its line is not trained again. No test label can be read: `graphjoule.tuning.hide_test` removes them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from graphjoule import GraphjouleError, fit, load_task
from graphjoule.graph import Features, SparseFeatures
from graphjoule.tasks import Task
from graphjoule.training import Recipe, describe_device, resolve_device, versions
from graphjoule.tuning import hide_test
from reproduction.experiments.tuned import DATASETS, FOLDER, energies, read_lines, start

__all__ = ["PLAN", "main", "recipe_of", "try_variant", "variants_of"]

PLAN: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
OUT = FOLDER / "ingredients.jsonl"


def rows_of_length_one(x: Features) -> Features:
    """Every row of the features divided by its Euclidean length; rows of zeros stay."""
    if not isinstance(x, SparseFeatures):
        return torch.nn.functional.normalize(x, dim=1)
    row = x.row().long()
    squares = torch.zeros(x.num_nodes, dtype=x.dtype, device=x.device).index_add_(0, row, x.value.square())
    return x.with_value(x.value / squares.sqrt()[row])


def recipe_of(dataset: str, changes: Mapping[str, Any]) -> Recipe:
    """The settings of a variant."""
    settings = {k: None if v == "none" else v for k, v in changes.items() if k != "features"}
    if changes.get("features") == "length":
        settings["data.normalize_features"] = False  # of such rows the sum is not divided by again
    recipe = start(PLAN["model"], dataset)
    return recipe.with_settings(settings) if settings else recipe


def variants_of(dataset: str) -> list[str]:
    """The variants that are something else on this graph than those before them."""
    found: dict[Any, str] = {}
    for name, changes in PLAN["variants"].items():
        found.setdefault((recipe_of(dataset, changes).fingerprint(), changes.get("features")), name)
    return list(found.values())


@cache  # a worker trains many variants of a graph
def _loaded(dataset: str, device: str) -> Task:
    return load_task(dataset).to(resolve_device(device))


def try_variant(dataset: str, variant: str, device: str) -> dict[str, Any]:
    """Train a variant with all seeds; what validation and the energy limits say of it."""
    changes, begin = PLAN["variants"][variant], time.time()
    recipe, task = recipe_of(dataset, changes), _loaded(dataset, device)
    if changes.get("features") == "length":
        task = replace(task, features=rows_of_length_one(task.features))
    seen = hide_test(task, recipe, PLAN["seeds"])
    result = fit(recipe, seen, PLAN["seeds"], device=device)
    line: dict[str, Any] = {"dataset": dataset, "variant": variant, "settings": changes, "seeds": PLAN["seeds"]}
    if failures := [record.failure for record in result.records if record.failure]:
        line["failure"] = failures[0]
    else:
        held = [energies(network, recipe, seen) for network in result.models]
        line |= {f"val_{name}": [round(r.val[name], 5) for r in result.records] for name in ("accuracy", "loss")}
        line |= {"layers_within": min(h["layers_within"] for h in held), "layers": recipe.model.num_layers}
        line["least_slack"] = min(h["least_slack"] for h in held)
    line |= {"epochs": [r.epochs_run for r in result.records], "selected": [r.selected_epoch for r in result.records]}
    line |= {"seconds": round(time.time() - begin, 2), "device": describe_device(resolve_device(device))}
    return line | {"versions": versions()}


def _job(device: str, end: float, threads: int, cell: tuple[str, str]) -> dict[str, Any] | str:
    """A line of the record, or a sentence on why there is no line."""
    if time.time() > end:
        return ""
    torch.set_num_threads(threads)
    try:
        return try_variant(*cell, device)
    except (GraphjouleError, RuntimeError) as error:  # the others on this GPU train on
        return f"{cell[0]}, {cell[1]}: {str(error)[:300]}"


def main() -> None:
    """Train what has no line yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=DATASETS, choices=DATASETS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the device")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after these nothing more is begun")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    end = min(time.time() + args.seconds, 1e12)
    done = {(line["dataset"], line["variant"]) for line in read_lines(args.out)}
    wanted = {dataset: variants_of(dataset) for dataset in args.datasets}
    cells = [(d, v) for v in PLAN["variants"] for d in args.datasets if v in wanted[d] and (d, v) not in done]
    work = partial(_job, args.device, end, max(1, torch.get_num_threads() // args.workers))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    left = 0
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        for said in pool.imap_unordered(work, cells):
            if isinstance(said, dict):
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(said) + "\n")
                scores = said.get("val_accuracy")
                worth = said["failure"] if scores is None else f"validation {100 * statistics.fmean(scores):.2f}"
                said = f"{said['dataset']}, {said['variant']}: {worth}, {said['seconds']:.0f} s"
            elif not said:
                left += 1
                continue
            print(said, flush=True)
    print(f"{len(cells) - left} of {len(cells)} variants tried")


if __name__ == "__main__":
    main()
