"""Deep networks tuned with equal effort on the paper's graphs, chosen by validation alone; `tuned.toml` is the plan.

There are two rounds. The second was planned after the first round's test scores were known; none of them chose anything
in it. ``--round second`` is for any part, and has its records in a folder of its own.

    python -m reproduction.experiments.tuned search --datasets pubmed cora --device cuda --workers 5 --seconds 400
    python -m reproduction.experiments.tuned winners --datasets pubmed cora --device cuda --workers 2 --seconds 150
    python -m reproduction.experiments.tuned ablation --datasets pubmed cora --device cuda --workers 2
    python -m reproduction.experiments.tuned cost --device cuda --models egnn
    python -m reproduction.experiments.tuned search --round second --device cuda --workers 8 --seconds 400

Every part goes on where it was stopped. ``search`` is `graphjoule.tuning.tune` per graph and network, several at once
on one GPU (under MPS they share it); its journals are in ``--state``, in the repository until it is done, and a line
per trial, with the code that made it, is left in ``DATASET-MODEL.trials.jsonl``. ``winners`` trains the best of a
finished search with ten seeds that were not searched with, and reads their test nodes, once:
``DATASET-MODEL.runs.jsonl.gz``, with the energy of every layer and both limits in ``DATASET-MODEL.energies.jsonl``.
In the second round a trial that is behind at an early epoch ends there, and one of EGNN counts only if every layer of
every run is within both limits. ``ablation`` takes one ingredient away at a time, ``cost`` times an epoch.
`reproduction.pages.tuned` has the tables.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import statistics
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphjoule import GraphjouleError, Trace, fit, limits, load_recipe, load_task
from graphjoule.graph import Features, normalize_rows
from graphjoule.studies import Protocol
from graphjoule.tasks import Task
from graphjoule.terms import ConsistencySettings
from graphjoule.training import (
    CapturedStep,
    Progress,
    Recipe,
    SeedBatch,
    TrainingInterrupted,
    architecture_of,
    describe_device,
    fit_temperature,
    resolve_device,
    versions,
)
from graphjoule.tuning import (
    Evaluation,
    Search,
    StorageRef,
    ValidationTask,
    evaluate,
    fit_ranges,
    hide_test,
    parse_ranges,
    read_outcome,
    standard_error,
    with_settings,
    work,
)
from reproduction.bench.measure import Side, measure_sides, paired_ratio

__all__ = ["DATASETS", "FOLDER", "FOLDERS", "PLAN", "PLANS", "main", "read_lines"]

Plan = Mapping[str, Any]
PLAN: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PLANS: dict[str, dict[str, Any]] = {"first": PLAN, "second": PLAN | PLAN["second"]}
FOLDER = Path(__file__).resolve().parents[1] / "results" / "tuned"
FOLDERS = {"first": FOLDER, "second": FOLDER / "second"}
DATASETS = ("pubmed", "cora", "physics")


def start(model: str, dataset: str, plan: Plan = PLAN) -> Recipe:
    """Where a search begins: the published settings, and those of the plan."""
    return load_recipe(model, dataset, plan["layers"][model], plan["settings"])


def ranges_of(model: str, dataset: str, plan: Plan = PLAN) -> list[str]:
    """What is searched: for all networks, for this one, and for this one on this graph, where the last named wins."""
    named = [plan["ranges"].get(name, {}) for name in ("all", model, f"{model}-{dataset}")]
    return [f"{key}={text}" for key, text in (named[0] | named[1] | named[2]).items()]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def winner(plan: Plan, folder: Path, dataset: str, model: str) -> Recipe:
    """The recipe of the best trial, once all trials are done."""
    trials = read_lines(folder / f"{dataset}-{model}.trials.jsonl")
    if len(trials) < plan["search"]["trials"]:
        raise GraphjouleError(f"{model} on {dataset}: {len(trials)} of {plan['search']['trials']} trials are done.")
    counted = [trial for trial in trials if trial["value"] is not None]
    if not counted:
        raise GraphjouleError(f"{model} on {dataset}: no trial counts; the first says: {trials[0]['failure']}")
    best = chosen(counted) if plan["search"]["choice"] == "close" else max(counted, key=lambda trial: trial["value"])
    return with_settings(start(model, dataset, plan), best["params"])


def chosen(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The trial with the least tempered loss of those within one standard error of the best accuracy.

    So close, a few hundred validation nodes cannot tell accuracies apart, and the first search fitted them: its winners
    validated higher and tested lower than settings that nobody searched. The loss can still tell, and `auto` ranks its
    candidates by this rule since it was the better one on 35 other tasks (`graphjoule.tuning.halving`). Here label
    smoothing and sharpened views change how sure a network is, so the loss is that after a temperature of each run.
    """
    best = max(trials, key=lambda trial: trial["value"])
    least = best["value"] - standard_error(best["value"], best["judged"]["val_nodes"])
    close = [trial for trial in trials if trial["value"] >= least]
    return min(close, key=lambda trial: statistics.fmean(trial["judged"]["tempered_loss"]))


