import csv
import json
import re
import shlex
import sys
from functools import partial
from importlib import import_module

import pytest

from graphjoule.cli.terminal import show_search
from graphjoule.cli.tune import choose_ranges
from graphjoule.errors import GraphjouleError
from graphjoule.training import Progress, TrainingInterrupted
from graphjoule.training.recipe import load_recipe
from graphjoule.training.records import read_records
from graphjoule.training.settings import parse_overrides
from graphjoule.tuning import TrialProgress, hide_test, recipe_text, with_settings, work
from graphjoule.tuning.ranges import spelled
from graphjoule.tuning.search import evaluate

from . import refused as refused_command
from . import run

TINY = ("--model", "sgc", "--layers", "2", "--epochs", "3", "--device", "cpu", "--seeds", "2", "--trials", "5")
KEYS = ["name", "storage", "select_on", "direction", "num_trials", "num_failed", "ranges"]
KEYS += ["best", "importance", "files", "command"]


@pytest.fixture(autouse=True)
def empty_pictures(here, monkeypatch):
    """What they show is tested in tests/tuning/test_outcome.py."""
    monkeypatch.setattr(import_module("graphjoule.tuning.outcome"), "_draw", lambda plot, outcome, path: path.touch())


def refused(folder, *arguments):
    return refused_command(folder, "tune", *arguments)


def test_a_search_ends_with_a_winner_that_train_takes(here):
    result = run("tune", *TINY, "--json")
    assert result.code == 0, result.err
    (line,) = result.out.splitlines()
    told = json.loads(line)
    assert list(told) == KEYS
    assert (told["name"], told["direction"], told["num_trials"]) == ("digits-sgc-2", "minimize", 5)
    with (here / told["files"]["trials"]).open() as file:
        table = list(csv.DictReader(file))
    values = [float(row["value"]) for row in table]
    assert told["best"]["value"] == min(values)
    assert told["best"]["trial"] == values.index(min(values))
    assert sum(told["importance"].values()) == pytest.approx(1)
    assert {path.name for path in (here / "runs/tune/digits-sgc-2").glob("*.png")} == {"importance.png", "parallel.png"}

    best = load_recipe("sgc", "digits", 2, file=here / told["files"]["recipe"])
    assert {key: best.settings()[spelled(best, key)[0]] for key in told["best"]["params"]} == told["best"]["params"]
    program, *arguments = shlex.split(told["command"])
    assert program == "graphjoule"
    assert arguments[-2:] == ["--seeds", "10"]
    trained = run(*arguments[:-1], "2", "--device", "cpu", "--out", "trained")
    assert trained.code == 0, trained.err
    assert "test accuracy" in trained.out  # read for the first time
    records = list(read_records(here / "trained/records.jsonl"))
    mean = sum(record.val["loss"] for record in records) / 2
    assert mean == pytest.approx(told["best"]["value"], rel=1e-5)  # the same seeds: what the search has promised


def test_words_on_standard_output_and_progress_on_standard_error(here):
    result = run("tune", *TINY, "--range", "lr=1e-3..1e-1:log")
    assert result.code == 0
    assert "5 trials; the best by val_loss:" in result.out
    assert re.search(r"trial +val_loss +val_accuracy +lr\n", result.out)
    assert "recipe: runs/tune/digits-sgc-2/best.toml" in result.out
    assert "the test split is read then, once:\n  graphjoule train --dataset digits --model sgc" in result.out
    assert "sgc, 2 layers, digits: 5 trials of 2 seeds by 1 worker" in result.err
    assert "searched for the lowest mean val_loss: lr 0.001..0.1:log" in result.err
    assert "digits-sgc-2: 5/5 trials, best " in result.err
    assert "test" not in result.err


def test_the_same_command_goes_on_and_then_has_nothing_to_do(here, monkeypatch):
    arguments = [*TINY[:-2], "--range", "lr=1e-3..1e-1:log", "--json"]
    first = json.loads(run("tune", *arguments, "--trials", "2").out)
    more = json.loads(run("tune", *arguments, "--trials", "4").out)
    assert (first["num_trials"], more["num_trials"]) == (2, 4)
    monkeypatch.setattr(import_module("graphjoule.tuning.search"), "fit", None)
    again = run("tune", *arguments, "--trials", "4")
    assert (again.code, json.loads(again.out)) == (0, more)


