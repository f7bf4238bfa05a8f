import json
import shlex
import sys
from dataclasses import replace
from importlib import import_module

import pytest

from graphjoule.cli import missing_commands, study_commands
from graphjoule.cli.terminal import parse_seeds
from graphjoule.errors import GraphjouleError
from graphjoule.studies import STUDIES, Collection, StudyProgress, find_study, ledger_text, make_ledger
from graphjoule.training import TrainingInterrupted, read_records
from graphjoule.training.settings import parse_overrides
from tests.studies import made_up
from tests.training import small_regression

from . import run

pytestmark = pytest.mark.usefixtures("here")

TINY = ("--datasets", "digits", "--models", "egnn,gcn", "--layers", "2", "--device", "cpu")
QUICK = ("--epochs", "2", "--set", "hidden_channels=4")
study_module = import_module("graphjoule.cli.study")
TABLE1 = find_study("table1")


def test_a_study_trains_tells_and_trains_nothing_the_second_time(here):
    first = run("study", "table1", *TINY, *QUICK, "--seeds", "2", "--json")
    assert first.code == 0, first.err
    told = json.loads(first.out)
    assert [(row["model"], row["n"], row["verdict"]) for row in told["rows"]] == [
        ("egnn", 2, "no reference"),
        ("gcn", 2, "no reference"),
    ]
    assert "table1: 4 runs to train; how long it takes is not known" in first.err
    assert "table1: 2/4 runs, about " in first.err
    files = sorted((here / "runs/study").glob("*/records.jsonl"))
    assert [[r.seed for r in read_records(path)] for path in files] == [[0, 1], [0, 1]]

    again = run("study", "table1", *TINY, *QUICK, "--seeds", "2", "--json")
    assert "all 4 runs are recorded" in again.err
    assert again.out == first.out

    more = run("study", "table1", *TINY, *QUICK, "--seeds", "3")
    assert "2 runs to train of 6, the others are recorded; about " in more.err
    assert "| digits | egnn | 2 |" in more.out


def test_the_ledgers_lie_beside_the_runs(here):
    printed = run("study", "table1", *TINY, *QUICK, "--seeds", "1", "--out", "mine").out
    assert (here / "mine/table1.md").read_text() == printed
    assert json.loads((here / "mine/table1.json").read_text())["study"] == "table1"
    assert (here / "mine/table1.csv").read_text().startswith("study,dataset,model,num_layers")


def test_a_folder_with_files_that_are_not_a_studys_is_refused(here):
    (here / "table1.md").write_text("mine")
    result = run("study", "table1", *TINY, *QUICK, "--seeds", "1", "--out", ".")
    assert result.code == 2
    assert ". holds table1.md, which this command did not begin; choose a new or an empty" in result.err
    assert [(path.name, path.read_text()) for path in here.iterdir()] == [("table1.md", "mine")]


def test_a_study_that_had_nothing_to_train_knows_its_ledgers_again(here):
    asked = ("study", "table1", *TINY, *QUICK, "--seeds", "1")
    run(*asked, "--out", "first")
    for _ in range(2):
        assert run(*asked, "--out", "second", "--records", "first").code == 0
    assert (here / "second/table1.md").exists()


def test_a_ledger_is_made_from_records_and_trains_nothing(here, monkeypatch):
    run("study", "table1", *TINY, *QUICK, "--seeds", "2", "--out", "mine")
    (path, _) = sorted((here / "mine").glob("*/records.jsonl"))
    monkeypatch.setattr("graphjoule.studies.work", None)
    asked = ("study", "table1", *TINY, *QUICK, "--ledger", "--records", path, "--out", "none")
    rows = json.loads(run(*asked, "--format", "json").out)["rows"]
    assert [(row["model"], row["n"]) for row in rows] == [("egnn", 2), ("gcn", 0)]
    assert run(*asked, "--format", "csv").out.count("\n") == 3
    assert not (here / "none").exists()