def _features(recipe: Recipe, task: Task) -> Features:
    return normalize_rows(task.features) if recipe.data.normalize_features else task.features


def energies(network: nn.Module, recipe: Recipe, task: Task) -> dict[str, Any]:
    """The energy of every layer on the task's device; of EGNN how many layers are within both limits, and by how much.

    A least slack below 1 says by what factor a limit is broken.
    """
    network.to(task.targets.device)  # `fit` returns its models on the CPU
    x = _features(recipe, task)
    watch = ["encoder", "convs.*"] if hasattr(network, "encoder") else ["convs.*"]
    trace = Trace.of(network, task.graph, (x, task.graph), ["energy"], watch=watch)
    found: dict[str, Any] = {"energies": [float(f"{row.energy:.6g}") for row in trace.layers]}
    if recipe.model.name == "egnn":
        held = limits(trace, recipe.model.options["c_min"], recipe.model.options["c_max"])
        slacks = [min(layer.lower_slack, layer.upper_slack) for layer in held.layers]
        found |= {"layers_within": sum(s >= 1 - 1e-6 for s in slacks), "least_slack": float(f"{min(slacks):.4g}")}
    return found


@torch.no_grad()
def tempered_loss(network: nn.Module, recipe: Recipe, task: Task, nodes: torch.Tensor) -> float:
    """The mean log loss of some nodes after the temperature that makes it least: a network may be too sure."""
    network.to(task.targets.device)
    scores, targets = network.eval()(_features(recipe, task), task.graph)[nodes].double(), task.targets[nodes]
    temperature = fit_temperature(task.objective, scores, targets) or 1.0
    return float(nn.functional.cross_entropy(scores / temperature, targets))


class EarlyEnd:
    """Ends a trial early whose best accuracy so far is below the median of those before it.

    Args:
        epoch: when it is asked.
        earlier: what was the best of each earlier trial by then; fewer than `FEWEST` end nothing.
    """

    FEWEST = 4

    def __init__(self, epoch: int, earlier: Sequence[float]) -> None:
        self.epoch, self.best, self.is_behind = epoch, 0.0, False
        self._bar = statistics.median(earlier) if len(earlier) >= self.FEWEST else 0.0

    def __call__(self, progress: Progress) -> None:
        """Look at an epoch; on a GPU about every tenth is shown."""
        if progress.epoch <= self.epoch:
            self.best = max(self.best, progress.val.get("accuracy", 0.0))
        self.is_behind = progress.epoch >= self.epoch and self.best < self._bar