def test_a_search_by_the_command_is_the_one_that_was_stopped_and_gone_on_with(here, monkeypatch):
    arguments = [*TINY, "--range", "lr=1e-3..1e-1:log", "--json"]
    whole = json.loads(run("tune", *arguments, "--out", "whole").out)
    module = import_module("graphjoule.tuning.search")
    calls = []

    def stop_sometimes(*given, **options):
        calls.append(given)
        if len(calls) % 2 == 0:
            raise TrainingInterrupted(1)
        return fit(*given, **options)

    fit = module.fit
    monkeypatch.setattr(module, "fit", stop_sometimes)
    codes = []
    while not codes or codes[-1] == 130:
        result = run("tune", *arguments, "--out", "stopped")
        codes.append(result.code)
        assert result.code == 0 or result.err.endswith("graphjoule: stopped; the same command goes on from there.\n")
    assert codes == [130] * 4 + [0]
    stopped = json.loads(result.out)
    assert stopped["best"] == whole["best"]


def test_a_storage_of_its_own_and_a_name(here):
    result = run("tune", *TINY, "--storage", "shared/all.log", "--name", "mine", "--json", "--timeout", "1e9")
    told = json.loads(result.out)
    assert (told["name"], told["storage"]) == ("mine", "shared/all.log")
    assert (here / "shared/mine/best.toml").exists()
    other = run("tune", *TINY, "--storage", "shared/all.log", "--name", "second", "--out", "other", "--set", "lr=0.1")
    assert other.code == 0
    assert "weight_decay" in (here / "other/trials.csv").read_text().splitlines()[0]
    assert "lr" not in (here / "other/trials.csv").read_text().splitlines()[0]  # what is set is not searched


@pytest.mark.parametrize(
    ("codes", "code", "said"),
    [
        ([0, 0], 0, None),
        ([-9, 0], 0, None),  # the other has done it all
        ([-9, -9], 1, "2 workers ended early; 0 of 5 trials are over; the same command goes on."),
    ],
)
def test_several_workers(here, monkeypatch, codes, code, said):
    module, asked = import_module("graphjoule.tuning.search"), []

    def in_this_process(team, num_workers, *, on_poll):
        asked.append(num_workers)
        on_poll()
        if 0 in codes:
            search, task = team.search, hide_test(team.load(), team.search.recipe, team.search.seeds)
            queue = search.queue(search.open(team.ref, task), team.num_trials)
            work(queue, partial(evaluate, search, task, team.device))
        return codes

    monkeypatch.setattr(module, "run_team", in_this_process)
    result = run("tune", *TINY, "--workers", "2", "--json")
    assert (result.code, asked) == (code, [2]), result.err
    assert "by 2 workers" in result.err
    if said is None:
        assert json.loads(result.out)["num_trials"] == 5
        assert "digits-sgc-2: 5/5 trials, best " in result.err
        assert run("tune", *TINY, "--workers", "2", "--json").out == result.out
        assert asked == [2]  # nothing was left to be done
    else:
        assert result.err.endswith(f"graphjoule: {said}\n")


def test_many_more_workers_than_cores_are_questioned(here):
    result = run("tune", *TINY, "--workers", "5000")
    assert result.code == 2
    assert "--workers is 5000, but this machine has " in result.err
    assert result.err.endswith(", or start the same command on other machines with one --storage.\n")
    assert not (here / "runs").exists()


def test_when_no_time_is_left_what_there_is_is_told(here):
    run("tune", *TINY[:-2], "--trials", "2")
    result = run("tune", *TINY, "--timeout", "0")
    assert result.code == 0
    assert "2 trials; the best" in result.out
    assert result.err.endswith("graphjoule: 2 of 5 trials are over; the same command goes on.\n")
    nothing = run("tune", *TINY, "--timeout", "0", "--name", "new")
    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err.endswith("graphjoule: 0 of 5 trials are over; the same command goes on.\n")


