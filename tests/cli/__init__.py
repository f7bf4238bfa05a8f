"""The command in this process: quick enough for the many ways to call it."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
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


def everything(folder: Path) -> dict[Path, bytes | None]:
    """All files and folders below one."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(folder: Path, *arguments: object) -> str:
    """The sentence with which a command is refused; it has left everything as it was."""
    before = everything(folder)
    result = run(*arguments)
    assert result.code == 2, result
    assert result.out == ""
    assert result.err.startswith("graphjoule: ")
    assert result.err.endswith(".\n")
    assert result.err.count("\n") == 1
    assert everything(folder) == before
    return result.err
