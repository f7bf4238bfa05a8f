"""``graphjoule auto``, and ``graphjoule train`` on files of one's own where nothing says which model."""

import csv
import json

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.training.budget import Budget
from graphjoule.tuning import automatic, halving
from tests.cli.test_own_graph import OWN, write_graph
from tests.training.test_budget import Clock

from . import everything, refused, run

EPOCHS = {"epochs": 5}
QUICK = ("--device", "cpu", "--seeds", "2", "--no-worth")


@pytest.fixture(autouse=True)
def own_graph(here, monkeypatch):
    monkeypatch.setattr(halving, "_MOST_VARIATIONS", 1)
    write_graph(here)


def test_train_tries_models_on_own_files_and_what_is_left_is_an_ordinary_run_folder(here, monkeypatch):
    asked = []
    real = automatic.auto

    def with_one_model(task, seconds, **options):
        asked.append((seconds.seconds, options["models"], options["depths"], options["seeds"]))
        return real(task, Budget(300, Clock()), **options | {"models": ["gcn"], "depths": [1, 2], "settings": EPOCHS})

    monkeypatch.setattr(automatic, "auto", with_one_model)
    result = run("train", *OWN, "--features", "x", "--test-fraction", "0.2", "--device", "cpu", "--no-worth", "--json")
    assert result.code == 0, result.err
    assert asked == [(120.0, automatic.AUTO_MODELS, automatic.AUTO_DEPTHS, list(automatic.AUTO_SEEDS))]
    assert "for 2 min in all; kept in runs/nodes-auto; --model, --layers" in result.err
    found = json.loads(result.out)
    assert (found["model"], found["metric"], found["ranking"]) == ("gcn", "accuracy", "runs/nodes-auto/ranking.csv")
    assert 0 <= found["test_mean"] <= 1
    assert "3 candidates tried, the best first" in result.err
    assert len(list(csv.DictReader((here / "runs/nodes-auto/ranking.csv").read_text().splitlines()))) == 3
    assert run("predict", "runs/nodes-auto", "--out", "again.csv").code == 0
    assert (here / "again.csv").read_text() == (here / "runs/nodes-auto/predictions.csv").read_text()
    assert run("report", "runs/nodes-auto", "--no-energy", "--device", "cpu").code == 0
    again = run(
        "train",
        *OWN,
        "--features",
        "x",
        "--test-fraction",
        "0.2",
        "--device",
        "cpu",
        "--no-worth",
        "--json",
        "--resume",
    )
    assert json.loads(again.out) == found


def test_reading_files_and_the_comparison_are_part_of_the_budget(monkeypatch):
    given = {}

    def search(task, budget, **options):
        given["search"] = budget
        return automatic_auto(task, Budget(300, Clock()), **options | {"settings": EPOCHS})

    def assess(task, result, *, device, budget):
        given["comparison"] = budget
        raise GraphjouleError("far enough")

    automatic_auto = automatic.auto
    monkeypatch.setattr(automatic, "auto", search)
    monkeypatch.setattr("graphjoule.tuning.worth.assess", assess)
    small = ("--models", "gcn", "--depths", "1", "--device", "cpu", "--seeds", "1")
    assert run("auto", *OWN, "--features", "x", *small, "--budget", "100s").code == 2
    assert given["search"].seconds == 85
    assert given["search"].left < 85
    assert 0 < given["comparison"].seconds <= 100 - (85 - given["search"].left) + 1


@pytest.mark.parametrize(
    "options", [("--layers", "2"), ("--model", "gcn"), ("--set", "hidden_channels=4"), ("--budget", "none")]
)
def test_what_names_a_model_or_its_settings_trains_one(here, monkeypatch, options):
    monkeypatch.setattr("graphjoule.cli.auto.try_models", None)
    monkeypatch.setattr("graphjoule.cli.train.load_recipe_from", lambda *given: pytest.exit)
    monkeypatch.setattr("graphjoule.cli.train.Job", _stop)
    with pytest.raises(_Reached):
        run("train", *OWN, *options)


class _Reached(Exception):  # noqa: N818
    """A single training was about to begin."""


def _stop(**given):
    raise _Reached


def test_auto_tries_what_is_asked_for_and_prints_the_ranking(here, monkeypatch):
    real = automatic.auto
    monkeypatch.setattr(automatic, "auto", lambda task, seconds, **options: real(task, Budget(300, Clock()), **options))
    words = ("auto", *OWN, "--budget", "2s", "--models", "sgc,gcn", "--depths", "1", *QUICK, "--out", "run")
    result = run(*words, "--set", "epochs=5")
    assert result.code == 0, result.err
    assert "sgc, gcn with 1 layer, then variations of the best, for 2 s in all; kept in run" in result.err
    lines = result.out.splitlines()
    assert lines[0].endswith("candidates tried, the best first; all of them: run/ranking.csv")
    assert lines[1].split() == ["model", "layers", "seeds", "epochs", "val", "accuracy", "changed", "settings"]
    assert {line.split()[1] for line in lines[2:5]} == {"sgc", "gcn"}
    assert "records and models: run" in lines
    assert "predictions: run/predictions.csv" in lines
    before = everything(here)
    again = run(*words)
    assert (again.code, again.out) == (2, "")
    assert "run already holds a search for a model; pass --resume to continue it" in again.err.splitlines()[-1]
    assert everything(here) == before


