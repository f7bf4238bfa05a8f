"""Everything that the pages say about the paper, trained again by one command, under one commit and one protocol.

    python -m reproduction.campaign --pin runs/pinned           # the code that all of it is trained with, as a copy
    python -m reproduction.campaign --code runs/pinned --plan   # what is left and how long it takes, trains nothing
    python -m reproduction.campaign --code runs/pinned --device cuda --steps table1 --seconds 540
    python -m reproduction.campaign --code runs/pinned --save runs/done   # what is done since, in files of 15 MiB
    python -m reproduction.campaign --load runs/done-1.tar.gz             # on another machine, or in another folder
    python -m reproduction.campaign --code runs/pinned --collect   # packs the records into reproduction/results/
    python -m reproduction.campaign --compare runs/again        # are its runs those of runs/campaign/, to the bit?

All runs go to runs/campaign/. Several processes share one GPU; killed or out of time, the same command goes on. Exit
code 0 says that nothing is left, 3 that something is.

**One commit.** The project moves on between two calls, its campaign does not: `--pin` copies the package and the
studies as they are in a commit, and this file, which plans and packs, as it is now. `--code` lets that copy do the
work, and every record has its commit and the hash of its files. The first `--pin` takes the commit that is checked out;
once there was a call, it takes that one's, which reproduction/results/campaign/ keeps (or, if a rewritten history has
lost it, a commit with the same package). A record of other code is not
counted as done, and `graphjoule verify` compares the hash with the commit.

**Over several machines.** `--collect` puts a study that is whole in its place, instead of its old records, and what is
done of the others in reproduction/results/unfinished/. The next call counts both as done, so nothing but committed
files has to be kept.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from graphjoule import GraphjouleError, Task, load_task
from graphjoule.studies import (
    STUDIES,
    Cell,
    Collection,
    Job,
    Pace,
    Plan,
    Study,
    Variant,
    differences,
    find_study,
    plan_study,
    read_collection,
    read_energies,
    record_files,
    work,
)
from graphjoule.training import (
    Record,
    TrainingInterrupted,
    describe_device,
    in_words,
    read_records,
    resolve_device,
    source_sha256,
    versions,
)
from graphjoule.tuning import hide_test

ROOT = Path(__file__).resolve().parent.parent
OUT = Path("runs/campaign")
RESULTS = Path("reproduction/results")
UNFINISHED = "unfinished"
CALLS = "calls.jsonl"
"""A line for each call that trained: when, how long, what, with how many processes."""
PINNED = (
    "pyproject.toml",
    "src/graphjoule",
    "reproduction/__init__.py",
    "reproduction/campaign.py",
    "reproduction/studies",
)
"""What is copied from a commit: all that a record depends on."""
MOST_BYTES = 15 * 2**20
DATASETS = ["cora", "pubmed", "physics"]
SEARCH = ROOT / "reproduction/studies/constraint-search.toml"
SEARCH_SEEDS = tuple(range(10, 15))


def study_of(name: str) -> Study:
    """The study with the protocol of the campaign: a file in reproduction/studies/ comes before the package's own."""
    file = ROOT / f"reproduction/studies/{name}.toml"
    return find_study(str(file)) if file.is_file() else STUDIES[name]


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
        num_seeds: runs of a cell. A cell that an earlier step has too keeps the runs of both.
    """

    name: str
    study: str
    datasets: Sequence[str] = tuple(DATASETS)
    models: Sequence[str] | None = None
    layers: Sequence[int] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    num_seeds: int = 10

    def cells(self) -> list[Cell]:
        """What is trained."""
        return study_of(self.study).cells(self.datasets, self.models, self.layers, self.settings)


_TO_64 = [2, 4, 8, 16, 32, 64]
_BEYOND = [256, 1024]
STEPS = (
    Step("table1", "table1"),
    Step("table2", "table2"),
    # The other rule for all models and depths of Pubmed, where the rule decides.
    Step("table1-by-accuracy", "table1", ["pubmed"], settings={"select_on": "accuracy"}),
    Step("figure1", "figure1", ["cora", "pubmed"]),
    Step("depth", "depth", layers=_TO_64),
    Step("depth-by-accuracy", "depth", ["pubmed"], layers=_TO_64, settings={"select_on": "accuracy"}),
    # Sweeps have no number of the paper's to be held against: half of the seeds.
    Step("figure2", "figure2", ["cora"], num_seeds=5),
    Step("figure3", "figure3", ["pubmed"], num_seeds=5),
    Step("figure4", "figure4", ["physics"], num_seeds=5),
    Step("search", "constraint-search", ["cora"]),
    Step("constraint", "constraint", num_seeds=5),
    Step("depth-beyond", "depth", ["cora", "pubmed"], ["egnn", "gcnii"], _BEYOND, num_seeds=5),
    Step("depth-beyond-physics", "depth", ["physics"], ["egnn", "gcnii"], _BEYOND, num_seeds=3),
    Step("table1-one-split", "table1", ["physics"], ["egnn", "gcnii", "gcn"], settings={"split_seed": 1}),
    Step("depth-beyond-gcn", "depth", models=["gcn"], layers=_BEYOND, num_seeds=3),
)
"""Whole tables first, what costs most and is dead last."""


def main() -> None:
    """Plan, train, pack or unpack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--code", type=Path, metavar="FOLDER", help="let the code that --pin left there do it")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=540.0, help="of wall time, then the state is saved")
    parser.add_argument("--workers", type=int, default=6, help="processes that share the device")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="records that count as done if this code made them"
    )
    parser.add_argument("--pace", default="NVIDIA H200", help="device whose records --plan judges the time by")
    parser.add_argument("--steps", help=f"some of {', '.join(step.name for step in STEPS)}")
    parser.add_argument("--pin", type=Path, metavar="FOLDER")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--save", type=Path, metavar="NAME", help="writes NAME-1.tar.gz and so on")
    parser.add_argument("--load", type=Path, metavar="FILE")
    parser.add_argument("--collect", action="store_true", help="into --results")
    parser.add_argument("--compare", type=Path, metavar="FOLDER", help="another --out, whose runs should be the same")
    args = parser.parse_args()
    names = args.steps.split(",") if args.steps else None
    if unknown := set(names or ()) - {step.name for step in STEPS}:
        parser.error(f"--steps has {', '.join(sorted(unknown))}; expected some of {', '.join(s.name for s in STEPS)}")
    try:
        if args.code:
            sys.exit(run_pinned(args.code, sys.argv[1:]))
        elif args.pin:
            pin(args.pin, args.out, args.results)
        elif args.save:
            save(args.out, args.save)
        elif args.load:
            with tarfile.open(args.load) as archive:
                archive.extractall(args.out, filter="data")
        elif args.collect:
            collect(args.out, args.results)
        elif args.compare:
            sys.exit(compare(args.out, args.compare))
        elif args.plan:
            restore(args.out, args.results)
            print(plan_text(args.out, args.results, args.pace, names))
        elif args.workers > 1:
            sys.exit(share(args))
        else:
            deadline = time.monotonic() + args.seconds
            sys.exit(train(args.out, args.device, lambda: time.monotonic() > deadline, names))
    except GraphjouleError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


