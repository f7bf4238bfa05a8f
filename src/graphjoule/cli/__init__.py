"""The command line: ``graphjoule train``, ``predict``, ``trace``, ``report`` and so on; each command has its file.

A command's module is imported when the command runs, and imports torch inside its function once its arguments are known
to be good: help, the version and a wrong option are answered at once.
"""

from __future__ import annotations

import ctypes
import errno
import io
import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from graphjoule.errors import GraphjouleError, harmless
from graphjoule.files import reason
from graphjoule.version import __version__

if TYPE_CHECKING:
    from graphjoule.cli.study import missing_commands as missing_commands
    from graphjoule.cli.study import study_commands as study_commands

__all__ = ["app", "main", "missing_commands", "study_commands"]

_COMMANDS = {
    "train": "Train a model on a dataset, or on your own graph: all seeds in one program.",
    "auto": "Try models and depths for a stated time, by validation, and keep the best.",
    "predict": "Write every node's prediction as CSV.",
    "export": "Write a trained model as ONNX, as a torch.export program, or as a folder for a model hub.",
    "trace": "Measure a network layer by layer, and say what is wrong with it.",
    "report": "Write one HTML page on a run, or on a folder of runs.",
    "data": "List the datasets.",
    "demo": "Train a deep EGNN and a deep GCN on embedded data, and show why one of them dies.",
    "audit": "Hold a graph against the paper's lemmas, with the corrected bounds beside them.",
    "study": "Train a study, such as the paper's table1, and compare it with its reference.",
    "verify": "Check records, and every page and ledger that was written from them.",
    "tune": "Search settings by validation; the winner is a recipe.",
    "partition": "Cut a graph into parts for training in many processes.",
}
_HIDDEN = {"rank": "graphjoule.cli.processes"}  # what `train --processes` starts
_PYTHON_NAMES = {"num_layers": "layers"}
_LIST_THEIR_CHOICES = ("--dataset", "--model")  # options whose own sentence about an empty value says more
# Typer has its own copy of click or depends on it, by version; what it gives away itself leads to the common base.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_HELP: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": "markdown",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class _Commands(TyperGroup):
    """The commands by name; a list of them needs no import."""

    is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS and cmd_name not in _HIDDEN:
            return None
        if self.is_listing:
            return TyperCommand(cmd_name, help=_COMMANDS[cmd_name])
        module = import_module(_HIDDEN.get(cmd_name, f"graphjoule.cli.{cmd_name}"))
        one = typer.Typer(**_HELP)
        one.command(cmd_name)(getattr(module, cmd_name))
        return typer.main.get_command(one)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # Typer would end without a word
            typer.echo("graphjoule: stopped.", err=True)
            raise typer.Exit(130) from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self.is_listing = False


app = typer.Typer(name="graphjoule", cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, **_HELP)


def __getattr__(name: str) -> Any:
    """`missing_commands` and `study_commands` at their first use."""
    if name in ("missing_commands", "study_commands"):
        return getattr(import_module("graphjoule.cli.study"), name)
    raise AttributeError(f"module 'graphjoule.cli' has no attribute {name!r}")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"graphjoule {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """See, control and push the depth of a graph neural network by its Dirichlet energy."""


def _one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    """A warning without the line of the program that it comes from."""
    return f"warning: {harmless(str(message))}\n"


def main() -> None:
    """Run the command; what the user got wrong is one sentence on standard error and exit code 2."""
    for name in ("stdout", "stderr"):  # closed by `2>&-`, it is None
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - to the end
    warnings.formatwarning = _one_line
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Harmless())
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show must not cost the work
        sys.stdout.reconfigure(errors="backslashreplace")
    _keep_freed_memory()
    try:
        _refuse_empty(sys.argv[1:])
        with _terminable():
            # Not standalone, it returns the code of an Exit, such as 130 after Ctrl-C, else None.
            sys.exit(app(prog_name="graphjoule", standalone_mode=False))
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # which has printed the help
            sys.exit(2)
        said = " ".join(error.format_message().split()).replace("Value error, ", "").rstrip(".")  # type: ignore[attr-defined]
        path = error.ctx.command_path if error.ctx is not None else "graphjoule"  # type: ignore[attr-defined]
        _end(2, f"{said}{'' if said.endswith('?') else ';'} {path} --help shows what can be given.")
    except GraphjouleError as error:
        _end(2, in_options(str(error), _command_params()))
    except typer.Abort:
        _end(1, "stopped.")
    except KeyboardInterrupt:
        _end(130, "stopped.")
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:  # such as a name that is too long for the disk
            typer.echo(f"graphjoule: Cannot use {error.filename}: {reason(error)}.", err=True)
            sys.exit(2)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO):  # files are written with sentences
            with suppress(OSError):  # what is left in the buffer goes nowhere, or Python would try it once more
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _end(2, f"Cannot write to standard output: {reason(error)}; what was to be kept is in its files.")
        if "torch" in sys.modules:
            _end_of_training(error)
        raise


def _keep_freed_memory() -> None:
    """Let glibc keep what is freed for the next tensor, unless its variables say something else.

    By default it may give every layer's activations back to the system, whose pages are mapped anew for the next layer:
    depending on where memory happens to lie, a GCN with 64 layers on Pubmed takes twice as long.
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with suppress(AttributeError, OSError):  # another library than glibc has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 2**25)  # the most there is: what is larger goes back whole
        mallopt(_M_TRIM_THRESHOLD, 2**30)


