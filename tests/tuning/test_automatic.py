"""The search for a model within a time, mostly by a clock that goes on by a second whenever it is asked."""

import csv
import json
import shutil
import time
from dataclasses import replace

import pytest
import torch

from graphjoule import load
from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit, mean_prediction, read_runs
from graphjoule.graph.relations import DirectedPropagation
from graphjoule.tasks import Split
from graphjoule.tasks.objective import Regression
from graphjoule.tasks.task import ModelInput
from graphjoule.training import TrainingInterrupted
from graphjoule.training.budget import Budget
from graphjoule.training.folder import SEARCH_NAME, SUMMARY_NAME, RunFolder
from graphjoule.training.records import read_records
from graphjoule.training.trainer import Trainer
from graphjoule.tuning import auto, automatic, halving
from graphjoule.tuning.automatic import RANKING_NAME, models_together, runs_together
from tests.training import PUBLIC, same_bits, small_task
from tests.training.test_budget import Clock

SMALL = {"models": ["gcn", "sgc"], "depths": [1, 2], "seeds": [0, 1, 2], "device": "cpu"}
SETTINGS = {"hidden_channels": 8, "epochs": 6, "split": "public"}


@pytest.fixture(autouse=True)
def few_variations(monkeypatch):
    monkeypatch.setattr(halving, "_MOST_VARIATIONS", 2)


def search(task=None, seconds=400, **options):
    options = SMALL | {"settings": SETTINGS} | options
    return auto(task or small_task(), Budget(seconds, Clock()), **options)