def test_when_every_trial_fails_the_exit_code_is_1(here, caplog):
    result = run("tune", *TINY, "--model", "egnn", "--range", "lr=1e30,1e31")
    assert (result.code, result.out) == (1, "")
    assert "no trial has a result; the first failure: seed 0: the loss is not finite at epoch 0" in result.err
    assert not (here / "runs/tune/digits-egnn-2/best.toml").exists()


def test_your_own_graph(here):
    lines = ["id,label,a,b", *(f"n{i},{'xyz'[i % 3]},{i % 3},{i / 30}" for i in range(45))]
    (here / "nodes.csv").write_text("\n".join(lines))
    result = run("tune", *TINY, "--nodes", "nodes.csv", "--knn", "3", "--test-fraction", "0.2", "--json")
    assert result.code == 0, result.err
    told = json.loads(result.out)
    assert told["command"].startswith("graphjoule train --nodes nodes.csv --knn 3 --test-fraction 0.2 --model sgc")
    trained = run(*shlex.split(told["command"])[1:], "--device", "cpu", "--no-worth", "--out", "trained")
    assert trained.code == 0, trained.err
    assert "test accuracy" in trained.out
    assert "test split" in result.err
    assert "test label" in (here / told["files"]["recipe"]).read_text()


def test_a_graph_without_test_nodes_is_not_said_to_have_any(here):
    lines = ["id,label,a,b", *(f"n{i},{'xyz'[i % 3]},{i % 3},{i / 30}" for i in range(45))]
    (here / "nodes.csv").write_text("\n".join(lines))
    result = run("tune", *TINY, "--nodes", "nodes.csv", "--knn", "3")
    assert result.code == 0, result.err
    assert "train the winner with ten seeds:\n  graphjoule train --nodes nodes.csv" in result.out
    assert "test" not in result.out
    (best,) = here.rglob("best.toml")
    assert "test" not in best.read_text()


@pytest.mark.parametrize(
    ("model", "given", "left"),
    [
        ("egnn", ["weight_decay=0"], ["lr", "dropout", "output_dropout", "c_min", "beta"]),
        ("gcnii", ["weight_decay=0"], ["lr", "dropout", "alpha", "theta"]),
        ("gcnii", ["weight_decay={conv = 0}"], ["lr", "weight_decay.dense", "dropout", "alpha", "theta"]),
        ("gcn", ["weight_decay.all=0"], ["lr", "dropout"]),
        (
            "egnn",
            ["terms.energy.method=penalty", "c_min=0.3"],
            ["lr", "weight_decay.dense", "dropout", "output_dropout", "beta"],
        ),
    ],
)
def test_what_is_set_is_not_searched_however_it_is_called(model, given, left):
    overrides = parse_overrides(given)
    assert list(choose_ranges(load_recipe(model, "digits", 4, overrides), [], overrides)) == left


@pytest.mark.parametrize(
    ("model", "given", "text", "said"),
    [
        (
            "gcnii",
            ["weight_decay.conv=0"],
            "weight_decay=1e-6..1:log",
            "train.weight_decay.conv is both set, to 0, and searched",
        ),
        (
            "egnn",
            ["weight_decay=0"],
            "weight_decay.dense=1e-6..1:log",
            "train.weight_decay.dense is both set, to 0, and",
        ),
        (
            "gcn",
            ["weight_decay.all=0"],
            "weight_decay=1e-6..1:log",
            "train.weight_decay.all is both set, to 0, and searched",
        ),
        (
            "gcn",
            ["terms.energy.method=penalty", "c_min=0.3"],
            "terms.energy.c_min=0.1..0.5",
            "terms.energy.c_min is both set, to 0.3",
        ),
        (
            "gcn",
            ["terms.energy.method=penalty", "terms.energy.c_min=0.3"],
            "c_min=0.1..0.5",
            "terms.energy.c_min is both set, to 0.3",
        ),
    ],
)
def test_what_is_set_and_searched_is_refused_however_it_is_called(model, given, text, said):
    overrides = parse_overrides(given)
    with pytest.raises(GraphjouleError) as caught:
        choose_ranges(load_recipe(model, "digits", 4, overrides), [text], overrides)
    assert said in str(caught.value)