# One commit.


def pin(folder: Path, out: Path, results: Path) -> None:
    """Copy the code of the campaign's commit: that of its calls so far, else the one that is checked out."""
    commits = {in_history(commit, out, results) for commit in {call["commit"] for call in calls(out, results)}}
    if len(commits) > 1:
        raise GraphjouleError(f"The calls of the campaign are of several commits: {', '.join(sorted(commits))}.")
    name = commits.pop() if commits else "HEAD"
    commit = subprocess.run(["git", "rev-parse", name], capture_output=True, text=True, check=False, cwd=ROOT)
    found = subprocess.run(["git", "archive", name, "--", *PINNED], capture_output=True, check=False, cwd=ROOT)
    if commit.returncode or found.returncode:
        raise GraphjouleError(f"git cannot give the files of {name}: {found.stderr.decode().strip()}")
    if folder.exists():
        shutil.rmtree(folder) if (folder / "COMMIT").is_file() else _refuse(folder)
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    shutil.copy(__file__, folder / "reproduction" / "campaign.py")  # it plans and packs; the package is what trains
    (folder / "COMMIT").write_text(commit.stdout)
    print(f"{folder}: the code of commit {commit.stdout.strip()}.")


def in_history(commit: str, out: Path, results: Path) -> str:
    """The commit, or, where a history that was written anew has lost it, the newest one with the same package.

    The hash of its files stands in the records that it made.
    """
    from graphjoule.training import (
        commit_of_source,
        source_of_commit,
    )  # pinned code, which also runs this, may lack them

    sources = {r.versions.get("source") for r in earlier_records(out, results) if r.versions.get("commit") == commit}
    if not sources or source_of_commit(commit) is not None:
        return commit
    found = next(filter(None, map(commit_of_source, sources)), None)
    if found is None:
        raise GraphjouleError(f"Commit {commit} of the campaign is not in the history, and no other has its files.")
    print(f"{commit[:12]} is not in the history; {found[:12]} has the same files.")
    return found


