"""The wave network beside its rivals: tables and pictures from reproduction/results/depth/wave.jsonl, and a pulse."""

from __future__ import annotations

import statistics
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from matplotlib.colors import LogNorm
from torch import Tensor

from graphjoule import Propagation
from graphjoule.nn import WaveConv
from graphjoule.ops import propagate, wave_stack
from graphjoule.report import Drawing, Line, Panel, draw, picture
from reproduction.experiments.record import read_cells

__all__ = ["FILE", "distances_table", "pulse_picture", "ring_picture", "ring_table"]

FILE = Path(__file__).resolve().parents[1] / "results/depth/wave.jsonl"
HOPS = (5, 10, 20, 50, 100, 500)
NAMES = {
    **{"wave": "**wave**", "gps": "GPS", "adgn": "A-DGN", "graphcon": "GraphCON", "gcnii": "GCNII", "egnn": "EGNN"},
    **{"appnp": "APPNP", "resgcn": "GCN with residuals"},
}
# Okabe and Ito's colours; the style is another way to tell lines apart.
_STYLES = {"wave": ("#0072B2", "-"), "gps": ("#D55E00", "--")}
_TASKS = ("shortest-paths", "eccentricity", "diameter")
_SIDE, _LAYERS, _FAINTEST = 51, (0, 6, 12, 18, 24), 1e-4  # of the pulse


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
        "| model | layers | shortest paths | eccentricity | diameter | seconds of a run | memory of a run |",
        "|---" * 7 + "|",
    ]
    for model, name in NAMES.items():
        found = [cells.get(f"{task}-40 {model}") for task in _TASKS]
        if not any(found):
            continue
        errors = " | ".join("-" if cell is None else _error(cell) for cell in found)
        first = next(cell for cell in found if cell is not None)
        at_once = 1 if model == "gps" else len(first["test_mae"]) + first["failed"]
        cost = f"{first['seconds_per_run']:.1f} s | {first['peak_bytes'] / at_once / 1e9:.2f} GB"
        lines.append(f"| {name} | {first['layers']} | {errors} | {cost} |")
    return (
        "\n".join(lines) if len(lines) > 2 else "Not trained yet: `python -m reproduction.experiments.depth distances`."
    )


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


def pulse_picture() -> bytes:
    """A pulse on a grid after some layers: the wave, and EGNN with weights that are the identity."""
    rows = {"wave": _wave(), "EGNN": _diffusion()}
    empty = [Panel("", "", [Line("", [0.0])]) for _ in range(2 * len(_LAYERS))]
    figure = draw(Drawing("wave-pulse", empty, columns=len(_LAYERS), size=(2.0, 2.0)))
    for place, axes in enumerate(figure.axes):
        name, layer = list(rows)[place // len(_LAYERS)], _LAYERS[place % len(_LAYERS)]
        axes.clear()
        shown = rows[name][layer].abs().clamp(min=_FAINTEST).reshape(_SIDE, _SIDE)
        image = axes.imshow(shown.numpy(), cmap="cividis", norm=LogNorm(_FAINTEST, 1), interpolation="nearest")
        axes.set(xticks=[], yticks=[], title=f"{name}, layer {layer}")
    figure.colorbar(image, ax=figure.axes, label="size of a node's feature", shrink=0.8)
    file = BytesIO()
    figure.savefig(file, format="png", dpi=130, metadata={"Software": None})
    return file.getvalue()


def _grid() -> tuple[Propagation, Tensor]:
    """A square grid and a pulse in its middle, a few nodes wide: a single node would be waves of all lengths."""
    cell = torch.arange(_SIDE * _SIDE).view(_SIDE, _SIDE)
    edges = [torch.stack([a.flatten(), b.flatten()]) for a, b in ((cell[:, :-1], cell[:, 1:]), (cell[:-1], cell[1:]))]
    graph = Propagation.from_edge_index(torch.cat(edges, dim=1), symmetrize=True, dtype=torch.float64)
    pulse = torch.zeros(_SIDE * _SIDE, 1, dtype=torch.float64)
    pulse[len(pulse) // 2] = 1
    for _ in range(4):
        pulse = propagate(pulse, graph)
    return graph, pulse / pulse.max()


def _wave() -> dict[int, Tensor]:
    graph, pulse = _grid()
    h = WaveConv(step=0.95, delta=0.0, mu=0.0).h(graph)
    return {layer: wave_stack(pulse, graph, layer, h=h, delta=0.0, mu=0.0) for layer in _LAYERS}


def _diffusion() -> dict[int, Tensor]:
    """Layers of EGNN's recipe on Cora."""
    graph, pulse = _grid()
    c_min, beta, x, found = 0.15, 0.1, pulse, {0: pulse}
    for layer in range(1, max(_LAYERS) + 1):
        x = propagate(x, graph, a=1 - c_min, alpha=c_min - beta) + beta * pulse
        found[layer] = x
    return found
