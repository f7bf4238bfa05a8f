"""``graphjoule train`` and ``graphjoule predict`` on the user's own files: one command, no code."""

import csv
import html
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphjoule.cli.source import GraphSource
from graphjoule.cli.train import predict_all
from graphjoule.errors import GraphjouleError
from graphjoule.fitting import FitResult, fit, load
from graphjoule.tasks import load_tables, load_task
from graphjoule.training import RunFolder, recipe_for
from graphjoule.training.recipe import load_recipe
from graphjoule.training.records import read_records
from graphjoule.training.saving import read_model, save_model
from tests.training import small_recipe, small_task

from . import TINY, run

COLOURS = ["red", "blue"]
OWN = ("--nodes", "nodes.csv", "--edges", "edges.csv")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "own-graph.md"


def write_csv(path, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def write_graph(folder, num_nodes=40, prefix="n", *, labels=True):
    """Two communities; the class is the community, every fourth node has no label."""
    draw = random.Random(0)
    names = [f"{prefix}{i}" for i in range(num_nodes)]
    rows = [
        [
            name,
            round(draw.gauss(i % 2, 0.5), 3),
            draw.choice(["rome", "oslo"]),
            "" if i % 4 == 3 else COLOURS[i % 2],
        ]
        for i, name in enumerate(names)
    ]
    kept = 4 if labels else 3
    write_csv(folder / "nodes.csv", ["id", "x", "city", "label"][:kept], *(row[:kept] for row in rows))
    edges = [[names[i], names[(i + 2 * step) % num_nodes]] for i in range(num_nodes) for step in (1, 2)]
    write_csv(folder / "edges.csv", ["source", "target"], *edges)
    return names


@pytest.fixture(autouse=True)
def own_graph(here):
    """A graph of one's own in the folder to work in."""
    write_graph(here)


def everything(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(folder, *arguments):
    """The sentence with which a command is refused; it has left everything as it was."""
    before = everything(folder)
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert re.fullmatch(r"graphjoule: [^\n]+[.?]\n", result.err), result.err
    assert everything(folder) == before
    return result.err


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# One command.


def test_two_files_give_predictions_a_model_and_a_report(here, caplog):
    with caplog.at_level("INFO", "graphjoule"):
        result = run("train", *OWN, "--one-hot", "city", *TINY, "--seeds", "2")
    assert (result.code, result.err) == (0, "")
    first, *rest = result.out.splitlines()
    assert re.fullmatch(r"egnn, 2 layers, nodes.csv: validation accuracy .* % \(n = 2\), no test nodes, \d+ s", first)
    assert rest[:2] == ["records and models: runs/nodes-egnn-2", "predictions: runs/nodes-egnn-2/predictions.csv"]
    assert rest[2].startswith("warning: Never predicted: class ")
    assert rest[3:5] == ["", "What is the graph worth?"]
    assert any(line.startswith("egnn with 2 layers ") for line in rest)
    assert rest[-2].startswith("There are no test nodes, so the validation nodes judge")
    assert rest[-1] == "The GCN with 2 layers was still training after 1 epoch, where it was stopped."
    assert "nodes.csv: 40 nodes, 3 features; 30 labelled with 2 classes (blue, red), 10 to predict" in caplog.text
    folder = here / "runs" / "nodes-egnn-2"
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock",
        "MODEL_CARD.md",
        "comparison.json",
        "evaluation.safetensors",
        "model-seed-0.safetensors",
        "model-seed-1.safetensors",
        "predictions.csv",
        "records.jsonl",
        "run.json",
    ]
    rows = rows_of(folder / "predictions.csv")
    assert list(rows[0]) == ["id", "label", "given", "probability_blue", "probability_red"]
    assert [row["id"] for row in rows] == [f"n{i}" for i in range(40)]
    assert [row["given"] for row in rows] == ["false" if i % 4 == 3 else "true" for i in range(40)]
    for row in rows:
        blue, red = float(row["probability_blue"]), float(row["probability_red"])
        assert blue + red == pytest.approx(1, abs=1e-6)
        assert row["label"] == ("blue" if blue > red else "red")
    records = list(read_records(folder / "records.jsonl"))
    assert {(record.dataset, record.split, record.test_score) for record in records} == {
        ("nodes.csv", "stratified-20-0", None)
    }


def test_explain_says_which_facts_chose_the_settings_and_a_training_goes_on_with_them(here):
    quick = ("--epochs", "2", "--set", "hidden_channels=8", "--device", "cpu", "--out", "run")
    first = run("train", *OWN, *quick, "--explain")
    assert (first.code, first.err) == (0, "")
    lines = first.out.splitlines()
    assert lines[0] == "facts"
    assert "  graph: 40 nodes, 4.0 neighbours, components: 2" in lines
    assert "egnn, 8 layers, nodes.csv" in first.out  # the depth where none is asked for
    stored = RunFolder(here / "run").about().recipe
    chosen = {name for name, source in stored.sources.items() if source == "data"}
    assert chosen >= {"model.gamma", "train.lr"}
    assert stored.settings() == (
        recipe_for(load_tables("nodes.csv", "edges.csv"), overrides={"epochs": 2, "hidden_channels": 8}).settings()
        | {"data.split": stored.data.split}
    )
    again = run("train", *OWN, *quick, "--resume", "--json", "--explain")
    assert (again.code, len(again.out.splitlines())) == (0, 1)
    assert "Settings are those that run began with." in again.err
    (here / "nodes.csv").write_text((here / "nodes.csv").read_text().replace("rome", "oslo"))
    assert "other settings" not in refused(here, "train", *OWN, *quick, "--resume")
    assert "choose another" in run("train", *OWN, *quick, "--set", "lr=0.5", "--resume").err


def test_a_dataset_with_a_recipe_needs_no_rules():
    result = run("train", *TINY, "--explain", "--out", "run")
    assert result.out.startswith("digits has a recipe of its own: no rule is asked.\n")


def test_the_folder_that_holds_the_tables_is_refused_even_if_one_is_called_as_a_result_is(here):
    (here / "nodes.csv").rename(here / "predictions.csv")
    said = refused(here, "train", "--nodes", "predictions.csv", *OWN[2:], "--features", "x", *TINY, "--out", ".")
    assert ". holds edges.csv and 1 other thing, which this command did not begin" in said


def test_it_learns_what_there_is_to_learn(here):
    run(
        "train",
        "--no-worth",
        *OWN,
        "--features",
        "x",
        "--layers",
        "4",
        "--epochs",
        "60",
        "--device",
        "cpu",
        "--out",
        "run",
    )
    rows = rows_of(here / "run" / "predictions.csv")
    hidden = [row["label"] == COLOURS[i % 2] for i, row in enumerate(rows) if row["given"] == "false"]
    assert sum(hidden) >= 9


def test_json_names_the_predictions_and_a_test_part_is_scored_when_asked_for(here):
    result = run("train", *OWN, "--features", "x", "--test-fraction", "0.3", *TINY, "--json")
    told = json.loads(result.out)
    assert told["predictions"] == "runs/nodes-egnn-2/predictions.csv"
    assert 0 <= told["test_mean"] <= 1
    (record,) = read_records(here / told["records"])
    assert record.split == "stratified-20-30"
    assert "test accuracy" in result.err
    assert "What is the graph worth?" in result.err
    comparison = json.loads((here / "runs/nodes-egnn-2/comparison.json").read_text())
    said = told["worth"].pop("sentences")
    assert told["worth"] == comparison
    assert said[-1].startswith(("Use ", "Nothing can be advised: "))  # nine nodes judge
    assert comparison["advice"] in said[-1]
    assert told["warnings"] == [w for w in told["warnings"] if w in result.err]


def test_without_edges_neighbours_are_linked_and_it_is_said(here, caplog):
    with caplog.at_level("INFO", "graphjoule"):
        assert run("train", "--no-worth", "--nodes", "nodes.csv", "--features", "x", "--knn", "3", *TINY).code == 0
    assert "no edges given: linking every node with its 3 nearest" in caplog.text


@pytest.mark.parametrize("value", ["1", "0", "-2.5"])
@pytest.mark.parametrize("model", ["egnn", "gcn", "sgc"])
def test_where_all_features_are_constant_the_edges_speak(here, caplog, model, value):
    # Eight stars: only the number of edges tells a hub from its leaves.
    nodes = [[f"s{i}n{j}", value, "leaf" if j else "hub"] for i in range(8) for j in range(5)]
    write_csv(here / "stars.csv", ["id", "dummy", "label"], *nodes)
    links = [[f"s{i}n0", f"s{i}n{j}"] for i in range(8) for j in range(1, 5)]
    write_csv(here / "links.csv", ["source", "target"], *links)
    files = ("--nodes", "stars.csv", "--edges", "links.csv")
    learn = ("--layers", "2", "--epochs", "60", "--set", "lr=0.1", "--set", "dropout=0.0", "--device", "cpu")
    result = run("train", "--no-worth", *files, "--model", model, *(learn if model == "gcn" else TINY), "--out", "run")
    assert (result.code, result.err) == (0, "")
    assert "stars.csv: every feature is constant and is kept, scaled to size 1; the edges alone tell" in caplog.text
    rows = rows_of(here / "run" / "predictions.csv")
    assert rows[0]["probability_hub"] != rows[1]["probability_hub"]
    if model == "gcn":
        assert [row["label"] for row in rows] == [label for *_, label in nodes]
    assert run("predict", "run", *files, "--out", "again.csv").code == 0
    assert rows_of(here / "again.csv") == rows


def test_constant_features_have_no_nearest_neighbours(here):
    write_csv(here / "same.csv", ["a", "city", "label"], *([1, "rome", "xy"[i % 2]] for i in range(20)))
    for command in (["train", *TINY], ["audit"]):
        said = refused(here, *command, "--nodes", "same.csv", "--one-hot", "city")
        assert "same.csv: every feature is constant, so that no node is nearer than another; give the edges" in said
    assert (
        run("train", "--no-worth", *TINY, "--nodes", "nodes.csv", "--one-hot", "city", "--features", "city").code == 0
    )


def test_the_split_of_a_recipe_wins_over_the_default(here):
    run("train", "--no-worth", *OWN, "--features", "x", *TINY, "--set", "split=per-class-3-3", "--out", "run")
    (record,) = read_records(here / "run" / "records.jsonl")
    assert record.split == "per-class-3-3"
    assert record.test_score is not None


def test_a_file_called_like_a_dataset_is_still_ones_own(here):
    shutil.copy(here / "nodes.csv", here / "cora")
    assert (
        run(
            "train", "--no-worth", "--nodes", "cora", "--edges", "edges.csv", "--features", "x", *TINY, "--out", "run"
        ).code
        == 0
    )
    (record,) = read_records(here / "run" / "records.jsonl")
    assert (record.dataset, record.split) == ("cora.csv", "stratified-20-0")


def test_an_archive_and_parquet_do_the_same(here):
    rng = np.random.RandomState(0)
    arrays = {"adj_data": np.ones(40), "adj_indices": (np.arange(40) + 2) % 40, "adj_indptr": np.arange(41)}
    labels = np.where(np.arange(40) % 4 == 3, -1, np.arange(40) % 2)
    np.savez(here / "g.npz", adj_shape=np.array([40, 40]), features=rng.randn(40, 3), labels=labels, **arrays)
    assert run("train", "--no-worth", "--npz", "g.npz", *TINY, "--out", "run").code == 0
    assert run("predict", "run").code == 0
    assert (here / "predictions.csv").read_bytes() == (here / "run" / "predictions.csv").read_bytes()
    assert run("predict", "run", "--npz", "g.npz", "--out", "again.csv").code == 0
    assert (here / "again.csv").read_bytes() == (here / "predictions.csv").read_bytes()

    arrow_csv, arrow_parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    for name in ("nodes", "edges"):
        arrow_parquet.write_table(arrow_csv.read_csv(f"{name}.csv"), f"{name}.parquet")
    assert run("train", "--no-worth", *OWN, "--features", "x", *TINY, "--out", "csv").code == 0
    tables = ("--nodes", "nodes.parquet", "--edges", "edges.parquet", "--features", "x")
    assert run("train", "--no-worth", *tables, *TINY, "--out", "parquet").code == 0
    assert (here / "csv" / "predictions.csv").read_bytes() == (here / "parquet" / "predictions.csv").read_bytes()


# Predict.


@pytest.fixture
def trained(here):
    assert run("train", "--no-worth", *OWN, "--one-hot", "city", *TINY, "--seeds", "2", "--out", "run").code == 0
    return here / "run"


def test_predict_on_the_training_graph_says_what_train_said(here, trained):
    result = run("predict", "run")
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(
        r"40 nodes predicted by 2 runs, 30 of them had a known target, accuracy on these \d+\.\d\d %; "
        r"some of them trained the model, so that is too good\npredictions: predictions.csv\n",
        result.out,
    )
    assert (here / "predictions.csv").read_bytes() == (trained / "predictions.csv").read_bytes()


def test_predict_with_the_files_named_again_says_the_same(here, trained):
    (here / "copy.csv").write_bytes(Path(OWN[1]).read_bytes())
    for files in (OWN, (OWN[0], "copy.csv", *OWN[2:])):
        result = run("predict", "run", *files, "--out", "p.csv", "--force")
        assert "; some of them trained the model, so that is too good" in result.out
    assert (here / "p.csv").read_bytes() == (trained / "predictions.csv").read_bytes()


def test_predict_on_a_new_graph_without_labels(here, trained):
    (here / "new").mkdir()
    names = write_graph(here / "new", 11, "m", labels=False)
    new = ("--nodes", "new/nodes.csv", "--edges", "new/edges.csv", "--out", "new.csv")
    told = json.loads(run("predict", "run", *new, "--json").out)
    counts = {"num_nodes": 11, "num_given": 0, "accuracy": None, "seeds": [0, 1], "members": []}
    assert told == counts | {"predictions": "new.csv"}
    rows = rows_of(here / "new.csv")
    assert [row["id"] for row in rows] == names
    assert {row["given"] for row in rows} == {"false"}


def test_one_seed_alone_and_one_model_file_alone_say_the_same(here, trained):
    assert run("predict", "run", "--seed", "1", "--out", "a.csv").code == 0
    shutil.copy(trained / "model-seed-1.safetensors", here / "one")
    assert run("predict", "one", "--out", "b.csv").code == 0
    assert (here / "a.csv").read_bytes() == (here / "b.csv").read_bytes()
    assert (here / "a.csv").read_bytes() != (trained / "predictions.csv").read_bytes()


def test_predict_on_a_dataset_by_name(here):
    assert run("train", "--no-worth", *TINY, "--out", "run").code == 0
    assert not (here / "run" / "predictions.csv").exists()
    told = json.loads(run("predict", "run", "--json").out)
    assert told["num_nodes"] == told["num_given"] == 1797
    rows = rows_of(here / "predictions.csv")
    task = load_task("digits")
    with torch.no_grad():
        expected = load("run")(task.features, task.graph).argmax(dim=1)
    assert [int(row["label"]) for row in rows] == expected.tolist()
    assert [row["id"] for row in rows[:3]] == ["0", "1", "2"]


def test_a_moved_run_folder_still_predicts(here, trained, tmp_path, monkeypatch):
    shutil.move(trained, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert run("predict", "moved").code == 0
    assert (tmp_path / "predictions.csv").read_bytes() == (tmp_path / "moved" / "predictions.csv").read_bytes()


def test_predictions_are_not_replaced_unless_told(here, trained):
    (here / "predictions.csv").write_text("mine")
    assert "predictions.csv is there already; add --force" in refused(here, "predict", "run")
    assert run("predict", "run", "--force").code == 0
    assert (here / "predictions.csv").read_text() != "mine"


def test_predict_looks_for_the_run_before_the_place_for_the_result(here):
    (here / "predictions.csv").write_text("mine")
    assert "There is no run nope" in refused(here, "predict", "nope")


def test_a_failed_run_leaves_no_model_that_predicts(here):
    run("train", "--no-worth", *OWN, "--features", "x", *TINY, "--set", "lr=1e30", "--out", "run")
    (record,) = read_records(here / "run" / "records.jsonl")
    assert record.status == "failed"
    for target in ("run", "run/model-seed-0.safetensors"):
        assert re.search("No run in run has finished|a run that failed", refused(here, "predict", target))
    (here / "copy.safetensors").write_bytes((here / "run" / "model-seed-0.safetensors").read_bytes())
    assert "a run that failed" in refused(here, "predict", "copy.safetensors")


def test_predict_refuses_scores_that_are_not_finite(here, trained):
    saved = read_model(trained / "model-seed-1.safetensors")
    next(saved.model.parameters()).data.fill_(torch.nan)
    save_model(trained / "model-seed-1.safetensors", saved.model, saved.recipe, seed=1, data=saved.data)
    for only in ((), ("--seed", "1")):
        assert "The scores of 40 nodes of 40 are not finite" in refused(here, "predict", "run", *only)
    assert run("predict", "run", "--seed", "0").code == 0


def test_the_predictions_of_a_training_leave_out_the_run_that_failed(tmp_path):
    task, recipe = small_task(), small_recipe()
    result = fit(recipe, task, [0, 1])
    failed = result.records[1].model_copy(update={"status": "failed", "failure": "epoch 1"})
    next(result.models[1].parameters()).data.fill_(torch.nan)
    both = FitResult([result.records[0], failed], result.models, tmp_path)
    alone = FitResult(result.records[:1], result.models[:1], tmp_path)
    written = [predict_all(task, runs, "cpu").read_bytes() for runs in (both, alone)]
    assert written[0] == written[1]
    with pytest.raises(GraphjouleError, match="30 nodes of 30 are not finite"):
        predict_all(task, FitResult(result.records, result.models, tmp_path), "cpu")
    assert (tmp_path / "predictions.csv").read_bytes() == written[1]


def test_a_category_that_the_model_does_not_know_is_counted_and_is_as_a_blank(here, trained, caplog):
    text = (here / "nodes.csv").read_text()
    (here / "nodes.csv").write_text(text.replace("rome", "bern"))
    assert run("predict", "run", *OWN, "--out", "unknown.csv").code == 0
    assert f"nodes.csv: {text.count('rome')} values of 'city' without a category of the model" in caplog.text
    (here / "nodes.csv").write_text(text.replace("rome", ""))
    assert run("predict", "run", *OWN, "--out", "blank.csv").code == 0
    assert rows_of(here / "unknown.csv") == rows_of(here / "blank.csv")


def test_rows_alone_are_predicted_and_it_is_said(here, trained, caplog):
    assert run("predict", "run", "--nodes", "nodes.csv", "--out", "alone.csv").code == 0
    assert "nodes.csv: no edges given, so every node stands alone; the model was trained with edges" in caplog.text
    alone, linked = rows_of(here / "alone.csv"), rows_of(trained / "predictions.csv")
    assert [row["id"] for row in alone] == [row["id"] for row in linked]
    assert alone != linked


# New rows, and how sure their predictions are.


def write_new_rows(here, num_new=3):
    write_csv(here / "new.csv", ["id", "x", "city"], *([f"m{i}", i / 2, "rome"] for i in range(num_new)))
    write_csv(here / "new-edges.csv", ["source", "target"], ["m0", "n1"], ["m1", "n2"], ["m1", "m2"])
    return "--nodes", "new.csv", "--edges", "new-edges.csv"


def test_new_rows_with_edges_to_the_training_graph_are_predicted_beside_it(here, trained, caplog):
    caplog.set_level("INFO", "graphjoule")
    new = write_new_rows(here)
    result = run("predict", "run", *new, "--out", "new-rows.csv")
    assert result.out.startswith("3 nodes predicted by 2 runs, 0 of them had a known target\n")
    assert "3 edges of 3 new nodes with each other and with the 40 of the training graph" in caplog.text
    rows = rows_of(here / "new-rows.csv")
    assert [row["id"] for row in rows] == ["m0", "m1", "m2"]
    # Old rows are as they were, unless they are to be updated.
    assert run("predict", "run", *new, "--all", "--out", "all.csv").code == 0
    old, found = rows_of(trained / "predictions.csv"), rows_of(here / "all.csv")
    assert [row["id"] for row in found] == [*(row["id"] for row in old), "m0", "m1", "m2"]
    assert found[40:] == rows
    for one, other in zip(old, found, strict=False):
        assert float(one["probability_red"]) == pytest.approx(float(other["probability_red"]), abs=1e-6)
    assert run("predict", "run", *new, "--all", "--update-old", "--out", "moved.csv").code == 0
    gaps = [
        abs(float(one["probability_red"]) - float(other["probability_red"]))
        for one, other in zip(old, rows_of(here / "moved.csv"), strict=False)
    ]
    assert max(gaps) > 1e-5


def test_new_rows_alone_read_from_their_nearest_and_it_is_said(here, trained, caplog):
    caplog.set_level("INFO", "graphjoule")
    write_new_rows(here)
    assert run("predict", "run", "--nodes", "new.csv", "--knn", "4", "--out", "near.csv").code == 0
    assert (
        "no edges given, so 3 new nodes read from their 4 nearest in the features of the training graph" in caplog.text
    )
    assert [row["id"] for row in rows_of(here / "near.csv")] == ["m0", "m1", "m2"]


def test_a_coverage_adds_a_set_and_its_doubt(here, trained, caplog):
    assert run("predict", "run", "--coverage", "0.8", "--out", "sure.csv").code == 0
    assert "with 6 validation nodes a coverage of 0.8 has a standard error of 0.14" in caplog.text
    rows, plain = rows_of(here / "sure.csv"), rows_of(trained / "predictions.csv")
    assert [*plain[0], "set"] == list(rows[0])
    assert all(row["label"] in row["set"].split(";") for row in rows)
    assert [{**row, "set": ""} for row in rows] == [{**row, "set": ""} for row in plain]
    caplog.clear()
    assert run("predict", "run", "--coverage", "0.9", "--out", "all.csv").code == 0
    assert "needs 9 validation nodes or more, and there are 6: sets hold every class" in caplog.text
    assert {row["set"] for row in rows_of(here / "all.csv")} == {"blue;red"}


def test_calibrated_probabilities_are_the_temperature_s_and_the_sets_stay(here, trained):
    one = ("predict", "run", "--seed", "0")
    for out, options in {"a.csv": [], "b.csv": ["--calibrated"]}.items():
        assert run(*one, "--coverage", "0.8", *options, "--out", out).code == 0
    plain, warm = rows_of(here / "a.csv"), rows_of(here / "b.csv")
    temperature = read_model(trained / "model-seed-0.safetensors").calibration.temperature
    for row, other in zip(plain, warm, strict=True):
        assert (row["label"], row["set"]) == (other["label"], other["set"])
        logits = [np.log(float(each["probability_red"]) / float(each["probability_blue"])) for each in (row, other)]
        assert logits[0] / temperature == pytest.approx(logits[1], abs=1e-4)


def test_an_older_model_file_has_no_coverage(here, trained):
    saved = read_model(trained / "model-seed-0.safetensors")
    save_model(here / "old", saved.model, saved.recipe, seed=0, data=saved.data)
    for asked in (["--coverage", "0.9"], ["--calibrated"]):
        said = refused(here, "predict", "old", *asked, "--out", "p.csv")
        assert "The model of seed 0 was saved without its calibration" in said


def test_resume_refuses_data_that_have_changed(here, trained):
    again = ("train", "--no-worth", *OWN, "--one-hot", "city", *TINY, "--seeds", "2", "--out", "run", "--resume")
    assert run(*again).code == 0
    (here / "edges.csv").write_text((here / "edges.csv").read_text() + "n0,n5\n")
    assert "run was trained on other data: edges.csv has changed since" in refused(here, *again)


def test_resume_with_other_options_says_which_and_does_not_blame_the_files(here):
    head, *rows = (here / "edges.csv").read_text().splitlines()
    (here / "edges.csv").write_text("\n".join([f"{head},much", *(f"{row},2.5" for row in rows)]) + "\n")
    asked = ("train", "--no-worth", *OWN, *TINY, "--out", "run", "--features", "x", "--weight", "much")
    assert run(*asked).code == 0
    said = refused(here, *asked[:-2], "--resume")
    start = "graphjoule: run was trained on these files with other options:"
    assert said == f"{start} weight was much, and is not given now; choose another folder with --out.\n"
    said = refused(here, *asked, "--features", "x,city", "--resume")
    assert said.startswith(f"{start} features was x, and is x,city now; ")


def test_resume_with_fewer_seeds_keeps_what_is_of_all_runs(here):
    asked = ("train", *OWN, *TINY, "--out", "run")
    assert run(*asked, "--seeds", "3").code == 0
    names = ("predictions.csv", "comparison.json", "MODEL_CARD.md", "evaluation.safetensors", "records.jsonl")
    before = {name: (here / "run" / name).read_bytes() for name in names}
    again = run(*asked, "--seeds", "1", "--resume")
    assert again.code == 0
    assert again.err == "run has 2 runs besides (seeds: 1, 2); what follows is of all 3.\n"
    assert "(n = 3)" in again.out
    assert {name: (here / "run" / name).read_bytes() for name in names} == before


def test_resume_refuses_another_objective(here):
    write_csv(here / "nodes.csv", ["id", "x", "label"], *([f"n{i}", i, i % 3 % 2] for i in range(40)))
    asked = ("train", "--no-worth", *OWN, *TINY, "--out", "run")
    assert run(*asked).code == 0
    for other in ("binary", "ordinal"):
        said = refused(here, *asked, "--objective", other, "--resume")
        assert f"run was trained for another objective (classification then, {other} now); choose" in said
    assert run(*asked, "--objective", "classification", "--resume").code == 0
    numbers = ("train", "--no-worth", *OWN, *TINY, "--objective", "regression", "--out", "numbers")
    assert run(*numbers).code == 0
    assert "another objective (error); choose" in refused(here, *numbers, "--loss", "absolute", "--resume")


def test_classes_that_differ_in_case_alone_are_said(here, caplog):
    (here / "nodes.csv").write_text((here / "nodes.csv").read_text().replace("red", "Blue"))
    assert run("train", "--no-worth", *OWN, *TINY, "--out", "run").code == 0
    assert "nodes.csv: the labels 'Blue' and 'blue' are two, and differ in case, accents or invisible signs alone" in (
        caplog.text
    )
    assert "warning: the labels 'Blue' and 'blue' are two" in run("data", "check", "nodes.csv", "edges.csv").out


def test_what_predict_refuses(here, trained):
    (here / "folder").mkdir()
    np.savez(here / "g.npz", a=np.ones(1))
    cases = {
        "There is no run no": ["no"],
        "folder holds no training": ["folder"],
        "There is no finished run with seed 7 in run; the seeds are: 0, 1": ["run", "--seed", "7"],
        "--out is nowhere/p.csv, but there is no folder": ["run", "--out", "nowhere/p.csv"],
        "--out is folder, which is a folder; name a file, such as folder/predictions.csv": ["run", "--out", "folder"],
        "--nodes is missing: give the nodes": ["run", "--edges", "edges.csv"],
        "the model of run was not trained on an archive": ["run", "--npz", "g.npz"],
        "--nodes and --npz contradict each other": ["run", *OWN, "--npz", "g.npz"],
        "device is 'tpu'": ["run", "--device", "tpu"],
        "coverage is 90; it must be between 0 and 1, such as 0.9": ["run", "--coverage", "90"],
        "--all is about new nodes; give these with --nodes": ["run", "--all"],
        "--all is about nodes of the training graph, but nodes.csv is a graph of its own": ["run", *OWN, "--all"],
        "--update-old is about nodes of the training graph": ["run", *OWN, "--update-old"],
        "--knn is 0; it must be at least 1": ["run", "--nodes", "nodes.csv", "--knn", "0"],
    }
    for said, arguments in cases.items():
        assert said in refused(here, "predict", *arguments)
    (here / "nodes.csv").write_text((here / "nodes.csv").read_text() + "z,1,rome,\n")
    assert "nodes.csv has changed since the model was trained" in refused(here, "predict", "run")
    (here / "nodes.csv").unlink()
    assert "are not there any more; put the file back, or predict on another with --nodes" in refused(
        here, "predict", "run"
    )


def test_a_graph_that_was_given_in_python_cannot_be_read_again(here, tiny_task):
    fit(load_recipe("egnn", "tiny", 2, {"epochs": 2, "hidden_channels": 4, "split": "default"}), tiny_task, out="run")
    assert "trained on 'tiny', a graph that was given in Python" in refused(here, "predict", "run")


def test_a_model_of_a_dataset_takes_no_tables(here):
    assert run("train", "--no-worth", *TINY, "--out", "run").code == 0
    assert "the model of run was not trained on a table of nodes" in refused(
        here, "predict", "run", "--nodes", "nodes.csv"
    )


# Numbers instead of classes.


@pytest.fixture
def houses(here):
    """Houses whose price follows from their size; every sixth price is to be predicted."""
    draw = random.Random(0)
    sizes = [draw.gauss(100, 20) for _ in range(120)]
    rows = [[f"h{i}", f"{s:.2f}", "" if i % 6 == 5 else f"{3 * s + draw.gauss(0, 3):.2f}"] for i, s in enumerate(sizes)]
    write_csv(here / "houses.csv", ["id", "size", "price"], *rows)
    return ("--nodes", "houses.csv", "--label", "price")


def test_a_regression_from_a_table_is_learnt(houses):
    task = GraphSource(nodes=Path("houses.csv"), label="price", objective="regression", loss="absolute").load()
    assert (task.objective.name, task.objective.error) == ("regression", "absolute")
    recipe = load_recipe("egnn", "houses.csv", 2, {"epochs": 70, "hidden_channels": 16, "lr": 0.05, "patience": 70})
    result = fit(recipe.with_split_of(task), task, device="cpu")
    assert result.records[0].val["r2"] > 0.7


def test_numbers_are_trained_and_predicted_by_the_command(here, houses, caplog):
    learn = ("--layers", "2", "--epochs", "60", "--set", "lr=0.05", "--device", "cpu")
    with caplog.at_level("INFO", "graphjoule"):
        result = run("train", "--no-worth", *houses, "--task", "regression", *learn, "--seeds", "2", "--out", "run")
    assert (result.code, result.err) == (0, "")
    assert re.match(r"egnn, 2 layers, houses.csv: validation r2 0\.[789]", result.out)
    assert "houses.csv: 120 nodes, 1 feature; 100 with a number from" in caplog.text
    rows = rows_of(here / "run" / "predictions.csv")
    assert list(rows[0]) == ["id", "prediction_price", "given"]
    assert [row["given"] for row in rows] == ["false" if i % 6 == 5 else "true" for i in range(120)]
    prices = [float(row["prediction_price"]) for row in rows]
    sizes = [float(row["size"]) for row in rows_of(here / "houses.csv")]
    assert np.corrcoef(prices, sizes)[0, 1] > 0.9

    told = json.loads(run("predict", "run", "--json").out)
    assert (told["num_given"], told["num_nodes"]) == (100, 120)
    assert told["r2"] > 0.7
    assert (here / "predictions.csv").read_bytes() == (here / "run" / "predictions.csv").read_bytes()
    write_csv(here / "new.csv", ["id", "size"], *([f"m{i}", 80 + i] for i in range(20)))
    assert run("predict", "run", "--nodes", "new.csv", "--out", "new-prices.csv").code == 0
    new = rows_of(here / "new-prices.csv")
    assert {row["given"] for row in new} == {"false"}
    assert all(100 < float(row["prediction_price"]) < 500 for row in new)


def test_numbers_that_cannot_be_learnt_are_refused(here):
    ask = ("train", "--no-worth", "--nodes", "n.csv", "--edges", "edges.csv", "--objective", "regression", *TINY)
    write_csv(here / "n.csv", ["id", "x", "label"], *([f"n{i}", i, 5] for i in range(40)))
    assert "n.csv, line 2, column 'label': all numbers that are given are 5; expected two" in refused(here, *ask)
    write_csv(here / "n.csv", ["id", "x", "label"], *([f"n{i}", i, "a;b" if i == 3 else ""] for i in range(40)))
    said = refused(here, *ask, "--objective", "multilabel")
    assert "Of 1 node the target is known; split 'stratified-20-0' needs two" in said


def test_numbers_that_may_be_classes_are_asked_about_in_the_words_of_the_command(here, houses):
    said = refused(here, "train", *houses, *TINY)
    assert "the column 'price' has 100 different numbers in 100 labels; say --objective regression to predict" in said
    assert "--loss is squared, but it is for --objective" in refused(here, "train", *houses, "--loss", "squared", *TINY)


# Every objective from a table to a page, and predictions that follow the ids.

SURVEY_HEAD = ["id", "x", "city", "day", "kind", "flag", "price", "rent", "grade", "tags"]
ASKED = {
    "classification": ["--label", "kind"],
    "binary": ["--label", "flag", "--positive", "no", "--class-weights", "balanced", "--select-on", "roc_auc"],
    "multilabel": ["--label", "tags", "--focal-gamma", "2"],
    "regression": ["--label", "price,rent", "--loss", "absolute"],
    "ordinal": ["--label", "grade", "--order", "low,middle,high", "--loss", "absolute"],
}


@pytest.fixture(scope="module")
def survey(tmp_path_factory):
    """A table with a column for every objective, some of each unknown, and a run folder of every objective."""
    folder, draw = tmp_path_factory.mktemp("survey"), random.Random(0)
    rows = [
        [
            *(f"00{i}", f"{draw.gauss(i % 3, 0.5):.3f}", draw.choice(["Rome", "Oslo"]), f"{1 + i % 28}.2.2026"),
            *(f"k{i % 3}", ["no", "yes", "yes"][i % 3], f"{100 * (i % 3) + draw.random():.2f}", f"{draw.random():.2f}"),
            *(["low", "middle", "high"][i % 3], ["red;blue", "red", "green;blue"][i % 3]),
        ]
        for i in range(60)
    ]
    for row in rows[::6]:
        row[4:] = [""] * 6
    rows[1][7] = ""  # of two targets one is known
    write_csv(folder / "nodes.csv", SURVEY_HEAD, *rows)
    edges = [[f"00{i}", f"00{(i + 3 * step) % 60}"] for i in range(60) for step in (1, 2)]
    write_csv(folder / "edges.csv", ["source", "target"], *edges)
    files = ("--nodes", folder / "nodes.csv", "--edges", folder / "edges.csv", "--features", "x,city,day")
    for objective, options in ASKED.items():
        trained = (*files, "--objective", objective, *options, "--test-fraction", "0.2", *TINY)
        assert run("train", "--no-worth", *trained, "--out", folder / objective).code == 0
    return folder


def sklearn_headline(objective, truth, predicted):
    """What selected, or the headline, by scikit-learn, from the cells of the user's table and of predictions.csv."""
    from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, r2_score, roc_auc_score

    if objective == "classification":
        return accuracy_score([row["kind"] for row in truth], [row["label"] for row in predicted])
    if objective == "binary":  # which was selected by it
        return roc_auc_score([row["flag"] == "no" for row in truth], [float(r["probability_no"]) for r in predicted])
    if objective == "ordinal":
        rank = {"low": 0, "middle": 1, "high": 2}
        return mean_absolute_error(
            [rank[r["grade"]] for r in truth], [float(r["expected_rank"]) - 1 for r in predicted]
        )
    if objective == "multilabel":
        names = ("blue", "green", "red")
        there = [[name in row["tags"].split(";") for name in names] for row in truth]
        found = [[name in row["labels"].split(";") for name in names] for row in predicted]
        return f1_score(np.array(there), np.array(found), average="micro")
    scores = []
    for name in ("price", "rent"):
        pairs = [
            (float(t[name]), float(p[f"prediction_{name}"])) for t, p in zip(truth, predicted, strict=True) if t[name]
        ]
        scores.append(r2_score(*zip(*pairs, strict=True)))
    return sum(scores) / 2


@pytest.mark.parametrize("objective", ASKED)
def test_every_objective_from_a_table_to_a_page(here, survey, objective):
    (record,) = read_records(survey / objective / "records.jsonl")
    asked = read_model(survey / objective / "model-seed-0.safetensors").data.objective
    names = {"loss", *(metric.name for metric in asked.metrics)}
    assert (record.objective, set(record.val), set(record.test)) == (objective, names, names)

    said = json.loads(run("predict", survey / objective, "--json", "--out", "p.csv").out)
    truth, predicted = rows_of(survey / "nodes.csv"), rows_of(here / "p.csv")
    assert [row["id"] for row in predicted] == [row["id"] for row in truth]
    known = [i for i, row in enumerate(predicted) if row["given"] == "true"]
    assert known == [i for i in range(60) if i % 6]
    expected = sklearn_headline(objective, [truth[i] for i in known], [predicted[i] for i in known])
    selected = asked.watched(record.recipe["train"]["select_on"])[-1]
    assert said[selected.name] == pytest.approx(expected, abs=1e-6)

    assert run("report", survey / objective, "--out", "page.html").code == 0
    command = re.search(r"graphjoule train [^<]+", html.unescape((here / "page.html").read_text()))[0]
    again = run(*shlex.split(command)[1:], "--no-worth", "--device", "cpu", "--out", "again")
    assert (again.code, again.err) == (0, "")
    (repeated,) = read_records(here / "again" / "records.jsonl")
    assert (repeated.run_id, repeated.test) == (record.run_id, record.test)


def test_the_positive_class_is_the_one_that_was_named(survey):
    asked = read_model(survey / "binary" / "model-seed-0.safetensors").data.objective
    assert asked.classes[asked.positive] == "no"


@pytest.mark.parametrize("objective", ASKED)
def test_predictions_follow_the_ids_under_any_shuffling_of_rows_columns_and_files(here, survey, objective):
    expected = {row["id"]: row for row in rows_of(survey / objective / "predictions.csv")}
    nodes, edges = rows_of(survey / "nodes.csv"), rows_of(survey / "edges.csv")
    for seed, delimiter in enumerate((",", ";", "\t")):
        draw = random.Random(seed)
        heads, ends = draw.sample(SURVEY_HEAD, len(SURVEY_HEAD)), draw.sample(["source", "target"], 2)
        tables = {"n.csv": (heads, draw.sample(nodes, 60)), "e.csv": (ends, draw.sample(edges, len(edges)))}
        for name, (head, rows) in tables.items():
            with (here / name).open("w", newline="", encoding="utf-8-sig" if seed else "utf-8") as file:
                csv.writer(file, delimiter=delimiter).writerows([head, *([row[key] for key in head] for row in rows)])
        files = ("--nodes", "n.csv", "--edges", "e.csv", "--out", f"{seed}.csv")
        assert run("predict", survey / objective, *files).code == 0
        found = rows_of(here / f"{seed}.csv")
        assert [row["id"] for row in found] == [row["id"] for row in tables["n.csv"][1]]
        for row in found:
            numbers = [key for key in row if key.startswith(("probability", "prediction", "expected"))]
            assert row["given"] == expected[row["id"]]["given"]
            for key in numbers:
                assert float(row[key]) == pytest.approx(float(expected[row["id"]][key]), rel=1e-4, abs=1e-5)


def test_an_archive_has_every_objective_too(here):
    path = torch.diag(torch.ones(29), 1)
    adjacency = sp.csr_matrix((path + path.T).numpy())
    arrays = {f"adj_{piece}": getattr(adjacency, piece) for piece in ("data", "indices", "indptr", "shape")}
    arrays |= {"features": np.random.default_rng(0).normal(size=(30, 3)), "labels": np.arange(30) % 2}
    arrays |= {"class_names": np.array(["ill", "sound"]), "targets": np.stack([np.arange(30) % 2, np.ones(30)], axis=1)}
    np.savez(here / "g.npz", **arrays)
    for objective, more in {
        "binary": ["--positive", "ill"],
        "ordinal": ["--loss", "absolute"],
        "multilabel": [],
    }.items():
        asked = ("--npz", "g.npz", "--objective", objective, *more, *TINY, "--out", objective)
        assert run("train", "--no-worth", *asked).code == 0
        assert next(read_records(here / objective / "records.jsonl")).objective == objective
        assert run("predict", objective, "--out", f"{objective}.csv").code == 0
    said = refused(here, "train", "--npz", "g.npz", "--objective", "binary", "--positive", "well", *TINY)
    assert "--positive is 'well'; the classes of g.npz are: ill and sound" in said


# Wrong files: one sentence with file, line and column, exit code 2, nothing left behind.

NODES = "id,x,label\na,1,red\nb,2,blue\nc,3,red\nd,4,blue\n"
WRONG = {
    "missing column": (NODES.replace("label", "kind"), None, "nodes.csv, line 1: there is no column 'label'"),
    "duplicate id": (NODES + "a,5,red\n", None, "nodes.csv, line 6, column 'id': the id 'a' stands on line 2 already"),
    "unknown node": (NODES, "source,target\na,b\na,q\n", "edges.csv, line 3, column 'target': there is no node 'q' in"),
    "all labels blank": (re.sub("red|blue", "", NODES), None, "nodes.csv, lines 2 to 5, column 'label': every"),
    "one class": (NODES.replace("blue", "red"), None, "nodes.csv, line 2, column 'label': all labels that are"),
    "infinite": (NODES.replace("c,3", "c,inf"), None, "nodes.csv, line 4, column 'x': inf is not a finite number"),
    "text": (NODES.replace("c,3", "c,tall"), None, "nodes.csv, line 4, column 'x': 'tall' is not a number, and 3 of 4"),
    "not UTF-8": (NODES.encode().replace(b"c,3", b"\xe9,3"), None, "nodes.csv, line 4, column 'id': the byte 0xe9"),
    "not UTF-8 edges": (NODES, b"source,target\na,\xff\n", "edges.csv, line 2, column 'target': the byte 0xff"),
    "a line of 100 MB": (NODES + "e," + "9" * 100_000_000 + ",red\n", None, "nodes.csv, line 6, column 2: the line is"),
    "empty": ("", None, "nodes.csv is empty"),
    "header only": ("id,x,label\n", None, "nodes.csv has a header but no row"),
    "no header": (NODES, "a,b\nb,c\n", "edges.csv, line 1: 'a' and 'b' are nodes of nodes.csv, not names of columns"),
    "NA among classes": (NODES + "e,5,NA\n", None, "has the label 'NA'; leave it blank if it is unknown, or say --obj"),
    "bars in labels": (NODES + "e,5,red|blue\n", None, "labels such as 'red|blue'; say --objective multilabel if"),
    "commas in labels": (NODES + 'e,5,"red,blue"\n', None, "labels such as 'red,blue'; say --objective multilabel if"),
    "no two of a class": ("id,x,label\na,1,u\nb,2,v\n", "source,target\na,b\n", "No class has two labelled nodes"),
}


@pytest.mark.parametrize(("nodes", "edges", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_one_sentence(here, nodes, edges, said):
    edges = "source,target\na,b\nb,c\n" if edges is None else edges
    for name, content in (("nodes.csv", nodes), ("edges.csv", edges)):
        (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert said in refused(here, "train", *OWN, *TINY)


def test_a_folder_or_no_file_instead_of_a_file(here):
    (here / "folder").mkdir()
    for option in ("--nodes", "--npz"):
        assert "folder is a folder; expected a file" in refused(here, "train", option, "folder")
        assert "There is no file no.csv" in refused(here, "train", option, "no.csv")
        assert f"{option} is ''; expected a value" in refused(here, "train", option, "")
        assert "The name of a file is empty, or '.'" in refused(here, "train", option, ".")
    said = refused(here, "train", "--nodes", "nodes.csv", "--features", "x", "--edges", "folder")
    assert "folder is a folder; expected a file" in said


def test_a_path_that_is_not_utf8_is_refused_before_anything_is_trained(here):
    for option in ("--nodes", "--npz"):
        said = refused(here, "train", option, os.fsdecode(b"n\xe9.csv"), *TINY)
        assert "The path 'n\\udce9.csv' is not UTF-8, and a run folder could not store it" in said


WRONG_OPTIONS = {
    "two sources": (["--dataset", "cora", *OWN], "--dataset and --nodes contradict each other: give one"),
    "tables and an archive": ([*OWN, "--npz", "g.npz"], "--nodes and --npz contradict each other"),
    "two rules of who tests": (
        [*OWN, "--test-fraction", "0.3", "--set", "split=per-class-2-3"],
        "--test-fraction is 0.3 and --set has split=per-class-2-3; give one of them, both say who tests.",
    ),
    "edges alone": (["--edges", "edges.csv"], "--edges is edges.csv, but it is for --nodes, which is not given"),
    "a column of no table": (["--label", "kind"], "--label is kind, but it is for --nodes"),
    "a weight of no edges": (["--nodes", "nodes.csv", "--weight", "w"], "--weight is w, but it is for --edges"),
    "a test part of a dataset": (["--test-fraction", "0.2"], "--test-fraction is 0.2, but it is for --nodes or --npz"),
    "a test part too large": (
        [*OWN, "--features", "x", "--test-fraction", "0.9"],
        "The test fraction is 0.9; expected",
    ),
    "neighbours and edges": ([*OWN, "--knn", "3"], "--knn is 3 and --edges is edges.csv"),
    "no such feature": ([*OWN, "--features", "x,size"], "nodes.csv, line 1: there is no column 'size' for --features"),
    "a class that is not there": (
        [*OWN, "--objective", "binary", "--positive", "green"],
        "the column 'label' has no label 'green' for --positive; the classes are: blue and red",
    ),
    "a positive class of three": (
        [*OWN, "--label", "x", "--objective", "binary"],
        "with --objective binary there are two",
    ),
    "a loss of classes": (
        [*OWN, "--objective", "binary", "--loss", "absolute"],
        "--loss is 'absolute', but it is for --objective regression or --objective ordinal, and the objective is",
    ),
    "an order of nothing": ([*OWN, "--order", "red,blue"], "--order is 'red,blue', but it is for --objective ordinal"),
    "an order without a class": (
        [*OWN, "--objective", "ordinal", "--order", "red,green"],
        "column 'label': 'blue' is not in the --order red, green",
    ),
    "two columns of what": (
        [*OWN, "--label", "x,label"],
        "--label names 2 columns, x, label; say --objective regression if",
    ),
    "two columns and one missing": ([*OWN, "--label", "x,y"], "there is no column 'y' for --label"),
    "the id as the label": ([*OWN, "--label", "id"], "the column 'id' is named by --label, but it is the id"),
    "no such objective": ([*OWN, "--objective", "bin"], "'--task': 'bin' is not one of 'classification', 'binary'"),
    "a setting": ([*OWN, "--set", "c_mni=1"], '"c_mni" is not a setting of egnn'),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_options_that_contradict_each_other(here, arguments, said):
    assert said in refused(here, "train", *arguments)


def test_a_pickle_in_an_archive_or_a_model_is_never_run(here, trap):
    np.savez(here / "g.npz", labels=np.array([trap], dtype=object))
    assert "g.npz" in refused(here, "train", "--npz", "g.npz")
    torch.save(trap, here / "model.pt")
    assert "model.pt is not a whole graphjoule model" in refused(here, "predict", "model.pt")
    assert not trap.sprung.exists()


def test_help_shows_the_options_of_ones_own_graph_and_every_model():
    text = " ".join(run("train", "--help").out.replace("│", " ").split())
    assert all(
        f"--{option}" in text for option in ("nodes", "edges", "npz", "one-hot", "knn", "test-fraction", "label")
    )
    assert "Your own graph" in text
    assert all(f"--{option}" in run("predict", "--help").out for option in ("out", "nodes", "edges", "seed", "force"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_a_million_edges_and_200k_nodes_load_in_20_seconds_and_2_gb(here):
    rng = np.random.default_rng(0)
    labels, ends = rng.integers(7, size=200_000), rng.integers(200_000, size=(1_000_000, 2))
    x = rng.normal(size=(200_000, 16))
    with (here / "nodes.csv").open("w") as file:
        file.write("id," + ",".join(f"x{i}" for i in range(16)) + ",label\n")
        file.writelines(f"v{i},{','.join(f'{v:.6f}' for v in row)},c{labels[i]}\n" for i, row in enumerate(x))
    with (here / "edges.csv").open("w") as file:
        file.write("source,target,weight\n")
        file.writelines(f"v{i},v{j},1.5\n" for i, j in ends)
    # In a process of its own, for the peak of this one is that of all tests before.
    code = """
import time
from pathlib import Path
from graphjoule.tasks import load_tables
start = time.process_time()  # other processes do not count
task = load_tables("nodes.csv", "edges.csv")
seconds = time.process_time() - start
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
print(task.num_nodes, seconds, peak)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    num_nodes, seconds, peak = map(float, done.stdout.split())
    assert num_nodes == 200_000
    assert seconds < 20
    assert peak < 2_000_000, "KiB"


# The page about it.


def test_the_commands_and_the_code_of_the_document_run(here):
    text = DOCUMENT.read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    commands = [
        line.split("#")[0].split()[1:]
        for block in blocks
        for line in block.splitlines()
        if line.startswith("graphjoule")
    ]
    assert len(commands) >= 3
    files = dict(re.findall(r"`([\w-]+\.csv)`:\n\n```csv\n(.*?)```", text, flags=re.DOTALL))
    for name, content in files.items():
        (here / name).write_text(content)
    for arguments in commands:
        is_training = arguments[0] == "train"
        quick = ["--epochs", "2", "--layers", "2", "--device", "cpu", "--no-worth"] if is_training else []
        result = run(*arguments, *quick)
        assert result.code == 0, (arguments, result.err)
    (sentence,) = re.findall(r"```\n(graphjoule: .*?\n)```", text)
    asked = ("--nodes", "people.csv", "--edges", "friends.csv", "--label", "income")
    assert refused(here, "train", *asked) == sentence
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(code, str(DOCUMENT), "exec"), {})


@settings(deadline=None, max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False))
def test_predictions_of_new_nodes_follow_the_ids_under_any_shuffling(here, survey, draw):
    heads, ends = ["id", "x", "city", "day"], ["source", "target"]
    nodes = [[f"m{i}", f"{i / 7:.2f}", ["Rome", "Oslo", "Paris"][i % 3], f"{1 + i}.2.2026"] for i in range(8)]
    edges = [[f"00{5 * i}", f"m{i}"] for i in range(8)] + [["m1", "m2"], ["m3", "m4"]]

    def predicted(name, order, end_order, nodes, edges):
        write_csv(here / f"{name}.csv", *([row[k] for k in order] for row in [heads, *nodes]))
        write_csv(here / f"{name}-edges.csv", *([row[k] for k in end_order] for row in [ends, *edges]))
        out = ("--out", f"{name}-predicted.csv", "--force", "--device", "cpu")
        files = ("--nodes", f"{name}.csv", "--edges", f"{name}-edges.csv")
        assert run("predict", survey / "classification", *files, *out).code == 0
        return {row["id"]: row for row in rows_of(here / f"{name}-predicted.csv")}

    def shuffled(rows):
        return draw.sample(rows, len(rows))

    first = predicted("a", range(4), range(2), nodes, edges)
    second = predicted("b", shuffled(range(4)), shuffled(range(2)), shuffled(nodes), shuffled(edges))
    assert first.keys() == second.keys()
    for name, row in first.items():
        assert second[name]["label"] == row["label"]
        for kind in ("k0", "k1", "k2"):
            one, other = (float(found[f"probability_{kind}"]) for found in (row, second[name]))
            assert one == pytest.approx(other, abs=1e-6)


# Edges that keep their direction, and types with operators of their own.


@pytest.mark.parametrize("options", [["--direction", "kept"], ["--edge-type", "kind", "--types", "separate"]])
def test_directions_and_types_go_the_whole_way(here, caplog, options):
    caplog.set_level("INFO", "graphjoule")
    heads, *rows = (line.split(",") for line in (here / "edges.csv").read_text().splitlines())
    write_csv(here / "edges.csv", [*heads, "kind"], *([*row, "ab"[k % 2]] for k, row in enumerate(rows)))
    assert run("data", "check", "nodes.csv", "edges.csv", *options).code == 0
    said = refused(here, "train", *OWN, "--types", "separate", *TINY)
    assert said.endswith("--types is separate, but it is for --edge-type, which is not given.\n")
    if "kept" in options:
        said = refused(here, "train", *OWN, *options, *TINY)
        assert "EGNN needs edges that count in both directions, because its P must be symmetric, and here" in said
        assert "take --direction both, or a --model that follows directions: appnp, gcn, gcnii, jknet, " in said
        options = [*options, "--model", "gcn"]
    trained = run("train", *OWN, *options, *TINY, "--out", "run")
    assert (trained.code, trained.err) == (0, "")
    words = "edges keep their direction" if "kept" in options else "each with an operator of its own"
    assert words in (here / "run" / "MODEL_CARD.md").read_text()
    before = (here / "run" / "predictions.csv").read_bytes()
    assert run("predict", "run", "--out", "again.csv").code == 0
    assert (here / "again.csv").read_bytes() == before

    write_csv(here / "new.csv", ["id", "x", "city"], ["m0", 0.1, "rome"], ["m1", 0.9, "oslo"])
    write_csv(here / "new-edges.csv", [*heads, "kind"], ["n0", "m0", "a"], ["m0", "m1", "b"], ["m1", "n4", "a"])
    new = ("predict", "run", "--nodes", "new.csv")
    assert run(*new, "--edges", "new-edges.csv", "--all", "--out", "new-p.csv").code == 0
    old, found = rows_of(here / "again.csv"), rows_of(here / "new-p.csv")
    assert found[: len(old)] == old
    assert [row["id"] for row in found[len(old) :]] == ["m0", "m1"]
    for more in (["--edges", "new-edges.csv", "--update-old"], ["--knn", 3]):
        assert run(*new, *more, "--out", f"{more[0]}{len(more)}.csv").code == 0

    assert run("report", "run", "--out", "page.html").code == 0
    page = html.unescape((here / "page.html").read_text())
    assert " ".join(options[:2]) in page
    assert "Diagnosis after training" in page
    said = run("train", *OWN, *options, *TINY, "--clusters", 2, "--out", "parts")
    assert (said.code, "needs one undirected graph, and here edges keep their direction" in said.err) == (2, True)


# Many small graphs.

THREE = ("--graphs", "graphs.csv", "--nodes", "atoms.csv", "--edges", "bonds.csv")


def graph_tables(count=30):
    """Rings of 3 to 6 atoms, where P keeps the mean; how many are nitrogen is what there is to learn of a graph."""
    draw = random.Random(1)
    graphs, atoms, bonds = [], [], []
    for g in range(count):
        elements = [draw.choice("CN") for _ in range(3 + g % 4)]
        many = elements.count("N")
        blank = g % 5 == 4
        known = [
            many,
            "high" if many > 1 else "low",
            f"k{many % 3}",
            "n;c" if many > 1 else "c",
            5 + many / len(elements),
        ]
        graphs.append([f"g{g}", *([""] * len(known) if blank else known)])
        atoms += [[f"g{g}", i, element, round(draw.gauss(0, 1), 3)] for i, element in enumerate(elements)]
        bonds += [[f"g{g}", i, (i + 1) % len(elements)] for i in range(len(elements))]
    heads = (["id", "stars", "level", "kind", "tags", "price"], ["graph", "atom", "element", "charge"])
    return [heads[0], *graphs], [heads[1], *atoms], [["graph", "source", "target"], *bonds]


@pytest.fixture
def molecules(here):
    for name, rows in zip(("graphs", "atoms", "bonds"), graph_tables(), strict=True):
        write_csv(here / f"{name}.csv", *rows)
    return here


def test_many_graphs_go_the_whole_way(molecules, caplog):
    said = run("data", "check", "atoms.csv", "bonds.csv", *THREE[:2], "--label", "level")
    assert (said.code, said.err) == (0, "")
    assert "of 30 graphs called by 'id' in graphs.csv, 3 to 6 nodes each" in said.out
    assert "target: 'level', classification of 2 " in said.out
    assert "24 known, 6 to predict" in said.out
    assert "warning: graphs.csv: columns not used: stars, kind, tags, price; features are those of nodes" in said.out

    trained = run("train", *THREE, "--label", "level", "--test-fraction", "0.2", *TINY, "--seeds", 2, "--out", "run")
    assert (trained.code, trained.err) == (0, "")
    assert trained.out.startswith("egnn, 2 layers, graphs.csv: test accuracy ")
    assert "What is the graph worth?" not in trained.out
    rows = rows_of(molecules / "run" / "predictions.csv")
    assert [row["id"] for row in rows] == [f"g{i}" for i in range(30)]
    assert [row["given"] for row in rows] == ["false" if i % 5 == 4 else "true" for i in range(30)]
    card = (molecules / "run" / "MODEL_CARD.md").read_text()
    assert "24 labelled graphs of 2 classes" in card
    assert "their graph by `graph`, and the graph's class is `level` in the table of graphs, called by `id`; " in card

    again = run("predict", "run", "--out", "again.csv")
    assert again.out.startswith("30 graphs predicted by 2 runs, 24 of them had a known target, accuracy on these ")
    assert (molecules / "again.csv").read_bytes() == (molecules / "run" / "predictions.csv").read_bytes()
    assert run("export", "run", "--format", "hub", "--out", "hub").code == 0
    assert run("report", "run", "--out", "page.html").code == 0
    page = html.unescape((molecules / "page.html").read_text())
    assert "30 graphs; 24 labelled graphs of 2 classes: high, low." in page
    (command,) = {text for text in re.findall(r"graphjoule (train [^<]*)", page) if "--graphs" in text}
    for read in ("run/run.json", "run/records.jsonl", "run/model-seed-0.safetensors", "atoms.csv"):
        said = run("predict", "run", *THREE, "--force", "--out", read)
        assert (said.code, said.err) == (
            2,
            f"graphjoule: --out is {read}, which this command reads; name another file.\n",
        )
    for words in (("predict", "run"), ("export", "run", "--format", "onnx")):  # which nothing names here
        said = run(*words, "--force", "--out", "atoms.csv")
        assert said.err == "graphjoule: --out is atoms.csv, which the model was trained on; name another file.\n"
    repeated = run(*shlex.split(command), "--device", "cpu", "--out", "repeated")
    assert (repeated.code, repeated.err) == (0, "")
    assert rows_of(molecules / "repeated" / "predictions.csv") == rows

    write_csv(molecules / "graphs.csv", ["id"], ["g0"])
    assert "graphs.csv has changed since the model was trained" in run("predict", "run", "--out", "changed.csv").err


@pytest.mark.parametrize(
    ("label", "options"),
    [
        ("kind", []),
        ("level", ["--objective", "binary", "--positive", "high"]),
        ("stars", ["--objective", "ordinal", "--pooling", "max"]),
        ("tags", ["--objective", "multilabel"]),
        ("price", ["--objective", "regression", "--pooling", "sum"]),
        ("price,stars", ["--objective", "regression"]),
    ],
)
def test_every_objective_is_for_graphs_too(molecules, label, options):
    trained = run("train", *THREE, "--label", label, *options, *TINY, "--out", "run")
    assert (trained.code, trained.err) == (0, "")
    assert len(rows_of(molecules / "run" / "predictions.csv")) == 30


def test_models_are_tried_on_many_graphs_without_a_comparison(molecules):
    asked = ("auto", *THREE, "--label", "level", "--models", "gcn", "--depths", "1", "--budget", "3s", "--seeds", "1")
    result = run(*asked, "--set", "epochs=3", "--device", "cpu", "--out", "best")
    assert result.code == 0, result.err
    assert "What is the graph worth?" not in result.out
    assert "--worth compares with models of nodes" in run(*asked, "--worth").err


def test_a_mean_over_atoms_is_learnt_and_found_in_graphs_without_a_label(molecules):
    options = ("--label", "price", "--features", "element", "--objective", "regression", "--pooling", "mean")
    quick = ("--model", "gcn", "--layers", "1", "--epochs", "150", "--set", "dropout=0", "--set", "lr=0.05")
    assert run("train", *THREE, *options, *quick, "--device", "cpu", "--out", "run").code == 0
    elements = {}
    for graph, _, element, _ in graph_tables()[1][1:]:
        elements.setdefault(graph, []).append(element)
    for row in rows_of(molecules / "run" / "predictions.csv"):
        here = elements[row["id"]]
        assert float(row["prediction_price"]) == pytest.approx(5 + here.count("N") / len(here), abs=0.05)


def test_a_column_of_the_graphs_says_which_of_them_test(molecules):
    heads, *rows = graph_tables()[0]
    parts = ["train", "train", "val", "test", ""]
    write_csv(molecules / "graphs.csv", [*heads, "split"], *([*row, parts[i % 5]] for i, row in enumerate(rows)))
    trained = run("train", *THREE, "--label", "level", *TINY, "--out", "run")
    assert trained.out.startswith("egnn, 2 layers, graphs.csv: test accuracy ")
    (record,) = read_records(molecules / "run" / "records.jsonl")
    assert (record.split, RunFolder(molecules / "run").evaluation().unit) == ("public", "graph")
    assert run("predict", "run", *THREE, "--out", "again.csv").code == 0
    assert (molecules / "again.csv").read_bytes() == (molecules / "run" / "predictions.csv").read_bytes()


def test_a_column_of_the_nodes_says_which_of_them_test(here):
    heads, *rows = (line.split(",") for line in (here / "nodes.csv").read_text().splitlines())
    parts = ["train", "train", "val", "test", ""]
    write_csv(here / "nodes.csv", [*heads, "split"], *([*row, parts[i % 5]] for i, row in enumerate(rows)))
    checked = run("data", "check", "nodes.csv", "edges.csv")
    assert (checked.code, "its column 'split' is the split 'public'" in " ".join(checked.out.split())) == (0, True)
    trained = run("train", *OWN, *TINY, "--no-worth", "--out", "run")
    assert trained.out.startswith("egnn, 2 layers, nodes.csv: test accuracy ")
    (record,) = read_records(here / "run" / "records.jsonl")
    assert record.split == "public"
    assert run("predict", "run", *OWN, "--out", "again.csv").code == 0
    assert (here / "again.csv").read_bytes() == (here / "run" / "predictions.csv").read_bytes()
    refused = run("train", *OWN, *TINY, "--no-worth", "--test-fraction", "0.2", "--out", "other")
    assert refused.code == 2
    assert "--test-fraction is 0.2, but the column 'split' of nodes.csv says who tests; leave one out." in refused.err


def test_predictions_of_new_graphs_follow_the_ids_under_shuffling(molecules):
    assert run("train", *THREE, "--label", "level", *TINY, "--out", "run").code == 0
    tables, draw = graph_tables(12), random.Random(3)

    def predicted(name, shuffled):
        files = []
        for option, (heads, *rows) in zip(("--graphs", "--nodes", "--edges"), tables, strict=True):
            kept = [0] if option == "--graphs" else list(range(len(heads)))  # new graphs have no label
            order = draw.sample(kept, len(kept)) if shuffled else kept
            rows = draw.sample(rows, len(rows)) if shuffled else rows
            path = molecules / f"{name}{option}.csv"
            write_csv(path, *([row[k] for k in order] for row in [heads, *rows]))
            files += [option, path]
        assert run("predict", "run", *files, "--out", f"{name}.csv").code == 0
        return {row["id"]: row for row in rows_of(molecules / f"{name}.csv")}

    first = predicted("first", shuffled=False)
    assert list(first) == [f"g{i}" for i in range(12)]
    assert len({row["probability_high"] for row in first.values()}) > 6
    for number in range(3):
        second = predicted(f"second{number}", shuffled=True)
        assert second.keys() == first.keys()
        for name, row in first.items():
            assert float(second[name]["probability_high"]) == pytest.approx(float(row["probability_high"]), abs=1e-6)


def test_what_does_not_go_together_with_graphs_is_a_sentence(molecules):
    asked = (*THREE, "--label", "level", *TINY)
    assert "--graphs is graphs.csv, but --edges is missing" in refused(molecules, "train", *THREE[:4], *TINY)
    assert "--graphs is graphs.csv, but it is for --nodes" in refused(molecules, "train", *THREE[:2], *TINY)
    for option, value in (("--pooling", "sum"), ("--graph-column", "graph")):
        assert f"{option} is {value}, but it is for --graphs" in refused(molecules, "train", *OWN, option, value)
    assert "--worth compares with models of nodes" in refused(molecules, "train", *asked, "--worth")
    assert "may hold half a graph" in refused(molecules, "train", *asked, "--clusters", 2)
    assert "there is no column 'mol' for --graph-column" in refused(molecules, "train", *asked, "--graph-column", "mol")
    few = refused(molecules, "train", *asked, "--set", "data.split=per-class-40-30")
    assert "labelled graphs; split 'per-class-40-30' needs at least 70" in few
    write_csv(molecules / "bonds.csv", ["graph", "source", "target"], ["g0", 0, 77])
    checked = run("data", "check", "atoms.csv", "bonds.csv", *THREE[:2], "--label", "level")
    assert checked.code == 2
    assert "bonds.csv, line 2, column 'target': there is no node '77' of graph 'g0' in atoms.csv" in checked.err


def test_a_model_of_graphs_is_given_graphs_and_one_of_nodes_is_not(molecules):
    assert run("train", *THREE, "--label", "level", *TINY, "--out", "of-graphs").code == 0
    assert run("train", *OWN, *TINY, "--no-worth", "--out", "of-nodes").code == 0
    said = refused(molecules, "predict", "of-graphs", *THREE[2:])
    assert "The model predicts graphs, and --graphs is missing; it needs --graphs, --nodes and --edges." in said
    assert "--graphs is graphs.csv, but --edges is missing" in refused(molecules, "predict", "of-graphs", *THREE[:4])
    assert "--knn is about new nodes" in refused(molecules, "predict", "of-graphs", *THREE, "--knn", 3)
    assert "but the model predicts nodes" in refused(molecules, "predict", "of-nodes", *OWN, *THREE[:2])
