import json
import math
import multiprocessing
import os
import signal
import statistics
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.tasks import load_task
from graphjoule.training import TrainingInterrupted
from graphjoule.training.recipe import load_recipe
from graphjoule.tuning import (
    Evaluation,
    Search,
    StorageRef,
    hide_test,
    parse_ranges,
    read_outcome,
    tune,
    with_settings,
    work,
)
from graphjoule.tuning.queue import TrialQueue, attempts_of
from graphjoule.tuning.search import Team, evaluate, run_team
from tests.training import PUBLIC, small_recipe, small_task

optuna = pytest.importorskip("optuna")

RANGES = parse_ranges(["lr=1e-3..1e-1:log", "dropout=0..0.5"])
SWAPPED = replace(PUBLIC, train=PUBLIC.val, val=PUBLIC.train)
OPTIONS = {"seeds": [0], "device": "cpu"}


def facts(outcome):
    return [(row.slot, row.params, row.value, row.failure) for row in outcome.rows]


def quadratic(params, on_progress):
    value = (math.log10(params["lr"]) + 2) ** 2 + params["dropout"]
    return Evaluation(value, None, {"metrics": {"val_loss": [value]}, "epochs_run": [1], "seconds": 0.0})


def quick_queue(storage=None, num_trials=25, seed=0):
    return TrialQueue(StorageRef(storage, "a").open({}, "minimize"), num_trials, RANGES, seed)


def test_a_trial_is_worth_the_mean_of_its_seeds_as_fit_trains_them():
    recipe = small_recipe()
    found = tune(recipe, small_task(), RANGES, trials=2, seeds=[3, 7], device="cpu")
    for row in found.rows:
        records = fit(with_settings(recipe, row.params), small_task(), [3, 7], device="cpu").records
        assert row.value == row.metrics["val_loss"] == pytest.approx(sum(record.val["loss"] for record in records) / 2)
        assert row.metrics["val_accuracy"] == pytest.approx(sum(record.val_score for record in records) / 2)


def test_the_first_trial_is_the_recipe_itself():
    found = tune(small_recipe(lr=0.02, dropout=0.3), small_task(), RANGES, trials=1, **OPTIONS)
    assert found.rows[0].params == {"lr": 0.02, "dropout": 0.3}
    assert found.best_recipe.settings() == small_recipe(lr=0.02, dropout=0.3).settings()


def test_select_on_says_what_is_better():
    for select_on, direction, pick in (("loss", "minimize", min), ("accuracy", "maximize", max)):
        recipe = small_recipe(select_on=select_on, epochs=3)
        found = tune(recipe, small_task(), RANGES, trials=5, **OPTIONS)
        assert found.direction == direction
        assert found.best.value == pick(row.value for row in found.rows)
        assert found.best.value == found.best.metrics[f"val_{select_on}"]


