"""The search is resumable, its winner is chosen by validation, and the ledger has the differences in points."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from reproduction.corpus import search, trials


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


def fitted(task, depth, what, score):
    name = search.score_name(task)
    return {"kind": "fit", "task": task, "depth": depth, "what": what, "scores": {f"test_{name}": [score, score]}}


def test_the_ledger_has_mean_and_worst():
    records = [
        fitted("iris", 2, search.DATA, 0.90),
        fitted("iris", 2, search.FOUND, 0.92),
        fitted("iris", 32, search.DATA, 0.91),
        fitted("rare", 2, search.DATA, 0.80),
        fitted("rare", 2, search.FOUND, 0.79),
        fitted("rare", 32, search.DATA, 0.78),
        {"kind": "time", "task": "iris", "depth": 2},
    ]
    text = search.ledger(records)
    assert "| iris | 90.00 | 92.00 | -2.00 | 91.00 |  |  | +1.00 |" in text
    assert "depth 2, data - search: mean -0.50 points over 2 tasks, worst -2.00 (iris)" in text
    assert "data, depth 32 - 2: mean -0.50 points over 2 tasks, worst -2.00 (rare)" in text
    assert search.ledger([]) == ""


def test_the_table_has_means_in_points():
    one = trial(3, [0.8, 0.6], [1.0], [0.9]) | {"task": "iris", "depth": 2}
    for by in ("loss", "accuracy"):
        one[by]["test_macro_f1"] = [0.5]
    lines = search.table([one, {"kind": "time"}]).splitlines()
    assert lines[1:] == ["iris,2,3,loss,70.00,90.00,50.00", "iris,2,3,accuracy,0.00,100.00,50.00"]


@pytest.fixture
def quick(monkeypatch):
    """Two epochs, and no processes of its own."""
    monkeypatch.setattr(trials, "EPOCHS", 2)
    monkeypatch.setattr(search, "ProcessPoolExecutor", lambda workers, context: ThreadPoolExecutor(workers))
    monkeypatch.setattr(search.torch, "set_num_threads", lambda number: None)


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
    assert sum(record["kind"] == "time" for record in search.read(out)) == 1
    assert "karate, 2 layers" in capsys.readouterr().out


def test_nothing_is_begun_after_the_limit_or_after_a_gpu_has_failed(quick, monkeypatch, capsys):
    begun = []

    def unit(job):
        begun.append(job)
        return [{"kind": "failure", "task": "iris", "depth": 2, "why": "CUDA error: out of luck"}]

    monkeypatch.setattr(search, "_unit", unit)
    assert list(search._done(["a", "b"], 1, end=0.0)) == []
    assert begun == []
    assert len(list(search._done(["a", "b", "c"], 1, end=float("inf")))) == 1
    assert begun == ["a"]
    assert "the same command goes on" in capsys.readouterr().out
