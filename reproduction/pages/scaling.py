"""Tables and pictures of time and memory over the number of nodes, from what `reproduction.bench.scaling` recorded."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from reproduction.bench.plot import Point, draw_panel
from reproduction.experiments.record import read_cells

__all__ = ["pictures", "read_scaling", "scaling_table", "ways_table"]

Row = dict[str, Any]
SIDES = ("ours", "pyg-csr")
PRODUCTS = {"inference": 1, "epoch": 3}
"""Products per layer: forward; forward, backward and in the evaluation."""
WAYS = {"exact": "whole graph", "clusters": "clusters", "processes": "two processes"}
_GIB = 2**30


def read_scaling(folder: Path) -> list[Row]:
    """The records of all files, by device and size."""
    rows = [row for path in sorted(folder.glob("*.jsonl")) for row in read_cells(path).values()]
    return sorted(rows, key=lambda row: (device_of(row), row["nodes"]))


def scaling_table(rows: list[Row]) -> str:
    """Time, memory and ratios of every size, with a picture for each device; nothing without records."""
    rows = [row for row in rows if not is_of_ways(row)]
    if not rows:
        return ""
    heads = ["nodes", "edges", "device"]
    for phase in PRODUCTS:
        heads += [f"{phase}, ours", "pyg-csr", "ratio", "ours / SciPy"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [f"{row['nodes']:,}", f"{row['edges']:,}" if "edges" in row else "-", row.get("device", "-")]
        for phase in PRODUCTS:
            cells += phase_cells(row, phase)
        lines.append(f"| {' | '.join(cells)} |")
    images = [f"![{alt_of(of)}](images/{name})" for name, of in by_picture(rows).items()]
    return "\n".join(lines) + "".join(f"\n\n{image}" for image in images)


def phase_cells(row: Row, phase: str) -> list[str]:
    """Both sides, the ratio and ours in SciPy's products."""
    if "failed" in row:
        return [row["failed"], "-", "-", "-"]
    cells = [side_text(row, side, phase) for side in SIDES]
    ours, peer = (milliseconds(row, side, phase) for side in SIDES)
    if ours is None or peer is None:
        cells.append("-")
    elif (turns := row["turns"].get(phase)) is None:
        cells.append(f"{peer / ours:.2f} (not in turns)")
    else:
        ratio, low, high = turns["ratio"]
        cells.append(f"{ratio:.2f} ({low:.2f} to {high:.2f}; of medians {peer / ours:.2f})")
    floor = floor_ms(row, phase)
    return [*cells, "-" if floor is None or ours is None else f"{ours / floor:.2f}"]


def side_text(row: Row, side: str, phase: str) -> str:
    """Milliseconds and peak memory of a side, or why there are none."""
    alone = row["alone"][side][phase]
    time = milliseconds(row, side, phase)
    if time is None:
        is_memory = alone["failed"] == "out of memory" and "free_bytes" in row
        return f"does not fit into {row['free_bytes'] / _GIB:.0f} GiB" if is_memory else str(alone["failed"])
    cold = "" if phase in row["turns"] or alone["is_warm"] else ", first pass"
    peak = "" if alone["peak_bytes"] is None else f", {alone['peak_bytes'] / _GIB:.2f} GiB"
    return f"{time:,.1f} ms{peak}{cold}" if time < 100 else f"{time:,.0f} ms{peak}{cold}"


def milliseconds(row: Row, side: str, phase: str) -> float | None:
    """The median in turns, else the one step of a process of its own; None where it failed."""
    if phase in row.get("turns", {}):
        median: float = row["turns"][phase]["ms"][side][0]
        return median
    seconds = row.get("alone", {}).get(side, {}).get(phase, {}).get("seconds")
    return None if seconds is None else 1000 * seconds


def floor_ms(row: Row, phase: str) -> float | None:
    """The time of as many products by SciPy as the phase makes; None where it was not measured."""
    return row["product_ms"] * PRODUCTS[phase] * row["settings"]["layers"] if "product_ms" in row else None