def test_the_same_seed_gives_the_same_search_and_another_another(tmp_path):
    first, second = (quick_queue(), quick_queue(str(tmp_path / "journal.log")))
    other = quick_queue(seed=1)
    for queue in (first, second, other):
        work(queue, quadratic)
    drawn = [[t[-1].params for t in attempts_of(q.storage.trials()).values()] for q in (first, second, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({str(params) for params in drawn[0]}) == 25  # nothing is repeated


def test_a_search_that_was_stopped_again_and_again_is_the_one_that_was_not(tmp_path):
    whole = quick_queue()
    work(whole, quadratic)
    calls = []

    def stopping(params, on_progress):
        calls.append(params)
        if len(calls) % 3 == 0:
            raise KeyboardInterrupt
        return quadratic(params, on_progress)

    queue = quick_queue(str(tmp_path / "journal.log"))
    while not queue.is_finished():
        with suppress(KeyboardInterrupt):
            work(quick_queue(str(tmp_path / "journal.log")), stopping)
    last = [tries[-1] for tries in attempts_of(queue.storage.trials()).values()]
    expected = [tries[-1] for tries in attempts_of(whole.storage.trials()).values()]
    assert [(t.params, t.value) for t in last] == [(t.params, t.value) for t in expected]
    assert len(calls) > 25


def test_it_learns():
    first, last = 0.0, 0.0
    for seed in range(3):
        queue = quick_queue(num_trials=40, seed=seed)
        work(queue, quadratic)
        values = [tries[-1].value for tries in attempts_of(queue.storage.trials()).values()]
        first, last = first + statistics.median(values[:10]), last + statistics.median(values[-10:])
    assert last < 0.6 * first


def test_a_finished_search_trains_nothing_and_more_trials_go_on(tmp_path, monkeypatch):
    arguments = {"storage": tmp_path / "journal.log", **OPTIONS}
    first = tune(small_recipe(), small_task(), RANGES, trials=3, **arguments)
    module = import_module("graphjoule.tuning.search")
    monkeypatch.setattr(module, "fit", None)
    assert facts(tune(small_recipe(), small_task(), RANGES, trials=3, **arguments)) == facts(first)
    monkeypatch.undo()
    more = tune(small_recipe(), small_task(), RANGES, trials=4, **arguments)
    assert facts(more)[:3] == facts(first)
    assert len(more.rows) == 4


def test_no_settings_are_tried_twice_and_the_search_ends_when_all_have_been(monkeypatch):
    calls = []
    module = import_module("graphjoule.tuning.search")
    monkeypatch.setattr(module, "fit", lambda *given, **options: calls.append(given) or fit(*given, **options))
    ranges = parse_ranges(["lr=0.1,0.01", "hidden_channels=4..6"])
    found = tune(small_recipe(epochs=2), small_task(), ranges, trials=9, **OPTIONS)
    assert len(calls) == len(found.rows) == 6
    assert {(row.params["lr"], row.params["hidden_channels"]) for row in found.rows} == {
        (lr, width) for lr in (0.1, 0.01) for width in (4, 5, 6)
    }
    assert {row.num_attempts for row in found.rows} == {1}  # what was drawn twice was never begun


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ranges": parse_ranges(["lr=1e-3..1:log"])}, "range of lr: 0.001..0.1:log -> 0.001..1.0:log"),
        ({"seeds": [0, 1]}, "seeds: [0] -> [0, 1]"),
        ({"seed": 1}, "seed of the search: 0 -> 1"),
        ({"recipe": small_recipe(beta=0.01)}, "model.beta: 0.1 -> 0.01"),
        ({"task": small_task(labels=small_task().targets.flip(0))}, "data: "),
        ({"task": replace(small_task(), fixed_splits=(SWAPPED,))}, "(splits: "),  # the same nodes are seen
    ],
)
def test_a_storage_goes_on_with_the_same_search_only(tmp_path, changed, said):
    given = {"recipe": small_recipe(), "task": small_task(), "ranges": RANGES, "trials": 1, **OPTIONS}
    given["storage"] = tmp_path / "journal.log"
    tune(**given)
    with pytest.raises(GraphjouleError) as caught:
        tune(**(given | changed))
    assert said in str(caught.value)


def test_settings_that_diverge_fail_and_the_others_go_on():
    recipe = small_recipe(dropout=0.3)
    found = tune(recipe, small_task(), parse_ranges(["lr=1e30,1e-2"]), trials=12, **OPTIONS)
    failed = [row for row in found.rows if row.value is None]
    assert {row.params["lr"] for row in failed} == {1e30}
    assert "the loss is not finite" in failed[0].failure
    assert found.best.params == {"lr": 1e-2}


def test_settings_that_do_not_go_together_fail_without_being_trained():
    ranges = parse_ranges(["c_min=0.02..0.2", "beta=0.01..0.2"])
    found = tune(small_recipe(epochs=2), small_task(), ranges, trials=12, **OPTIONS)
    failed = [row for row in found.rows if row.params["beta"] > row.params["c_min"]]
    assert failed
    assert all("it must be between 0 and c_min" in row.failure for row in failed)
    assert all(row.value is not None for row in found.rows if row not in failed)


