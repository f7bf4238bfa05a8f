"""A command line that cannot be read, and the ways out of a command."""

import pytest
import typer

from graphjoule.cli import app
from graphjoule.training import TrainingInterrupted

from . import run

WRONG = {
    "no number": (["train", "--layers", "two"], "Invalid value for '--layers': ", "graphjoule train"),
    "too small": (["train", "--checkpoint-every", "0"], "Invalid value for '--checkpoint-every': ", "graphjoule train"),
    "no layers": (["train", "--layers", "0"], "Invalid value for '--layers': ", "graphjoule train"),
    "unknown option": (["train", "--laxers", "2"], "No such option: --laxers", "graphjoule train"),
    "unknown command": (["trian"], "No such command 'trian'", "graphjoule"),
    "no argument": (["trace"], "Missing argument 'RUN_OR_RECIPE'", "graphjoule trace"),
    "too many": (["train", "cora"], "unexpected extra argument", "graphjoule train"),
}


@pytest.mark.parametrize(("arguments", "said", "command"), WRONG.values(), ids=WRONG)
def test_a_command_line_that_cannot_be_read_is_told_in_one_line(arguments, said, command):
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("graphjoule: ")
    assert said in result.err
    assert result.err.endswith(f" {command} --help shows what can be given.\n")
    assert result.err.count("\n") == 1


def test_no_arguments_show_the_help():
    result = run()
    assert (result.code, result.err) == (2, "")
    assert "Usage: graphjoule" in result.out
    assert "train" in result.out


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["train", "--help"], ["trace", "-h"]])
def test_help_is_no_error(arguments):
    result = run(*arguments)
    assert (result.code, result.err) == (0, "")
    assert "Usage: graphjoule" in result.out


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (typer.Exit(3), 3, ""),
        (typer.Exit(), 0, ""),
        (SystemExit(1), 1, ""),
        (KeyboardInterrupt(), 130, ""),
        (EOFError(), 1, "\ngraphjoule: stopped.\n"),
        (TrainingInterrupted(7), 130, "graphjoule: stopped after epoch 7; the same command with --resume goes on"),
    ],
    ids=repr,
)
def test_every_way_out_has_its_code(monkeypatch, error, code, said):
    def leave():
        raise error

    leave.__name__ = "data"  # Typer names a command after its function
    command = next(found for found in app.registered_commands if found.callback.__name__ == "data")
    monkeypatch.setattr(command, "callback", leave)
    result = run("data")
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(said)
    assert bool(result.err) == bool(said)
