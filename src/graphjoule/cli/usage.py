"""A command line that cannot be read, told in one line instead of Typer's box of several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer

from graphjoule.errors import GraphjouleError

# Typer has its own copy of click or depends on it, by version; what it gives away itself leads to the common base.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


_LIST_THEIR_CHOICES = ("--dataset", "--model")
"""Options whose own sentence about an empty value says more."""


def refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse an option with an empty value, as a variable of the shell that is not set leaves it.

    An empty path would be the folder one stands in, and an empty name often the default.

    Args:
        arguments: what follows the program's name.

    >>> refuse_empty(["train", "--out", ""])
    Traceback (most recent call last):
    ...
    graphjoule.errors.GraphjouleError: --out is ''; expected a value, as graphjoule train --help says, or no --out.
    """
    given = [pair for word in arguments for pair in (word.split("=", 1) if word.startswith("--") else [word])]
    for option, value in pairwise(given):
        if option.startswith("--") and not value and option not in _LIST_THEIR_CHOICES:
            raise GraphjouleError(
                f"{option} is ''; expected a value, as graphjoule {arguments[0]} --help says, or no {option}."
            )


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
