"""The command in this process: quick enough for the many ways to call it."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest import mock

from graphjoule.cli import main

TINY = ("--layers", "2", "--epochs", "2", "--set", "hidden_channels=8", "--device", "cpu")


@dataclass(frozen=True)
class Result:
    """What a command left on its way out."""

    code: int
    out: str
    err: str


def run(*arguments: object) -> Result:
    """Run ``graphjoule ARGUMENTS`` as its entry point would."""
    argv, out, err, code = ["graphjoule", *map(str, arguments)], io.StringIO(), io.StringIO(), 0
    with mock.patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return Result(code, out.getvalue(), err.getvalue())