def judge(
    search: Search,
    task: ValidationTask,
    device: str,
    early: EarlyEnd,
    changes: Mapping[str, Any],
    on_progress: Callable[[Progress], None],
) -> Evaluation:
    """Train a trial of the second round; it has no value if it is behind or breaks a limit of its energies."""
    begin = time.monotonic()
    recipe = with_settings(search.recipe, changes)
    try:
        result = fit(
            recipe,
            task,
            search.seeds,
            device=device,
            on_progress=early,
            should_stop=lambda: early.is_behind,
        )
    except GraphjouleError as error:
        return Evaluation(None, str(error), {})
    except TrainingInterrupted as stopped:
        facts = {"seconds": round(time.monotonic() - begin, 3), "judged": {"early": early.best}}
        return Evaluation(None, f"behind: {stopped}", facts)
    records, on_device = result.records, task.to(resolve_device(device))
    judged: dict[str, Any] = {"early": early.best, "epochs": [record.epochs_run for record in records]}
    facts = {"judged": judged}
    failure = next((record.failure for record in records if record.failure), None)
    if failure is None:
        splits = [on_device.split(recipe.data.split, seed) for seed in search.seeds]
        pairs = list(zip(result.models, splits, strict=True))
        judged["val_nodes"] = sum(len(split.val) for split in {split.sha256: split for split in splits}.values())
        judged["val_accuracy"] = [round(record.val["accuracy"], 6) for record in records]
        judged["tempered_loss"] = [round(tempered_loss(net, recipe, on_device, s.val), 6) for net, s in pairs]
        facts["metrics"] = {f"val_{name}": [r.val[name] for r in records] for name in ("loss", "accuracy")}
        if recipe.model.name == "egnn":
            held = [energies(network, recipe, on_device) for network in result.models]
            judged |= {name: [each[name] for each in held] for name in ("layers_within", "least_slack")}
            if (within := min(judged["layers_within"])) < recipe.model.num_layers:
                failure = f"outside its limits: {within} of {recipe.model.num_layers} layers are within them"
    facts["seconds"] = round(time.monotonic() - begin, 3)
    value = None if failure else statistics.fmean(record.val["accuracy"] for record in records)
    return Evaluation(value, failure, facts)


# The parts; each returns a sentence.


