"""The search is resumable, and its winner is chosen by validation."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from reproduction.corpus import jobs, search


def trial(number, val, loss, test):
    scores = {"val_accuracy": val, "val_loss": loss, "test_accuracy": test}
    worse = {"val_accuracy": [0.0], "val_loss": [9.0], "test_accuracy": [1.0]}
    return {"kind": "trial", "trial": number, "loss": scores, "accuracy": worse}


def test_the_winner_validates_best_whatever_its_test_score():
    records = [
        trial(0, [0.8, 0.6], [1.0], [0.9]),
        trial(1, [0.7, 0.9], [1.0], [0.1]),
        trial(2, [0.8, 0.8], [2.0], [1.0]),
    ]
    found, select_on = search.winner(records, "accuracy")
    assert (found["trial"], select_on) == (1, "loss")


def test_the_table_has_means_in_points():
    one = trial(3, [0.8, 0.6], [1.0], [0.9]) | {"task": "iris", "depth": 2}
    for by in ("loss", "accuracy"):
        one[by]["test_macro_f1"] = [0.5]
    lines = search.table([one, {"kind": "time"}]).splitlines()
    assert lines[1:] == ["iris,2,3,loss,70.00,90.00,50.00", "iris,2,3,accuracy,0.00,100.00,50.00"]


@pytest.fixture
def quick(monkeypatch):
    """Two epochs, and no processes of its own."""
    monkeypatch.setattr(search, "EPOCHS", 2)
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", lambda workers, *options: ThreadPoolExecutor(workers))


def test_a_second_call_goes_on_and_a_broken_line_is_made_again(quick, tmp_path, monkeypatch, capsys):
    out = tmp_path / "learn.jsonl"
    words = ["search", "--half", "learn", "--depths", "2", "--trials", "1", "--seeds", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*words, "--tasks", "karate"])
    search.main()
    lines = out.read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["trial"] * 3 + ["time"]
    search.main()
    assert out.read_text().splitlines() == lines
    out.write_text("\n".join([*lines[:-1], lines[-1][:10]]) + "\n")
    search.main()
    assert sum(record["kind"] == "time" for record in jobs.read_records(out)) == 1
    assert "karate, 2: " in capsys.readouterr().out