def _refuse(folder: Path) -> None:
    raise GraphjouleError(f"{folder} is there and no copy that --pin made; name another folder.")


def run_pinned(code: Path, words: Sequence[str]) -> int:
    """The same command by the code in a folder, on the files of this one; its exit code."""
    try:
        commit = (code / "COMMIT").read_text().strip()
    except OSError as error:
        raise GraphjouleError(f"{code} is no copy that --pin made; it has no file COMMIT.") from error
    place = list(words).index("--code") if "--code" in words else None
    rest = [word for word in words if not word.startswith("--code=")]
    if place is not None:
        del rest[place : place + 2]
    own = [str((code / part).resolve()) for part in ("src", ".")]
    paths = os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])  # libraries may be there
    # An empty folder first would be this project's own code: `-P` keeps the current folder out of the path.
    command = [sys.executable, "-P", "-m", "reproduction.campaign", *rest]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": paths, "GRAPHJOULE_COMMIT": commit}).returncode


def protocol_of(step: Step) -> str:
    """How the records of a step cite its protocol."""
    study = search_study() if step.name == "search" else study_of(step.study)
    return study.protocol.cited(study.name, step.settings)


def share(args: argparse.Namespace) -> int:
    """Let several processes train what is left; the exit code says whether something still is."""
    device = describe_device(resolve_device(args.device))
    names = args.steps.split(",") if args.steps else None
    restore(args.out, args.results)
    print(plan_text(args.out, args.results, device, names), flush=True)
    before, begun, clock = count_done(args.out, names), datetime.now(UTC), time.monotonic()
    words = ["--device", args.device, "--seconds", str(args.seconds), "--workers", "1", "--out", str(args.out)]
    words += ["--steps", args.steps] if args.steps else []
    command = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "reproduction.campaign", *words]
    workers = [subprocess.Popen(command) for _ in range(args.workers)]
    code = max(worker.wait() for worker in workers)
    line = {
        "begun": begun.isoformat(timespec="seconds"),
        "wall_seconds": round(time.monotonic() - clock, 1),
        "workers": args.workers,
        "device": device,
        "steps": names or [step.name for step in STEPS],
        "runs": count_done(args.out, names) - before,
        "commit": versions().get("commit", ""),
    }
    with (args.out / CALLS).open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"{line['runs']} runs in {in_words(line['wall_seconds'])}.")
    return code


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
    """The recipes of all steps, each in the first step that has it; the constraint's once its search is done.

    All steps have their say before some are chosen: energies need the models, so a recipe of table 1 that the study of
    depth has too is measured when it is trained.
    """
    jobs: dict[Path, Job] = {}
    steps: dict[Path, str] = {}
    for step in STEPS:
        if step.name == "search":
            continue
        study, cells = study_of(step.study), step.cells()
        if step.study == "constraint":
            best = winners(out)
            if not best:
                continue
            cells = [_with_winner(cell, best) for cell in cells]
        options: dict[str, Any] = {"has_energies": study.has_energies, "protocol": protocol_of(step)}
        for job in plan_study(cells, range(step.num_seeds), out / "studies", load, **options).jobs:
            known = jobs.get(job.folder.path, job)
            seeds = max(known.seeds, job.seeds, key=len)
            jobs[job.folder.path] = replace(known, has_energies=known.has_energies or job.has_energies, seeds=seeds)
            steps.setdefault(job.folder.path, step.name)
    found: dict[str, list[Job]] = {}
    for path, job in sorted(jobs.items(), key=lambda item: -_weight(item[1])):  # the longest first: no one waits for it
        found.setdefault(steps[path], []).append(job)
    order = [step.name for step in STEPS if step.name in found and (names is None or step.name in names)]
    return {name: found[name] for name in order}


def _weight(job: Job) -> float:
    """About how long a job takes, beside others."""
    nodes = {"cora": 1, "pubmed": 5, "physics": 8}.get(job.recipe.data.name, 1)
    return float(nodes * job.recipe.model.num_layers * len(job.seeds))