def trials_of(folder):
    return json.loads((folder / SUMMARY_NAME).read_text())["trials"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """One search with everything it wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halving, "_MOST_VARIATIONS", 2)
        return search(out=tmp_path_factory.mktemp("auto") / "run")


def test_all_models_and_depths_are_tried_then_the_best_are_varied_and_get_more_seeds(found):
    trials = trials_of(found.folder)
    rungs = {rung: [trial["name"] for trial in trials if trial["rung"] == rung] for rung in halving._RUNGS}
    assert rungs["first"] == ["gcn-1", "sgc-1", "gcn-2", "sgc-2"]
    assert len(rungs["variations"]) == 2
    assert all("-v" in name for name in rungs["variations"])
    assert 1 <= len(rungs["seeds"]) <= 4
    assert len(rungs["winner"]) == 1
    assert {len(trial["seeds"]) for trial in trials if trial["rung"] == "first"} == {1}
    assert next(trial for trial in trials if trial["rung"] == "winner")["seeds"] == [0, 1, 2]


def test_the_result_is_an_ordinary_run_folder(found):
    names = {path.name for path in found.folder.iterdir()}
    models = {f"model-seed-{record.seed}.safetensors" for record in found.records}
    own = {"run.json", "records.jsonl", "evaluation.safetensors", "MODEL_CARD.md", ".lock"}
    assert names == own | models | {SUMMARY_NAME, RANKING_NAME}
    runs = read_runs(found.folder)
    assert runs.recipe.model.name == found.trials[0].model
    predicted = runs.predict(ModelInput.of(small_task()))
    assert predicted.shape == (30, 3)
    assert torch.allclose(
        predicted, mean_prediction(found.models, runs.recipe, runs.objective, ModelInput.of(small_task()))
    )
    assert load(found.folder).num_layers == found.trials[0].num_layers
    assert list(read_records(found.folder / "records.jsonl")) == found.records


def test_its_runs_are_those_that_fit_trains_with_the_same_settings(found):
    """Paused, continued and scored afterwards, a run that was not cut is to the bit the run of `fit`."""
    about = RunFolder(found.folder).about()
    seeds = [record.seed for record in found.records]
    again = fit(about.recipe, small_task(), seeds, device="cpu", runs_at_once=1)
    for mine, other, model, twin in zip(found.records, again.records, found.models, again.models, strict=True):
        assert mine.epochs_run == other.epochs_run
        assert mine.run_id == other.run_id
        assert mine.test["accuracy"] == pytest.approx(other.test["accuracy"])
        assert mine.val["loss"] == pytest.approx(other.val["loss"], rel=1e-4)
        if mine.seed == 0:  # which trained alone; the others trained together, which rounds in another way
            assert same_bits(model, twin)


def test_the_ranking_has_all_that_was_tried_the_best_first(found):
    rows = list(csv.DictReader((found.folder / RANKING_NAME).read_text().splitlines()))
    assert len(rows) == len(found.trials) == 6
    assert [row["name"] for row in rows] == [trial.name for trial in found.trials]
    assert rows[0]["rung"] == "winner"
    assert found.trials[0].name == next(t["name"] for t in trials_of(found.folder) if t["rung"] == "winner")
    assert found.metric == "accuracy"
    scores = [trial.score for trial in found.trials if trial.rung == "seeds"]
    assert scores == sorted(scores, reverse=True)


def test_the_scores_of_the_chosen_runs_are_those_of_their_mean_prediction(found):
    runs = read_runs(found.folder)
    right = runs.predict(ModelInput.of(small_task())).argmax(dim=1) == small_task().targets
    assert found.val_score == pytest.approx(float(right[PUBLIC.val].double().mean()))
    assert found.test_score == pytest.approx(float(right[PUBLIC.test].double().mean()))


def test_test_labels_change_nothing_but_the_test_scores(tmp_path):
    task = small_task()
    wrong = task.targets.clone()
    wrong[PUBLIC.test] = (wrong[PUBLIC.test] + 1) % 3
    options = {"models": ["gcn"], "depths": [1]}
    one, other = search(task, **options), search(replace(task, targets=wrong), **options)
    assert one.trials == other.trials
    assert all(same_bits(*pair) for pair in zip(one.models, other.models, strict=True))
    assert one.test_score == pytest.approx(1 - other.test_score, abs=0.99)
    assert one.test_score != other.test_score


def test_the_same_search_gives_the_same_result_and_writes_nothing_without_a_folder(found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    again = search()
    assert again.folder is None
    assert again.trials == found.trials
    assert list(tmp_path.iterdir()) == []


def test_regressions_and_splits_per_seed_are_searched_too():
    task = small_task()
    asked = {"objective": Regression(), "fixed_splits": (), "default_split": "stratified-20-20"}
    numbers = replace(task, targets=task.targets.float() + 10, **asked)
    result = search(numbers, models=["gcn"], depths=[1], settings={"epochs": 6, "hidden_channels": 4})
    assert result.metric == "r2"
    assert {record.recipe["data"]["split_seed"] for record in result.records} == {0}
    assert result.test_score is not None


def test_many_seeds_cost_nothing_before_the_search(monkeypatch):
    task, drawn = small_task(), []
    split = type(task).split
    monkeypatch.setattr(type(task), "split", lambda self, *of: drawn.append(of) or split(self, *of))
    recipes = automatic._first_recipes(task, ["gcn"], [2], range(10_000), {"split": "stratified-20-20"})
    assert recipes["gcn-2"].data.split_seed == 0
    assert len(drawn) < 10


def test_select_on_says_by_what_candidates_are_ranked():
    result = search(models=["gcn"], depths=[1], settings=SETTINGS | {"select_on": "macro_f1"})
    assert result.metric == "macro_f1"


def test_with_appnp_features_alone_are_tried_too_and_stay_alone():
    options = {"models": ["gcn", "appnp"], "depths": [2], "settings": SETTINGS}
    names = {trial.name: trial for trial in search(**options).trials}
    assert {"gcn-2", "appnp-2", "appnp-1"} <= names.keys()
    alone = [trial for name, trial in names.items() if name.startswith("appnp-1")]
    assert all((trial.changes["alpha"], trial.changes["edge_dropout"]) == (1.0, 0.0) for trial in alone)
    task = small_task()
    recipes = automatic._first_recipes(task, ["gcn", "appnp"], [2, 4], [0], SETTINGS)
    assert list(recipes)[:3] == ["gcn-2", "appnp-1", "appnp-2"]
    model = fit(recipes["appnp-1"], task, device="cpu").models[0]
    empty = task.graph.from_edge_index(torch.empty(2, 0, dtype=torch.long), num_nodes=task.num_nodes)
    assert torch.equal(model(task.features, task.graph), model(task.features, empty))
    for more in ({"alpha": 0.2}, {"model.edge_dropout": 0.1}):
        assert list(automatic._first_recipes(task, ["appnp"], [2], [0], SETTINGS | more)) == ["appnp-2"]
    assert list(automatic._first_recipes(task, ["appnp"], [1, 2], [0], SETTINGS)) == ["appnp-1", "appnp-2"]
    assert automatic._first_recipes(task, ["appnp"], [1], [0], SETTINGS)["appnp-1"].model.options["alpha"] == 0.1


def test_settings_that_are_given_are_those_of_all_candidates():
    result = search(settings=SETTINGS | {"lr": 0.123}, models=["gcn"], depths=[1])
    assert {trial.changes.get("lr") for trial in result.trials} == {None}
    assert result.records[0].recipe["train"]["lr"] == 0.123
    assert result.records[0].recipe["model"]["hidden_channels"] == 8


# Time.


@pytest.mark.parametrize("seconds", [60, 150])
def test_it_keeps_to_its_budget(seconds):
    """By a clock that only training moves; epochs without end."""
    clock = Clock()
    begin = clock.now
    settings = SETTINGS | {"epochs": 10_000, "patience": 10_000}
    result = auto(small_task(), Budget(seconds, clock), **SMALL | {"settings": settings})
    assert clock.now - begin <= 1.1 * seconds
    assert result.records


@pytest.mark.slow
def test_it_keeps_to_its_budget_by_the_clock_on_the_wall():
    """Models as they are, epochs without end."""
    begin = time.monotonic()
    result = auto(small_task(), "30s", device="cpu", settings={"epochs": 100_000, "patience": 100_000})
    assert 25 < time.monotonic() - begin < 33
    assert result.records[0].epochs_run > 1


def test_a_budget_that_is_hardly_enough_still_gives_a_model():
    result = search(seconds=2, settings=SETTINGS | {"epochs": 500})
    assert len(result.records) >= 1
    assert any("not tried" in (trial.failure or "") for trial in result.trials)


# What goes wrong.


def test_candidates_that_fail_are_named_and_the_others_go_on():
    result = search(models=["gcn", "sgc"], depths=[1], settings=SETTINGS | {"lr": 1e30, "epochs": 3}, seeds=[0])
    assert result.trials
    assert all(trial.failure is None or "not finite" in trial.failure for trial in result.trials)


def test_where_nothing_can_be_trained_the_first_failure_is_said():
    with pytest.raises(
        GraphjouleError, match="No model could be trained on small; the first failure: seed 0: the loss"
    ):
        search(models=["gcn"], depths=[2], seeds=[0], settings=SETTINGS | {"lr": 1e38})


def test_a_folder_in_which_nothing_could_be_trained_is_free_for_another_search(tmp_path):
    options = {"models": ["gcn"], "depths": [2], "seeds": [0], "out": tmp_path / "run"}
    with pytest.raises(GraphjouleError, match="No model could be trained"):
        search(**options, settings=SETTINGS | {"lr": 1e38})
    assert [path.name for path in options["out"].iterdir()] == [".lock"]
    assert search(**options).chosen[0].startswith("gcn-2")


def test_models_that_do_not_fit_the_graph_are_left_out_or_refused_before_anything_is_written(tmp_path):
    edges = torch.tensor([[*range(30)], [*range(1, 30), 0]])
    task = replace(small_task(), graph=DirectedPropagation.of(edges, num_nodes=30))
    assert automatic.models_that_fit(task, automatic.AUTO_MODELS) == ("gcn", "appnp", "gcnii", "resgcn")
    assert automatic.models_that_fit(small_task(), automatic.AUTO_MODELS) == automatic.AUTO_MODELS
    with pytest.raises(GraphjouleError, match="EGNN needs edges that count in both directions"):
        auto(task, 5, models=["egnn"], depths=[2], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"models": []}, "There is nothing to try"),
        ({"depths": []}, "There is nothing to try"),
        ({"models": ["gnn"]}, '"gnn" is not a model'),
        ({"settings": {"c_min": 0.2}}, '"c_min" is not a setting of'),
        ({"seeds": []}, "seeds are"),
        ({"seeds": [1, 1]}, "seeds are"),
        ({"device": "tpu"}, "device is 'tpu'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path, options, said):
    with pytest.raises(GraphjouleError, match=said):
        auto(small_task(), 5, **SMALL | options, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fit_searches_with_auto_and_says_what_it_cannot_take():
    options = {"settings": SETTINGS | {"epochs": 2}, "device": "cpu"}
    result = fit("auto", small_task(), seeds=[0], budget=Budget(20, Clock()), **options)
    assert len(result.records) == 1
    assert {trial.model for trial in result.trials} == set(automatic.AUTO_MODELS)
    with pytest.raises(GraphjouleError, match='`terms` cannot be given with "auto"'):
        fit("auto", small_task(), terms=[lambda model, graph: None])


# Kill and resume.


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.mark.parametrize("at", [5, 45])
def test_a_search_that_was_killed_goes_on_and_finds_the_same(tmp_path, found, at):
    """Killed while it trains: what is finished is not repeated, and the trials are those of a search in one go."""
    out, count = tmp_path / "run", 0

    def kill(progress):
        nonlocal count
        count += 1
        if count == at:
            raise Killed

    with pytest.raises(Killed):
        search(out=out, on_progress=kill)
    before = trials_of(out / SEARCH_NAME) if (out / SEARCH_NAME / SUMMARY_NAME).exists() else []
    begun = []
    again = search(out=out, resume=True, on_progress=lambda p: begun.append((p.rung, p.name)))
    assert not {(trial["rung"], trial["name"]) for trial in before} & set(begun)
    assert trials_of(out)[: len(before)] == before
    timeless = {"seconds", "epoch_seconds"}
    assert [t.model_dump(exclude=timeless) for t in again.trials] == [
        t.model_dump(exclude=timeless) for t in found.trials
    ]
    assert all(same_bits(*pair) for pair in zip(again.models, found.models, strict=True))
    assert not (out / SEARCH_NAME).exists()


def test_a_search_that_is_asked_to_stop_stops_and_one_that_is_over_is_not_repeated(tmp_path):
    out, asked, options = tmp_path / "run", iter([False] * 20), {"models": ["gcn"], "depths": [1]}
    with pytest.raises(TrainingInterrupted):
        search(out=out, should_stop=lambda: next(asked, True), **options)
    first = search(out=out, resume=True, **options)
    seen = []
    again = search(out=out, resume=True, on_progress=seen.append, **options)
    assert seen == []
    assert {record.backend for record in first.records} == {"cpu"}
    assert again.records == first.records
    assert again.trials == first.trials


def test_a_folder_is_taken_up_by_the_same_search_alone(tmp_path):
    out = tmp_path / "run"
    options = {"models": ["gcn"], "depths": [1], "seeds": [0]}
    search(out=out, **options)
    before = {path: path.read_bytes() for path in out.iterdir()}
    for changed, said in [
        ({}, "already holds a search for a model; pass `resume=True`"),
        ({"resume": True, "seconds": 300}, "budget: 400 -> 300"),
        ({"resume": True, "depths": [2]}, "was begun with something else"),
        ({"resume": True, "task": replace(small_task(), features=small_task().features + 1)}, "data: "),
    ]:
        with pytest.raises(GraphjouleError, match=said):
            search(out=out, **options | changed)
    text = (out / SUMMARY_NAME).read_text()
    for damaged in (
        "{",
        "[]",
        text.replace('"first"', '"last"'),
        text.replace('"name": "gcn-1"', '"name": "../gcn-1"'),
        "[" * 100_000,
    ):
        (out / SUMMARY_NAME).write_text(damaged)
        with pytest.raises(GraphjouleError, match="is damaged"):
            search(out=out, **options, resume=True)
    (out / SUMMARY_NAME).write_bytes(before[out / SUMMARY_NAME])
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(GraphjouleError, match=r"holds letter\.txt"):
        search(out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


# Models that predict together.


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    """A search whose finalists all predict together, of a gcn and an sgc at least."""
    monkeypatch.setattr(halving, "standard_error", lambda accuracy, num_nodes: 1.0)
    monkeypatch.setattr(automatic, "models_together", lambda task, metric, predicted, val: list(predicted))
    return search(out=tmp_path / "run")


def test_models_that_predict_together_are_run_folders_in_the_folder_of_the_first(mixed):
    others = mixed.chosen[1:]
    assert len(mixed.members) == len(others) >= 2
    about = RunFolder(mixed.folder).about()
    assert about.members == others
    assert {path.name for path in (mixed.folder / "members").iterdir()} == {*others}
    runs, given, task = read_runs(mixed.folder), ModelInput.of(small_task()), small_task()
    assert list(runs.members) == others
    assert runs.num_runs == sum(len(each.records) for each in (mixed, *mixed.members))
    assert {runs.recipe.model.name, *(member.recipe.model.name for member in runs.members.values())} == {"gcn", "sgc"}
    alone = [read_runs(mixed.folder / "members" / name).predict(given) for name in others]
    own = mean_prediction(mixed.models, about.recipe, runs.objective, given)
    assert torch.allclose(runs.predict(given), torch.stack([own, *alone]).mean(dim=0))  # each model counts the same
    assert torch.allclose(runs.predict(given), mixed.predict(task))
    right = runs.predict(given).argmax(dim=1) == task.targets
    assert mixed.val_score == pytest.approx(float(right[PUBLIC.val].double().mean()))
    assert mixed.test_score == pytest.approx(float(right[PUBLIC.test].double().mean()))
    assert read_runs(mixed.folder, seed=mixed.records[0].seed).members == {}
    calibrated, threshold = runs.predict(given, is_calibrated=True), runs.threshold(0.9)
    assert not torch.allclose(calibrated, runs.predict(given))
    assert torch.allclose(
        threshold,
        torch.stack(
            [replace(runs, members={}).threshold(0.9), *(m.threshold(0.9) for m in runs.members.values())]
        ).mean(0),
    )
    card = (mixed.folder / "MODEL_CARD.md").read_text()
    assert f"They predict together with {len(others)} other models" in card
    assert all(f"- `{name}`: " in card for name in others)
    rows = list(csv.DictReader((mixed.folder / RANKING_NAME).read_text().splitlines()))
    assert {row["name"] for row in rows if row["is_chosen"] == "True"} == {*mixed.chosen}
    assert list(json.loads((mixed.folder / SUMMARY_NAME).read_text())["chosen"]) == mixed.chosen


def test_a_mixed_search_that_is_over_is_read_as_it_is(mixed):
    before = {path: path.read_bytes() for path in mixed.folder.rglob("*") if path.is_file()}
    again = search(out=mixed.folder, resume=True)
    assert (again.chosen, again.records, again.val_score) == (mixed.chosen, mixed.records, mixed.val_score)
    assert [each.records for each in again.members] == [each.records for each in mixed.members]
    assert {path: path.read_bytes() for path in mixed.folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_mixed_search_that_was_killed_while_it_wrote_loses_nothing(mixed, tmp_path, monkeypatch, at):
    """Before the first of the members, between two, and before the first of all, which is written last."""
    adopt, count = Trainer.adopt, 0

    def kill(self, *given):
        nonlocal count
        count += 1
        if count == at:
            raise Killed
        adopt(self, *given)

    monkeypatch.setattr(Trainer, "adopt", kill)
    with pytest.raises(Killed):
        search(out=tmp_path / "other")
    monkeypatch.setattr(Trainer, "adopt", adopt)
    again = search(out=tmp_path / "other", resume=True)
    assert (again.chosen, again.val_score, again.test_score) == (mixed.chosen, mixed.val_score, mixed.test_score)
    given = ModelInput.of(small_task())
    assert read_runs(again.folder).predict(given).equal(read_runs(mixed.folder).predict(given))


def test_a_member_that_is_gone_or_of_something_else_is_said_and_never_left_out(mixed):
    member = mixed.folder / "members" / mixed.chosen[1]
    about = member / "run.json"
    text = about.read_text()
    about.write_text(text.replace('"num_classes": 3', '"num_classes": 2'))
    assert about.read_text() != text
    with pytest.raises(GraphjouleError, match="predicts something else than"):
        read_runs(mixed.folder)
    shutil.rmtree(member)
    with pytest.raises(GraphjouleError, match=rf"{mixed.chosen[1]} holds no training"):
        read_runs(mixed.folder)
    whole = mixed.folder / "run.json"
    whole.write_text(whole.read_text().replace(mixed.chosen[1], "../../elsewhere"))
    with pytest.raises(GraphjouleError, match="is missing or damaged"):
        read_runs(mixed.folder)


def test_a_training_that_goes_on_in_a_mixed_folder_keeps_its_members(mixed):
    recipe = RunFolder(mixed.folder).about().recipe
    fit(recipe, small_task(), [7], device="cpu", out=mixed.folder, resume=True)
    assert RunFolder(mixed.folder).about().members == mixed.chosen[1:]


def test_a_model_joins_where_the_mean_has_no_higher_log_loss():
    """The first is sure and wrong about two nodes; others are right about them, wrong elsewhere, or wrong there too."""
    split = Split("public", None, torch.arange(9), torch.arange(9, 18), torch.arange(18, 30))
    task = replace(small_task(), fixed_splits=(split,))
    truth = torch.nn.functional.one_hot(task.targets, 3).double()

    def wrong_about(nodes, sure):
        predicted = 0.9 * truth + 0.1 / 3
        predicted[nodes] = sure * truth[nodes].roll(1, dims=1) + (1 - sure) * truth[nodes]
        return predicted

    first, other = wrong_about([9, 10], 0.9), wrong_about([11, 12], 0.9)
    same, certain = wrong_about([9, 10], 0.99), wrong_about([9, 10], 1 - 1e-6)
    accuracy, finer = task.objective.metrics[0], task.objective.metric("log_loss")
    for metric in (accuracy, finer):
        assert models_together(task, metric, {"a": first, "b": other}, split.val) == ["a", "b"]
        assert models_together(task, metric, {"a": first, "c": same, "b": other}, split.val) == ["a", "b"]
        assert models_together(task, metric, {"a": first}, split.val) == ["a"]
    untrained = torch.full_like(truth, 1 / 3)
    assert models_together(task, finer, {"d": certain, "e": untrained}, split.val) == ["d", "e"]
    assert models_together(task, accuracy, {"d": certain, "e": untrained}, split.val) == ["d"]  # far less accurate
    numbers = replace(task, objective=Regression(), targets=task.targets.double()[:, None])
    r2, exact = Regression().metric("r2"), task.targets.double()[:, None]
    found = {"a": exact + 1, "b": exact - 1, "c": exact + 3}
    assert models_together(numbers, r2, found, split.val) == ["a", "b"]


def test_an_ensemble_is_taken_where_it_is_better_than_its_runs_are_on_average():
    """Two runs that are wrong about different nodes, and one that is wrong about most of them."""
    split = Split("public", None, torch.arange(9), torch.arange(9, 18), torch.arange(18, 30))
    task = replace(small_task(), fixed_splits=(split,))
    metric = task.objective.metrics[0]
    truth = torch.nn.functional.one_hot(task.targets, 3).double()

    def wrong_about(nodes, doubt):
        predicted = 0.9 * truth + 0.1 / 3
        predicted[nodes] = (1 - doubt) * truth[nodes].roll(1, dims=1) + doubt * truth[nodes]
        return predicted

    good, other, bad = wrong_about([9, 10], 0.45), wrong_about([11, 12], 0.45), wrong_about(list(range(9, 18)), 0.0)
    assert runs_together(task, metric, {0: good, 1: other, 2: bad}, split.val) == [0, 1]
    assert runs_together(task, metric, {0: good, 2: bad}, split.val) == [0]
    assert runs_together(task, metric, {4: good}, split.val) == [4]
    assert runs_together(task, metric, {0: good, 3: good}, split.val) == [0, 3]  # no better, and steadier
    untrained = torch.full_like(truth, 1 / 3)  # the clock cut it short: the mean is as good, its own scores are not
    assert runs_together(task, metric, {0: good, 5: untrained}, split.val) == [0]
