import json
import time

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.studies.verify import check_protocols, read_placed
from graphjoule.training import read_records
from graphjoule.tuning import fit_ranges, parse_ranges
from reproduction.experiments import tuned
from reproduction.pages.tuned import ablation_table, cost_table, ranking_table, tuned_table

from ...training import small_task


@pytest.mark.parametrize("model", tuned.PLAN["layers"])
def test_the_plan_can_be_searched_and_begins_with_the_published_settings(model):
    ranges = parse_ranges(f"{k}={v}" for k, v in (tuned.PLAN["ranges"]["all"] | tuned.PLAN["ranges"][model]).items())
    for dataset in tuned.DATASETS:
        recipe = tuned.start(model, dataset)
        settings = recipe.settings()
        for name, found in fit_ranges(recipe, ranges).items():
            own = settings.get(name, settings.get(f"{name}.all"))
            assert found.contains(own), (dataset, name, own)


@pytest.mark.slow
def test_every_part_goes_on_where_it_was_and_the_tables_say_what_came_of_it(tmp_path, monkeypatch):
    plan = tuned.PLAN | {"layers": {"egnn": 2, "gcnii": 2}, "winner": {"seeds": [0, 1]}}
    plan["search"] = {"trials": 2, "seeds": [7], "seed": 0}
    plan["settings"] = plan["settings"] | {"train.epochs": 2, "model.hidden_channels": 4}
    plan["ablation"] = {"models": ["egnn"], "variants": dict(list(plan["ablation"]["variants"].items())[:1])}
    for module in ("reproduction.experiments.tuned", "reproduction.pages.tuned"):
        monkeypatch.setattr(f"{module}.PLAN", plan)
    monkeypatch.setattr(tuned, "load_task", lambda name: small_task(sparse=True))
    later = time.time() + 60

    def part(name, model="egnn", end=later):
        return tuned.PARTS[name]("cora", model, tmp_path, "cpu", end, tmp_path / "state")

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
        assert run.protocol == tuned.PROTOCOL.cited("tuned", {})
        assert len(run.curve["val_accuracy"]) == run.epochs_run
    assert check_protocols([tmp_path], read_placed([tmp_path])[0], {}).problems == []
    best = tuned.winner(tmp_path, "cora", "egnn").settings()
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