def campaign_plan(out: Path, names: Sequence[str] | None = None) -> Plan:
    """All runs of all steps that are left, without the search."""
    jobs = [job for several in jobs_by_step(out, names).values() for job in several]
    num_runs = sum(len(job.seeds) for job in jobs)
    return Plan(jobs, num_runs, num_runs - sum(len(job.missing()) for job in jobs))


def has_search(names: Sequence[str] | None) -> bool:
    """Whether the search is among the steps."""
    return names is None or "search" in names


def count_done(out: Path, names: Sequence[str] | None) -> int:
    """How many runs of some steps have a record."""
    plans = [campaign_plan(out, names), *([search_plan(out)] if has_search(names) else [])]
    return sum(plan.num_recorded for plan in plans)


def _with_winner(cell: Cell, best: dict[str, Variant]) -> Cell:
    found = best.get(cell.variant.value)
    return cell if found is None else replace(cell, variant=replace_settings(cell.variant, found))


def replace_settings(variant: Variant, found: Variant) -> Variant:
    """A variant of the study with the settings that won."""
    return variant.model_copy(update={"settings": found.settings})


def plan_text(out: Path, results: Path, device: str, names: Sequence[str] | None = None) -> str:
    """What is left and about how long it takes on a device, by the records of earlier runs on it."""
    pace = Pace(device, [record for record in earlier_records(out, results) if not was_capped(record)])
    steps = {**({"search": search_plan(out).jobs} if has_search(names) else {}), **jobs_by_step(out, names)}
    estimate = pace.estimate([job for jobs in steps.values() for job in jobs])
    lines = [
        f"{estimate.num_runs} runs are left; by the records of earlier runs on {device}: {estimate} of runs, which "
        "four processes that shared an H200 did 3.5 times as fast."
    ]
    for name, jobs in steps.items():
        left = pace.estimate(jobs)
        lines.append(f"- {name}: {left.num_runs} runs, {in_words(left.seconds)} of runs, {left.seconds / 210:.1f} min")
    if (names is None or "constraint" in names) and not winners(out):
        lines.append("- constraint: its cells are planned once the search is done")
    return "\n".join(lines)


def earlier_records(out: Path, results: Path) -> list[Record]:
    """Runs to judge times by: those of the pages, and those of the campaign so far."""
    paths = [path for path in (results, out) if path.exists()]
    return [record for path in record_files(paths) for record in read_records(path)]


def was_capped(record: Record) -> bool:
    """Whether a deep run ended at a limit of its epochs that the campaign does not have."""
    return record.num_layers > 64 and record.epochs_run in (200, 600)


# Training and packing.


def train(out: Path, device: str, should_stop: Callable[[], bool], names: Sequence[str] | None = None) -> int:
    """Train what is left until it is done or the time is up; 0 if nothing is left, else 3."""
    out.mkdir(parents=True, exist_ok=True)
    for study in (*(study_of(step.study) for step in STEPS if step.name != "search"), search_study()):
        (out / f"{study.name}-{study.protocol.sha256[:8]}.protocol.json").write_text(study.protocol.text(study.name))
    refused: dict[str, str] = {}
    try:
        if has_search(names):
            refused = work(search_plan(out), load_without_test, device=device, should_stop=should_stop)
        refused |= work(campaign_plan(out, names), load, device=device, should_stop=should_stop)
    except TrainingInterrupted:
        pass
    for name, why in refused.items():
        print(f"{name} could not be finished: {why}", file=sys.stderr)
    left = sum(len(job.missing()) + job.lacks_energies() for job in jobs_of(out, names))
    waits = has_search(names) and names is None and not winners(out)
    print(f"{left} runs or energies are left." if left or refused or waits else "Nothing is left.")
    return 3 if left or refused or waits else 0


def jobs_of(out: Path, names: Sequence[str] | None = None) -> list[Job]:
    """Everything there is to do, with the search."""
    return [*(search_plan(out).jobs if has_search(names) else []), *campaign_plan(out, names).jobs]