def test_records_of_other_places_are_not_trained_again(here):
    run("study", "table1", *TINY, *QUICK, "--seeds", "1", "--out", "first")
    second = run("study", "table1", *TINY, *QUICK, "--seeds", "2", "--out", "second", "--records", "first", "--json")
    assert "2 runs to train of 4" in second.err
    assert [row["n"] for row in json.loads(second.out)["rows"]] == [2, 2]


def test_data_that_cannot_be_had_are_skipped_with_the_command_unless_asked_for_alone(here, monkeypatch):
    real = study_module.load_task

    def load(name, root):
        if name == "arxiv":
            raise GraphjouleError("There is no arxiv here.")
        return real(name, root)

    monkeypatch.setattr(study_module, "load_task", load)
    asked = ("study", "table1", "--models", "gcn", "--layers", "2", "--device", "cpu", *QUICK, "--seeds", "1")
    both = run(*asked, "--datasets", "arxiv,digits")
    assert both.code == 0
    command = (
        "graphjoule study table1 --datasets arxiv --models gcn --layers 2 --seeds 1 --set hidden_channels=4 --set "
    )
    assert f"arxiv: not run: data not available here; `{command}epochs=2` runs it." in both.err
    assert "| not run: data not available here |" in both.out
    assert f"What is not run: `{command}epochs=2`." in both.out
    alone = run(*asked, "--datasets", "arxiv")
    assert (alone.code, alone.err) == (2, "graphjoule: There is no arxiv here.\n")


def test_a_cell_that_cannot_be_trained_is_told_and_the_exit_code_is_1(here):
    asked = ("study", "table1", "--datasets", "digits", "--models", "egnn", "--layers", "2", "--seeds", "1", *QUICK)
    result = run(*asked, "--set", "clusters.parts=5000", "--device", "cpu")  # more than there are nodes
    assert result.code == 1
    assert "graphjoule: egnn, 2 layers, digits could not be finished: " in result.err


def test_a_figure_is_left_beside_the_ledgers(here):
    asked = ("study", "depth", *TINY, *QUICK, "--layers", "2,3", "--seeds", "2")
    first = run(*asked)
    assert first.code == 0, first.err
    assert "depth: drawn in runs/study/depth-accuracy.png" in first.err
    pictures = {path.name: path.read_bytes() for path in (here / "runs/study").glob("*.png")}
    assert sorted(pictures) == ["depth-accuracy.png", "depth-energy-digits.png"]
    assert all(content.startswith(b"\x89PNG") for content in pictures.values())
    run(*asked)
    assert {path.name: path.read_bytes() for path in (here / "runs/study").glob("*.png")} == pictures