class _Harmless(logging.Formatter):
    """A line as it is, save what a name in somebody's table would do to the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def _end(code: int, sentence: str) -> NoReturn:
    typer.echo(f"graphjoule: {harmless(sentence)}", err=True)
    sys.exit(code)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse an option with an empty value, as a variable of the shell that is not set leaves it.

    An empty path would be the folder one stands in, and an empty name often the default.
    """
    given = [pair for word in arguments for pair in (word.split("=", 1) if word.startswith("--") else [word])]
    for option, value in pairwise(given):
        if option.startswith("--") and not value and option not in _LIST_THEIR_CHOICES:
            raise GraphjouleError(
                f"{option} is ''; expected a value, as graphjoule {arguments[0]} --help says, or no {option}."
            )


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, unless they are ignored, as SIGHUP is under nohup."""
    if threading.current_thread() is not threading.main_thread() or sys.argv[1:2] == ["rank"]:  # which its parent ends
        yield
        return

    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    wanted = [signal.Signals[name] for name in ("SIGTERM", "SIGHUP") if name in signal.Signals.__members__]
    before = {
        signum: signal.signal(signum, interrupt) for signum in wanted if signal.getsignal(signum) == signal.SIG_DFL
    }
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _end_of_training(error: Exception) -> None:
    """Say how a training goes on that was stopped, or whose process was lost; other errors are not ours to say."""
    from graphjoule.cli.processes import RESUME
    from graphjoule.parallel.ranks import LIFELINE, LOST, STOPPED, RankLostError
    from graphjoule.training import TrainingInterrupted

    if isinstance(error, TrainingInterrupted):
        _end(STOPPED, f"{error}; the same command with --resume goes on from there.")
    if isinstance(error, RankLostError):
        if LIFELINE in os.environ:  # the launcher says it, which knows more
            sys.exit(LOST)
        _end(LOST, f"{error}; {RESUME}.")


def _command_params() -> dict[str, str]:
    """The option of every parameter of the command that runs, such as ``{"out": "--out"}``."""
    name = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    command: Any = typer.main.get_command(app)
    found = command.get_command(None, name) if name else None
    params = {} if found is None else {p.name: max(p.opts, key=len) for p in found.params if p.opts}
    return {name: option for name, option in params.items() if option.startswith("--")}


def in_options(sentence: str, params: dict[str, str]) -> str:
    """A sentence in which arguments of Python are the options of a command.

    >>> options = {"out": "--out", "resume": "--resume", "layers": "--layers", "set_": "--set"}
    >>> in_options("pass `resume=True`, or choose `out` and `num_layers=4`, `train.lr=0.1` or `load_part`", options)
    'pass --resume, or choose --out and --layers 4, --set train.lr=0.1 or `load_part`'
    """

    def option(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if (known := params.get(_PYTHON_NAMES.get(name, name))) is not None:
            return known if value in (None, "True") else f"{known} {value}"
        if "." in name and value is not None and "set_" in params:
            return f"--set {name}={value}"
        return match[0]

    return re.sub(r"`([A-Za-z_][\w.]*)(?:=([^`]*))?`", option, sentence)
