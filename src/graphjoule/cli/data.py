"""``graphjoule data``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from graphjoule.cli import in_options
from graphjoule.cli.source import GraphSource, takes_a_graph
from graphjoule.errors import GraphjouleError, harmless
from graphjoule.files import json_text
from graphjoule.tasks.datasets import DATASETS, FAMILIES, resolve_data_root

_WIDTH = max(map(len, [*DATASETS, *(family.name for family in FAMILIES)])) + 2
_EPILOG = """
Examples:

- `graphjoule data` lists the datasets

- `graphjoule data check people.csv friends.csv --label segment` says what becomes of every column; nothing trains

- `graphjoule data check atoms.csv bonds.csv --graphs molecules.csv --label active` of many graphs too
"""


@takes_a_graph
def data(
    source: GraphSource,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[check NODES [EDGES]]", help="Look at tables of your own.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """List the datasets, or check tables of your own before anything trains."""
    if words:
        _check(source, words, json=json)
        return
    if replace(source, data_root=None) != GraphSource():
        raise GraphjouleError(
            "graphjoule data lists all datasets and takes no graph; graphjoule data check NODES [EDGES] reads tables."
        )
    root = resolve_data_root(source.data_root)
    if json:
        shown = ("name", "group", "description", "split", "origin")
        rows = [
            {name: getattr(row, name) for name in shown} | {"present": row.is_present(root)}
            for row in DATASETS.values()
        ]
        typer.echo(json_text(rows))
        return
    for group, sources in groupby(DATASETS.values(), key=lambda source: source.group):
        typer.echo(f"{group}\n")
        for each in sources:
            state = "here" if each.is_present(root) else "downloaded at first use"
            lines = (state, each.description, f"Split: {each.split}", f"From: {each.origin}")
            _print_row(each.name, lines)
    typer.echo(f"{FAMILIES[0].group}\n")
    for family in FAMILIES:
        _print_row(family.name, (family.description, f"Split: {family.split}", f"From: {family.origin}"))
    typer.echo(f"Data root: {root}  (change it with --data-root or GRAPHJOULE_DATA)")


def _print_row(name: str, lines: Sequence[str]) -> None:
    names = (name, *[""] * (len(lines) - 1))
    typer.echo("\n".join(f"  {name:<{_WIDTH}}{line}" for name, line in zip(names, lines, strict=True)) + "\n")


data.__doc__ = f"{data.__doc__}\n{_EPILOG}"


def _check(source: GraphSource, words: list[str], *, json: bool) -> None:
    """What becomes of tables; refused, after all that can be said, where a training would refuse them."""
    from graphjoule.tasks.own_graph import TableOptions
    from graphjoule.tasks.table_report import check_tables

    if words[0] != "check" or len(words) > 3:
        raise GraphjouleError(f"graphjoule data {' '.join(words)} is not a command; expected data check NODES [EDGES].")
    files = dict(zip(("nodes", "edges"), map(Path, words[1:]), strict=False))
    if "edges" in files and source.edges is not None:
        raise GraphjouleError(f"--edges is {source.edges} and the second table {words[2]}; give one of them.")
    source = replace(source, **files)  # type: ignore[arg-type]
    source.check()
    if source.test_fraction is not None:
        from graphjoule.tasks.splits import stratified_rule  # with torch, which a check does without

        stratified_rule(source.test_fraction)
    if source.nodes is None:
        raise GraphjouleError("There is no table to check; expected graphjoule data check NODES [EDGES].")

    report = check_tables(
        source.nodes, source.edges, TableOptions(**source.table_options()), source.graphs, source.test_fraction or 0.0
    )
    names = (
        *source.table_options(),
        "graphs",
        "edges",
        "select_on",
        "class_weights",
        "test_fraction",
    )  # the latter are of `graphjoule train`
    options = {name: f"--{name.replace('_', '-')}" for name in names}
    problems, warnings = (
        tuple(in_options(each, options) for each in said) for said in (report.problems, report.warnings)
    )
    report = replace(report, problems=problems, warnings=warnings)
    if json:
        columns = [{"name": c.name, "kind": c.kind, "missing": c.missing, "becomes": c.becomes} for c in report.columns]
        typer.echo(json_text(asdict(report) | {"columns": columns}))
    else:
        _print(report)
    if report.problems:
        raise GraphjouleError(report.problems[-1])


def _print(report: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("column", "kind", "missing", "what becomes of it", title=report.nodes, title_justify="left")
    for column in report.columns:
        table.add_row(
            harmless(column.name), column.kind, f"{column.missing:,}" if column.missing else "", column.becomes
        )
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(table)
    lines = {"target": [report.target], "edges": [report.edges], "warning": report.warnings}
    for head, texts in (lines | {"refused": report.problems[:-1]}).items():
        for text in filter(None, texts):
            console.print(harmless(f"{head}: {text}"))
