import json
import os
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

import graphjoule
from graphjoule.fitting import fit
from graphjoule.tasks import load_task
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.records import read_records
from graphjoule.training.saving import load_model

from . import TINY, run

pytestmark = pytest.mark.usefixtures("here")

JSON_KEYS = ["metric", "test_mean", "test_std", "n", "num_failed", "val_mean", "seconds", "records", "warnings"]


# The installed command.


def test_the_installed_command_trains_and_tells_a_program_the_result(command, here):
    arguments = ["train", *TINY, "--seeds", "3,7", "--json"]
    done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()  # nothing but the result
    result = json.loads(line)
    assert list(result) == JSON_KEYS
    assert (result["n"], result["num_failed"], result["records"]) == (2, 0, "runs/digits-egnn-2/records.jsonl")
    records = list(read_records(here / result["records"]))
    assert sorted(r.seed for r in records) == [3, 7]
    accuracies = [r.test_score for r in records]
    assert result["test_mean"] == pytest.approx(sum(accuracies) / 2)
    assert result["test_std"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert result["val_mean"] == pytest.approx(sum(r.val_score for r in records) / 2)
    assert result["seconds"] == pytest.approx(sum(r.seconds for r in records), abs=1e-3)
    assert "Traceback" not in done.stderr
    assert "egnn, 2 layers, digits: test accuracy" in done.stderr


def test_the_installed_command_knows_its_version_in_another_language_and_without_a_terminal(command):
    environment = os.environ | {"LC_ALL": "C", "TERM": "dumb"}
    done = subprocess.run([command, "--version"], capture_output=True, env=environment, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"graphjoule {graphjoule.__version__}\n".encode(), b"")


# The same in this process.


def test_without_json_the_result_is_told_in_words_on_standard_output(here):
    result = run("train", *TINY, "--seeds", "2", "--out", "run")
    records = list(read_records(here / "run" / "records.jsonl"))
    mean = 50 * sum(r.test_score for r in records)
    assert (result.code, result.err) == (0, "")
    assert f"egnn, 2 layers, digits: test accuracy {mean:.2f} ± " in result.out
    assert "(n = 2), validation " in result.out
    assert result.out.splitlines()[1] == "records and models: run"
    assert result.out.splitlines()[2].startswith("warning: Never predicted: ")  # after two epochs


def test_one_seed_has_no_spread(here):
    result = run("train", *TINY, "--json")
    told = json.loads(result.out)
    assert told["n"] == 1
    assert told["test_std"] is None
    assert "±" not in result.err


def test_the_command_trains_what_fit_trains(here):
    run("train", "--model", "gcn", *TINY, "--set", "lr=0.02", "--seeds", "3,7", "--out", "run")
    recipe = load_recipe("gcn", "digits", 2, {"epochs": 2, "hidden_channels": 8, "lr": 0.02})
    records = list(read_records(here / "run" / "records.jsonl"))
    assert all(Recipe.model_validate(record.recipe) == recipe for record in records)
    expected = fit(recipe, load_task("digits"), [3, 7], device="cpu")
    assert [r.curve for r in records] == [r.curve for r in expected.records]
    assert [r.test_score for r in records] == [r.test_score for r in expected.records]
    model = load_model(here / "run" / "model-seed-7.safetensors")
    assert all(a.equal(b) for a, b in zip(model.parameters(), expected.models[1].parameters(), strict=True))


def test_by_default_32_layers_of_egnn_train_on_the_digits_with_one_seed_as_the_recipe_says(here, monkeypatch):
    asked = {}

    def remember(recipe, task, seeds, **options):
        asked.update(options, recipe=recipe, task=task.name, seeds=seeds)
        return fit(load_recipe("egnn", "digits", 1, {"epochs": 1, "hidden_channels": 2}), task, seeds, device="cpu")

    monkeypatch.setattr(import_module("graphjoule.fitting"), "fit", remember)
    assert run("train").code == 0
    assert asked["recipe"] == load_recipe("egnn", "digits", 32)
    assert (asked["task"], asked["seeds"], asked["device"], asked["resume"]) == ("digits", [0], "auto", False)
    assert asked["out"] == Path("runs/digits-egnn-32")


def test_resuming_a_finished_training_tells_the_same(here):
    first = run("train", *TINY, "--seeds", "2", "--json", "--out", "run")
    again = run("train", *TINY, "--seeds", "2", "--json", "--out", "run", "--resume")
    assert (again.code, again.out) == (0, first.out)


def test_when_every_run_fails_the_exit_code_is_1_and_json_says_n_is_0(here, caplog):
    result = run("train", *TINY, "--set", "lr=1e30", "--seeds", "2", "--json", "--out", "run")
    told = json.loads(result.out.splitlines()[-1])
    assert result.code == 1
    assert (told["n"], told["num_failed"], told["test_mean"], told["test_std"], told["val_mean"]) == (0, 2, *[None] * 3)
    assert "no run finished, 2 failed" in result.err
    assert "seed 1: the loss is not finite at epoch 0" in caplog.text
    assert [r.status for r in read_records(here / "run" / "records.jsonl")] == ["failed", "failed"]
    again = run("train", *TINY, "--set", "lr=1e30", "--seeds", "2", "--json", "--out", "run", "--resume")
    assert (again.code, again.out) == (1, result.out)


def test_help_has_examples_and_every_option():
    result = run("train", "--help")
    assert (result.code, result.err) == (0, "")
    for text in ["graphjoule train --dataset cora --layers 64 --seeds 10", "--set c_min=0.3"]:
        assert text in result.out
    options = ["dataset", "model", "layers", "seeds", "set", "epochs", "device", "out", "resume", "json", "data-root"]
    assert all(f"--{option}" in result.out for option in options)


def test_without_a_command_the_commands_are_shown():
    result = run()
    assert all(name in result.out + result.err for name in ("train", "data", "demo"))


def test_the_version_is_the_packages():
    assert run("--version").out == f"graphjoule {graphjoule.__version__}\n"


# Clusters.


def test_train_on_clusters_then_predict(here):
    done = run("train", *TINY, "--clusters", 20, "--clusters-per-step", 5, "--json")
    assert done.code == 0, done.err
    (record,) = read_records(here / json.loads(done.out)["records"])
    assert record.recipe["train"]["clusters"] == {
        "parts": 20,
        "per_step": 5,
        "accumulate": 1,
        "method": "metis",
        "validate_every": 1,
    }
    predicted = run("predict", "runs/digits-egnn-2", "--out", "all.csv", "--device", "cpu", "--json")
    assert predicted.code == 0, predicted.err
    assert json.loads(predicted.out)["num_nodes"] == 1797


def test_the_metric_that_selects_and_the_weights_of_classes_are_options(here):
    options = ("--select-on", "macro_f1", "--class-weights", "balanced", "--focal-gamma", 2)
    done = run("train", *TINY, *options, "--json")
    assert done.code == 0, done.err
    (record,) = read_records(here / json.loads(done.out)["records"])
    assert json.loads(done.out)["metric"] == "macro_f1"
    assert record.recipe["train"]["class_weights"] == "balanced"
    assert (record.recipe["train"]["focal_gamma"], record.recipe["train"]["select_on"]) == (2.0, "macro_f1")
    assert record.test_score == record.test["macro_f1"]
    about = json.loads((here / "runs/digits-egnn-2/run.json").read_text())
    assert about["data"]["objective"]["class_weights"] == "balanced"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--clusters", 0], "--clusters"),
        (["--select-on", "f2"], "--select-on is 'f2'; for classification the choices are: accuracy, average_precision"),
        (["--class-weights", "even"], "--class-weights is 'even'; expected balanced, or a list of numbers above 0"),
        (["--class-weights", "1,2"], "--class-weights is [1.0, 2.0]; expected 'balanced' or 10 numbers above 0"),
        (["--focal-gamma", -1], "focal_gamma = -1.0 cannot be used"),
        (["--clusters-per-step", 5], "there are no clusters: say how many with --clusters"),
        (["--clusters", 3, "--clusters-per-step", 5], "clusters.per_step is 5, but there are 3 clusters"),
        (["--clusters", 5000], "clusters.parts is 5000; for a graph of 1797 nodes it must be from 1 to 1797"),
        (["--clusters", 5, "--constraint", "penalty"], "terms.energy and train.clusters exclude each other"),
    ],
)
def test_options_that_cannot_be_are_one_sentence_and_leave_nothing(here, options, words):
    refused = run("train", *TINY, *options)
    assert refused.code == 2
    assert words in refused.err
    assert "Traceback" not in refused.err
    assert list(here.iterdir()) == []


