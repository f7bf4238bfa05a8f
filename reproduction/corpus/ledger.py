"""The ledgers of the corpus: settings from the data against a search, and `auto` against its rivals, task by task."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from reproduction.corpus.tasks import SCORED_BY_AUC

DATA, FOUND = "settings from the data", "best of the search"
Record = Mapping[str, Any]


def score_name(task: str) -> str:
    """The metric of a task."""
    return "roc_auc" if task in SCORED_BY_AUC else "accuracy"


def settings_ledger(records: Iterable[Record]) -> str:
    """What settings from the data are worth against the best of a search, in points, and depth 32 against depth 2."""
    mean: dict[tuple[str, int, str], float] = {}
    for record in records:
        if record["kind"] == "fit" and record["scores"]:
            scores = record["scores"][f"test_{score_name(record['task'])}"]
            mean[record["task"], record["depth"], record["what"]] = 100 * statistics.fmean(scores)
    depths = sorted({depth for _, depth, _ in mean if depth < 32})  # at 32 layers there is no search
    searched = {depth for _, depth, what in mean if what == FOUND}
    heads = [
        f"{name}, {depth}"
        for depth in depths
        for name in ("data", "search", "difference")[: 3 if depth in searched else 1]
    ]
    below: dict[str, dict[str, float]] = {}
    rows = []
    for task in dict.fromkeys(task for task, _, _ in mean):
        cells = []
        for depth in depths:
            data, found = (mean.get((task, depth, what)) for what in (DATA, FOUND))
            against = [found, _difference(below, f"{depth} layers, data - search", task, data, found)]
            cells += [data, *(against if depth in searched else [])]
        deep, flat = (mean.get((task, depth, DATA)) for depth in (32, 2))
        rows.append([task, *cells, deep, _difference(below, "data, 32 - 2 layers", task, deep, flat)])
    return _table(["task", *heads, "data, 32", "32 - 2"], rows, below, limit=2.0)


def auto_ledger(records: Iterable[Record]) -> str:
    """What `auto` finds in its time against every rival, in points: test scores, the means over the same splits.

    Where its records say what the first of its models has alone, that is a column, and records that do not say it are
    of an older `auto` and left out. A rival's scores are in the order of the splits; those that `auto` had count. Of
    `settings_ledger`'s records the settings from the data are rivals too: EGNN as `fit` trains it to its end.
    """
    records = list(records)
    found: dict[str, dict[str, list[float]]] = {}
    alone: dict[str, list[float]] = {}
    for record in records:
        if "alone" in record:
            alone.setdefault(record["task"], []).append(100 * record["alone"])
    for record in records:
        if alone and record["kind"] == "auto" and "alone" not in record:
            continue
        if record["kind"] in ("auto", "rival"):
            name, scores = record.get("name", "auto"), record["scores"]
        elif record["kind"] == "fit" and record["what"] == DATA and record["scores"]:
            name = f"egnn with {record['depth']} layers"
            scores = record["scores"][f"test_{score_name(record['task'])}"]
        else:
            continue
        found.setdefault(record["task"], {}).setdefault(name, []).extend(scores)
    mean = {
        task: {name: 100 * statistics.fmean(scores[: len(of_task["auto"])]) for name, scores in of_task.items()}
        for task, of_task in found.items()
        if "auto" in of_task and len(of_task) > 1
    }
    names = list(dict.fromkeys(name for of_task in mean.values() for name in of_task if name != "auto"))
    below: dict[str, dict[str, float]] = {}
    rows = []
    for task, of_task in mean.items():
        for name in names:
            _difference(below, f"auto - {name}", task, of_task["auto"], of_task.get(name))
        first = [statistics.fmean(alone[task])] if alone else []
        if alone:
            _difference(below, "auto - its first model alone", task, of_task["auto"], *first)
        best = max((name for name in of_task if name != "auto"), key=lambda name: of_task[name])
        worse = _difference(below, "auto - the best rival of each task", task, of_task["auto"], of_task[best])
        others = [score for name, score in of_task.items() if name != "auto" and not name.startswith("egnn")]
        if others:
            _difference(below, "auto - the best rival of each task but EGNN", task, of_task["auto"], max(others))
        scores = [of_task["auto"], *first, *(of_task.get(name) for name in names)]
        rows.append([task, len(found[task]["auto"]), *scores, best, worse])
    heads = ["task", "splits", "auto", *(["first model alone"] if alone else []), *names, "best rival", "difference"]
    return _table(heads, rows, below, limit=1.0)


def _difference(
    below: dict[str, dict[str, float]], what: str, task: str, one: float | None, other: float | None
) -> str:
    """One minus other, noted for the lines under the table."""
    if one is None or other is None:
        return ""
    below.setdefault(what, {})[task] = one - other
    return f"{one - other:+.2f}"


def _table(heads: list[str], rows: list[list[Any]], below: dict[str, dict[str, float]], limit: float) -> str:
    """A table of Markdown, and under it a line for each difference: its mean, the worst task, those below the limit."""
    if not rows:
        return ""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [f"{cell:.2f}" if isinstance(cell, float) else "" if cell is None else str(cell) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for what, found in below.items():
        worst = min(found, key=lambda task: found[task])
        middle = statistics.median(found.values())
        missed = [task for task in sorted(found, key=lambda task: found[task]) if found[task] < -limit]
        lines.append(
            f"- {what}: mean {statistics.fmean(found.values()):+.2f} points over {len(found)} tasks, median "
            f"{middle:+.2f}, worst {found[worst]:+.2f} ({worst})"
            + (f"; more than {limit:g} below on {len(missed)}: {', '.join(missed)}" if missed else "")
        )
    return "\n".join(lines)
