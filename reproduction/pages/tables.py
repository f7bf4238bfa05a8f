"""The tables of README.md and of single pages of the docs, from the records in reproduction/results/.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; what stands there before is replaced.
"""

import json
import re
import statistics
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from graphjoule.studies import Collection, Variant, find_study, read_collection
from graphjoule.training import Record, read_records, summarise
from reproduction.bench import read_bench_records
from reproduction.corpus import jobs, ledger
from reproduction.experiments.record import ranked, read_cells
from reproduction.experiments.tuned import FOLDER, FOLDERS
from reproduction.pages.gallery import gallery_figures, gallery_rows, gallery_table
from reproduction.pages.measured import (
    constraint_cost_table,
    coverage_table,
    operators_table,
    order_table,
    parts_table,
    reach_table,
    share_of_clusters,
)
from reproduction.pages.predictors import predictors_table
from reproduction.pages.scaling import read_scaling, scaling_table, ways_table
from reproduction.pages.tuned import (
    ablation_table,
    cost_table,
    gate_table,
    ingredients_table,
    ranking_table,
    short_table,
    tuned_table,
)
from reproduction.pages.wave import FILE as WAVE
from reproduction.pages.wave import distances_table, large_table, ring_table, suite_table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "reproduction/results"
GALLERY = RESULTS / "gallery/gallery.jsonl"
TABLE1 = find_study("table1")
CELLS = {"cora": (2, 16, 64), "pubmed": (2, 16, 64), "physics": (2, 16, 32)}
NAMES = {"cora": "Cora", "pubmed": "Pubmed", "physics": "Physics"}
MODEL_NAMES = {
    "egnn": "**EGNN**",
    "gcnii": "GCNII",
    "appnp": "APPNP",
    "jknet": "JKNet",
    "sgc": "SGC",
    "dropedge": "DropEdge",
    "pairnorm": "PairNorm",
    "gcn": "GCN",
}
_GIB = 2**30


def accuracy_table() -> str:
    """All models beside the paper's figures, at the fewest and at the most layers of table 1."""
    return models_table([(dataset, layers) for dataset, depths in CELLS.items() for layers in (depths[0], depths[-1])])


def dataset_table(dataset: str) -> str:
    """All models beside the paper's figures, at the three depths of table 1."""
    return models_table([(dataset, layers) for layers in CELLS[dataset]])


def models_table(cells: Sequence[tuple[str, int]]) -> str:
    """A row for each model of table 1 and a column for each dataset and depth."""
    heads = [f"{NAMES[dataset]}, {layers} layers" for dataset, layers in cells]
    lines = [f"| model | {' | '.join(heads)} |", "|---" * (1 + len(cells)) + "|"]
    for model in reversed(TABLE1.models):  # EGNN first
        values = [f"{cell_text(model, dataset, layers)} ({paper(model, dataset, layers)})" for dataset, layers in cells]
        lines.append(f"| {MODEL_NAMES[model]} | {' | '.join(values)} |")
    return "\n".join(lines)


def backends_table() -> str:
    """EGNN's cells by the backend of the ops that trained them."""
    lines = ["| dataset | layers | Triton | in bfloat16 | reference | CPU |", "|---|---|---|---|---|---|"]
    for dataset, depths in CELLS.items():
        for layers in depths:
            files = [
                f"table1/egnn-{dataset}",
                f"bodies/egnn-{dataset}-bfloat16",
                f"bodies/egnn-{dataset}-reference",
                f"bodies/egnn-{dataset}-{layers}-cpu",
            ]
            cells = " | ".join(mean_and_spread(file, layers=layers) for file in files)
            lines.append(f"| {dataset} | {layers} | {cells} |")
    return "\n".join(lines)


def paper(model: str, dataset: str, layers: int) -> float | None:
    """The paper's figure in table 1."""
    return TABLE1.reference.value(model, dataset, layers, Variant())


def cell_text(model: str, dataset: str, layers: int) -> str:
    """Test accuracy of the runs of a cell of table 1: those of its very settings; a dash where there are none."""
    (cell,) = TABLE1.cells([dataset], [model], [layers])
    runs = table1_records().runs(cell.recipe)
    return summary_text(runs, cell.name) if runs else "-"


@cache
def table1_records() -> Collection:
    """The records of the table, and those of other readings of the paper, which have settings of their own."""
    return read_collection([RESULTS / "table1", RESULTS / "protocols"])


