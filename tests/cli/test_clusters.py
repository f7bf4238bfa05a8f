import json
import subprocess
import sys
from pathlib import Path

import pytest

from graphjoule.training.records import read_records

from . import TINY, run


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_on_clusters_then_predict(here):
    done = run("train", *TINY, "--clusters", 20, "--clusters-per-step", 5, "--json")
    assert done.code == 0, done.err
    (record,) = read_records(here / json.loads(done.out)["records"])
    assert record.recipe["clusters"] == {
        "parts": 20,
        "per_step": 5,
        "accumulate": 1,
        "method": "metis",
        "validate_every": 1,
    }
    predicted = run("predict", "runs/digits-egnn-2", "--out", "all.csv", "--device", "cpu", "--json")
    assert predicted.code == 0, predicted.err
    assert json.loads(predicted.out)["num_nodes"] == 1797


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--clusters", 0], "--clusters"),
        (["--clusters-per-step", 5], "there are no clusters: say how many with --clusters"),
        (["--clusters", 3, "--clusters-per-step", 5], "clusters.per_step is 5, but there are 3 clusters"),
        (["--clusters", 5000], "clusters is 5000; for a graph of 1797 nodes it must be from 1 to 1797"),
        (["--clusters", 5, "--constraint", "penalty"], "constraint and clusters cannot be had together"),
    ],
)
def test_options_that_cannot_be_are_one_sentence_and_leave_nothing(here, options, words):
    refused = run("train", *TINY, *options)
    assert refused.code == 2
    assert words in refused.err
    assert "Traceback" not in refused.err
    assert list(here.iterdir()) == []


@pytest.fixture
def command():
    path = Path(sys.executable).with_name("graphjoule")
    if not path.exists():
        pytest.skip(f"graphjoule is not installed beside {sys.executable}")
    return path


SHARED = ("--clusters", "8", "--set", "clusters.accumulate=2", "--set", "dropout=0", "--json")


def test_two_processes_share_the_steps_and_train_what_one_trains(command, here):
    alone = run("train", *TINY, *SHARED, "--out", "alone")
    assert alone.code == 0, alone.err
    shared = subprocess.run(
        [command, "train", *TINY, *SHARED, "--out", "shared", "--processes", "2"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shared.returncode == 0, shared.stderr
    (line,) = shared.stdout.splitlines()  # one process tells
    assert json.loads(line)["n"] == 1
    (one,), (two,) = (list(read_records(here / name / "records.jsonl")) for name in ("alone", "shared"))
    assert one.run_id == two.run_id
    assert two.device.endswith("2 processes")
    assert two.curve["train_loss"] == pytest.approx(one.curve["train_loss"], rel=1e-4)
    assert two.curve["val_loss"] == pytest.approx(one.curve["val_loss"], rel=1e-4)
    assert two.test_score == pytest.approx(one.test_score, abs=2e-3)


def test_processes_without_a_group_of_clusters_each_are_told_so(here):
    refused = run("train", *TINY, "--clusters", 8, "--processes=2")
    assert refused.code == 2
    assert "clusters.accumulate is 1, but there are 2 processes" in refused.err
    assert list(here.iterdir()) == []


def test_parts_and_clusters_contradict_each_other(here):
    refused = run("train", *TINY, "--dataset", "digits", "--clusters", 4, "--processes", 2, "--parts", "parts")
    assert refused.code == 2
    assert "the recipe has clusters, for which every process reads the whole graph" in refused.err


def write_tables(folder: Path) -> list[str]:
    """A ring of 24 nodes in two classes, the last without a label."""
    nodes = ["id,a,b,label", *(f"n{i},{i % 2},{i / 24},{'xy'[i % 2] if i < 23 else ''}" for i in range(24))]
    edges = ["source,target", *(f"n{i},n{(i + 1) % 24}" for i in range(24))]
    (folder / "nodes.csv").write_text("\n".join(nodes))
    (folder / "edges.csv").write_text("\n".join(edges))
    return ["--nodes", "nodes.csv", "--edges", "edges.csv"]


@pytest.mark.slow
def test_processes_on_an_own_graph_predict_it_too(command, here):
    arguments = ["train", *TINY, *write_tables(here), *SHARED, "--out", "run", "--processes", "2"]
    done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["predictions"] == "run/predictions.csv"
    assert len((here / "run" / "predictions.csv").read_text().splitlines()) == 25
