"""Write the tables of README.md and docs/performance.md from the records in results/.

    python benchmarks/write_tables.py

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; what stands there before is replaced.
"""

import json
import re
from pathlib import Path

from graphjoule import read_records, summarise
from graphjoule.bench import read_bench_records

ROOT = Path(__file__).resolve().parent.parent
# Test accuracies of EGNN in the paper's main table, percent.
PAPER = {
    "cora": {2: 83.2, 16: 85.4, 64: 85.7},
    "pubmed": {2: 79.2, 16: 80.0, 64: 80.1},
    "physics": {2: 92.6, 16: 93.1, 32: 93.3},
}
_GIB = 2**30


def accuracy_table() -> str:
    """EGNN's nine cells beside the paper's."""
    lines = ["| layers | Cora | Pubmed | layers | Coauthor-Physics |", "|---|---|---|---|---|"]
    for shallow, deep in zip(PAPER["cora"], PAPER["physics"], strict=True):
        cora, pubmed = accuracy_cell("cora", shallow), accuracy_cell("pubmed", shallow)
        lines.append(f"| {shallow} | {cora} | {pubmed} | {deep} | {accuracy_cell('physics', deep)} |")
    return "\n".join(lines)


def accuracy_cell(dataset: str, layers: int) -> str:
    """Mean, spread and the paper's figure."""
    records = read_records(ROOT / f"results/foundation/egnn-{dataset}.jsonl.gz")
    summary = summarise(record for record in records if record.num_layers == layers)
    assert summary.n == 10, f"{dataset}, {layers} layers: {summary.n} runs"
    return f"{100 * summary.test_mean:.2f} ± {100 * summary.test_std:.2f} ({PAPER[dataset][layers]})"


def bench_table() -> str:
    """Ours against both peers, one line per case, device and number of runs."""
    lines = [
        "| case | device | runs | ours, all runs | pyg, one run | ratio per run | pyg-csr, one run | ratio per run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cells: dict[tuple[str, str, int], dict] = {}
    for name in ("cpu", "h200"):
        for record in read_bench_records(ROOT / f"results/bench/{name}.jsonl"):
            cells.setdefault((record.device, record.case, record.runs), {})[record.peer] = record
    for (device, case, runs), by_peer in cells.items():
        ours = by_peer["pyg"]
        peers = " | ".join(peer_cells(by_peer[peer]) for peer in ("pyg", "pyg-csr"))
        lines.append(f"| {case} | {device} | {runs} | {time_and_peak(ours.ours_ms, ours.ours_peak_bytes)} | {peers} |")
    return "\n".join(lines)


def peer_cells(record) -> str:
    """The peer's time and the ratio with its quartiles."""
    low, high = record.ratio_spread
    return f"{time_and_peak(record.peer_ms, record.peer_peak_bytes)} | {record.ratio:.2f} ({low:.2f} to {high:.2f})"


def time_and_peak(milliseconds: float, peak_bytes: int | None) -> str:
    """Milliseconds, and peak GiB where it is known."""
    peak = "" if peak_bytes is None else f", {peak_bytes / _GIB:.1f} GiB"
    return f"{milliseconds:,.1f} ms{peak}" if milliseconds < 100 else f"{milliseconds:,.0f} ms{peak}"


def depth_table() -> str:
    """EGNN with 1,024 layers."""
    lines = [
        "| device | seeds | epochs | test accuracy | seconds | peak memory | layers within both energy limits |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted((ROOT / "results/depth").glob("*-energy.json"), reverse=True):
        report = json.loads(path.read_text())
        spread = "" if report["test_std"] is None else f" ± {100 * report['test_std']:.2f}"
        epochs = f"{min(report['epochs_run'])} to {max(report['epochs_run'])}"
        held = min(min(limits["lower"], limits["upper"]) for limits in report["limits"])
        layers, peak = report["limits"][0]["layers"], report["peak_bytes"] / _GIB
        lines.append(
            f"| {report['device']} | {report['n']} | {epochs} | {100 * report['test_mean']:.2f}{spread} % | "
            f"{report['seconds']:,.0f} | {peak:.1f} GiB | {held:,} of {layers:,} |"
        )
    return "\n".join(lines)


TABLES = {"accuracy": accuracy_table, "bench": bench_table, "depth": depth_table}


def with_tables(text: str) -> str:
    """The text with every table in it made anew."""
    pattern = re.compile(r"(<!-- table (\w+) -->\n).*?(\n<!-- end -->)", flags=re.DOTALL)
    return pattern.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


if __name__ == "__main__":
    for name in ("README.md", "docs/performance.md"):
        (ROOT / name).write_text(with_tables((ROOT / name).read_text()))
