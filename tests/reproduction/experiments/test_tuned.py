import json
import time

import pytest
import torch

from graphjoule import fit
from graphjoule.errors import GraphjouleError
from graphjoule.studies.verify import check_protocols, read_placed
from graphjoule.training import Progress, read_records
from graphjoule.tuning import fit_ranges, parse_ranges
from reproduction.experiments import tuned
from reproduction.pages.tuned import ablation_table, cost_table, ranking_table, tuned_table

from ...training import small_recipe, small_task


@pytest.mark.parametrize("model", tuned.PLAN["layers"])
@pytest.mark.parametrize("plan", tuned.PLANS.values(), ids=list(tuned.PLANS))
def test_the_plan_can_be_searched_and_begins_with_the_published_settings(plan, model):
    for dataset in tuned.DATASETS:
        recipe, ranges = tuned.start(model, dataset, plan), parse_ranges(tuned.ranges_of(model, dataset, plan))
        settings = recipe.settings()
        for name, found in fit_ranges(recipe, ranges).items():
            own = settings.get(name, settings.get(f"{name}.all"))
            assert found.contains(own), (dataset, name, own)


@pytest.mark.slow
def test_every_part_goes_on_where_it_was_and_the_tables_say_what_came_of_it(tmp_path, monkeypatch):
    plan = tuned.PLAN | {"layers": {"egnn": 2, "gcnii": 2}, "winner": {"seeds": [0, 1]}}
    plan["search"] = plan["search"] | {"trials": 2, "seeds": [7], "seed": 0}
    plan["settings"] = plan["settings"] | {"train.epochs": 2, "model.hidden_channels": 4}
    plan["ablation"] = {"models": ["egnn"], "variants": dict(list(plan["ablation"]["variants"].items())[:1])}
    monkeypatch.setattr("reproduction.pages.tuned.PLAN", plan)
    monkeypatch.setattr(tuned, "load_task", lambda name: small_task(sparse=True))
    later = time.time() + 60

    def part(name, model="egnn", end=later):
        return tuned.PARTS[name](plan, "cora", model, tmp_path, "cpu", end, tmp_path / "state")

    assert part("search", end=0) == "0 of 2 trials"
    with pytest.raises(GraphjouleError, match="egnn on cora: 0 of 2 trials are done"):
        part("winners")
    for model in plan["layers"]:
        assert part("search", model).startswith("2 of 2 trials, best ")
        assert part("winners", model).endswith(" of 2 runs")
        assert part("winners", model) == "done before"
    trials = [json.loads(line) for line in (tmp_path / "cora-egnn.trials.jsonl").read_text().splitlines()]
    assert trials[0]["params"]["terms.consistency.weight"] == 0.8
    assert "test" not in (tmp_path / "cora-egnn.trials.jsonl").read_text()
    assert all(trial["versions"]["source"] and trial["device"] for trial in trials)
    (tmp_path / "cora-egnn.trials.jsonl").write_text(
        "".join(json.dumps(trial | {"versions": {"source": "of before"}}) + "\n" for trial in trials)
    )
    part("search")  # finds nothing to do, and says of nothing that it made it
    assert "of before" in (tmp_path / "cora-egnn.trials.jsonl").read_text()
    for run in read_records(tmp_path / "cora-egnn.runs.jsonl.gz"):
        assert run.protocol == tuned.Protocol(**plan["protocol"]).cited("tuned", {})
        assert len(run.curve["val_accuracy"]) == run.epochs_run
    assert check_protocols([tmp_path], read_placed([tmp_path])[0], {}).problems == []
    best = tuned.winner(plan, tmp_path, "cora", "egnn").settings()
    chosen = max(trials, key=lambda trial: trial["value"])["params"]
    assert {name: best[name] for name in chosen} == chosen
    assert part("ablation") == part("ablation") == "1 of 1 variants"
    part("cost", end=0)

    head, _, egnn, gcnii = tuned_table(tmp_path).splitlines()
    assert head.startswith("| graph | network |")
    assert egnn.startswith("| cora | egnn | 2 | - | ")
    assert egnn.endswith(" of 2 |")
    assert gcnii.endswith("| - |")
    assert "| cora | egnn - gcnii | " in ranking_table(tmp_path)
    assert "| cora | no consistency | " in ablation_table(tmp_path)
    assert "| egnn, cora, 2 layers | cpu" in cost_table(tmp_path)