def test_figure_1_is_left_and_is_not_that_of_the_study_of_depth_beside_it(here):
    asked = ("--datasets", "digits", "--models", "gcn,egnn", "--layers", "3", "--seeds", "1", *QUICK, "--device", "cpu")
    for name in ("depth", "figure1"):  # of EGNN the two have other settings, of GCN the same
        assert run("study", name, *asked).code == 0
    found = [json.loads(path.read_text()) for path in (here / "runs/study").glob("*/energies.json")]
    assert sorted((one["model"], one["recipe"]["model"]["options"].get("c_max", 0)) for one in found) == [
        ("egnn", 0.4),
        ("egnn", 1.0),
        ("gcn", 0),
    ]
    assert (here / "runs/study/figure1.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_all_but_the_figure_is_there(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    asked = ("study", "figure1", "--datasets", "digits", "--layers", "2", "--models", "gcn", "--seeds", "1", *QUICK)
    result = run(*asked, "--device", "cpu")
    assert result.code == 0
    assert "graphjoule: nothing is drawn. Drawing needs matplotlib, which is not installed" in result.err
    assert (here / "runs/study/figure1.md").exists()
    assert not list((here / "runs/study").glob("*.png"))


def test_records_of_another_set_are_a_column_of_the_ledger_where_they_change_a_verdict(here):
    """A whole way: the command trains one reading, a ledger of the other has it beside."""
    narrow = ("--datasets", "cora", "--models", "gcn", "--layers", "2", "--seeds", "2")
    cells = (
        STUDIES["table1"].cells(["cora"], ["gcn"], [2]),
        STUDIES["table1"].cells(["cora"], ["gcn"], [2], {"hidden_channels": 256}),
    )
    made = [
        made_up(cell, seed, mean + 0.001 * seed)
        for (cell,), mean in zip(cells, (0.825, 0.3), strict=True)
        for seed in (0, 1)
    ]
    (here / "made.jsonl").write_text("".join(record.model_dump_json() + "\n" for record in made))
    asked = ("study", "table1", *narrow, "--ledger", "--records", "made.jsonl", "--out", "none")
    assert "| under another protocol |" in run(*asked).out
    assert "| hidden_channels = 256: 30.05 (worse) |" in run(*asked).out
    wide = run(*asked, "--set", "hidden_channels=256").out
    assert "| cora | gcn | 2 | 82.5 | 30.05" in wide
    assert "| hidden_channels = 64: 82.55 (equal) |" in wide


@pytest.mark.parametrize(
    ("error", "said"), [(TrainingInterrupted(7), "stopped after epoch 7"), (KeyboardInterrupt(), "stopped")], ids=repr
)
def test_an_interrupted_study_says_how_to_go_on(here, monkeypatch, error, said):
    def stop(*args, **options):
        raise error

    monkeypatch.setattr("graphjoule.studies.work", stop)
    result = run("study", "table1", *TINY, *QUICK)
    assert result.code == 130
    assert result.err.endswith(f"graphjoule: {said}; the same command goes on from there.\n")


def test_the_studies_are_listed():
    for arguments in (("--list",), ()):
        lines = run("study", *arguments).out.splitlines()
        assert [line.split()[0] for line in lines] == list(STUDIES)
    listed = json.loads(run("study", "--list", "--json").out)
    assert [(row["name"], row["num_cells"]) for row in listed][-2:] == [("table1", 96), ("table2", 96)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tabel1"], '"tabel1" is not a study, did you mean "table1"?'),
        (["table1", "--datasets", "nowhere"], '"nowhere" is not a dataset.'),
        (["table1", "--datasets", ","], "',' cannot be used: expected names, such as cora,pubmed."),
        (["table1", "--models", "gnc"], '"gnc" is not a model of table1'),
        (["table1", "--layers", "two"], "'two' cannot be used: expected --layers numbers, such as 2,16."),
        (["table1", "--layers", "0"], "layers are [0]; expected numbers of at least 1."),
        (["table1", "--seeds", "none"], "--seeds is 'none'"),
        (["table1", "--format", "html"], "--format is 'html'; expected one of csv, json, markdown."),
        (["table1", "--ledger", "--records", "nowhere"], "There is no file or folder nowhere to read records from."),
        (["table1", "--set", "c_mni=1", "--datasets", "digits"], '"c_mni" is not a setting of gcn'),
    ],
)
def test_what_cannot_be_used_is_one_sentence(here, arguments, sentence):
    result = run("study", *arguments)
    assert result.code == 2
    assert result.err.startswith("graphjoule: ")
    assert sentence in result.err
    assert len(result.err.splitlines()) == 1
    assert not (here / "runs").exists() or not list((here / "runs/study").iterdir())


def test_on_a_terminal_progress_is_one_bar_on_standard_error(monkeypatch, capsys):
    progress = import_module("graphjoule.cli.terminal")
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    with progress.show_study("table1") as on_progress:
        on_progress(StudyProgress("gcn, 2 layers, cora", 3, 9, 130.0))
        on_progress(StudyProgress(None, 4, 9, None))
    captured = capsys.readouterr()
    assert "4/9" in captured.err
    assert "waiting for another process" in captured.err
    assert captured.out == ""


# A study of the user's own.