def save(out: Path, name: Path) -> None:
    """Write what is done, and in no committed file, to archives, without models; what is half done begins again."""
    jobs = [job for job in jobs_of(out) if job.is_done() and job.folder.card_path.read_text() != RESTORED]
    files = [path for job in jobs for path in sorted(job.folder.path.rglob("*")) if path.suffix != ".safetensors"]
    files = [
        path for path in [*sorted(out.glob("*.protocol.json")), *sorted(out.glob(CALLS)), *files] if path.is_file()
    ]
    number, written, archive = 0, MOST_BYTES, None
    for path in files:
        packed = len(gzip.compress(path.read_bytes(), 1))
        if archive is None or written + packed > MOST_BYTES:
            number, written = number + 1, 0
            if archive is not None:
                archive.close()
            archive = tarfile.open(name.with_name(f"{name.name}-{number}.tar.gz"), "w:gz")  # noqa: SIM115
        archive.add(path, path.relative_to(out).as_posix())
        written += packed
    if archive is not None:
        archive.close()
    print(f"{name}: {len(jobs)} recipes are done, in {number} files.")


RESTORED = "Its records are among the committed ones.\n"
"""The card of a recipe that an earlier call finished elsewhere."""


def restore(out: Path, results: Path) -> None:
    """Count recipes as done whose records, and energies if they have some, are in `results` and by this very code."""
    source, cited = source_sha256(), {protocol_of(step) for step in STEPS}
    runs: dict[str, dict[int, bytes]] = {}
    energies: dict[str, bytes] = {}
    for path in record_files([results]) if results.exists() else ():
        for line, record in zip(_lines(path), read_records(path), strict=True):
            if record.versions.get("source") == source and record.protocol in cited:
                runs.setdefault(fingerprint(record), {})[record.seed] = line
    for path in sorted(results.rglob("energies-*.jsonl.gz")):
        for line, found in zip(_lines(path), read_energies([path]), strict=True):
            if found.versions.get("source") == source:
                energies[found.resolved.fingerprint()] = line
    num = 0
    for several in (
        search_plan(out).jobs,
        lambda: campaign_plan(out).jobs,
    ):  # the second needs the winners of the first
        for job in several() if callable(several) else several:
            key = job.recipe.fingerprint()
            has_all = set(job.seeds) <= runs.get(key, {}).keys() and (not job.has_energies or key in energies)
            if has_all and not job.folder.path.exists():
                job.folder.path.mkdir(parents=True)
                job.folder.records_path.write_bytes(b"".join(runs[key][seed] + b"\n" for seed in job.seeds))
                if job.has_energies:
                    job.energies_path.write_bytes(energies[key] + b"\n")
                job.folder.card_path.write_text(RESTORED)
                num += 1
    if num:
        print(f"{num} recipes are done by the records in {results}.")


def fingerprint(record: Record) -> str:
    """Of the settings of a record; nothing where this version does not know them."""
    return "".join(recipe.fingerprint() for recipe in Collection([record]).recipes())


