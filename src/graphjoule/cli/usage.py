"""A command line that cannot be read, told in one line instead of Typer's box of several."""

from __future__ import annotations

from typing import Any

import typer

# Typer has its own copy of click or depends on it, by version; what it gives away itself leads to the common base.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def usage_sentence(error: Any) -> str | None:
    """What is wrong with the command line and where to read more; None where the help was asked for by no arguments.

    >>> usage_sentence(typer.BadParameter("0 is too small", param_hint="'--layers'"))
    "Invalid value for '--layers': 0 is too small; graphjoule --help shows what can be given."
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        return None
    message = " ".join(error.format_message().split()).rstrip(".")
    path = error.ctx.command_path if error.ctx is not None else "graphjoule"
    return f"{message}{'' if message.endswith('?') else ';'} {path} --help shows what can be given."
