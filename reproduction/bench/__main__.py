"""``python -m reproduction.bench``: time an epoch here and in PyTorch Geometric."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from graphjoule import GraphjouleError
from reproduction.bench import PEERS, BenchRecord, Case, append_bench_records, find_case, find_curves, run_cases

_DEFAULT_CASE = "digits-32"
_EPILOG = """
Examples:

- `python -m reproduction.bench` compares on the embedded digits

- `python -m reproduction.bench cora-64 pubmed-64 physics-32 --out bench.jsonl`

- `python -m reproduction.bench cora-64 --device cuda --runs 10`

- `python -m reproduction.bench cora-64 pubmed-64 --device cpu --peer pyg --budget 15 --tries 3 --out cpu.jsonl`

- `python -m reproduction.bench --curves depth --curves runs --out curves.jsonl`

- `python -m reproduction.bench cora-64 --out history` and `python -m reproduction.bench.history history` draw commits
"""


def bench(
    cases: Annotated[
        list[str] | None,
        typer.Argument(metavar="CASE", help="cora-64, pubmed-64, physics-32, arxiv-32, or any DATASET-LAYERS."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    budget: Annotated[
        float, typer.Option(min=0, help="Seconds of timed repeats per case; five repeats are the least.")
    ] = 30.0,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Runs that ours trains at once; the case says by default.")
    ] = None,
    tries: Annotated[
        int, typer.Option(min=1, help="Measure all cases so often, one after the other; pages take the middle ratio.")
    ] = 1,
    curves: Annotated[list[str] | None, typer.Option(help="A scaling curve: depth, nodes or runs; repeatable.")] = None,
    peer: Annotated[list[str] | None, typer.Option(help="Compare with pyg or pyg-csr only; both by default.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Append the records to this .jsonl file, or in a folder to the file of device and commit."),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Where datasets are or go; by default GRAPHJOULE_DATA, else a cache folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the records as a JSON list on the last line.")] = False,
) -> None:
    """Time an epoch (training step and evaluation) of EGNN here and in PyTorch Geometric, in turns, in one process."""
    if runs is not None and "runs" in (curves or []):
        raise GraphjouleError("--runs and --curves runs contradict each other: the curve says how many runs.")
    if out is not None and not out.absolute().parent.is_dir():  # said now, not after minutes of measuring
        raise GraphjouleError(f"--out is {out}, but there is no folder {out.absolute().parent}.")

    def show(records: list[BenchRecord]) -> None:
        typer.echo(describe_case(records), err=json)
        if out is not None:
            append_bench_records(out, records)

    records = run_cases(
        tries * _chosen(cases or [], curves or []),
        device,
        budget,
        runs=runs,
        peers=tuple(peer or PEERS),
        data_root=data_root,
        on_case=show,
    )
    if json:
        typer.echo(dumps([record.model_dump(mode="json") for record in records]))


bench.__doc__ = f"{bench.__doc__}\n{_EPILOG}"


def _chosen(names: list[str], curves: list[str]) -> list[Case]:
    if not names and not curves:
        names = [_DEFAULT_CASE]
    return [*(find_case(name) for name in names), *find_curves(curves)]


def describe_case(records: list[BenchRecord]) -> str:
    """One line about a case: ours and its floor, every peer with how many times faster ours is, and peaks where known.

    The first ratio is paired, repeat by repeat; that of the medians stands beside it.
    """
    first = records[0]
    runs = f" ({first.runs} runs)" if first.runs > 1 else ""
    ours = f"ours{runs} {_milliseconds(first.ours_ms, first.ours_failure)}"
    return "  ".join(
        [
            f"{first.case:<14}",
            ours + _peak(first.ours_peak_bytes) + _floor(first),
            *(_describe_peer(record) for record in records),
        ]
    )


def _describe_peer(record: BenchRecord) -> str:
    text = f"{record.peer} {_milliseconds(record.peer_ms, record.peer_failure)}{_peak(record.peer_peak_bytes)}"
    if record.ratio is None or record.ratio_spread is None:
        return text
    low, high = record.ratio_spread
    per_run = " per run" if record.runs > 1 else ""
    medians = "" if record.median_ratio is None else f"; of medians {record.median_ratio:.2f}x"
    return f"{text} = {record.ratio:.2f}x{per_run} ({low:.2f} to {high:.2f}, n = {record.repeats}{medians})"


def _floor(record: BenchRecord) -> str:
    if record.floor_bytes is None or record.floor_ms is None or record.floor_share is None:
        return ""
    size, time = record.floor_bytes / 2**30, _milliseconds(record.floor_ms, None)
    return f" (floor {size:.2f} GiB, {time}: {100 * record.floor_share:.0f} % of ours)"


def _milliseconds(median: float | None, failure: str | None) -> str:
    if median is None:
        return failure or "not measured"
    return f"{median:,.0f} ms" if median >= 1000 else f"{median:.1f} ms"


def _peak(peak_bytes: int | None) -> str:
    return "" if peak_bytes is None else f" [{peak_bytes / 2**30:.2f} GiB]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; what cannot be used is one sentence on standard error and exit code 2."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    app.command()(bench)
    try:
        app(arguments, prog_name="python -m reproduction.bench")
    except GraphjouleError as error:
        typer.echo(f"bench: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