def test_a_limit_of_one_s_own_is_left_alone_where_the_models_is_searched():
    overrides = {"terms.energy.method": "penalty", "terms.energy.c_min": 0.2}
    recipe = load_recipe("egnn", "digits", 4, overrides)
    assert list(choose_ranges(recipe, ["c_min=0.1..0.5"], overrides)) == ["c_min"]
    assert with_settings(recipe, {"c_min": 0.5}).terms["energy"]["c_min"] == 0.2


@pytest.mark.parametrize("file", [[], ["--recipe", "mine.toml"]])
def test_a_limit_is_searched_for_the_model_and_the_constraint_as_train_sets_it_for_both(here, file):
    usual = load_recipe("egnn", "digits", 2, {"hidden_channels": 4})
    (here / "mine.toml").write_text(recipe_text(usual))
    given = [*TINY[2:-2], "--trials", "2", "--model", "egnn", "--constraint", "penalty", "--range", "c_min=0.3,0.5"]
    result = run("tune", *given, *file, "--json")
    assert result.code == 0, result.err
    told = json.loads(result.out)
    best = load_recipe("egnn", "digits", 2, file=here / told["files"]["recipe"])
    assert best.model.options["c_min"] == best.terms["energy"]["c_min"] == told["best"]["params"]["c_min"]


def test_a_penalty_is_searched_and_train_takes_it(here):
    given = [*TINY[:-2], "--trials", "2", "--layers", "3", "--model", "gcn", "--set", "hidden_channels=4"]
    result = run("tune", *given, "--range", "terms.orthogonal.gamma=0.1..100:log", "--json")
    assert result.code == 0, result.err
    told = json.loads(result.out)
    best = load_recipe("gcn", "digits", 3, file=here / told["files"]["recipe"])
    assert best.terms["orthogonal"]["gamma"] == told["best"]["params"]["terms.orthogonal.gamma"]


