"""The tables of networks tuned with equal effort, from what `reproduction.experiments.tuned` has recorded so far."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from scipy.stats import wilcoxon

from graphjoule.training import read_records
from reproduction.experiments.tuned import DATASETS, FOLDER, PLAN, read_lines

__all__ = ["ablation_table", "compare", "cost_table", "ranking_table", "tuned_table"]

RANKED = ("egnn", "gcnii", "appnp")


def tuned_table(folder: Path = FOLDER) -> str:
    """Every network on every graph as published and as tuned by us."""
    heads = (
        "graph",
        "network",
        "layers",
        "as published",
        "as tuned",
        "its validation",
        "ten runs together",
        "within limits",
    )
    rows = []
    for (dataset, model), runs in _tuned(folder).items():
        layers = PLAN["layers"][model]
        lines = read_lines(folder / f"{dataset}-{model}.energies.jsonl")
        together = [100 * line["test"] for line in lines if "ensemble" in line]
        within = [line["layers_within"] for line in lines if "layers_within" in line]
        rows.append(
            (
                dataset,
                model,
                str(layers),
                _spread(_published(dataset, model, layers, folder.parent)),
                _spread([100 * run.test["accuracy"] for run in runs]),
                _spread([100 * run.val["accuracy"] for run in runs]),
                f"{together[0]:.1f}" if together else "-",
                f"{min(within)} of {layers}" if within else "-",
            )
        )
    return _table(heads, rows)


def ranking_table(folder: Path = FOLDER) -> str:
    """EGNN, GCNII and APPNP against each other on every graph."""
    tuned, rows = _tuned(folder), []
    for dataset in DATASETS:
        scores = {
            model: [100 * run.test["accuracy"] for run in tuned[dataset, model]]
            for model in RANKED
            if (dataset, model) in tuned
        }
        rows += [
            (dataset, " - ".join(row["pair"]), f"{row['difference']:+.2f}", f"{row['p']:.3f}")
            for row in compare(scores)
        ]
    return _table(("graph", "pair", "difference of the means", "p, corrected"), rows)


def ablation_table(folder: Path = FOLDER) -> str:
    """What the best EGNN is without one ingredient."""
    rows = [
        (dataset, line["variant"], *(_spread([100 * score for score in line[part]]) for part in ("val", "test")))
        for dataset in DATASETS
        for line in read_lines(folder / f"{dataset}-egnn.ablation.jsonl")
    ]
    return _table(("graph", "EGNN", "validation", "test"), rows)


def cost_table(folder: Path = FOLDER) -> str:
    """An epoch with views beside the plain epoch."""
    rows = [
        (
            f"{line['model']}, {line['dataset']}, {line['layers']} layers",
            line["device"],
            str(line["runs"]),
            f"{line['1 views']['ms']:.1f} ms",
            *("{ratio:.2f} ({quartiles[0]:.2f} to {quartiles[1]:.2f})".format(**line[f"{n} views"]) for n in (2, 4)),
        )
        for line in read_lines(folder / "cost.jsonl")
    ]
    return _table(("network", "device", "runs", "plain epoch", "two views", "four views"), rows)


def compare(scores: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Every pair of networks: the mean difference, and Wilcoxon's signed rank test over seeds, corrected by Holm.

    >>> rows = compare({"a": [0.8, 0.9, 0.7, 0.8, 0.9, 0.8], "b": [0.7, 0.8, 0.5, 0.75, 0.6, 0.5]})
    >>> rows[0]["pair"], round(rows[0]["difference"], 3), round(rows[0]["p"], 5)
    (('a', 'b'), 0.175, 0.03125)
    """
    rows = []
    for one, other in combinations(scores, 2):
        differences = [a - b for a, b in zip(scores[one], scores[other], strict=True)]
        p = float(wilcoxon(differences).pvalue) if any(differences) else 1.0
        rows.append({"pair": (one, other), "difference": statistics.fmean(differences), "p": p})
    least = 0.0  # Holm: the smallest times the number of tests, the next times one less, never falling
    for rank, row in enumerate(sorted(rows, key=lambda row: row["p"])):
        row["p"] = least = max(least, min(1.0, row["p"] * (len(rows) - rank)))
    return rows


def _tuned(folder: Path) -> dict[tuple[str, str], list[Any]]:
    """The runs of every winner by graph and network, in the order of their seeds."""
    paths = {
        (dataset, model): folder / f"{dataset}-{model}.runs.jsonl" for dataset in DATASETS for model in PLAN["layers"]
    }
    found = {
        cell: sorted(read_records(path), key=lambda run: run.seed) for cell, path in paths.items() if path.exists()
    }
    return {cell: [run for run in runs if run.test] for cell, runs in found.items()}


def _published(dataset: str, model: str, layers: int, results: Path) -> list[float]:
    """Test accuracies with the published settings, which two studies have."""
    files = [results / study / f"{model}-{dataset}.jsonl.gz" for study in ("table1", "depth")]
    records = {
        run.seed: run for file in files if file.exists() for run in read_records(file) if run.num_layers == layers
    }
    return [100 * run.test["accuracy"] for run in records.values() if run.test]


def _spread(scores: Sequence[float]) -> str:
    return f"{statistics.fmean(scores):.2f} ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else "-"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "There is no record of it yet."
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))
