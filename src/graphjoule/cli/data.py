"""``graphjoule data``."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from graphjoule.files import json_text
from graphjoule.tasks.datasets import DATASETS, DatasetSource, resolve_data_root

_WIDTH = max(map(len, DATASETS)) + 2


def data(
    data_root: Annotated[
        Path | None, typer.Option(help="Where to look; by default GRAPHJOULE_DATA, else a cache folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")] = False,
) -> None:
    """List the datasets: what they are, how they are split, where they come from, and whether they are here already."""
    root = resolve_data_root(data_root)
    if json:
        typer.echo(json_text([_row(source, root) for source in DATASETS.values()]))
        return
    for group, sources in groupby(DATASETS.values(), key=lambda source: source.group):
        typer.echo(f"{group}\n")
        for source in sources:
            state = "here" if source.is_present(root) else "downloaded at first use"
            lines = (state, source.description, f"Split: {source.split}", f"From: {source.origin}")
            names = (source.name, *[""] * (len(lines) - 1))
            typer.echo("\n".join(f"  {name:<{_WIDTH}}{line}" for name, line in zip(names, lines, strict=True)) + "\n")
    typer.echo(f"Data root: {root}  (change it with --data-root or GRAPHJOULE_DATA)")


def _row(source: DatasetSource, root: Path) -> dict[str, str | bool]:
    return {
        "name": source.name,
        "group": source.group,
        "description": source.description,
        "split": source.split,
        "origin": source.origin,
        "present": source.is_present(root),
    }
