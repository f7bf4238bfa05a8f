"""``graphjoule data``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphjoule.files import json_text
from graphjoule.tasks import DATASETS, resolve_data_root


def data(
    data_root: Annotated[
        Path | None, typer.Option(help="Where to look; by default GRAPHJOULE_DATA, else a cache folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")] = False,
) -> None:
    """List the datasets: what they are, where they come from, and whether they are here already."""
    root = resolve_data_root(data_root)
    rows = [
        {
            "name": source.name,
            "description": source.description,
            "origin": source.origin,
            "present": source.is_present(root),
        }
        for source in DATASETS.values()
    ]
    if json:
        typer.echo(json_text(rows))
        return
    for row in rows:
        state = "here" if row["present"] else "downloaded at first use"
        typer.echo(f"{row['name']:<8}  {state}\n          {row['description']}\n          {row['origin']}")
    typer.echo(f"\nData root: {root}  (change it with --data-root or GRAPHJOULE_DATA)")