def small_plan(**search):
    plan = tuned.PLANS["second"]
    settings = plan["settings"] | {"train.epochs": 4, "model.hidden_channels": 4}
    budget = plan["search"] | {"trials": 3, "seeds": [7, 8], "early_end": 2} | search
    return plan | {
        "layers": {"egnn": 2, "gcn": 2},
        "winner": {"seeds": [0, 1]},
        "settings": settings,
        "search": budget,
        "ranges": {"all": {"train.lr": "1e-3..1e-1:log"}, "egnn": {}, "gcn": {}},
        "ablation": {"models": ["egnn"], "variants": {"published": {"published": True}}},
    }


def test_a_range_of_one_network_on_one_graph_wins_over_that_of_all():
    plan = {"ranges": {"all": {"a": "1", "b": "1"}, "gcn": {"b": "2", "c": "2"}, "gcn-cora": {"c": "3"}}}
    assert tuned.ranges_of("gcn", "cora", plan) == ["a=1", "b=2", "c=3"]
    assert tuned.ranges_of("gcn", "pubmed", plan) == ["a=1", "b=2", "c=2"]
    assert tuned.ranges_of("egnn", "pubmed", plan) == ["a=1", "b=1"]


def test_both_rounds_give_every_network_the_same_effort_and_the_second_says_what_it_is():
    first, second = tuned.PLANS["first"], tuned.PLANS["second"]
    assert second["layers"] is first["layers"]
    assert set(second["search"]["seeds"]).isdisjoint(second["winner"]["seeds"])
    words = second["protocol"]["search"]
    assert "second look" in words
    for number in (
        f"{second['search']['early_end']} epochs",
        "five seeds (1000 to 1004)",
        f"{second['search']['trials']} trials",
    ):
        assert number in words
    assert second["protocol"]["epochs"].startswith(f"{second['settings']['train.epochs']};")
    assert f" {second['settings']['train.patience']} epochs" in second["protocol"]["epochs"]
    hash_of_round_one = tuned.Protocol(**first["protocol"]).sha256[:8]
    assert (tuned.FOLDER / f"tuned-{hash_of_round_one}.protocol.json").exists()


def trial(slot, value, loss, val_nodes=500):
    judged = {"val_nodes": val_nodes, "tempered_loss": [loss - 0.01, loss + 0.01]}
    return {"slot": slot, "value": value, "judged": judged}


def test_of_trials_within_a_standard_error_of_the_best_that_with_the_least_loss_is_chosen():
    trials = [trial(0, 0.82, 0.52), trial(1, 0.83, 0.55), trial(2, 0.815, 0.50), trial(3, 0.80, 0.40)]
    assert tuned.chosen(trials)["slot"] == 2  # one standard error is 1.7 points: trial 3 is too far
    more_nodes = [trial(each["slot"], each["value"], each["judged"]["tempered_loss"][0], 50_000) for each in trials]
    assert tuned.chosen(more_nodes)["slot"] == 1


def test_a_trial_ends_early_if_it_is_below_the_median_of_four_before():
    def seen(earlier, *scores):
        early = tuned.EarlyEnd(3, earlier)
        for epoch, score in enumerate(scores, start=1):
            early(Progress(epoch, 10, 2, 2, 1.0, {"accuracy": score}))
        return early.best, early.is_behind

    assert seen([0.9, 0.8, 0.7], 0.1, 0.2, 0.3) == (0.3, False)  # too few to say
    assert seen([0.9, 0.8, 0.7, 0.6], 0.1, 0.7) == (0.7, False)  # not yet
    assert seen([0.9, 0.8, 0.7, 0.6], 0.7, 0.6, 0.5, 0.9) == (0.7, True)
    assert seen([0.9, 0.8, 0.7, 0.6], 0.8, 0.6, 0.5, 0.4) == (0.8, False)