def summary_text(records: Sequence[Record], name: str) -> str:
    """Mean and standard deviation in percent, and the number of runs where it is not ten."""
    summary = summarise(records)
    if summary.test_mean is None or summary.test_std is None:
        return f"{summary.n} runs of {name}"
    few = "" if summary.n == 10 else f" (n {summary.n})"
    return f"{100 * summary.test_mean:.2f} ± {100 * summary.test_std:.2f}{few}"


def mean_and_spread(file: str, **wanted: object) -> str:
    """Test accuracy of ten seeds from a file of records; a dash where there are none."""
    path = RESULTS / f"{file}.jsonl.gz"
    if not path.exists():
        return "-"
    wanted = {"num_layers" if key == "layers" else key: value for key, value in wanted.items()}
    records = [r for r in all_records(path) if all(getattr(r, k) == v for k, v in wanted.items())]
    return summary_text(records, f"{file}, {wanted}") if records else "-"


@cache  # a table has a cell per depth
def all_records(path: Path) -> list[Record]:
    """The records of a file."""
    return list(read_records(path))


def overhead_table() -> str:
    """What a trace of the energy costs."""
    lines = [
        "| model | device | forward pass | traced | cost | of the pass layer by layer |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted((RESULTS / "trace").glob("overhead*.json")):
        report = json.loads(path.read_text())
        for model, sides in report["networks"].items():
            plain, traced = sides["plain"]["ms"], sides["energy"]
            low, high = (f"{100 * cost:.0f}" for cost in traced["cost_range"])
            lines.append(
                f"| {model} | {report['device']} | {plain:.0f} ms | {traced['ms']:.0f} ms "
                f"| {100 * traced['cost']:.0f} % ({low} to {high}) | {100 * traced['cost_of_layers']:.0f} % |"
            )
    return "\n".join(lines)


def live_table() -> str:
    """What watching every layer costs a training: of a CPU, which others may use too, by processor time."""
    lines = ["| training | looks | ratio |", "|---|---|---|"]
    for path in sorted((RESULTS / "trace").glob("live-*.json")):
        report = json.loads(path.read_text())
        clock = "processor_ratio" if report["device"].startswith("cpu") else "ratio"
        where = f"{report['model']}, {report['layers']} layers, {report['dataset']}, {report['device']}"
        for side, row in report["sides"].items():
            if side != "plain":
                lines.append(f"| {where}, {side} | {row['looks']:.0f} | {row[clock]:.2f} |")
    return "\n".join(lines) if len(lines) > 2 else NOT_RUN


def lean_table() -> str:
    """Memory and time of deep networks with all layers kept and in segments."""
    lines = ["| model | layers | runs | device | all layers | segments |", "|---|---|---|---|---|---|"]
    for path in sorted((RESULTS / "lean").glob("*.json")):
        report = json.loads(path.read_text())
        for model, sides in report["networks"].items():
            cells = " | ".join(lean_cell(sides.get(side), report["epochs"]) for side in ("all layers", "segments"))
            lines.append(f"| {model} | {report['layers']:,} | {report['runs']} | {report['device']} | {cells} |")
    return "\n".join(lines) if len(lines) > 2 else NOT_RUN


def lean_cell(row: dict | None, epochs: int) -> str:
    """Peak memory, and seconds of some epochs."""
    if row is None:
        return "-"
    if "failed" in row:
        return "does not fit"
    return f"{row['peak_bytes'] / _GIB:.1f} GiB, {row['seconds']:.0f} s for {epochs} epoch{'s' if epochs > 1 else ''}"


def bench_table() -> str:
    """Ours against both peers, one line per case, device and number of runs."""
    lines = [
        "| case | device | runs | ours, all runs | pyg, one run | ratio per run | pyg-csr, one run | ratio per run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cells: dict[tuple[str, str, int], list] = {}
    for name, later in {"cpu": "", "h200": "", "h200-again": ", again", "h200-wide": ", fused"}.items():
        for record in read_bench_records(RESULTS / f"bench/{name}.jsonl"):
            place = (record.device, record.case + later, record.runs)
            cells.setdefault(place, []).append(record)
    for (device, case, runs), records in cells.items():
        by_peer = middle_tries(records)
        ours = next(iter(by_peer.values()))
        peers = " | ".join(peer_cells(by_peer.get(peer)) for peer in ("pyg", "pyg-csr"))
        lines.append(f"| {case} | {device} | {runs} | {time_and_peak(ours.ours_ms, ours.ours_peak_bytes)} | {peers} |")
    return "\n".join(lines)


def middle_tries(records: list) -> dict[str, Any]:
    """By peer the try with the middle ratio, of the commit that was measured last."""
    commit = max(records, key=lambda record: record.created).versions.get("commit")
    tries: dict[str, list] = {}
    for record in records:
        if record.versions.get("commit") == commit:
            tries.setdefault(record.peer, []).append(record)
    return {peer: sorted(of, key=lambda r: r.ratio or 0.0)[(len(of) - 1) // 2] for peer, of in tries.items()}


def peer_cells(record) -> str:
    """The peer's time and the median of the paired ratios with its quartiles; that of the medians if it is outside."""
    if record is None:
        return "- | -"
    low, high = record.ratio_spread
    medians = record.median_ratio or record.runs * record.peer_ms / record.ours_ms  # old records have it not
    beside = "" if round(low, 2) <= round(medians, 2) <= round(high, 2) else f"; of medians {medians:.2f}"
    ratio = f"{record.ratio:.2f} ({low:.2f} to {high:.2f}{beside})"
    return f"{time_and_peak(record.peer_ms, record.peer_peak_bytes)} | {ratio}"


def time_and_peak(milliseconds: float, peak_bytes: int | None) -> str:
    """Milliseconds, and peak GiB where it is known."""
    peak = "" if peak_bytes is None else f", {peak_bytes / _GIB:.1f} GiB"
    return f"{milliseconds:,.1f} ms{peak}" if milliseconds < 100 else f"{milliseconds:,.0f} ms{peak}"


def wave_table() -> str:
    """The wave with 64 layers on the real graphs beside EGNN."""
    cells = read_cells(WAVE)
    keys = [json.loads(line)["key"] for line in WAVE.read_text(encoding="utf-8").splitlines()]
    lines = [
        "| dataset | wave | EGNN | settings that validation chose among | largest drift of a run |",
        "|---|---|---|---|---|",
    ]
    for dataset, name in NAMES.items():
        ours = cells[f"{dataset} wave 64"]
        accuracies = [100 * value for value in ours["test_accuracy"]]
        tried = {key: cell for key, cell in cells.items() if key.startswith(f"search {dataset} wave 64 ")}
        if ranked(list(tried.values()))[0]["settings"] != ours["settings"]:  # a search that goes on: what it had before
            before = keys[: len(keys) - keys[::-1].index(f"{dataset} wave 64")]
            tried = {key: cell for key, cell in tried.items() if key in before}
        theirs = mean_and_spread(f"{'depth' if dataset == 'physics' else 'table1'}/egnn-{dataset}", layers=64)
        found = f"{statistics.fmean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f}"
        lines.append(f"| {name} | {found} | {theirs} | {len(tried)} | {max(ours['drift']):.0e} |")
    return "\n".join(lines)


def million_table() -> str:
    """A million nodes from Parquet: time and memory of every command."""
    report = json.loads((RESULTS / "million/two-cores.json").read_text())
    lines = ["| command | time | processor time | peak memory |", "|---|---|---|---|"]
    for name, part in report["parts"].items():
        times = minutes(part["seconds"])
        if name == "train":
            times += f", of which {report['epochs']} epochs took {minutes(report['epochs_seconds'])}"
        lines.append(f"| {name} | {times} | {minutes(part['processor_seconds'])} | {part['peak_gib']:.1f} GiB |")
    return "\n".join(lines)


BUSY_AIM = 1.3
"""Times as long as the best fixed number of threads that the default may take beside any load."""


def busy_table() -> str:
    """Trainings beside other busy programs: the chosen number of threads against every fixed one."""
    path = RESULTS / "busy/two-cores.json"
    if not path.exists():
        return NOT_RUN
    loads = json.loads(path.read_text())["loads"]
    sides = list(next(iter(loads.values()))["seconds"])
    names = [f"{side} thread{'s' if side != '1' else ''}" if side.isdigit() else side for side in sides]
    lines = [f"| other busy programs | {' | '.join(names)} | default / best |", "|---" * (len(sides) + 2) + "|"]
    for load, found in loads.items():
        times = [found["seconds"][side] for side in sides]
        medians = " | ".join(f"{statistics.median(each):.1f} s" if each else "cut" for each in times)
        lines.append(f"| {load.replace(' late', ', from a third on')} | {medians} | {found['ratio']:.2f} |")
    worst = max(found["ratio"] for load, found in loads.items() if not load.endswith("late"))
    aim = f"the aim of {BUSY_AIM} is {'met' if worst <= BUSY_AIM else 'missed'}"
    said = (
        f"Beside a load that stays, the default took at most {worst:.2f} times as long as the best fixed number: {aim}."
    )
    if late := [found["ratio"] for load, found in loads.items() if load.endswith("late")]:
        said += f" Where a load begins in a training of a few seconds, which notices it late, it took {max(late):.2f}."
    return "\n".join([*lines, "", said])


def minutes(seconds: float) -> str:
    """Seconds in words, in minutes from two of them on."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


FAULTS = ("kill before", "kill after", "kill in the middle", "ENOSPC", "EIO", "EROFS")


def faults_table() -> str:
    """How often each command was hit by each fault, and what that found."""
    record = json.loads((RESULTS / "faults/counts.json").read_text())
    lines = [f"| command | calls | {' | '.join(FAULTS)} | of all | findings | code |", "|---" * (len(FAULTS) + 5) + "|"]
    for command, done in record["injections"].items():
        calls, possible = sum(record["calls"][command].values()), record["possible"][command]
        found = sum(finding["command"] == command for finding in record["findings"])
        kinds = " | ".join(str(done.get(kind, 0)) for kind in FAULTS)
        code = record["code"][command]
        when = f"`{code['commit'][:7]}`" if "commit" in code else f"of {code['created'][:10]}"
        lines.append(f"| {command} | {calls} | {kinds} | {sum(done.values())} of {possible} | {found} | {when} |")
    return "\n".join(lines)


def fuzz_table() -> str:
    """What every parser made of the spoiled files that it was given, and the most that one of them took."""
    lines = [
        "| files | read | refused with a sentence | tracebacks | hangs | over 1 GiB | slowest | most memory |",
        "|---" * 8 + "|",
    ]
    for name, found in sorted(json.loads((RESULTS / "faults/fuzz.json").read_text())["files"].items()):
        fates = " | ".join(f"{found[fate]:,}" for fate in ("read", "refused", "traceback", "hang", "memory"))
        lines.append(f"| {name} | {fates} | {found['seconds']:.2f} s | {found['bytes'] / 2**20:,.0f} MiB |")
    return "\n".join(lines)


_GROWTH = {"resident": "bytes in memory", "allocated": "bytes given out by malloc", "python_blocks": "Python objects"}


def endurance_table() -> str:
    """What held over many runs: memory, kills at random, a million records; a row for each record that is there."""
    rows: dict[str, str] = {}
    folder = RESULTS / "faults"
    if (folder / "leak.json").exists():
        leak = json.loads((folder / "leak.json").read_text())
        slopes = {name: f"{leak[name]['per_fit']:+,.1f} ± {leak[name]['interval']:,.1f}" for name in _GROWTH}
        said = ", ".join(f"{_GROWTH[name]} {slope}" for name, slope in slopes.items())
        rows["growth of a process that trains and traces again and again"] = f"{said}, per training ({leak['fits']:,})"
        first, more = leak["bytes_of_dropped_names"].values()
        rows["100,000 interned names that nobody keeps, no training"] = f"{first:+,} bytes given out by malloc, once"
        rows["1,000,000 more of them"] = f"{more:+,} bytes"
    if (folder / "soak.jsonl").exists():
        soak = json.loads((folder / "soak.jsonl").read_text().splitlines()[-1])
        rounds = f"{soak['rounds']} rounds and {soak['kills']} kills in {soak['minutes']:.0f} minutes"
        rows["train, kill, resume, predict, report, with random settings"] = f"{rounds}, {soak['wrong']} wrong"
    if (folder / "million.json").exists():
        many = json.loads((folder / "million.json").read_text())
        cost = f"{many['cpu_seconds']:.0f} s of one core, {many['peak_bytes'] / _GIB:.1f} GiB"
        rows[f"report on {many['records']:,} records"] = cost
    return "\n".join(["| what | result |", "|---|---|", *(f"| {what} | {result} |" for what, result in rows.items())])


def gallery_picture(name: str) -> str:
    """A picture of the gallery, with what it shows in words; nothing without records."""
    found = [figure for figure in gallery_figures(gallery_rows(GALLERY)) if figure.name == name]
    return "".join(f"![{figure.alt}](images/{figure.name}.png)" for figure in found) or NOT_RUN


def predictors_rows() -> str:
    """Rank correlations of measures with the final accuracy."""
    runs = list(read_cells(RESULTS / "trace/predict.jsonl").values())
    return predictors_table(runs) if runs else NOT_RUN


def corpus_table(made: Callable[[list[dict[str, Any]]], str], *files: str) -> str:
    """A ledger of the corpus, from its records where they are there."""
    records = [record for file in files for record in jobs.read_records(RESULTS / "corpus" / file)]
    return made(records) or "Not run yet."


def corpus_lines(made: Callable[[list[dict[str, Any]]], str], *files: str) -> str:
    """The lines below a ledger of the corpus: the means, and what misses the aim."""
    ledger_lines = corpus_table(made, *files).splitlines()
    return "\n".join(line for line in ledger_lines if line.startswith("- ")) or ledger_lines[0]


NOT_RUN = "There are no records of this yet."
TABLES = {
    "gallery": lambda: gallery_table(gallery_rows(GALLERY)) if GALLERY.exists() else NOT_RUN,
    **{f"gallery_{name}": partial(gallery_picture, f"gallery-{name}") for name in ("energy", "rank", "reach")},
    "predictors": predictors_rows,
    "live": live_table,
    "faults": faults_table,
    "fuzz": fuzz_table,
    "endurance": endurance_table,
    "accuracy": accuracy_table,
    **{dataset: partial(dataset_table, dataset) for dataset in CELLS},
    "backends": backends_table,
    "bench": bench_table,
    "busy": busy_table,
    "lean": lean_table,
    "million": million_table,
    "scaling": lambda: scaling_table(read_scaling(RESULTS / "scaling")) or NOT_RUN,
    "scaling_ways": lambda: ways_table(read_scaling(RESULTS / "scaling")) or NOT_RUN,
    "overhead": overhead_table,
    "constraint_cost": constraint_cost_table,
    "coverage": coverage_table,
    "operators": operators_table,
    "order": order_table,
    "clusters": share_of_clusters,
    "parts": parts_table,
    "reach": reach_table,
    "rings": ring_table,
    "distances": distances_table,
    "large": large_table,
    "suite": suite_table,
    "wave": wave_table,
    "tuned": tuned_table,
    "tuned_short": short_table,
    "ranking": ranking_table,
    "ablation": ablation_table,
    "tuned_second": partial(tuned_table, FOLDERS["second"], FOLDER.parent),
    "ranking_second": partial(ranking_table, FOLDERS["second"]),
    "ablation_second": partial(ablation_table, FOLDERS["second"]),
    "ingredients": ingredients_table,
    "gate": gate_table,
    "views": cost_table,
    "corpus_fifth": partial(corpus_table, ledger.settings_ledger, "fifth.jsonl.gz"),
    "corpus_fourth": partial(corpus_table, ledger.settings_ledger, "fourth.jsonl.gz"),
    "corpus_fourth_auto": partial(corpus_table, ledger.auto_ledger, "fourth-auto.jsonl.gz", "fourth.jsonl.gz"),
    "corpus_mixed": partial(
        corpus_table,
        ledger.auto_ledger,
        *("mixed.jsonl.gz", "verdict-auto.jsonl.gz", "verdict.jsonl.gz", "auto.jsonl.gz", "judge.jsonl.gz"),
    ),
    "corpus_verdict": partial(corpus_table, ledger.settings_ledger, "verdict.jsonl.gz"),
    "corpus_auto": partial(corpus_table, ledger.auto_ledger, "verdict-auto.jsonl.gz", "verdict.jsonl.gz"),
    "corpus_lines": partial(corpus_lines, ledger.settings_ledger, "fifth.jsonl.gz"),
    "corpus_auto_lines": partial(corpus_lines, ledger.auto_ledger, "fourth-auto.jsonl.gz", "fourth.jsonl.gz"),
    "corpus_second": partial(corpus_table, ledger.settings_ledger, "judge.jsonl.gz"),
    "corpus_second_auto": partial(corpus_table, ledger.auto_ledger, "auto.jsonl.gz", "judge.jsonl.gz"),
    "corpus_first": partial(corpus_lines, ledger.settings_ledger, "judge-part.jsonl.gz"),
}
DOCUMENTS = (
    "README.md",
    "docs/results.md",
    "docs/constraint.md",
    "docs/performance.md",
    "docs/trace.md",
    "docs/reliability.md",
    "docs/wave.md",
    "docs/gallery.md",
    "docs/measures.md",
    "docs/loops.md",
    "docs/consistency.md",
    "docs/settings.md",
    "docs/auto.md",
    "docs/clusters.md",
    "docs/distributed.md",
    "docs/models.md",
    "docs/reach.md",
    "docs/theory.md",
    "docs/trust.md",
    "reproduction/TUNED.md",
    "reproduction/corpus/README.md",
)


def with_tables(text: str) -> str:
    """The text with every table in it made anew."""
    pattern = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)
