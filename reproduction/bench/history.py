"""A page of all bench records of a folder: for every device and case, our time and its floor from commit to commit.

python -m reproduction.bench.history FOLDER [--out bench.html]
"""

from __future__ import annotations

import argparse
import base64
import io
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # before pyplot: there may be no display
import matplotlib.pyplot as plt

from graphjoule import GraphjouleError
from reproduction.bench import BenchRecord, read_bench_records

Place = tuple[str, str, int]
"""Device, case, and number of runs."""


def read_history(folder: Path) -> dict[Place, list[BenchRecord]]:
    """The records of all files by device, case and runs, one for each peer and commit, oldest first.

    Of two with the same peer and commit the later one holds.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise GraphjouleError(
            f"There is no .jsonl file in {folder}; `python -m reproduction.bench --out FOLDER` makes one."
        )
    found: dict[Place, dict[tuple[str, str], BenchRecord]] = defaultdict(dict)
    for record in sorted((r for file in files for r in read_bench_records(file)), key=lambda r: r.created):
        if not record.curve:
            found[record.device, record.case, record.runs][record.peer, commit_of(record)] = record
    return {place: sorted(of.values(), key=lambda r: r.created) for place, of in sorted(found.items())}


def commit_of(record: BenchRecord) -> str:
    """The commit in eight digits, with a plus where files were changed."""
    commit = record.versions.get("commit", "unknown")[:8]
    return commit + ("+" if record.versions.get("tree") == "changed" else "")


def draw(records: Sequence[BenchRecord]) -> str:
    """Our time, its quartiles and the floor over commits, as a PNG in a data URL."""
    ours = list({commit_of(r): r for r in records if r.ours_ms is not None}.values())
    figure, axes = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
    for x, record in enumerate(ours):
        axes.plot([x, x], record.ours_spread_ms or [record.ours_ms] * 2, color="#0072B2", linewidth=1)
        if record.floor_ms is not None:
            axes.plot([x - 0.3, x + 0.3], [record.floor_ms] * 2, color="#555555", linewidth=1)
    axes.plot(range(len(ours)), [r.ours_ms for r in ours], "o-", color="#0072B2")
    axes.set_xticks(range(len(ours)), [commit_of(r) for r in ours], rotation=30, ha="right", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("ms an epoch, all runs")
    axes.grid(axis="y", alpha=0.3)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110, format="png", metadata={"Software": None})
    plt.close(figure)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def page(history: dict[Place, list[BenchRecord]]) -> str:
    """The whole page."""
    parts = []
    for (device, case, runs), records in history.items():
        rows = "".join(_row(record) for record in reversed(records))
        alt = f"Our time of {case} on {device} over commits; the grey marks are the floor."
        parts.append(
            f"<h2>{escape(case)}, {runs} run{'s' if runs > 1 else ''}, {escape(device)}</h2>\n"
            f'<img src="{draw(records)}" alt="{escape(alt)}">\n'
            "<table><tr><th>commit</th><th>measured</th><th>ours, ms</th><th>floor, ms</th><th>share</th><th>peer</th>"
            f"<th>paired ratio</th><th>ratio of medians</th></tr>{rows}</table>\n"
        )
    style = "body{font-family:sans-serif;max-width:60em;margin:auto}td,th{padding:2px 10px;text-align:right}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Bench</title><style>{style}</style>\n'
        "<h1>An epoch from commit to commit</h1><p>Medians with quartiles. The floor is what an epoch must move, at "
        f"the speed at which the device copied memory just then.</p>\n{''.join(parts)}</html>\n"
    )


def _row(record: BenchRecord) -> str:
    share = None if record.floor_share is None else 100 * record.floor_share
    cells = [
        commit_of(record),
        record.created[:10],
        record.ours_failure or _number(record.ours_ms),
        _number(record.floor_ms),
        "-" if share is None else f"{share:.0f} %",
        record.peer,
        _number(record.ratio),
        _number(record.median_ratio),
    ]
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def main() -> None:
    """Read a folder of records and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="what the benchmark wrote with --out FOLDER")
    parser.add_argument("--out", type=Path, default=Path("bench.html"))
    given = parser.parse_args()
    try:
        given.out.write_text(page(read_history(given.folder)), encoding="utf-8")
    except GraphjouleError as error:
        parser.exit(2, f"history: {error}\n")
    print(given.out)


if __name__ == "__main__":
    main()
