"""``graphjoule partition``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from graphjoule.cli.source import GraphSource, takes_a_graph
from graphjoule.cli.terminal import Json
from graphjoule.errors import counted
from graphjoule.files import json_text


@takes_a_graph
def partition(
    source: GraphSource,
    parts: Annotated[int, typer.Option(min=1, help="Number of parts, one per process.")],
    out: Annotated[Path, typer.Option(help="Folder for the parts.")],
    method: Annotated[
        Literal["metis", "blocks"] | None,
        typer.Option(help="metis cuts few edges; blocks cuts nodes in their order.", show_default="metis if installed"),
    ] = None,
    json: Json = False,
) -> None:
    """Cut a graph into parts, one per process, for `graphjoule train --distributed`.

    Examples:

    - `graphjoule partition --dataset cora --parts 2 --out cora-2`

    - `torchrun --standalone --nproc-per-node 2 -m graphjoule train --distributed --parts cora-2 --layers 64`

    - `graphjoule partition --nodes nodes.csv --edges edges.csv --parts 4 --method blocks --out mine-4`
    """
    source.check()

    from graphjoule.cli.processes import default_method
    from graphjoule.parallel.partition import check_partition_folder, write_partition

    check_partition_folder(out)  # said now, not after minutes
    made = write_partition(source.load(), parts, out, method or default_method())
    share = 100 * made.num_cut_edges / max(1, made.data.num_edges)
    typer.echo(
        f"{made.data.name}: {counted(made.num_parts, 'part')} by {made.method}, {span(made.num_nodes, 'node')} each; "
        f"{made.num_cut_edges:,} of {counted(made.data.num_edges, 'edge')} cut ({share:.1f} %), "
        f"a part fetches {span(made.num_halo, 'row')} per layer\nparts: {out}",
        err=json,
    )
    if json:
        typer.echo(json_text(made.model_dump(mode="json") | {"out": str(out)}))


def span(numbers: Sequence[int], noun: str) -> str:
    """The least and the greatest of some numbers with their noun, or the one number that all are.

    >>> span([3, 1200, 7], "node"), span([1, 1], "node"), span([0], "row")
    ('3 to 1,200 nodes', '1 node', '0 rows')
    """
    least, greatest = min(numbers), counted(max(numbers), noun)
    return greatest if least == max(numbers) else f"{least:,} to {greatest}"
