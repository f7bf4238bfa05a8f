"""A command line that cannot be read, the ways out of a command, and its progress."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import typer
from rich.console import Console

from graphjoule.cli import terminal
from graphjoule.cli.terminal import LayerTable
from graphjoule.measures import DEFAULT_MEASURES, MEASURES
from graphjoule.studies import FORMATS, StudyProgress
from graphjoule.trace import LayerTrace
from graphjoule.training import Progress, TrainingInterrupted
from graphjoule.tuning import AutoProgress, Trial

from . import TINY, Result, refused, run

study, trace = import_module("graphjoule.cli.study"), import_module("graphjoule.cli.trace")

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
        (KeyboardInterrupt(), 130, "graphjoule: stopped.\n"),
        (EOFError(), 1, "\ngraphjoule: stopped.\n"),
        (OSError(errno.ENOSPC, "No space left"), 2, "graphjoule: Cannot write to standard output: no space left; what"),
        (TrainingInterrupted(7), 130, "graphjoule: stopped after epoch 7; the same command with --resume goes on"),
    ],
    ids=repr,
)
def test_every_way_out_has_its_code(monkeypatch, error, code, said):
    def leave():
        raise error

    monkeypatch.setattr("graphjoule.cli.data.data", leave)
    result = run("data")
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(said)
    assert bool(result.err) == bool(said)


# What needs no torch is answered without it.

COMMANDS = ("train", "auto", "predict", "trace", "report", "data", "demo", "audit", "study", "tune", "partition")
ANSWERED = [["--help"], ["--version"], ["data"], ["study", "--list"], *([name, "--help"] for name in COMMANDS)]
REFUSED = [
    *([name, "--laxers", "2"] for name in COMMANDS),
    *([name, *rest, "--device", "tpu"] for name, *rest in (["train"], ["predict", "run"], ["trace", "egnn:2"])),
    *([name, *rest, "--device", "tpu"] for name, *rest in (["report", "."], ["study", "table1"], ["tune"])),
    *([name, "--model", "gnn"] for name in ("train", "tune")),
    *([name, "--dataset", "coar"] for name in ("train", "tune", "audit")),
    ["partition", "--dataset", "coar", "--parts", "2", "--out", "parts"],
    *(
        [name, "--set", wrong]
        for name in ("train", "tune")
        for wrong in ("cmin=0.3", "lr=fast", "dropout=2", "beta=0.3", "c_min")
    ),
    *([name, "--set", wrong] for name in ("audit",) for wrong in ("cmin=0.3", "c_min=2", "beta=0.3")),
    *([name, "--seeds", "ten"] for name in ("train", "tune")),
    ["train", "--constraint", "hope"],
    ["train", "--parts", "parts"],
    ["train", "--nodes", "nodes.csv", "--dataset", "cora"],
    ["tune", "--range", "lr=fast..slow"],
    *(
        ["auto", *wrong]
        for wrong in (["--budget", "soon"], ["--models", "gnn"], ["--depths", "x"], ["--set", "lr=fast"])
    ),
    ["train", "--budget", "soon"],
    ["predict", "nope"],
    ["trace", "nope"],
    ["trace", "gnn:cora:2"],
    ["trace", "egnn:coar:2"],
    ["trace", "egnn:cora:2", "--set", "dropout=2"],
    ["trace", "egnn:cora:2", "--measures", "energy,enrgy"],
    ["study", "tabel1"],
    ["study", "table1", "--seeds", "ten"],
    ["study", "table1", "--models", "gnn"],
    ["study", "table1", "--datasets", "coar"],
    ["study", "table1", "--layers", "two"],
    ["study", "table1", "--format", "xml"],
    ["study", "table1", "--set", "lr=fast"],
]
# One process for all command lines, because each new one takes half a second.
WITHOUT_TORCH = """
import json, os, sys
from dataclasses import asdict
sys.modules["torch"] = None  # an import of it fails
from tests.cli import Result, run
for line in sys.stdin:
    folder, *arguments = json.loads(line)
    os.chdir(folder)
    try:
        result = run(*arguments)
    except Exception as error:
        result = Result(1, "", repr(error))
    print(json.dumps(asdict(result)), flush=True)
