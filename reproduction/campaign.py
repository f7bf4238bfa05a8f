"""Everything that the pages say about the paper, trained again by one command, under one commit and one protocol.

    python -m reproduction.campaign --plan                      # what is left and how long it takes, trains nothing
    python -m reproduction.campaign --device cuda --seconds 540 # goes on where the last call ended, for nine minutes
    python -m reproduction.campaign --save DONE.tar.gz          # what is done, without models, to go on elsewhere
    python -m reproduction.campaign --load DONE.tar.gz
    python -m reproduction.campaign --collect NEW               # packs the records for reproduction/results/

All runs go to runs/campaign/. Several processes share one GPU; killed or out of time, the same command goes on. Exit
code 0 says that nothing is left, 3 that something is.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from graphjoule import GraphjouleError, Task, load_task
from graphjoule.studies import (
    STUDIES,
    Cell,
    Job,
    Pace,
    Plan,
    Study,
    Variant,
    find_study,
    plan_study,
    read_collection,
    record_files,
    work,
)
from graphjoule.training import Record, TrainingInterrupted, describe_device, in_words, read_records, resolve_device
from graphjoule.tuning import hide_test

ROOT = Path(__file__).resolve().parent.parent
OUT = Path("runs/campaign")
DATASETS = ["cora", "pubmed", "physics"]
SEEDS = tuple(range(10))
SEARCH = ROOT / "reproduction/studies/constraint-search.toml"
SEARCH_SEEDS = tuple(range(10, 15))
_DEEP = 64
"""Layers beyond which half of the seeds are trained: a run of a thousand layers costs as much as forty of 16."""


@dataclass(frozen=True)
class Step:
    """A part of a study.

    Attributes:
        name: of the step, to choose it by.
        study: its name.
        datasets: those of it.
        models: those of it; None is all of the study's.
        layers: those of it; None is all of the study's.
        settings: another reading of the paper.
    """

    name: str
    study: str
    datasets: Sequence[str] = tuple(DATASETS)
    models: Sequence[str] | None = None
    layers: Sequence[int] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def cells(self) -> list[Cell]:
        """What is trained."""
        return STUDIES[self.study].cells(self.datasets, self.models, self.layers, self.settings)


STEPS = (
    Step("table1", "table1"),
    Step("table2", "table2"),
    Step("figure1", "figure1", ["cora", "pubmed"]),
    Step("figure2", "figure2", ["cora"]),
    Step("figure3", "figure3", ["pubmed"]),
    Step("figure4", "figure4", ["physics"]),
    # The other rule for all models and depths of Pubmed, where the rule decides; and one split of Physics for all runs.
    Step("table1-by-accuracy", "table1", ["pubmed"], settings={"select_on": "accuracy"}),
    Step("table1-one-split", "table1", ["physics"], settings={"split_seed": 1}),
    Step("depth", "depth", layers=[2, 4, 8, 16, 32, 64]),
    Step("depth-by-accuracy", "depth", ["pubmed"], layers=[2, 4, 8, 16, 32, 64], settings={"select_on": "accuracy"}),
    Step("constraint", "constraint"),
    # What costs most comes last, and of it what is dead.
    Step("depth-deep", "depth", models=["egnn", "gcnii"], layers=[128, 256, 512, 1024]),
    Step("depth-deep-gcn", "depth", models=["gcn"], layers=[128, 256, 512, 1024]),
)


def main() -> None:
    """Plan, train or collect."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=540.0, help="of wall time, then the state is saved")
    parser.add_argument("--workers", type=int, default=4, help="processes that share the device")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--pace", default="NVIDIA H200", help="device whose records --plan judges the time by")
    parser.add_argument("--steps", help=f"some of {', '.join(step.name for step in STEPS)}")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--save", type=Path, metavar="FILE")
    parser.add_argument("--load", type=Path, metavar="FILE")
    parser.add_argument("--collect", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    names = args.steps.split(",") if args.steps else None
    if unknown := set(names or ()) - {step.name for step in STEPS}:
        parser.error(f"--steps has {', '.join(sorted(unknown))}; expected some of {', '.join(s.name for s in STEPS)}")
    try:
        if args.plan:
            print(plan_text(args.out, args.pace, names))
        elif args.save:
            save(args.out, args.save)
        elif args.load:
            with tarfile.open(args.load) as archive:
                archive.extractall(args.out, filter="data")
        elif args.collect:
            collect(args.out, args.collect)
        elif args.workers > 1:
            sys.exit(share(args))
        else:
            deadline = time.monotonic() + args.seconds
            sys.exit(train(args.out, args.device, lambda: time.monotonic() > deadline, names))
    except GraphjouleError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def share(args: argparse.Namespace) -> int:
    """Let several processes train what is left; the exit code says whether something still is."""
    print(plan_text(args.out, describe_device(resolve_device(args.device)), args.steps and args.steps.split(",")))
    words = ["--device", args.device, "--seconds", str(args.seconds), "--workers", "1", "--out", str(args.out)]
    words += ["--steps", args.steps] if args.steps else []
    command = [sys.executable, "-m", "reproduction.campaign", *words]
    workers = [subprocess.Popen(command) for _ in range(args.workers)]
    return max(worker.wait() for worker in workers)


# What is left.


@cache
def load(dataset: str) -> Task:
    """A dataset, read once."""
    return load_task(dataset)


@cache
def load_without_test(dataset: str) -> Task:
    """The dataset of the search, with the labels of its test nodes hidden."""
    return hide_test(load(dataset), search_study().cells()[0].recipe, SEARCH_SEEDS)


@cache
def search_study() -> Study:
    """The search for the settings of both rivals."""
    return find_study(str(SEARCH))


def search_plan(out: Path) -> Plan:
    """The runs of the search that are left."""
    study = search_study()
    protocol = study.protocol.cited(study.name, {})
    return plan_study(study.cells(), SEARCH_SEEDS, out / "search", load_without_test, protocol=protocol)


def winners(out: Path) -> dict[str, Variant]:
    """The best setting of each rival by its mean validation accuracy; nothing while the search is not done."""
    if any(job.missing() for job in search_plan(out).jobs):
        return {}
    recorded, found = read_collection([out / "search"]), dict[str, tuple[float, Variant]]()
    for cell in search_study().cells():
        runs = recorded.runs(cell.recipe, SEARCH_SEEDS)
        if all(run.status == "done" and not run.test for run in runs):
            score = statistics.fmean(run.val["accuracy"] or 0.0 for run in runs)
            best = found.get(cell.variant.component)
            if best is None or score > best[0]:
                found[cell.variant.component] = score, cell.variant
    return {rival: variant for rival, (_, variant) in found.items()}


def jobs_by_step(out: Path, names: Sequence[str] | None = None) -> dict[str, list[Job]]:
    """The recipes of all steps, each in the first step that has it; the constraint's once its search is done."""
    jobs: dict[Path, Job] = {}
    steps: dict[Path, str] = {}
    for step in STEPS:
        if names is not None and step.name not in names:
            continue
        study, cells = STUDIES[step.study], step.cells()
        if step.study == "constraint":
            best = winners(out)
            if not best:
                continue
            cells = [_with_winner(cell, best) for cell in cells]
        protocol = study.protocol.cited(study.name, step.settings)
        is_deep = step.layers is not None and min(step.layers) > _DEEP
        seeds = SEEDS[: len(SEEDS) // 2] if is_deep else SEEDS
        options: dict[str, Any] = {"has_energies": study.has_energies, "protocol": protocol}
        for job in plan_study(cells, seeds, out / "studies", load, **options).jobs:
            known = jobs.get(job.folder.path)
            has_energies = job.has_energies or (known is not None and known.has_energies)
            jobs[job.folder.path] = replace(known or job, has_energies=has_energies)
            steps.setdefault(job.folder.path, step.name)
    return {name: [job for path, job in jobs.items() if steps[path] == name] for name in dict.fromkeys(steps.values())}


def campaign_plan(out: Path, names: Sequence[str] | None = None) -> Plan:
    """All runs of all steps that are left."""
    jobs = [job for several in jobs_by_step(out, names).values() for job in several]
    num_runs = sum(len(job.seeds) for job in jobs)
    return Plan(jobs, num_runs, num_runs - sum(len(job.missing()) for job in jobs))


def _with_winner(cell: Cell, best: dict[str, Variant]) -> Cell:
    found = best.get(cell.variant.value)
    return cell if found is None else replace(cell, variant=replace_settings(cell.variant, found))


def replace_settings(variant: Variant, found: Variant) -> Variant:
    """A variant of the study with the settings that won."""
    return variant.model_copy(update={"settings": found.settings})


def plan_text(out: Path, device: str, names: Sequence[str] | None = None) -> str:
    """What is left and about how long it takes on a device, by the records of earlier runs on it."""
    pace = Pace(device, [record for record in earlier_records(out) if not was_capped(record)])
    steps = {"search": search_plan(out).jobs, **jobs_by_step(out, names)}
    estimate = pace.estimate([job for jobs in steps.values() for job in jobs])
    lines = [
        f"{estimate.num_runs} runs are left; by the records of earlier runs on {device}: {estimate} of runs, which "
        "four processes that shared an H200 did 3.5 times as fast."
    ]
    for name, jobs in steps.items():
        left = pace.estimate(jobs)
        lines.append(f"- {name}: {left.num_runs} runs, {in_words(left.seconds)} of runs")
    if not winners(out):
        lines.append("- constraint: its cells are planned once the search is done")
    return "\n".join(lines)


def earlier_records(out: Path) -> list[Record]:
    """Runs to judge times by: those of the pages, and those of the campaign so far."""
    paths = [ROOT / "reproduction/results", *([out] if out.exists() else [])]
    return [record for path in record_files(paths) for record in read_records(path)]


def was_capped(record: Record) -> bool:
    """Whether a deep run ended at a limit of its epochs that the campaign does not have."""
    return record.num_layers > _DEEP and record.epochs_run in (200, 600)


# Training and packing.


def train(out: Path, device: str, should_stop: Callable[[], bool], names: Sequence[str] | None = None) -> int:
    """Train what is left until it is done or the time is up; 0 if nothing is left, else 3."""
    out.mkdir(parents=True, exist_ok=True)
    for study in (*(STUDIES[step.study] for step in STEPS), search_study()):
        (out / f"{study.name}-{study.protocol.sha256[:8]}.protocol.json").write_text(study.protocol.text(study.name))
    refused: dict[str, str] = {}
    try:
        work(search_plan(out), load_without_test, device=device, should_stop=should_stop)
        refused = work(campaign_plan(out, names), load, device=device, should_stop=should_stop)
    except TrainingInterrupted:
        pass
    for name, why in refused.items():
        print(f"{name} could not be finished: {why}", file=sys.stderr)
    plan = campaign_plan(out, names)
    left = sum(len(job.missing()) + job.lacks_energies() for job in plan.jobs)
    print(f"{left} runs or energies are left." if left or refused else "Nothing is left.")
    return 3 if left or not winners(out) else 0


def save(out: Path, file: Path) -> None:
    """Write everything that is done to an archive, without models; a recipe that is half done begins again."""
    with tarfile.open(file, "w:gz") as archive:
        folders = [job.folder.path for job in (*search_plan(out).jobs, *campaign_plan(out).jobs) if job.is_done()]
        files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix != ".safetensors"]
        for path in [*sorted(out.glob("*.protocol.json")), *files]:
            if path.is_file():
                archive.add(path, path.relative_to(out).as_posix())
    print(f"{file}: {len(folders)} recipes are done.")


def collect(out: Path, folder: Path) -> None:
    """Pack the records: a file for each study, model and dataset, with energies and protocols beside them."""
    files: dict[str, list[bytes]] = {}
    for path in record_files([out]):
        for line, record in zip(path.read_bytes().splitlines(), read_records(path), strict=True):
            study = (record.protocol or "none").partition(":")[0]
            files.setdefault(f"{study}/{record.model}-{record.dataset}.jsonl.gz", []).append(line)
        if (energies := path.parent / "energies.json").is_file():
            files.setdefault(f"{study}/energies-{record.dataset}.jsonl.gz", []).append(energies.read_bytes().strip())
    for protocol in sorted(out.glob("*.protocol.json")):
        files[f"protocols/{protocol.name}"] = [protocol.read_bytes().rstrip(b"\n")]
    for name, lines in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = b"\n".join(sorted(lines) if name.endswith(".gz") else lines) + b"\n"
        path.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
        print(f"{path}: {len(lines)}")
    for rival, variant in winners(out).items():
        print(f"{rival}: {variant.settings}")


if __name__ == "__main__":
    main()