def test_the_tempered_loss_does_not_ask_how_sure_a_network_is():
    task, recipe = small_task(), small_recipe("gcn", epochs=20)
    network = fit(recipe, task, [0], device="cpu").models[0]

    class Surer(torch.nn.Module):
        def forward(self, x, graph):
            return 1.5 * network(x, graph)

    nodes = task.split("public").val.repeat(10_000)  # next to so many nothing is left of the temperature's prior
    plain, surer = (tuned.tempered_loss(each, recipe, task, nodes) for each in (network, Surer()))
    assert surer == pytest.approx(plain, rel=1e-4)


def test_the_second_round_judges_its_trials_and_goes_on_where_it_was(tmp_path, monkeypatch):
    plan = small_plan()
    monkeypatch.setattr(tuned, "load_task", lambda name: small_task(sparse=True))
    monkeypatch.setattr(tuned.EarlyEnd, "FEWEST", 1)

    def part(name, model="gcn", end=1e12, plan=plan):
        return tuned.PARTS[name](plan, "cora", model, tmp_path, "cpu", end, tmp_path / "state")

    scores = iter([0.5, 0.4, 0.6])  # early: the second is behind the first

    def look(early, progress):
        early.best = early.best or next(scores)
        early.is_behind = progress.epoch >= early.epoch and early.best < early._bar

    monkeypatch.setattr(tuned.EarlyEnd, "__call__", look)
    assert part("search", plan=small_plan(trials=1)).startswith("1 of 1 trials")
    assert part("search").startswith("3 of 3 trials")
    first, behind, last = tuned.read_lines(tmp_path / "cora-gcn.trials.jsonl")
    assert first["judged"]["val_nodes"] == 9
    assert len(first["judged"]["tempered_loss"]) == len(first["judged"]["val_accuracy"]) == 2
    assert behind["value"] is None
    assert behind["failure"].startswith("behind: stopped after epoch 2")
    assert behind["judged"] == {"early": 0.4}
    assert last["judged"]["epochs"] == [4, 4]
    assert part("winners").endswith(" of 2 runs")
    assert [run.seed for run in read_records(tmp_path / "cora-gcn.runs.jsonl.gz")] == [0, 1]


def test_a_trial_of_egnn_counts_only_within_its_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(tuned, "load_task", lambda name: small_task(sparse=True))
    held = iter([2, 2, 2, 1, 1, 1])  # of two runs each of three trials

    def energies(*of):
        return {"energies": [1.0] * 3, "layers_within": next(held), "least_slack": 1.1}

    monkeypatch.setattr(tuned, "energies", energies)
    plan = small_plan(early_end=4)
    tuned.search(plan, "cora", "egnn", tmp_path, "cpu", 1e12, tmp_path / "state")
    inside, half, outside = tuned.read_lines(tmp_path / "cora-egnn.trials.jsonl")
    assert inside["value"] is not None
    assert half["judged"]["layers_within"] == [2, 1]
    assert half["failure"] == outside["failure"] == "outside its limits: 1 of 2 layers are within them"
    assert tuned.winner(plan, tmp_path, "cora", "egnn").train.lr == inside["params"]["train.lr"]
    lines = [json.dumps(line | {"value": None}) for line in (half, half, outside)]
    (tmp_path / "cora-egnn.trials.jsonl").write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(GraphjouleError, match="egnn on cora: no trial counts; the first says: outside its limits"):
        tuned.winner(plan, tmp_path, "cora", "egnn")