def ways_table(rows: list[Row]) -> str:
    """The whole graph, clusters and processes at some sizes, and from where on they pay; nothing without records."""
    rows = [row for row in rows if is_of_ways(row)]
    if not rows:
        return ""
    lines = ["| nodes | device | way | an epoch | to the whole graph | peak memory | to the whole graph | before |"]
    lines += ["|---" * 8 + "|"]
    for row, (way, name) in product(rows, WAYS.items()):
        exact, found = (way_of(row, each) for each in ("exact", way))
        by_number = ", by number" if found.get("method") == "blocks" else ""
        start = f"| {row['nodes']:,} | {row.get('device', '-')} | {name}{by_number}"
        if "failed" in found:
            lines.append(f"{start} | {found['failed']} | - | - | - | - |")
            continue
        peaks = " + ".join("?" if peak is None else f"{peak / _GIB:.2f}" for peak in found["peak_bytes"])
        shares = (share(found, exact, of) for of in (epoch_of, peak_of))
        time, memory = ("-" if each is None else f"{each:.2f}" for each in shares)
        epoch, before = f"{found['seconds_per_epoch']:.3g} s", f"{found['seconds_before']:.1f} s"
        lines.append(f"{start} | {epoch} | {time} | {peaks} GiB | {memory} | {before} |")
    devices = {device_of(row): [each for each in rows if device_of(each) == device_of(row)] for row in rows}
    said = [pays(of, way) for of in devices.values() for way in WAYS if way != "exact"]
    return "\n".join([*lines, "", *said])


def is_of_ways(row: Row) -> bool:
    """Whether it compares ways to train, not sides."""
    return "ways" in row["key"].split()


def device_of(row: Row) -> str:
    """What was asked for: cpu or cuda."""
    return str(row["key"].split()[0])


def way_of(row: Row, way: str) -> Row:
    """What was found of one way; the reason where the graph could not be made."""
    found: Row = row["ways"][way] if "ways" in row else {"failed": row["failed"]}
    return found


def epoch_of(found: Row) -> float:
    """Seconds of an epoch."""
    return float(found["seconds_per_epoch"])


def peak_of(found: Row) -> float:
    """Bytes of all processes together."""
    return float(sum(peak or 0 for peak in found["peak_bytes"]))


def share(found: Row, exact: Row, of: Any) -> float | None:
    """How much of the whole graph's time or memory it is; None where that failed or is not known."""
    if "failed" in found or "failed" in exact or not of(exact):
        return None
    return float(of(found) / of(exact))


def pays(rows: list[Row], way: str) -> str:
    """From which of the measured sizes on a way is faster than the whole graph, or needs less memory."""
    said = []
    for of, better in ((epoch_of, "faster"), (peak_of, "smaller in memory")):
        sizes: list[int] = []
        for row in rows:
            found, exact = way_of(row, way), way_of(row, "exact")
            ratio = share(found, exact, of)
            is_better = "failed" not in found and ("failed" in exact or (ratio is not None and ratio < 1))
            sizes = [*sizes, row["nodes"]] if is_better else []
        said.append(f"{better} from {sizes[0]:,} nodes on" if sizes else f"not {better} at the largest size")
    return f"- {WAYS[way].capitalize()} ({device_of(rows[0])}): {', '.join(said)}."


def by_picture(rows: list[Row]) -> dict[str, list[Row]]:
    """The records of each device that has two sizes or more, by the name of its picture."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "device" in row and not is_of_ways(row):
            slug = re.sub(r"[^a-z0-9]+", "-", row["device"].lower()).strip("-")
            found.setdefault(f"scaling-{slug}.png", []).append(row)
    return {name: of for name, of in found.items() if len(of) > 1}


def alt_of(rows: list[Row]) -> str:
    """What the picture shows, in a sentence."""
    low, high = rows[0]["nodes"], rows[-1]["nodes"]
    return f"Time and peak memory of an epoch from {low:,} to {high:,} nodes on {rows[0]['device']}."


def pictures(rows: list[Row], folder: Path) -> None:
    """Draw time and peak memory of an epoch over the number of nodes, a PNG for each device."""
    for name, of in by_picture(rows).items():
        times: dict[str, list[Point]] = {side: points(of, side, milliseconds) for side in SIDES}
        times["scipy"] = points(of, "scipy", lambda row, side, phase: floor_ms(row, phase))
        memory = {side: points(of, side, peak_gib) for side in SIDES}
        figure, axes = plt.subplots(1, 2, figsize=(12.8, 4.8), layout="constrained")
        draw_panel(axes[0], times, "nodes (average degree 10)", "ms an epoch")
        draw_panel(axes[1], memory, "nodes (average degree 10)", "peak GiB")
        axes[0].legend(frameon=False)
        settings = of[0]["settings"]
        figure.suptitle(f"EGNN, {settings['layers']} layers, width {settings['width']}\n{of[0]['device']}", fontsize=11)
        figure.savefig(folder / name, dpi=150)
        plt.close(figure)


def points(rows: list[Row], side: str, value: Any) -> list[Point]:
    """The points of a line, without quartiles; a size that failed has none."""
    found = [(row["nodes"], value(row, side, "epoch")) for row in rows]
    return [(x, y, y, y) for x, y in found if y]


def peak_gib(row: Row, side: str, phase: str) -> float | None:
    """Peak memory of a side."""
    peak = row.get("alone", {}).get(side, {}).get(phase, {}).get("peak_bytes")
    return None if peak is None else peak / _GIB
