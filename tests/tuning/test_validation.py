"""The search cannot read a test label: there is none where it looks."""

from dataclasses import replace

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.tasks import Split, load_task
from graphjoule.tasks.objective import Regression
from graphjoule.training.recipe import load_recipe
from graphjoule.tuning import hide_test, parse_ranges, tune
from tests.training import PUBLIC, small_recipe, small_task

RANGES = parse_ranges(["lr=1e-3..1e-1:log", "dropout=0..0.5"])


def test_no_test_node_and_no_label_that_only_a_test_node_has():
    seen = hide_test(small_task(), small_recipe(), [0, 1])
    split = seen.split("public", 1)
    assert split.train.equal(PUBLIC.train)
    assert split.val.equal(PUBLIC.val)
    assert split.test.numel() == 0
    assert (seen.targets[PUBLIC.test] == -1).all()
    known = torch.cat([PUBLIC.train, PUBLIC.val])
    assert seen.targets[known].equal(small_task().targets[known])


def test_training_by_validation_is_the_same_without_the_test_nodes():
    recipe = small_recipe()
    whole = fit(recipe, small_task(), [0, 1], device="cpu")
    seen = fit(recipe, hide_test(small_task(), recipe, [0, 1]), [0, 1], device="cpu")
    assert [r.curve for r in seen.records] == [r.curve for r in whole.records]
    assert [r.val for r in seen.records] == [r.val for r in whole.records]
    assert [r.test_score for r in seen.records] == [None, None]
    assert all(r.test_score is not None for r in whole.records)


@pytest.mark.parametrize("poison", [0, -1])
def test_poisoned_test_labels_change_nothing_about_a_search(poison):
    labels = small_task().targets.clone()
    labels[PUBLIC.test] = poison
    without = replace(PUBLIC, test=PUBLIC.test[:0])
    poisoned = replace(small_task(), targets=labels, fixed_splits=(PUBLIC if poison >= 0 else without,))
    options = {"trials": 12, "seeds": [0], "device": "cpu"}
    clean = tune(small_recipe(epochs=2), small_task(), RANGES, **options)
    other = tune(small_recipe(epochs=2), poisoned, RANGES, **options)
    facts = [(row.params, row.value, row.metrics) for row in clean.rows]
    assert [(row.params, row.value, row.metrics) for row in other.rows] == facts
    assert len({str(params) for params, *_ in facts}) == 12


def test_poisoned_validation_labels_do_change_it():
    labels = small_task().targets.clone()
    labels[PUBLIC.val] = 0
    options = {"trials": 2, "seeds": [0], "device": "cpu"}
    clean = tune(small_recipe(epochs=3), small_task(), RANGES, **options)
    other = tune(small_recipe(epochs=3), replace(small_task(), targets=labels), RANGES, **options)
    assert [row.value for row in other.rows] != [row.value for row in clean.rows]


def test_a_split_per_seed_keeps_the_nodes_that_any_of_them_trains_or_validates_on():
    task, recipe = load_task("digits"), load_recipe("egnn", "digits", 2)
    seen = hide_test(task, recipe, [3, 7])
    used = torch.zeros_like(task.targets, dtype=torch.bool)
    for seed in (3, 7):
        whole, split = task.split(recipe.data.split, seed), seen.split(recipe.data.split, seed)
        assert (split.train.equal(whole.train), split.val.equal(whole.val), split.test.numel()) == (True, True, 0)
        used[whole.train] = used[whole.val] = True
    assert (seen.targets >= 0).equal(used)
    assert seen.split(None, 3).train.equal(seen.split(recipe.data.split, 3).train)


def test_one_split_for_all_seeds():
    task, recipe = load_task("digits"), load_recipe("egnn", "digits", 2, {"split_seed": 5, "epochs": 1})
    records = fit(recipe, hide_test(task, recipe, [0, 1]), [0, 1], device="cpu").records
    assert len({record.split_sha256 for record in records}) == 1


def test_several_public_splits():
    halves = torch.arange(30).view(2, 15)
    fixed = tuple(Split(f"public-{i}", None, h[:5], h[5:10], h[10:]) for i, h in enumerate(halves))
    task = replace(small_task(), fixed_splits=fixed)
    seen = hide_test(task, small_recipe(), [0, 1, 2])
    assert [seen.split("public", seed).train[0].item() for seed in (0, 1, 2)] == [0, 15, 0]
    only = hide_test(task, small_recipe(), [1])
    assert (only.targets[:15] == -1).all()


def test_the_split_is_one_of_those_it_was_made_for():
    seen = hide_test(small_task(), small_recipe(), [0])
    for name, seed in (("per-class-1-1", 0), ("public", 4)):
        with pytest.raises(GraphjouleError, match="This view of small has the split 'public' of the seeds 0"):
            seen.split(name, seed)


def test_it_moves_between_devices_and_dtypes():
    seen = hide_test(small_task(), small_recipe(), [0]).to("cpu", torch.float64)
    assert seen.features.dtype == torch.float64
    assert seen.split("public", 0).test.numel() == 0


def test_whether_there_were_test_nodes_is_known():
    assert hide_test(small_task(), small_recipe(), [0]).has_test
    untested = replace(small_task(), fixed_splits=(replace(PUBLIC, test=PUBLIC.test[:0]),))
    assert not hide_test(untested, small_recipe(), [0]).has_test


def test_numbers_are_hidden_and_searched_as_classes_are():
    values = small_task().targets.float() + 0.5
    task = replace(small_task(), targets=values, objective=Regression())
    seen = hide_test(task, small_recipe(), [0])
    assert seen.targets[PUBLIC.test].isnan().all()
    assert seen.targets[PUBLIC.train].equal(values[PUBLIC.train])
    for select_on, direction in (("loss", "minimize"), ("r2", "maximize"), ("mae", "minimize")):
        found = tune(
            small_recipe("gcn", epochs=2, select_on=select_on), task, RANGES, trials=2, seeds=[0], device="cpu"
        )
        assert found.direction == direction
        assert found.best.value == found.best.metrics[f"val_{select_on}"]
        assert set(found.best.metrics) == {"val_loss", "val_r2", "val_mae", "val_rmse"}