def search(plan: Plan, dataset: str, model: str, folder: Path, device: str, end: float, state: Path) -> str:
    """Try settings until the budget or the time is spent."""
    budget, name, task = plan["search"], f"{dataset}-{model}", load_task(dataset)
    state.mkdir(parents=True, exist_ok=True)
    recipe = start(model, dataset, plan).with_split_of(task)
    ranges = fit_ranges(recipe, parse_ranges(ranges_of(model, dataset, plan)))
    sought = Search(recipe, ranges, tuple(budget["seeds"]), budget["seed"])
    seen = hide_test(task, recipe, sought.seeds)
    storage = sought.open(StorageRef(str(state / f"{name}.journal"), "search"), seen)

    def judged() -> dict[int, dict[str, Any]]:
        return {t.user_attrs["slot"]: t.user_attrs["judged"] for t in storage.trials() if "judged" in t.user_attrs}

    def try_one(changes: Mapping[str, Any], on_progress: Callable[[Progress], None]) -> Evaluation:
        if "early_end" not in budget:
            return evaluate(sought, seen, device, changes, on_progress)
        early = EarlyEnd(budget["early_end"], [each["early"] for each in judged().values()])
        return judge(sought, seen, device, early, changes, on_progress)

    work(sought.queue(storage, budget["trials"]), try_one, timeout=max(0.0, end - time.time()))
    found, more = read_outcome(storage, recipe), judged()
    fields = ("slot", "params", "value", "metrics", "seconds", "failure")
    path = folder / f"{name}.trials.jsonl"
    known = {line["slot"]: line for line in read_lines(path)}  # by the code of an earlier call
    made_by = {"device": describe_device(resolve_device(device)), "versions": versions()}
    rows = [
        known.get(row.slot)
        or {field: getattr(row, field) for field in fields}
        | ({"judged": more[row.slot]} if row.slot in more else {})
        | made_by
        for row in found.rows
    ]
    lines = [json.dumps(row, default=dict) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    best = f", best {100 * found.best.value:.2f}" if found.ranked else ""
    return f"{len(lines)} of {budget['trials']} trials{best}"


def winners(plan: Plan, dataset: str, model: str, folder: Path, device: str, end: float, state: Path) -> str:
    """Train the best settings with fresh seeds, and measure every layer."""
    path = folder / f"{dataset}-{model}.runs.jsonl.gz"
    if path.exists():
        return "done before"
    recipe, task, protocol = winner(plan, folder, dataset, model), load_task(dataset), Protocol(**plan["protocol"])
    cited = protocol.cited("tuned", {})
    (folder / f"tuned-{protocol.sha256[:8]}.protocol.json").write_text(protocol.text("tuned"), encoding="utf-8")
    result = fit(recipe, task, plan["winner"]["seeds"], device=device, protocol=cited)
    task = task.to(resolve_device(device))
    x = _features(recipe, task)
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


def ablation(plan: Plan, dataset: str, model: str, folder: Path, device: str, end: float, state: Path) -> str:
    """The best settings without one ingredient, and the published ones with consistency."""
    path = folder / f"{dataset}-{model}.ablation.jsonl"
    done = {line["variant"] for line in read_lines(path)}
    best, task = winner(plan, folder, dataset, model), load_task(dataset)
    for variant, changes in plan["ablation"]["variants"].items():
        recipe = start(model, dataset, plan) if changes.get("published") else best
        plain = {key: None if value == "none" else value for key, value in changes.items() if key != "published"}
        recipe = recipe.with_settings(plain) if plain else recipe
        if variant in done or recipe == best or time.time() > end:  # what changes nothing is the winner again
            continue
        records = fit(recipe, task, plan["winner"]["seeds"], device=device).records
        scores = {part: [round(getattr(r, part)["accuracy"], 5) for r in records] for part in ("val", "test")}
        line = {"variant": variant, **scores, "epochs": [record.epochs_run for record in records]}
        line |= {"device": describe_device(resolve_device(device)), "versions": versions()}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        done.add(variant)
    return f"{len(done)} of {len(plan['ablation']['variants'])} variants"


def cost(plan: Plan, dataset: str, model: str, folder: Path, device: str, end: float, state: Path) -> str:
    """Time an epoch of ten runs with views beside the plain epoch, in turns; on a GPU also in bfloat16."""
    where = resolve_device(device)
    task, plain = load_task(dataset).to(where), load_recipe(model, dataset, plan["layers"][model])
    seeds = plan["winner"]["seeds"]
    splits = [task.split(plain.data.split, seed) for seed in seeds]

    def build(views: int, recipe: Recipe) -> CapturedStep:
        terms = {"consistency": ConsistencySettings(views=views)} if views > 1 else {}
        batch = SeedBatch(architecture_of(recipe), recipe, task, seeds, splits, terms)
        return CapturedStep(batch.train_epoch, where)

    sides = {f"{views} views": partial(build, views, plain) for views in (1, 2, 4)}
    if where.type == "cuda" and "activations" in plain.model.options:
        half = plain.with_settings({"model.activations": "bfloat16"})
        sides |= {f"{views} views, bfloat16": partial(build, views, half) for views in (1, 4)}
    timed = {name: Side(name, make) for name, make in sides.items()}
    measure_sides(list(timed.values()), where, min(10.0, max(0.0, end - time.time())))
    line: dict[str, Any] = {"dataset": dataset, "model": model, "layers": plain.model.num_layers, "runs": len(seeds)}
    for name, side in timed.items():
        ratio = paired_ratio(side, timed["1 views"])
        line[name] = {
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


def _unit(
    part: str, round_: str, folder: Path, state: Path, device: str, end: float, threads: int, cell: tuple[str, str]
) -> str:
    torch.set_num_threads(threads)
    begin = time.time()
    try:
        said = PARTS[part](PLANS[round_], *cell, folder, device, end, state) if begin < end else "no time left"
    except (GraphjouleError, RuntimeError) as error:  # the others on this GPU train on
        said = str(error)[:300]
    return f"{cell[1]} on {cell[0]}: {said}, {time.time() - begin:.0f} s"


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--round", default="first", choices=PLANS)
    parser.add_argument("--datasets", nargs="+", default=DATASETS, choices=DATASETS)
    parser.add_argument("--models", nargs="+", default=list(PLAN["layers"]), choices=list(PLAN["layers"]))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the device")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after these nothing more is begun")
    parser.add_argument("--folder", type=Path, help="of the records; by default that of the round")
    parser.add_argument("--state", type=Path, help="of the journals of searches that are not done")
    args = parser.parse_args()
    folder = args.folder or FOLDERS[args.round]
    folder.mkdir(parents=True, exist_ok=True)
    end = min(time.time() + args.seconds, 1e12)
    models = PLANS[args.round]["ablation"]["models"] if args.part == "ablation" else args.models
    cells = [(dataset, model) for dataset in args.datasets for model in models]
    threads = max(1, torch.get_num_threads() // args.workers)
    state = args.state or folder / "journals"
    unit = partial(_unit, args.part, args.round, folder, state, args.device, end, threads)
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        for said in pool.imap_unordered(unit, cells):
            print(said, flush=True)


if __name__ == "__main__":
    main()