def test_models_that_predict_together_can_be_used_by_every_command(here, monkeypatch):
    real = automatic.auto
    monkeypatch.setattr(automatic, "auto", lambda task, seconds, **options: real(task, Budget(300, Clock()), **options))
    monkeypatch.setattr(halving, "standard_error", lambda accuracy, num_nodes: 1.0)
    monkeypatch.setattr(automatic, "models_together", lambda task, metric, predicted, val: list(predicted))
    words = ("auto", *OWN, "--features", "x", "--models", "sgc,gcn", "--depths", "1", "--device", "cpu", "--seeds", "2")
    result = run(*words, "--out", "run", "--set", "epochs=5", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    first, second, *_ = found["chosen"]
    assert f"{found['num_together']} runs of {first} and {second}" in result.err
    assert f"what follows is of {first} alone, but for the predictions" in result.err
    assert [row["name"] for row in found["worth"]["rows"]][-1].startswith(found["model"])
    told = run("predict", "run", "--out", "again.csv")
    assert f"predicted by {found['num_together']} runs of {len(found['chosen'])} models, " in told.out
    assert (here / "again.csv").read_text() == (here / "run/predictions.csv").read_text()
    seed = json.loads((here / "run/auto.json").read_text())["chosen"][first][0]
    assert run("predict", "run", "--seed", seed, "--out", "one.csv").code == 0
    assert (here / "one.csv").read_text() != (here / "again.csv").read_text()
    assert run("predict", "run", "--coverage", "0.9", "--calibrated", "--out", "sure.csv").code == 0
    assert run("predict", f"run/members/{second}", "--out", "member.csv").code == 0
    alone = f"this is one of {len(found['chosen'])} models of run that predict together; name run/members/{second}"
    for command in (("trace", "run"), ("export", "run", "--format", "torch", "--out", "model.pt2")):
        told = run(*command)
        assert told.code == 0, told.err
        assert alone in told.err
        assert "predict together" not in run(command[0], f"run/members/{second}", *command[2:], "--force").err
    told = run("report", "run", "--no-energy", "--device", "cpu")
    assert told.code == 0, told.err
    page = next(here.rglob("report*.html")).read_text()
    assert all(f"From members/{name}." in page for name in found["chosen"][1:])
    told = run("verify", "run", "--no-pages")  # which may find code that is not committed
    assert f"**ok** ({found['num_together']}): records are whole" in told.out
    again = run(*words, "--out", "run", "--set", "epochs=5", "--json", "--resume")
    assert json.loads(again.out) == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--budget", "soon"], "--budget is 'soon'; expected a time above 0, such as 90s, 2min, 1.5h or 1d"),
        (["--budget", "none"], "--budget is none; expected a time"),
        (["--models", "gnn"], '"gnn" is not a model'),
        (["--models", ","], '"" is not a model'),
        (["--depths", "two"], "--depths is 'two'; expected numbers of layers"),
        (["--depths", "0"], "--depths is '0'; expected numbers of layers"),
        (["--seeds", "none"], "--seeds is 'none'"),
        (["--set", "c_min=0.1"], '"c_min" is not a setting of gcn'),
        (["--resume", "--out", "nowhere"], "There is no folder nowhere, so there is nothing to resume"),
        (["--resume"], "There is no training of nodes-auto with these settings under runs/"),
    ],
    ids=" ".join,
)
def test_wrong_options_are_refused_and_nothing_is_written(here, options, said):
    assert said in refused(here, "auto", *OWN, *options)


def test_models_that_do_not_follow_directions_are_neither_announced_nor_tried(here, monkeypatch):
    def search(task, budget, *, models, **options):
        raise GraphjouleError(f"asked for {', '.join(models)}")

    monkeypatch.setattr(automatic, "auto", search)
    words = ("auto", *OWN, "--features", "x", "--direction", "kept", "--out", "run")
    announced, _, asked = run(*words).err.partition("asked for ")
    assert "gcn, appnp, gcnii, resgcn with 2, 8, 32 layers" in announced
    assert asked == "gcn, appnp, gcnii, resgcn\n"
    said = refused(here, *words, "--models", "egnn")
    assert "EGNN needs edges that count in both directions" in said


def test_a_wrong_budget_of_train_is_refused_too(here):
    assert "--budget is '2m'; expected a time above 0" in refused(here, "train", *OWN, "--budget", "2m")
    assert "--budget is '2m'; expected a time above 0" in refused(here, "train", "--budget", "2m")


def test_a_budget_ends_one_training_with_what_it_has(here):
    options = ("--no-worth", "--features", "x", "--layers", "1", "--epochs", "100000", "--set", "patience=100000")
    result = run("train", *OWN, *options, "--device", "cpu", "--budget", "0.3s", "--out", "run", "--json")
    assert result.code == 0, result.err
    record = json.loads((here / "run/records.jsonl").read_text())
    assert record["status"] == "done"
    assert 1 <= record["epochs_run"] < 100_000
