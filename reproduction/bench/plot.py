"""Draw the scaling curves of a bench records file, one PNG per curve and device.

python -m reproduction.bench.plot bench.jsonl --out FOLDER
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # before pyplot: there may be no display
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from reproduction.bench import BenchRecord, read_bench_records

# Okabe and Ito's colours, which the colour-blind can tell apart; markers and line styles say the same again.
_STYLES: dict[str, dict[str, Any]] = {
    "ours": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "pyg": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    "pyg-csr": {"color": "#009E73", "marker": "^", "linestyle": "-."},
    "scipy": {"color": "#555555", "marker": "x", "linestyle": "-"},
}
_LABELS = {"ours": "graphjoule", "pyg": "PyG, messages", "pyg-csr": "PyG, CSR matrix", "scipy": "SciPy, products alone"}
Point = tuple[float, float, float, float]  # x, and the median with its quartiles


@dataclass(frozen=True)
class Curve:
    """How a curve is drawn: what grows along it, and what stays."""

    x_label: str
    x_of: Callable[[BenchRecord], int]
    title: str


CURVES = {
    "depth": Curve("layers", lambda r: r.layers, "EGNN on Cora, width 64, one run"),
    "nodes": Curve("nodes (average degree 8)", lambda r: r.nodes, "EGNN, 32 layers, width 64, one run"),
    "runs": Curve("runs", lambda r: r.runs, "EGNN on Cora, 64 layers; PyG trains one run after the other"),
}


def times(records: Sequence[BenchRecord], side: str, x_of: Callable[[BenchRecord], int]) -> list[Point]:
    """Milliseconds an epoch of all runs, with quartiles; a side that failed at a size has no point there."""
    points: dict[int, Point] = {}
    for r in records:
        if side == "ours" and r.ours_ms is not None and r.ours_spread_ms is not None:
            points[x_of(r)] = (x_of(r), r.ours_ms, *r.ours_spread_ms)
        elif side == r.peer and r.peer_ms is not None and r.peer_spread_ms is not None:
            # One run is measured; several take as many times as long, for the peer trains them one by one.
            low, high = r.peer_spread_ms
            points[x_of(r)] = (x_of(r), r.runs * r.peer_ms, r.runs * low, r.runs * high)
    return [points[x] for x in sorted(points)]


def peaks(records: Sequence[BenchRecord], side: str, x_of: Callable[[BenchRecord], int]) -> list[Point]:
    """Peak GiB where it is known; it has no spread."""
    points: dict[int, Point] = {}
    for r in records:
        peak = r.ours_peak_bytes if side == "ours" else r.peer_peak_bytes if side == r.peer else None
        if peak is not None:
            gib = peak / 2**30
            points[x_of(r)] = (x_of(r), gib, gib, gib)
    return [points[x] for x in sorted(points)]


def draw_panel(axes: Axes, series: dict[str, list[Point]], x_label: str, y_label: str) -> None:
    """All sides on logarithmic axes, and a dashed line of slope 1: what doubles with x runs along it."""
    for side, points in series.items():
        if points:
            x, y, low, high = zip(*points, strict=True)
            below, above = [a - b for a, b in zip(y, low, strict=True)], [b - a for a, b in zip(y, high, strict=True)]
            axes.errorbar(x, y, yerr=[below, above], label=_LABELS[side], capsize=2, **_STYLES[side])
    longest = max(series.values(), key=len)
    if len(longest) > 1:
        (x0, _, _, _), (x1, y1, _, _) = longest[0], longest[-1]
        axes.plot([x0, x1], [0.5 * y1 * x0 / x1, 0.5 * y1], color="0.6", linestyle=":", label="slope 1")
    axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label)
    ticks = sorted({point[0] for points in series.values() for point in points})
    axes.set_xticks(ticks, [f"{x / 1000:g}k" if x >= 10_000 else f"{x:g}" for x in ticks], minor=False)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # a curve within one decade would have one label
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def plot_curve(name: str, records: Sequence[BenchRecord], path: Path) -> None:
    """Draw one curve of one device: time, and beside it peak memory where it was measured."""
    curve = CURVES[name]
    panels = [("ms an epoch, all runs" if name == "runs" else "ms an epoch", times), ("peak GiB", peaks)]
    drawn = [(label, {side: get(records, side, curve.x_of) for side in _STYLES}) for label, get in panels]
    drawn = [(label, series) for label, series in drawn if any(series.values())]
    figure, axes = plt.subplots(1, len(drawn), figsize=(6.4 * len(drawn), 4.8), squeeze=False, layout="constrained")
    for ax, (label, series) in zip(axes[0], drawn, strict=True):
        draw_panel(ax, series, curve.x_label, label)
    axes[0][0].legend(frameon=False)
    figure.suptitle(f"{curve.title}\n{records[0].device}; median and quartiles", fontsize=11)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def plot_all(file: Path, out: Path) -> list[Path]:
    """Write the plots of a records file; a point measured again replaces the one before."""
    records, paths = read_bench_records(file), []
    for name, device in dict.fromkeys((r.curve, r.device) for r in records if r.curve):
        slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
        paths.append(out / f"bench-{name}-{slug}.png")
        plot_curve(name, [r for r in records if (r.curve, r.device) == (name, device)], paths[-1])
    return paths


def main() -> None:
    """Read a records file and write its plots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path, help="a .jsonl file that the benchmark wrote with --curves and --out")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the PNG files")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(*plot_all(arguments.records, arguments.out), sep="\n")


if __name__ == "__main__":
    main()
