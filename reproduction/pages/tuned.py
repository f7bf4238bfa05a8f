"""The tables of networks tuned with equal effort, from what `reproduction.experiments.tuned` has recorded so far.

Each round has tables of its own; the short one, for README, has both.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from scipy.stats import wilcoxon

from graphjoule.studies import Collection, find_study, read_collection
from graphjoule.training import read_records
from reproduction.experiments import ingredients
from reproduction.experiments.tuned import DATASETS, FOLDER, FOLDERS, PLAN, read_lines

__all__ = [
    "ablation_table",
    "compare",
    "cost_table",
    "gate_table",
    "ingredients_table",
    "ranking_table",
    "short_table",
    "tuned_table",
]

RANKED = ("egnn", "gcnii", "appnp")


def tuned_table(folder: Path = FOLDER, results: Path | None = None) -> str:
    """Every network on every graph as published, recorded in `results`, and as tuned by us in one of the rounds."""
    rows, tuned = [], _tuned(folder)
    for dataset, model in (cell for cell in _cells() if cell in tuned):
        layers, runs = PLAN["layers"][model], tuned[dataset, model]
        lines = read_lines(folder / f"{dataset}-{model}.energies.jsonl")
        together = [100 * line["test"] for line in lines if "ensemble" in line]
        within = [line["layers_within"] for line in lines if "layers_within" in line]
        row = [
            dataset,
            model,
            str(layers),
            _spread(_published(dataset, model, layers, results or folder.parent)),
            *(_spread([100 * getattr(run, part)["accuracy"] for run in runs]) for part in ("test", "val")),
            f"{together[0]:.1f}" if together else "-",
            f"{min(within)} of {layers}" if within else "-",
        ]
        rows.append(row)
    heads = ("graph", "network", "layers", "as published", "as tuned", "its validation", "ten runs together")
    return _table((*heads, "within limits"), rows)


def short_table(folder: Path = FOLDER) -> str:
    """Every network on every graph, as published and as tuned, in a row."""
    rounds, heads, rows = [_tuned(folder), _tuned(_second(folder))], ["network", "layers"], []
    rounds = rounds if rounds[1] else rounds[:1]
    for dataset in DATASETS:
        heads += [f"{dataset.title()}, published", *("tuned", "second look")[: len(rounds)]]
    for model, layers in PLAN["layers"].items():
        cells = [model, str(layers)]
        for dataset in DATASETS:
            cells.append(_spread(_published(dataset, model, layers, folder.parent)))
            found = [tuned.get((dataset, model), []) for tuned in rounds]
            cells += [_spread([100 * run.test["accuracy"] for run in runs]) for runs in found]
        rows.append(cells)
    return _table(heads, rows if any(rounds) else [])


def ranking_table(folder: Path = FOLDER) -> str:
    """EGNN, GCNII and APPNP against each other on every graph."""
    tuned = _tuned(folder)
    scores = {
        dataset: {
            model: {run.seed: 100 * run.test["accuracy"] for run in tuned[dataset, model]}
            for model in RANKED
            if (dataset, model) in tuned
        }
        for dataset in DATASETS
    }
    rows = [
        (row["graph"], " - ".join(row["pair"]), str(row["n"]), f"{row['difference']:+.2f}", f"{row['p']:.3f}")
        for row in compare(scores)
    ]
    return _table(("graph", "pair", "seeds", "mean difference", "p, corrected"), rows)


def ablation_table(folder: Path = FOLDER) -> str:
    """What the best EGNN is, and is without one ingredient."""
    whole = {
        dataset: {part: [getattr(run, part)["accuracy"] for run in runs] for part in ("val", "test")}
        for (dataset, model), runs in _tuned(folder).items()
        if model == "egnn"
    }
    rows = [
        (dataset, line["variant"], *(_spread([100 * score for score in line[part]]) for part in ("val", "test")))
        for dataset in DATASETS
        for line in [
            *([{"variant": "as tuned", **whole[dataset]}] if dataset in whole else []),
            *read_lines(folder / f"{dataset}-egnn.ablation.jsonl"),
        ]
    ]
    return _table(("graph", "EGNN", "validation", "test"), rows)


def ingredients_table(folder: Path = FOLDER) -> str:
    """What each ingredient is worth by validation, in the order of the plan; limits in the worst run."""
    lines = {(line["variant"], line["dataset"]): line for line in read_lines(folder / "ingredients.jsonl")}
    tried = list(dict.fromkeys(variant for variant, _ in lines))
    planned = [variant for variant in ingredients.PLAN["variants"] if variant in tried]
    rows = [
        [variant, *(cell for dataset in DATASETS for cell in _by_validation(lines.get((variant, dataset))))]
        for variant in dict.fromkeys([*planned, *tried])
    ]
    return _table(["EGNN", *(head for dataset in DATASETS for head in (dataset, "within limits"))], rows)


def _by_validation(line: Mapping[str, Any] | None) -> tuple[str, str]:
    if line is None or "val_accuracy" not in line:
        return "-" if line is None else "failed", "-"
    return _spread([100 * score for score in line["val_accuracy"]]), f"{line['layers_within']} of {line['layers']}"


def gate_table(folder: Path = FOLDER) -> str:
    """EGNN with a gate over all layers beside EGNN."""
    lines = {(line["dataset"], line["network"]): line for line in read_lines(folder / "gate.jsonl")}
    rows = [
        (dataset, *(_spread([100 * score for score in lines[dataset, name]["val"]]) for name in ("EGNN", "GatedEGNN")))
        for dataset in DATASETS
        if (dataset, "GatedEGNN") in lines
    ]
    return _table(("graph", "EGNN", "with a gate over all layers"), rows)


def cost_table(folder: Path = FOLDER) -> str:
    """An epoch with views beside the plain epoch."""
    rows = [
        (
            f"{line['model']}, {line['dataset']}, {line['layers']} layers",
            line["device"],
            str(line["runs"]),
            f"{line['1 views']['ms']:.1f} ms",
            *(_ratio(line.get(name)) for name in ("2 views", "4 views", "4 views, bfloat16")),
        )
        for line in read_lines(folder / "cost.jsonl")
    ]
    return _table(
        ("network", "device", "runs", "plain epoch", "two views", "four views", "four views in bfloat16"), rows
    )


def _ratio(found: Mapping[str, Any] | None) -> str:
    return "{ratio:.2f} ({quartiles[0]:.2f} to {quartiles[1]:.2f})".format(**found) if found else "-"


def compare(scores: Mapping[str, Mapping[str, Mapping[int, float]]]) -> list[dict[str, Any]]:
    """Every pair of networks on every graph: the mean difference, and Wilcoxon's signed rank test over their seeds.

    The test is corrected by Holm for the number of all pairs on all graphs. A seed that one of the two lacks, because
    its run failed, is left out.

    Args:
        scores: by graph, network and seed.

    >>> a, b = [0.8, 0.9, 0.7, 0.8, 0.9, 0.8], [0.7, 0.8, 0.5, 0.75, 0.6, 0.5]
    >>> rows = compare({"cora": {"a": dict(enumerate(a)), "b": dict(enumerate(b))}})
    >>> rows[0]["pair"], round(rows[0]["difference"], 3), round(rows[0]["p"], 5)
    (('a', 'b'), 0.175, 0.03125)
    """
    rows: list[dict[str, Any]] = []
    for graph, networks in scores.items():
        for one, other in combinations(networks, 2):
            seeds = sorted(networks[one].keys() & networks[other].keys())
            differences = [networks[one][seed] - networks[other][seed] for seed in seeds]
            p = float(wilcoxon(differences).pvalue) if any(differences) else 1.0
            mean = statistics.fmean(differences) if seeds else 0.0
            rows.append({"graph": graph, "pair": (one, other), "n": len(seeds), "difference": mean, "p": p})
    least = 0.0  # Holm: the smallest times the number of tests, the next times one less, never falling
    for rank, row in enumerate(sorted(rows, key=lambda row: row["p"])):
        row["p"] = least = max(least, min(1.0, row["p"] * (len(rows) - rank)))
    return rows


def _second(folder: Path) -> Path:
    """Where the second round's records are beside those of the first."""
    return folder / FOLDERS["second"].relative_to(FOLDER)


def _cells() -> list[tuple[str, str]]:
    return [(dataset, model) for dataset in DATASETS for model in PLAN["layers"]]


def _tuned(folder: Path) -> dict[tuple[str, str], list[Any]]:
    """The runs of every winner by graph and network, in the order of their seeds."""
    paths = {cell: folder / f"{cell[0]}-{cell[1]}.runs.jsonl.gz" for cell in _cells()}
    found = {
        cell: sorted(read_records(path), key=lambda run: run.seed) for cell, path in paths.items() if path.exists()
    }
    return {cell: [run for run in runs if run.test] for cell, runs in found.items()}


def _published(dataset: str, model: str, layers: int, results: Path) -> list[float]:
    """Test accuracies with the published settings, which two studies have: runs of that very recipe."""
    (cell,) = find_study("table1").cells([dataset], [model], [layers])
    folders = [results / study for study in ("table1", "depth") if (results / study).exists()]
    return [100 * run.test["accuracy"] for run in _recorded(*folders).runs(cell.recipe) if run.test]


@cache
def _recorded(*folders: Path) -> Collection:
    return read_collection(folders)


def _spread(scores: Sequence[float]) -> str:
    return f"{statistics.fmean(scores):.2f} ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else "-"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "There is no record of it yet."
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))