def test_a_constraint_by_its_option_with_limits_by_their_short_names(here):
    arguments = "train --model gcn --layers 4 --constraint augmented_lagrangian --set c_min=0.2 --epochs 2 --json"
    done = run(*arguments.split(), "--device", "cpu")
    assert done.code == 0, done.err
    records = list(read_records(json.loads(done.out)["records"]))
    assert [record.recipe["terms"]["energy"]["c_min"] for record in records] == [0.2]
    assert run(*arguments.replace("augmented_lagrangian", "lagrange").split()).code == 2


def test_accuracy_that_says_little_is_doubted_unless_another_metric_selects(here):
    rows = "".join(f"n{i},{i % 7},{'fraud' if i < 2 else 'honest'}\n" for i in range(60))
    (here / "nodes.csv").write_text(f"id,x,label\n{rows}")
    own = ("train", "--nodes", "nodes.csv", *TINY)
    said = run(*own, "--objective", "binary").err
    assert "nodes.csv: always saying 'honest' is right for 96.67 % of the labels, so accuracy says little; " in said
    assert "--select-on balanced_accuracy or --select-on average_precision" in said
    assert "--class-weights balanced" in said
    assert "accuracy says little" not in run(*own, "--select-on", "balanced_accuracy").err


def test_a_training_that_may_take_days_says_so_before_its_first_epoch(here, monkeypatch):
    monkeypatch.setattr("graphjoule.training.budget._PER_CORE", 1.0)
    for options, is_long in ((["--budget", "1h"], False), (["--budget", "none"], True)):
        done = run("train", *TINY, *options)
        assert done.code == 0
        assert ("egnn, 2 layers, digits: by its size this may take " in done.err) == is_long
    assert " days, for " in done.err
    assert "1 run; --budget TIME ends it in time" in done.err
