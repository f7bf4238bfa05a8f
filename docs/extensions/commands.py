"""The directive `graphjoule-commands`: every command with its examples and options, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from graphjoule.cli import app as command_line


def _spelling(parameter: Any) -> str:
    """What is typed for an argument or an option, such as ``--nodes FILE``."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    switches = " / ".join((*parameter.opts, *parameter.secondary_opts))
    return switches if parameter.is_flag else f"{switches} {parameter.metavar or 'VALUE'}"


def _row(parameter: Any) -> str:
    default = "" if parameter.default in (None, False) else f"`{parameter.default}`"
    text = (parameter.help or "").replace("|", "\\|").replace("\n", " ")
    return f"| `{_spelling(parameter)}` | {text} | {default} |"


def _lines(name: str, command: Any) -> Iterator[str]:
    """One command as Markdown: what it does and examples, then a table of what it takes."""
    usage = " ".join(command.collect_usage_pieces(command.make_context(name, [], resilient_parsing=True)))
    yield from (f"## {name}", "", "```console", f"graphjoule {name} {usage}", "```", "")
    yield from (command.help or "").replace("\n\nExamples:\n", "\n\n**Examples**\n").splitlines()
    yield ""
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    if shown:
        yield from ("| what | meaning | if left out |", "|---|---|---|", *map(_row, shown), "")


class Commands(SphinxDirective):
    """All commands, each a section."""

    def run(self) -> list[nodes.Node]:
        """Write the sections as Markdown and have them read like the page around them."""
        group: Any = typer.main.get_command(command_line)
        context = typer.Context(group)
        commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
        lines = [line for name, command in commands.items() for line in _lines(name, command)]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directive known."""
    app.add_directive("graphjoule-commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
