"""`auto` and its rivals are judged on the same splits; a second call goes on."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from graphjoule.training import recipe_for
from graphjoule.training.budget import Budget
from graphjoule.tuning import halving, worth
from reproduction.corpus import auto, jobs
from reproduction.corpus.tasks import VERDICT
from tests.training.test_budget import Clock


def test_auto_and_rivals_have_the_same_split_and_a_second_call_trains_nothing(tmp_path, monkeypatch, capsys):
    asked, real = [], auto.auto

    def quick(task, budget, *, seeds, settings, device):
        assert budget.clock is time.process_time
        asked.append((task.name, budget.seconds, seeds))
        own = {"seeds": seeds[:1], "settings": settings | {"epochs": 2}, "device": device}
        return real(task, Budget(300, Clock()), models=["gcn"], depths=[1], **own)

    monkeypatch.setattr(auto, "auto", quick)
    monkeypatch.setattr(halving, "_MOST_VARIATIONS", 0)
    monkeypatch.setattr(worth, "_ITERATIONS", 4)
    monkeypatch.setattr(worth, "_LEAST_ITERATIONS", 1)
    monkeypatch.setattr(auto, "NETWORKS", [("egnn", 2)])
    monkeypatch.setattr(
        auto, "recipe_for", lambda task, model, layers, settings: recipe_for(task, model, layers, {"epochs": 2})
    )
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", lambda workers, *options: ThreadPoolExecutor(workers))
    out = tmp_path / "auto.jsonl"
    words = ["auto", "--half", "learn", "--tasks", "iris", "--replicates", "2", "--budget", "7s", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*words, "--only", "auto"])
    auto.main()
    assert [record["replicate"] for record in jobs.read_records(out) if record["kind"] == "time"] == [0, 1]
    monkeypatch.setattr(sys, "argv", words)
    auto.main()
    records = jobs.read_records(out)
    assert [(name, budget, seeds[0]) for name, budget, seeds in asked] == [("iris", 7.0, 0), ("iris", 7.0, 1)]
    names = [record["name"] for record in records if record["kind"] == "rival"]
    assert {"majority", "logistic regression", "gcn with 2 layers", "egnn with 2 layers"} <= {*names}
    assert len(names) == len({*names})
    assert all(len(record["scores"]) == 2 for record in records if record["kind"] == "rival")  # one of each split
    assert sum(record["kind"] == "time" for record in records) == 4
    found = [record for record in records if record["kind"] == "auto"]
    assert [record["chosen"][0][:5] for record in found] == ["gcn-1", "gcn-1"]
    assert [record["alone"] for record in found] == [record["scores"][0] for record in found]  # it had one model
    assert "auto - the best rival of each task" in capsys.readouterr().out
    auto.main()
    assert jobs.read_records(out) == records


def test_a_task_that_judges_is_opened_by_the_half_that_judges_alone(monkeypatch):
    failed = auto.unit(("learn", next(iter(VERDICT)), 0, "1s", "cpu", 1))
    assert failed[-1]["kind"] == "failure"
    assert "stays shut" in failed[-1]["why"]
