"""The command line: ``graphjoule train``, ``predict``, ``trace``, ``report`` and so on; each command has its file."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated

import typer

from graphjoule.cli.audit import audit
from graphjoule.cli.data import data
from graphjoule.cli.demo import demo
from graphjoule.cli.partition import partition
from graphjoule.cli.predict import predict
from graphjoule.cli.report import report
from graphjoule.cli.study import missing_commands, study, study_commands
from graphjoule.cli.trace import trace
from graphjoule.cli.train import rank, train
from graphjoule.cli.tune import tune
from graphjoule.cli.usage import UsageError, usage_sentence
from graphjoule.errors import GraphjouleError
from graphjoule.parallel.launch import LOST, STOPPED
from graphjoule.parallel.start import LIFELINE, RankLostError
from graphjoule.training import TrainingInterrupted
from graphjoule.version import __version__

__all__ = ["app", "main", "missing_commands", "study_commands"]

app = typer.Typer(
    name="graphjoule",
    help="See, control and push the depth of a graph neural network by its Dirichlet energy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train)
app.command()(predict)
app.command()(trace)
app.command()(report)
app.command()(data)
app.command()(demo)
app.command()(audit)
app.command()(study)
app.command()(tune)
app.command()(partition)
app.command(hidden=True)(rank)


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


def main() -> None:
    """Run the command; what the user got wrong is one sentence on standard error and exit code 2."""
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    try:
        # Not standalone, it returns the code of an Exit, such as 130 after Ctrl-C, else None.
        sys.exit(app(prog_name="graphjoule", standalone_mode=False))
    except UsageError as error:
        if (said := usage_sentence(error)) is not None:
            typer.echo(f"graphjoule: {said}", err=True)
        sys.exit(2)
    except GraphjouleError as error:
        typer.echo(f"graphjoule: {error}", err=True)
        sys.exit(2)
    except typer.Abort:
        typer.echo("graphjoule: stopped.", err=True)
        sys.exit(1)
    except RankLostError as lost:
        if LIFELINE not in os.environ:  # else the launcher tells, which knows more
            typer.echo(f"graphjoule: {lost}.", err=True)
        sys.exit(LOST)
    except TrainingInterrupted as stopped:
        typer.echo(f"graphjoule: {stopped}; the same command with --resume goes on from there.", err=True)
        sys.exit(STOPPED)