"""


@pytest.fixture(scope="module")
def without_torch():
    """Runs a command line in a folder, in a process that has no torch."""
    command, root = [sys.executable, "-c", WITHOUT_TORCH], Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def answer(folder, *arguments):
            print(json.dumps([str(folder), *arguments]), file=process.stdin, flush=True)
            return Result(**json.loads(process.stdout.readline()))

        yield answer
        process.stdin.close()


def test_in_that_process_torch_cannot_be_imported(tmp_path, without_torch):
    result = without_torch(tmp_path, "demo")
    assert (result.code, result.err) == (1, "ModuleNotFoundError('import of torch halted; None in sys.modules')")


@pytest.mark.parametrize("arguments", ANSWERED, ids=" ".join)
def test_what_can_be_read_is_shown_without_torch(tmp_path, without_torch, arguments):
    result = without_torch(tmp_path, *arguments)
    assert (result.code, result.err) == (0, "")
    assert result.out


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_what_is_wrong_is_a_sentence_without_torch(tmp_path, without_torch, arguments):
    result = without_torch(tmp_path, *arguments)
    assert (result.code, result.out) == (2, ""), result.err
    assert result.err.startswith("graphjoule: ")
    assert result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_names_that_are_written_down_for_lack_of_torch():
    assert tuple(MEASURES) == trace.MEASURE_NAMES
    assert ",".join(DEFAULT_MEASURES) == trace.DEFAULT_MEASURES
    assert set(study._ENDINGS) == set(FORMATS)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_while_a_command_begins_is_a_sentence(monkeypatch, name):
    number = signal.Signals[name]
    before = signal.getsignal(number)
    monkeypatch.setattr("graphjoule.cli.data.data", lambda: signal.raise_signal(number))
    result = run("data")
    assert (result.code, result.out, result.err) == (130, "", "graphjoule: stopped.\n")
    assert signal.getsignal(number) is before


# Progress.

STATE = Progress(epoch=3, epochs=9, num_active=2, num_runs=4, train_loss=1.5, val={"loss": 0.25, "accuracy": 0.5})


def test_off_a_terminal_progress_is_a_line_a_minute(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    with terminal.show_progress("egnn") as on_progress:
        for _ in range(130):
            now[0] += 1.0
            on_progress(STATE)
    line = "egnn: epoch 3/9, 2/4 runs, train loss 1.500, val loss 0.250, val accuracy 0.500"
    captured = capsys.readouterr()
    assert (captured.out, captured.err.splitlines()) == ("", [line, line])


def test_progress_says_how_long_it_may_still_take_and_a_long_training_says_so_once(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    with terminal.show_progress("egnn", num_seeds=8) as on_progress:  # two groups of four
        for epoch in range(1, 8):
            now[0] += 100.0
            on_progress(replace(STATE, epoch=epoch, epochs=1500))
    first, *lines = capsys.readouterr().err.splitlines()
    assert not first.endswith("left")  # one epoch is not enough to judge by
    assert lines[0].startswith("egnn: this may take 3.5 days, for up to 1500 epochs; it ends earlier once")
    assert lines[1].endswith("val accuracy 0.500, at most 3.5 days left")
    assert sum("this may take" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("budget", "said"),
    [(None, "at most 94 s left"), (60.0, "at most 54 s left"), (1e6, "at most 94 s left")],
)
def test_a_budget_bounds_the_time_left(monkeypatch, capsys, budget, said):
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(terminal, "_SECONDS_BETWEEN_LINES", 0.0)
    with terminal.show_progress("egnn", 4, budget) as on_progress:
        for epoch in range(1, 7):
            now[0] += 1.0
            on_progress(replace(STATE, epoch=epoch, epochs=100))
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].endswith(said)
    assert not any("this may take" in line for line in lines)


def test_a_search_for_a_model_shows_the_seconds_and_the_best(monkeypatch, capsys):
    best = Trial(rung="first", name="gcn-2", model="gcn", num_layers=2, score=0.75)
    with terminal.show_auto("nodes.csv", 120.0) as show:
        show(AutoProgress("first", "gcn-2", 0, 120.0, None))
        show(AutoProgress("first", "egnn-2", 1, 110.0, best))
        show(AutoProgress("best", "gcn-2", 9, 60.0, best, STATE))
    assert capsys.readouterr().err.splitlines() == [
        "nodes.csv: 0/120 s, first: gcn-2",
        "nodes.csv: 60/120 s, best gcn-2 0.750, best: gcn-2, epoch 3",
    ]


def test_on_a_terminal_progress_is_a_bar_on_standard_error(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    with terminal.show_progress("egnn") as on_progress:
        on_progress(STATE)
    captured = capsys.readouterr()
    assert "epoch 3/9, 2/4 runs, train loss 1.500, val loss 0.250" in captured.err
    assert captured.out == ""


def test_before_the_first_validation_progress_says_nothing_of_one(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "_SECONDS_BETWEEN_LINES", 0.0)
    with terminal.show_progress("egnn") as on_progress:
        on_progress(replace(STATE, val=dict.fromkeys(STATE.val, math.nan)))
        on_progress(replace(STATE, val=STATE.val | {"loss": math.nan}))
    start = "egnn: epoch 3/9, 2/4 runs, train loss 1.500"
    lines = capsys.readouterr().err.splitlines()
    assert lines == [start, f"{start}, val loss nan, val accuracy 0.500"]  # a loss that broke is shown


def test_a_study_prints_a_line_when_a_cell_begins(capsys):
    with terminal.show_study("table1") as on_progress:
        on_progress(StudyProgress("gcn, 2 layers, cora", 3, 9, 130.0))
        on_progress(StudyProgress("gcn, 2 layers, cora", 3, 9, 120.0, STATE))
        on_progress(StudyProgress(None, 4, 9, None))
    assert capsys.readouterr().err.splitlines() == [
        "table1: 3/9 runs, about 2 min left, gcn, 2 layers, cora",
        "table1: 4/9 runs, waiting for another process that trains the rest",
    ]


# Energies of every layer: a table below the bar, or lines where there is no terminal.


def layers_of(*energies):
    return [
        LayerTrace(f"convs.{k}", {"energy": energy, "norm": 1.0, "rayleigh": energy / 100})
        for k, energy in enumerate(energies)
    ]


def test_a_table_on_a_terminal_has_bars_and_what_is_not_finite(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    table = LayerTable("gcn")
    assert not table.__rich__().columns
    table.show(20, layers_of(100.0, 1e-4, float("nan")))
    console = Console(width=80, file=sys.stdout)
    console.print(table)
    lines = capsys.readouterr().out.splitlines()
    assert "energy of every layer after epoch 20" in lines[0]
    assert [line.split()[:3] for line in lines[2:]] == [
        ["1", "100", "1"],
        ["2", "0.0001", "1e-06"],
        ["3", "nan", "nan"],
    ]
    assert [line.count("█") for line in lines[2:]] == [24, 12, 0]


def test_a_deep_network_has_some_of_its_layers_in_the_table_and_on_the_line(capsys):
    table = LayerTable("gcn")
    table.show(5, layers_of(*range(64, 0, -1)))
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "gcn: epoch 5, energy of layer 1: 64, 14: 51, 26: 39, 39: 26, 51: 14, 64: 1; lowest E / |X|^2 0.01 at layer 64"
    )
    assert table.__rich__().row_count == 16


def test_a_training_prints_energies_of_all_layers(here):
    result = run("train", *TINY, "--model", "gcn", "--live", "--on-collapse", "warn", "--out", "run")
    assert result.code == 0
    assert "gcn, 2 layers, digits: epoch 1, energy of layer 1: " in result.err
    assert "energy" not in result.out


@pytest.mark.parametrize("more", [("--processes", "2"), ("--clusters", "2")])
@pytest.mark.parametrize("option", [("--live",), ("--on-collapse", "stop")])
def test_a_training_in_parts_is_not_watched(tmp_path, option, more):
    said = refused(tmp_path, "train", *option, *more, "--out", tmp_path / "run")
    assert f"{option[0]} looks at the whole graph in one process" in said


FREED = """
import os, resource, sys
import torch
from graphjoule import cli
cli._keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(2**21), torch.ones(2**21)
before = faults()
for _ in range(20):
    x = torch.ones(2**21)
    del x
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc's memory")
@pytest.mark.parametrize(("variables", "is_kept"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "65536"}, False)])
def test_freed_memory_is_for_the_next_tensor_unless_a_variable_says_otherwise(variables, is_kept):
    if os.confstr("CS_GNU_LIBC_VERSION") is None:
        pytest.skip("another library than glibc")
    done = subprocess.run(
        [sys.executable, "-c", FREED], capture_output=True, text=True, env={**os.environ, **variables}, check=True
    )
    pages = 20 * 4 * 2**21 // 4096
    assert (int(done.stdout) < pages / 10) == is_kept


def test_with_a_closed_stderr_the_work_is_done(tmp_path, command):
    train = f"{command} train --dataset digits --model sgc --layers 1 --epochs 2 --out run 2>&-"
    done = subprocess.run(["sh", "-c", train], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "records and models: run" in done.stdout


def test_a_warning_is_one_line_without_a_line_of_the_program(capsys):
    run("data")
    assert warnings.formatwarning(UserWarning("so it is"), UserWarning, "file.py", 3) == "warning: so it is\n"
