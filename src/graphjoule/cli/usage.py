"""How values are written on a command line, and the one line about a command line that cannot be read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

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


def _check_device(device: str) -> str:
    """Refuse a word that is no device; whether the device is there, torch says later."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise GraphjouleError(f"--device is {device!r}; choose one of auto, cpu, cuda.")
    return device


Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", callback=_check_device)]
"""The option ``--device``."""


def parse_seeds(text: str) -> list[int]:
    """Seeds from a count or a list.

    >>> parse_seeds("3"), parse_seeds("3,7"), parse_seeds("3,")
    ([0, 1, 2], [3, 7], [3])
    """
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or (numbers[0] < 1 and "," not in text):
        raise GraphjouleError(f"--seeds is {text!r}; expected how many seeds, such as 10, or a list, such as 3,7.")
    if len(set(numbers)) != len(numbers) or min(numbers) < 0 or max(numbers) >= 2**32:
        raise GraphjouleError(f"--seeds is {text!r}; expected different numbers from 0 to {2**32 - 1}.")
    return numbers if "," in text else list(range(numbers[0]))


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds as ``--seeds`` reads them: a number alone means how many.

    >>> seeds_text([0, 1, 2]), seeds_text([3, 7]), seeds_text([7])
    ('3', '3,7', '7,')
    """
    if tuple(seeds) == tuple(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")


def value_text(value: Any) -> str:
    """A setting as ``--set`` reads it.

    >>> value_text(None), value_text("relu"), value_text(True), value_text(0.5)
    ('none', 'relu', 'true', '0.5')
    """
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
