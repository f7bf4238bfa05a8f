"""``graphjoule audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from graphjoule.cli.source import GraphSource, takes_a_graph
from graphjoule.cli.terminal import Overrides
from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.training.recipe import load_recipe
from graphjoule.training.settings import parse_overrides
from graphjoule.version import __version__

if TYPE_CHECKING:
    from graphjoule.theory import Audit

_USED = ("c_min", "c_max", "beta")


@takes_a_graph
def audit(
    source: GraphSource,
    layers: Annotated[int, typer.Option(help="Number of graph layers.")] = 64,
    set_: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Show a graph's spectrum, and what theory says of EGNN on it: which lemmas hold, the right bounds, and its reach.

    Examples:

    - `graphjoule audit --dataset cora`

    - `graphjoule audit --dataset cora --layers 16 --set c_min=0.3 --set beta=0.2`

    - `graphjoule audit --dataset pubmed --json`

    - `graphjoule audit --nodes papers.csv --edges citations.csv`
    """
    source.check()
    overrides = parse_overrides(set_ or [])
    settings = load_recipe("egnn", source.name, layers, overrides).settings()
    for key in overrides:  # the recipe knows others, but they would change nothing
        if key.removeprefix("model.") not in _USED:
            raise GraphjouleError(f"--set {key} would change nothing here: an audit depends on {', '.join(_USED)}.")

    from graphjoule.theory import Setting
    from graphjoule.theory import audit as audit_graph

    setting = Setting(num_layers=layers, **{name: settings[f"model.{name}"] for name in _USED})
    alphas = {name: load_recipe(name, source.name, layers).model.options["alpha"] for name in ("appnp", "gcnii")}
    result = audit_graph(source.load_graph(), setting, alphas=alphas)
    if json:
        typer.echo(json_text({"dataset": source.name, "version": __version__, **result.fields()}))
    else:
        show(result, Console())


def show(result: Audit, console: Console) -> None:
    """Print an audit: tables on a terminal, plain lines of their natural width elsewhere."""
    if not console.is_terminal:
        typer.echo("\n".join(result.lines()))
        return
    console.print(result.title(), highlight=False)
    for section in result.sections():
        table = Table(title=section.title, title_justify="left", show_header=any(section.header))
        for name in section.header:
            table.add_column(name)
        for row in section.rows:
            table.add_row(*row)
        console.print(table)
    for sentence in result.meaning():
        console.print(f"- {sentence}", highlight=False, markup=False)