MINE = """
title = "Mine: GCN over its learning rate"
datasets = ["digits"]
models = ["gcn"]
depths = [2, 3]
drawing = "depth"

[[block]]
settings = { hidden_channels = 4, epochs = 2 }

[[variant]]
component = "lr"
value = "recipe"

[[variant]]
component = "lr"
value = "small"
settings = { lr = 1e-4 }

[reference]
name = "blog"
source = "A post of last year"
runs = 5

[[reference.rows]]
component = "lr"
value = "recipe"
digits_2 = 99.9
"""


def test_a_study_of_ones_own_is_a_file_and_is_trained_compared_and_drawn_like_the_papers(here):
    (here / "studies").mkdir()
    (here / "studies/mine.toml").write_text(MINE)
    asked = ("study", "studies/mine.toml", "--device", "cpu", "--seeds", "2")
    first = run(*asked, "--json")
    assert first.code == 0, first.err
    assert "mine: 8 runs to train" in first.err
    rows = json.loads(first.out)["rows"]
    assert [(row["num_layers"], row["value"], row["reference"], row["n"], row["verdict"]) for row in rows] == [
        (2, "recipe", 99.9, 2, "worse"),
        (2, "small", None, 2, "no reference"),
        (3, "recipe", None, 2, "no reference"),
        (3, "small", None, 2, "no reference"),
    ]
    text = (here / "runs/study/mine.md").read_text()
    assert "| dataset | model | layers | changed | blog | ours |" in text
    assert (
        "Blog: A post of last year. Verdict: Equal: the difference of the means is within the margin of 1 point" in text
    )
    assert "its mean of 5 runs" in text
    assert (here / "runs/study/mine-accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "mine: all 8 runs are recorded" in run(*asked).err

    ledger = run("study", "studies/mine.toml", "--ledger", "--out", "none", "--layers", "3").out
    assert "4 not run" not in ledger
    assert "| dataset | model | layers | changed | ours | n | verdict |" in ledger  # nothing to compare with
    assert "What is not run: `graphjoule study studies/mine.toml --datasets digits --layers 3`." in ledger


def test_a_study_of_a_regression_compares_numbers_and_calls_its_metric_by_name(here, monkeypatch):
    monkeypatch.setattr(study_module, "load_task", lambda name, root: replace(small_regression(), name=name))
    (here / "mine.toml").write_text("""
        title = "Mine"
        datasets = ["digits"]
        models = ["gcn"]
        depths = [2, 3]
        drawing = "depth"
        [[block]]
        settings = { hidden_channels = 4, epochs = 2, split = "default" }
        [reference]
        name = "blog"
        [[reference.rows]]
        digits_2 = 0.953
        digits_3 = -40.5
    """)
    result = run("study", "mine.toml", "--device", "cpu", "--seeds", "2")
    assert result.code == 0, result.err
    assert "drawn in runs/study/mine-r2.png" in result.err
    assert "Numbers: test r2, ± sample standard deviation." in result.out
    assert "which the blog may have rounded away" in result.out
    assert "0.0005, which the blog" in result.out
    assert not any(word in result.out.replace("(95 %)", "") for word in ("percent", "ccurac", "%"))
    told = json.loads((here / "runs/study/mine.json").read_text())["rows"]
    assert {row["metric"] for row in told} == {"r2"}
    records = [[*read_records(path)] for path in sorted((here / "runs/study").glob("digits-gcn-*/records.jsonl"))]
    for row, runs in zip(told, records, strict=True):
        assert row["mean"] == pytest.approx(sum(record.test["r2"] for record in runs) / 2, rel=1e-5)
    assert f"| digits | gcn | 2 | 0.953 | {told[0]['mean']:.4g} ± " in result.out
    assert told[1]["difference"] == pytest.approx(told[1]["mean"] + 40.5, rel=1e-5)
    assert told[1]["verdict"] == "better"


def test_a_sweep_of_ones_own_is_drawn(here):
    (here / "mine.toml").write_text("""
        title = "Mine"
        datasets = ["digits"]
        models = ["egnn"]
        depths = [2]
        drawing = "sweeps"
        [[sweep]]
        component = "c_max"
        setting = "c_max"
        values = [0.5, 1]
    """)
    result = run("study", "mine.toml", "--device", "cpu", "--seeds", "1", *QUICK)
    assert result.code == 0, result.err
    assert "mine: drawn in runs/study/mine-digits-2.png" in result.err


def test_a_study_file_that_cannot_be_used_is_one_sentence_with_file_and_key(here):
    (here / "mine.toml").write_text(MINE.replace("settings = { lr", "setings = { lr"))
    result = run("study", "mine.toml")
    assert result.code == 2
    assert result.err == (
        'graphjoule: mine.toml: "setings" is not a key of variant.2, did you mean "settings"? '
        "The choices are: at_most, component, settings, value.\n"
    )
    assert run("study", "nowhere.toml").err == (
        "graphjoule: Cannot read the study file nowhere.toml: no such file or directory.\n"
    )


# The commands that train some cells.


def cells_of(commands):
    """What the command line makes of commands: all their cells and seeds."""
    cells, seeds = [], []
    for command in commands:
        words = shlex.split(command)[2:]
        options = list(zip(words[1::2], words[2::2], strict=True))
        given, sets = dict(options), [value for name, value in options if name == "--set"]
        cells += find_study(words[0]).cells(
            given["--datasets"].split(","),
            given["--models"].split(",") if "--models" in given else None,
            [*map(int, given["--layers"].split(","))] if "--layers" in given else None,
            parse_overrides(sets),
        )
        seeds.append(parse_seeds(given.get("--seeds", "10")))
    return cells, seeds


@pytest.mark.parametrize("seeds", [range(10), range(3), [3, 7], [7], [0]])
@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"epochs": 5, "hidden_channels": 8},
        {"split_seed": None, "select_on": "val_accuracy", "lr": 1e-05},
        {"batch_norm": True},
    ],
)
def test_a_command_trains_the_cells_it_is_made_for_and_no_others(seeds, overrides):
    wanted = TABLE1.cells(["cora", "physics"], ["gcn", "egnn"], [2, 5], overrides)
    cells, found = cells_of(study_commands(TABLE1, wanted, seeds))
    assert [(c.name, c.overrides) for c in cells] == [(c.name, c.overrides) for c in wanted]
    assert found == [list(seeds)] * 2