def _lines(path: Path) -> list[bytes]:
    """The whole lines of a file of records or energies, as they are; one that a kill has torn is none."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [line for line in content.splitlines() if line.startswith(b"{") and line.endswith(b"}")]


def collect(out: Path, results: Path) -> None:
    """Pack what is done: whole studies in the place of their old records, what is done of the others beside them."""
    restore(out, results)
    done, left = dict[Path, list[Job]](), set[Path]()
    for job in jobs_of(out):
        done.setdefault(_place(job), []).append(job) if job.is_done() else left.add(_place(job))
    if not winners(out):
        left.add(Path("constraint"))
    shutil.rmtree(results / UNFINISHED, ignore_errors=True)
    whole = {place: jobs for place, jobs in done.items() if place not in left}
    for place in whole:
        for old in _old_files(results / place):
            old.unlink()
    judged = (jobs for place, jobs in whole.items() if place.name != SEARCH.stem)  # a search has seeds of its own
    _drop_superseded(results, {job.recipe.fingerprint() for jobs in judged for job in jobs})
    for place, jobs in done.items():
        folder = results / place if place in whole else results / UNFINISHED / place
        _write_lines(folder, jobs)
        print(f"{folder}: {sum(len(job.seeds) for job in jobs)} runs{'' if place in whole else ', more are left'}")
    for protocol in sorted(out.glob("*.protocol.json")):
        (results / "protocols").mkdir(parents=True, exist_ok=True)
        shutil.copy(protocol, results / "protocols" / protocol.name)
    _write_calls(out, results, map(str, whole))
    for rival, variant in winners(out).items():
        print(f"{rival}: {variant.settings}")


def compare(out: Path, again: Path) -> int:
    """Say which runs of two folders are the same to the bit, and from which epoch the others differ; 1 if some do."""
    first, second = ({record.identity: record for record in earlier_records(path, path)} for path in (out, again))
    both = [(first[run], second[run]) for run in first if run in second]
    same = [one.curve == other.curve and not differences(one, other) for one, other in both]
    print(f"{len(both)} runs are in both, {sum(same)} are the same to the bit.")
    for (one, other), is_same in zip(both, same, strict=True):
        if not is_same:
            pairs = zip(zip(*one.curve.values(), strict=True), zip(*other.curve.values(), strict=True), strict=False)
            epoch = next((number for number, (a, b) in enumerate(pairs) if a != b), "the last")
            at_once = "" if one.runs_at_once == other.runs_at_once else ", with other numbers of runs at once"
            named = f"{one.model}, {one.num_layers} layers, {one.dataset}, seed {one.seed}"
            print(f"- {named}: from epoch {epoch} on{at_once}")
    return 0 if all(same) and both else 1


def _drop_superseded(results: Path, recipes: set[str]) -> None:
    """Take out of all studies' files the older records and energies of recipes that are whole now: a run has one."""
    folders = [folder for name in (*STUDIES, "protocols") if (folder := results / name).exists()]
    found = {path: [fingerprint(record) for record in read_records(path)] for path in record_files(folders)}
    for path in (path for folder in folders for path in sorted(folder.rglob("energies-*.jsonl.gz"))):
        found[path] = [energies.resolved.fingerprint() for energies in read_energies([path])]
    for path, keys in found.items():
        lines = _lines(path)
        kept = [line for line, key in zip(lines, keys, strict=True) if key not in recipes]
        if not kept:
            path.unlink()
        elif len(kept) < len(lines):
            content = b"\n".join(kept) + b"\n"
            path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _place(job: Job) -> Path:
    """The folder of a study's records; another reading has one of its own below it, and is whole by itself."""
    cited, _, changed = (job.protocol or "").partition(", but with ")
    study = Path(cited.partition(":")[0])
    return study / "readings" / re.sub(r"[^\w.]+", "-", changed) if changed else study


def _old_files(folder: Path) -> list[Path]:
    """The records and energies of a study's folder; what else lies there, and below, stays."""
    records = [path for path in record_files([folder]) if path.parent == folder] if folder.exists() else []
    energies = [*folder.glob("energies-*.jsonl.gz"), *(folder.glob("*.json") if folder.name == "figure1" else ())]
    return list(dict.fromkeys([*records, *energies, *folder.glob("time.json")]))


def _write_lines(folder: Path, jobs: Iterable[Job]) -> None:
    files: dict[str, list[bytes]] = {}
    for job in jobs:
        name = f"{job.recipe.model.name}-{job.recipe.data.name}.jsonl.gz"
        files.setdefault(name, []).extend(_lines(job.folder.records_path))
        if job.has_energies:
            energies = b"".join(line.strip() for line in job.energies_path.read_bytes().splitlines())
            files.setdefault(f"energies-{name}", []).append(energies)
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / name).write_bytes(gzip.compress(b"\n".join(sorted(lines)) + b"\n", mtime=0))


def calls(out: Path, results: Path) -> list[dict[str, Any]]:
    """All calls that trained: those that were collected, and those since."""
    paths = [path for path in (results / "campaign" / CALLS, out / CALLS) if path.is_file()]
    return [
        json.loads(line) for line in dict.fromkeys(line for path in paths for line in path.read_text().splitlines())
    ]


def _write_calls(out: Path, results: Path, whole: Iterable[str]) -> None:
    """The log of all calls, and the time of every study that calls of its own trained."""
    found = calls(out, results)
    if not found:
        return
    place = results / "campaign" / CALLS
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("".join(f"{json.dumps(call)}\n" for call in found))
    for study in whole:
        own = [call for call in found if call["steps"] == [study]]
        if own and (results / study).exists():
            time_of = {
                "wall_seconds": round(sum(call["wall_seconds"] for call in own), 1),
                "workers": own[0]["workers"],
                "device": own[0]["device"],
                "command": f"python -m reproduction.campaign --steps {study}",
            }
            (results / study / "time.json").write_text(json.dumps(time_of) + "\n")


if __name__ == "__main__":
    main()