BAD = {
    "a range": (["--range", "lr=fast"], "'lr=fast' is not a range"),
    "a key": (["--range", "cmin=0.1..0.2"], '"cmin" is not a setting of sgc'),
    "a bound": (["--range", "lr=-1..1"], "lr=-1.0..1.0 cannot be searched: lr = -1.0 cannot be used"),
    "an empty choice": (["--range", "lr=0.1,,0.2"], "'lr=0.1,,0.2' is not a range: a choice is empty"),
    "two ranges": (["--range", "lr=1..2", "--range", "lr=1..3"], "lr has two ranges"),
    "set and searched": (["--range", "lr=1..2", "--set", "lr=1"], "train.lr is both set, to 1, and searched"),
    "sqlite": (["--storage", "sqlite:///a.db"], "SQLite repeats trials"),
    "seeds": (["--seeds", "none"], "--seeds is 'none'"),
    "device": (["--device", "tpu"], "tpu"),
    "model": (["--model", "gat"], '"gat" is not a model'),
    "dataset": (["--dataset", "coar"], "Unknown dataset 'coar'"),
    "recipe file": (["--recipe", "absent.toml"], "Cannot read the recipe file absent.toml"),
    "name": (["--name", "a/b"], "cannot be called 'a/b'"),
    "trials": (["--trials", "0"], "Invalid value for '--trials'"),
    "share": (["--test-fraction", "0.5"], "--test-fraction is 0.5, but it is for --nodes or --npz"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_a_user_can_get_wrong(here, case):
    arguments, said = BAD[case]
    assert said in refused(here, *TINY, *arguments)


def test_a_file_that_is_no_journal_is_left_alone(here):
    (here / "notes.txt").write_text("my notes")
    assert "notes.txt is not a journal of a search" in refused(here, *TINY, "--storage", "notes.txt")
    assert "notes.txt is a file" in refused(here, *TINY, "--out", "notes.txt")


def test_another_search_in_the_same_place_is_refused(here):
    assert run("tune", *TINY).code == 0
    said = refused(here, *TINY, "--range", "lr=1e-3..1e-1:log")
    assert "runs/tune/digits-sgc-2 belongs to the search 'digits-sgc-2', which was begun with something else" in said
    assert "; range of weight_decay: 1e-06..0.01:log -> nothing); choose another folder with --out" in said
    said = refused(
        here, *TINY, "--range", "lr=1e-3..1e-1:log", "--storage", "runs/tune/digits-sgc-2/journal.log", "--out", "b"
    )
    assert "The search 'digits-sgc-2' in runs/tune/digits-sgc-2/journal.log was begun with something else" in said
    assert "choose another --storage or --name" in said


def test_a_folder_that_holds_something_else_is_refused(here):
    (here / "notes.txt").write_text("mine")
    assert ". holds notes.txt, which this command did not begin" in refused(here, *TINY, "--out", ".")


def test_beside_a_journal_a_search_has_a_folder_of_its_own_unless_it_has_marked_that_one(here):
    (here / "notes.txt").write_text("mine")
    assert run("tune", *TINY, "--storage", "all.log").code == 0
    assert (here / "digits-sgc-2/best.toml").exists()
    assert run("tune", *TINY, "--name", "b", "--out", "old", "--storage", "old/all.log").code == 0
    (here / "old/best.toml").unlink()
    assert run("tune", *TINY, "--name", "b", "--storage", "old/all.log").code == 0
    assert (here / "old/best.toml").exists()


@pytest.mark.parametrize("more", [[], ["--storage", "elsewhere.log"]])
def test_a_folder_belongs_to_one_search(here, more):
    assert run("tune", *TINY, "--out", "mine").code == 0
    said = refused(here, *TINY, "--layers", "3", "--out", "mine", *more)
    assert (
        "mine belongs to another search, 'digits-sgc-2' (sgc, 2 layers, digits); choose another folder with --out"
        in said
    )
    said = refused(here, *TINY, "--name", "digits-sgc-2", "--layers", "3", "--out", "mine", *more)
    assert "which was begun with something else (model.num_layers: 2 -> 3" in said
    assert run("tune", *TINY[:-1], "6", "--out", "mine").code == 0  # the same search goes on


def test_a_folder_that_two_searches_took_at_the_same_moment_keeps_the_result_of_one(here, monkeypatch):
    module = import_module("graphjoule.tuning.outcome")
    (here / "mine").mkdir()
    other = '{"name": "other", "about": {"model.name": "gcn", "model.num_layers": 2, "data.name": "digits"}}'
    monkeypatch.setattr(module, "mark_folder", lambda folder, *given: (folder / "search.json").write_text(other))
    result = run("tune", *TINY, "--out", "mine")
    assert result.code == 2
    assert "mine belongs to another search, 'other' (gcn, 2 layers, digits)" in result.err
    assert not (here / "mine/best.toml").exists()


def test_a_journal_that_is_lost_meanwhile_is_a_sentence(here, monkeypatch):
    module, calls = import_module("graphjoule.tuning.search"), []
    fit = module.fit

    def removing(*given, **options):
        calls.append(given)
        if len(calls) == 2:
            (here / "runs/tune/digits-sgc-2/journal.log").unlink()
        return fit(*given, **options)

    monkeypatch.setattr(module, "fit", removing)
    result = run("tune", *TINY)
    assert (result.code, result.out) == (2, "")
    assert "journal.log as the journal of a search: no such file or directory." in result.err
    assert "Traceback" not in result.err


def test_few_settings_are_tried_once_each_and_that_is_said(here):
    arguments = [*TINY, "--model", "egnn", "--set", "hidden_channels=4", "--range", "batch_norm=true,false"]
    result = run("tune", *arguments)
    assert result.code == 0, result.err
    assert "2 trials of 2 seeds by 1 worker" in result.err
    assert "the ranges hold 2 settings, so there are not 5 trials: each is tried once" in result.err
    assert "digits-egnn-2: 2/2 trials" in result.err
    assert "2 trials, all settings that the ranges hold; the best by val_loss:" in result.out
    with (here / "runs/tune/digits-egnn-2/trials.csv").open() as file:
        assert sorted(row["batch_norm"] for row in csv.DictReader(file)) == ["False", "True"]
    again = run("tune", *arguments)
    assert (again.code, again.out) == (0, result.out)


def test_without_optuna_one_sentence_says_what_to_install(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "not installed: pip install 'graphjoule[tune]'" in refused(here, *TINY)


def test_help_has_examples_and_every_option():
    result = run("tune", "--help")
    assert (result.code, result.err) == (0, "")
    assert "--range c_min=0.1..0.5" in result.out
    options = ["dataset", "model", "layers", "trials", "seeds", "range", "set", "constraint", "epochs", "recipe"]
    options += ["storage", "name", "workers", "timeout", "search-seed", "device", "out", "json", "nodes"]
    assert all(f"--{option}" in result.out for option in options)


# A recipe file for train.


def test_train_takes_a_recipe_file_and_marks_what_it_changes(here):
    text = '[[block]]\nours = { lr = 0.5, epochs = 2, weight_decay = 0.0005, patience = 100, select_on = "val_loss", '
    text += 'normalize_features = false, split = "per-class-5-10" }\n'
    (here / "mine.toml").write_text(text)
    arguments = ["--model", "sgc", "--layers", "2", "--device", "cpu", "--recipe", "mine.toml"]
    assert run("train", *arguments, "--out", "run").code == 0
    (record,) = read_records(here / "run/records.jsonl")
    changed = {key for key, source in record.recipe["sources"].items() if source == "override"}
    assert (record.recipe["train"]["lr"], record.recipe["train"]["epochs"]) == (0.5, 2)
    assert changed == {"train.lr", "train.epochs"}
    wins = run("train", *arguments, "--set", "lr=0.25", "--out", "other")
    assert wins.code == 0
    assert next(read_records(here / "other/records.jsonl")).recipe["train"]["lr"] == 0.25


def test_train_refuses_a_recipe_file_that_is_none(here):
    (here / "bad.toml").write_text("lr = 1\n")
    (here / "other.toml").write_text(recipe_text(load_recipe("egnn", "cora", 4)))
    for name, said in (
        ("absent.toml", "Cannot read the recipe file absent.toml: no such file or directory."),
        ("bad.toml", "[[block]] tables"),
        ("other.toml", "other.toml has no block for cora with 8 layers; it has: cora, 4 layers."),
    ):
        result = run("train", "--dataset", "cora", "--layers", "8", "--recipe", name)
        assert (result.code, result.out) == (2, "")
        assert said in result.err
    assert not (here / "runs").exists()


# Progress.


class Storage:
    """As much of a storage as progress looks at."""

    class ref:  # noqa: N801
        name = "mine"

    class study:  # noqa: N801
        class direction:  # noqa: N801
            name = "MINIMIZE"

    def __init__(self):
        self.all = []

    def trials(self):
        return self.all

    def add(self, state, value=None):
        trial = type("Trial", (), {"state": type("State", (), {"name": state}), "value": value})()
        trial.user_attrs, trial.params = {"slot": len(self.all), "attempt": 0}, {"lr": len(self.all)}
        self.all.append(trial)


TRAINING = TrialProgress(0, Progress(10, 20, 1, 2, 0.5))


def test_off_a_terminal_there_is_a_line_per_trial(capsys):
    storage = Storage()
    with show_search(storage, 4) as show:
        show(TrialProgress(0))
        storage.add("PRUNED")
        show(TRAINING)  # not within a trial
        show(TrialProgress(0))
        storage.add("COMPLETE", 0.25)
        show(None)
        show(None)
    assert capsys.readouterr().err == "mine: 1/4 trials, none has a result yet\nmine: 2/4 trials, best 0.2500\n"


def test_on_a_terminal_there_is_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    storage = Storage()
    storage.add("COMPLETE", 0.25)
    with show_search(storage, 4) as show:
        show(TRAINING)
    captured = capsys.readouterr()
    assert "trials, best 0.2500, epoch 10" in captured.err
    assert captured.out == ""


def test_a_search_weighs_classes_and_selects_as_a_training_does(here):
    options = ("--select-on", "macro_f1", "--class-weights", "balanced", "--focal-gamma", 2)
    result = run("tune", *TINY[:-1], 1, *options, "--json")
    assert result.code == 0, result.err
    told = json.loads(result.out)
    assert (told["select_on"], told["direction"]) == ("val_macro_f1", "maximize")
    best = load_recipe("sgc", "digits", 2, file=here / told["files"]["recipe"])
    assert (best.train.class_weights, best.train.focal_gamma, best.train.select_on) == ("balanced", 2.0, "macro_f1")
    assert "--select-on is 'f2'; for classification the choices are: accuracy" in refused(
        here, *TINY, "--select-on", "f2"
    )