def test_cells_that_are_no_rectangle_take_several_commands():
    wanted = [
        *TABLE1.cells(["cora"], ["gcn", "sgc"], [2, 16]),
        *TABLE1.cells(["cora"], ["egnn"]),
        *TABLE1.cells(["pubmed"], ["egnn"], [64]),
    ]
    commands = study_commands(TABLE1, wanted)
    assert commands == [
        "graphjoule study table1 --datasets cora --models gcn,sgc --layers 2,16",
        "graphjoule study table1 --datasets cora --models egnn",
        "graphjoule study table1 --datasets pubmed --models egnn --layers 64",
    ]
    assert [cell.name for cell in cells_of(commands)[0]] == [cell.name for cell in wanted]


def test_what_is_the_studys_own_is_not_said_and_nothing_takes_no_command():
    assert study_commands(TABLE1, []) == []
    figure5 = find_study("figure5")
    assert study_commands(figure5, figure5.cells()) == ["graphjoule study figure5 --datasets arxiv"]
    depth = find_study("depth")
    assert study_commands(depth, depth.cells(["cora"])) == ["graphjoule study depth --datasets cora"]


def test_commands_for_what_is_missing_have_its_settings_and_seeds():
    rows = make_ledger(TABLE1, TABLE1.cells(["cora"], ["egnn"], [64], {"hidden_channels": 8}), Collection())
    command = "graphjoule study table1 --datasets cora --models egnn --layers 64 --seeds 3 --set hidden_channels=8"
    assert f"`{command}`" in ledger_text(TABLE1, rows, commands=missing_commands(TABLE1, rows, range(3)))
