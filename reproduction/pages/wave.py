"""The wave network beside its rivals: tables and a picture from reproduction/results/depth/wave.jsonl."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from graphjoule.report import Drawing, Line, Panel, picture
from reproduction.experiments.record import read_cells

__all__ = [
    "FILE",
    "SUITE",
    "distances_table",
    "large_table",
    "ring_picture",
    "ring_table",
    "suite_table",
]

FILE = Path(__file__).resolve().parents[1] / "results/depth/wave.jsonl"
SUITE = FILE.with_name("suite.jsonl")
HOPS = (5, 10, 20, 50, 100, 500)
NAMES = {
    **{"wave": "**wave**", "gps": "GPS", "adgn": "A-DGN", "graphcon": "GraphCON", "gcnii": "GCNII", "egnn": "EGNN"},
    **{"appnp": "APPNP", "resgcn": "GCN with residuals"},
}
# Okabe and Ito's colours; the style is another way to tell lines apart.
_STYLES = {"wave": ("#0072B2", "-"), "gps": ("#D55E00", "--")}
_TASKS = ("shortest-paths", "eccentricity", "diameter")
_SUITE_TASKS = {
    "mines-100": "minefield, ROC AUC",
    **{
        f"{dataset}-missing-{percent}": f"{dataset.capitalize()}, {percent} % missing"
        for dataset in ("cora", "pubmed")
        for percent in (0, 50, 90, 100)
    },
    **{
        f"{dataset}-labels-{labels}": f"{dataset.capitalize()}, {labels} per class"
        for dataset in ("cora", "pubmed", "physics")
        for labels in (1, 3, 5, 20)
    },
}


def ring_table() -> str:
    """Test accuracy over distance."""
    cells = read_cells(FILE)
    lines = [f"| model | {' | '.join(f'{hops} hops' for hops in HOPS)} |", "|---" * (1 + len(HOPS)) + "|"]
    for model, name in NAMES.items():
        found = [_accuracy(cells.get(f"ring-{hops} {model}")) for hops in HOPS]
        lines.append(f"| {name} | {' | '.join(found)} |")
    return "\n".join(lines)


def _accuracy(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "-"
    values = [100 * value for value in cell["test_accuracy"]]
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f} ({len(values)})"


def distances_table() -> str:
    """Mean absolute errors on the six families of graphs, and what a run costs; a row for each model with a record."""
    cells = read_cells(FILE)
    lines = [
        "| model | layers | shortest paths | eccentricity | diameter | an epoch of a run | its memory |",
        "|---" * 7 + "|",
    ]
    for model, name in NAMES.items():
        found = [cells.get(f"{task}-40 {model}") for task in _TASKS]
        if first := next(filter(None, found), None):
            errors = " | ".join("-" if cell is None else _error(cell) for cell in found)
            cost = _cost(cells.get(f"cost {_TASKS[0]}-40 {model}"))
            lines.append(f"| {name} | {first['layers']} | {errors} | {cost} |")
    return (
        "\n".join(lines) if len(lines) > 2 else "Not trained yet: `python -m reproduction.experiments.depth distances`."
    )


def _cost(cell: dict[str, Any] | None) -> str:
    """Time and memory of an epoch of one run, alone on a GPU."""
    if cell is None:
        return "- | -"
    return f"{1000 * cell['seconds_per_run'] / cell['epochs'][0]:.1f} ms | {cell['peak_bytes'] / 1e9:.2f} GB"


def large_table() -> str:
    """Mean absolute errors on graphs with diameters to 512; a row for each model with a record."""
    cells = read_cells(FILE)
    lines = [f"| model | layers | {' | '.join(task.replace('-', ' ') for task in _TASKS)} |", "|---" * 5 + "|"]
    for model, name in NAMES.items():
        found = [cells.get(f"{task}-512 {model}") for task in _TASKS]
        if first := next(filter(None, found), None):
            errors = " | ".join("-" if cell is None else _error(cell) for cell in found)
            lines.append(f"| {name} | {first['layers']} | {errors} |")
    command = "python -m reproduction.experiments.depth distances --diameter 512"
    return "\n".join(lines) if len(lines) > 2 else f"Not trained yet: `{command}`."


def suite_table() -> str:
    """Test scores on the minefield, with features missing and with few labels: a row per task, a column per model."""
    cells = read_cells(SUITE)
    lines = [f"| task | {' | '.join(NAMES.values())} |", "|---" * (1 + len(NAMES)) + "|"]
    for task, words in _SUITE_TASKS.items():
        found = [cells.get(f"{task} {model}") for model in NAMES]
        if any(found):
            score = "test_roc_auc" if task.startswith("mines") else "test_accuracy"
            lines.append(f"| {words} | {' | '.join(_score(cell, score) for cell in found)} |")
    return "\n".join(lines) if len(lines) > 2 else "Not trained yet: `python -m reproduction.experiments.suite`."


def _score(cell: dict[str, Any] | None, score: str) -> str:
    """Percent, and the number of layers that validation chose."""
    if cell is None:
        return "-"
    values = [100 * value for value in cell[score]]
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f} [{cell['layers']}]"


def _error(cell: dict[str, Any]) -> str:
    values = cell["test_mae"]
    if not values:
        return "failed"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} ({len(values)})"


def ring_picture() -> bytes:
    """Accuracy over distance of all models with a record."""
    cells, lines = read_cells(FILE), []
    for model, name in NAMES.items():
        known = [(hops, cells[f"ring-{hops} {model}"]) for hops in HOPS if f"ring-{hops} {model}" in cells]
        if known:
            colour, style = _STYLES.get(model, ("#888888", ":"))
            y = [100 * statistics.fmean(cell["test_accuracy"]) for _, cell in known]
            label = name.strip("*") if model in _STYLES else ""
            lines.append(Line(label, y, [hops for hops, _ in known], colour, style))
    others = ", ".join(name for model, name in NAMES.items() if model not in _STYLES and any(
        key.startswith("ring-") and key.endswith(f" {model}") for key in cells
    ))  # fmt: skip
    lines.append(Line("chance", [20, 20], [HOPS[0], HOPS[-1]], "#000000", "-.", 1.0))
    panel = Panel(
        f"grey: {others}",
        "test accuracy, %",
        lines,
        x_label="hops between a class and the node that is asked for it",
        is_log=False,
        x_scale="log",
        x_ticks=HOPS,
        y_limits=(0, 105),
        dots="all",
    )
    return picture(Drawing("wave-rings", [panel], "Ring transfer without a leak", columns=1, size=(7.2, 4.0)))