def test_when_every_trial_fails_there_is_no_best():
    recipe = small_recipe(epochs=2)
    found = tune(recipe, small_task(), parse_ranges(["lr=1e30,1e31"]), trials=2, **OPTIONS)
    with pytest.raises(GraphjouleError, match="No trial has a result; the first failure: seed 0: the loss"):
        _ = found.best


def test_one_failed_seed_fails_the_trial(monkeypatch):
    search = Search(small_recipe(), RANGES, seeds=(0, 1))
    seen = hide_test(small_task(), search.recipe, search.seeds)
    module = import_module("graphjoule.tuning.search")

    def half_failed(*arguments, **options):
        result = fit(*arguments, **options)
        bad = result.records[1].model_copy(update={"failure": "seed 1: no.", "status": "failed", "val": {}})
        return type(result)([result.records[0], bad], result.models)

    monkeypatch.setattr(module, "fit", half_failed)
    found = evaluate(search, seen, "cpu", {"lr": 0.01}, lambda progress: None)
    assert (found.value, found.failure) == (None, "seed 1: no.")


def test_ctrl_c_puts_the_trial_back_at_once(monkeypatch):
    module = import_module("graphjoule.tuning.search")
    search = Search(small_recipe(), RANGES, seeds=(0,))
    seen = hide_test(small_task(), search.recipe, search.seeds)
    queue = search.queue(search.open(StorageRef(None, "a"), seen), 1)

    def stopped(*arguments, **options):
        raise TrainingInterrupted(3)

    monkeypatch.setattr(module, "fit", stopped)
    with pytest.raises(TrainingInterrupted):
        work(queue, partial(evaluate, search, seen, "cpu"))
    assert [trial.state.name for trial in queue.storage.trials()] == ["FAIL"]


def test_a_full_disk_ends_the_search_and_the_trial_is_put_back(monkeypatch):
    def full(params, on_progress):
        raise GraphjouleError("No room.") from OSError(28, "No space left on device")

    queue = quick_queue(num_trials=1)
    with pytest.raises(GraphjouleError, match="No room"):
        work(queue, full)
    assert [trial.state.name for trial in queue.storage.trials()] == ["FAIL"]


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("is_good", [True, False])
def test_a_worker_that_was_taken_for_dead_goes_on_and_its_result_is_not_counted(tmp_path, is_kept, is_good):
    queue = quick_queue(str(tmp_path / "journal.log") if is_kept else None, num_trials=2)
    calls = []

    def outlived(params, on_progress):
        calls.append(params)
        if len(calls) > 1:
            return quadratic(params, on_progress)
        queue.storage.end(queue.storage.trials()[0], "FAIL")  # as one does who has missed our pulse for long
        return quadratic(params, on_progress) if is_good else Evaluation(None, "it diverged.", {"seconds": 0.0})

    told = []
    work(queue, outlived, on_progress=told.append)
    trials = queue.storage.trials()
    assert [trial.state.name for trial in trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert not trials[0].user_attrs.keys() & {"metrics", "seconds", "failure"}
    assert calls[0] == calls[1] == trials[1].params
    assert [one.slot for one in told] == [0, 0, 0, 0, 1, 1]


def test_an_error_of_the_storage_beside_a_result_is_not_taken_for_that(monkeypatch):
    queue = quick_queue(num_trials=1)

    def unreachable(trial, name, value):
        raise ConnectionError("the database is gone")

    monkeypatch.setattr(optuna.trial.Trial, "set_user_attr", unreachable)
    with pytest.raises(GraphjouleError, match="Cannot use memory: the database is gone"):
        work(queue, quadratic)


def test_after_the_timeout_no_trial_is_begun():
    queue = quick_queue()
    work(queue, quadratic, timeout=0)
    assert queue.storage.trials() == []


def test_a_worker_whose_parent_is_gone_begins_no_trial():
    queue = quick_queue()
    work(queue, quadratic, parent=-1)
    assert queue.storage.trials() == []


def test_progress_tells_the_trial_and_the_epochs():
    told = []
    tune(small_recipe(epochs=2), small_task(), RANGES, trials=2, on_progress=told.append, **OPTIONS)
    assert [(one.slot, one.training and one.training.epoch) for one in told] == [
        *[(0, None), (0, 1), (0, 2), (0, None)],
        *[(1, None), (1, 1), (1, 2), (1, None)],
    ]


def test_the_models_own_ranges_by_default():
    found = tune(small_recipe("sgc", epochs=2), small_task(), trials=1, **OPTIONS)
    assert list(found.best.params) == ["lr", "weight_decay"]


def test_a_penalty_that_the_recipe_does_not_have_is_searched():
    recipe = small_recipe("gcn", num_layers=4, dropout=0.0, lr=0.03)
    ranges = parse_ranges(["terms.orthogonal.gamma=0.1..100:log"])
    found = tune(recipe, small_task(), ranges, trials=3, **OPTIONS)
    assert len({row.value for row in found.rows}) == 3
    gamma = found.best_recipe.terms["orthogonal"]["gamma"]
    assert gamma == found.best.params["terms.orthogonal.gamma"]
    assert 0.1 <= gamma <= 100


def test_at_least_one_trial():
    with pytest.raises(GraphjouleError, match="trials is 0"):
        tune(small_recipe(), small_task(), RANGES, trials=0)


def test_what_is_kept_of_a_trial_holds_no_test_accuracy(tmp_path):
    path = tmp_path / "journal.log"
    tune(small_recipe("sgc", epochs=2), small_task(), trials=2, storage=path, **OPTIONS)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [line["user_attr"] for line in lines if "user_attr" in line]
    (metrics,) = {tuple(attrs["metrics"]) for attrs in kept if "metrics" in attrs}
    names = {key for attrs in kept for key in attrs}
    assert metrics == ("val_loss", "val_accuracy")
    assert names >= {"metrics", "seconds"}
    assert not any("test" in key for key in (*names, *metrics))


# Several workers.


NUM_TRIALS = 6


@pytest.fixture
def team(tmp_path):
    """A small search, open here and ready to be sent to workers."""
    recipe = load_recipe("sgc", "digits", 2, {"epochs": 40})
    search = Search(recipe, parse_ranges(["lr=1e-3..1:log"]), seeds=(0,))
    ref = StorageRef(str(tmp_path / "journal.log"), "team")
    stored = search.open(ref, hide_test(load_task("digits"), recipe, [0]))
    return Team(partial(load_task, "digits"), search, ref, NUM_TRIALS, "cpu"), stored


def children():
    """Processes of this one by their numbers; other tests may have some of their own."""
    return {child.pid for child in multiprocessing.active_children()}


@pytest.mark.slow  # two processes import torch; test_queue.py kills workers that were forked
def test_the_others_take_over_what_a_killed_worker_had(team):
    workers, stored = team
    killed, others = [], children()

    def kill_one_that_works():
        if not killed and any(trial.state.name == "RUNNING" for trial in stored.trials()):
            killed.append(min(children() - others))
            os.kill(killed[0], signal.SIGKILL)

    codes = run_team(workers, 2, on_poll=kill_one_that_works)
    assert sorted(codes) == [-signal.SIGKILL, 0]
    outcome = read_outcome(stored, workers.search.recipe)
    assert [row.slot for row in outcome.rows] == list(range(NUM_TRIALS))
    assert sum(trial.state.name == "COMPLETE" for trial in stored.trials()) == NUM_TRIALS


def test_ctrl_c_ends_every_worker_and_nothing_is_left_running(team):
    workers, stored = team

    def stop():
        if any(trial.state.name == "RUNNING" for trial in stored.trials()):
            raise KeyboardInterrupt

    handler, others = signal.getsignal(signal.SIGTERM), children()
    with pytest.raises(KeyboardInterrupt):
        run_team(workers, 1, on_poll=stop)
    assert children() == others
    assert signal.getsignal(signal.SIGTERM) is handler
    queue, task = workers.search.queue(stored, NUM_TRIALS), hide_test(workers.load(), workers.search.recipe, [0])
    assert not queue.is_finished()
    work(queue, partial(evaluate, workers.search, task, "cpu"))  # the same command goes on
    assert sum(trial.state.name == "COMPLETE" for trial in stored.trials()) == NUM_TRIALS
