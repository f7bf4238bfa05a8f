import json

import pytest
import torch
from graphjoule.training.objective import build_model

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.nn import MODELS
from graphjoule.terms import EnergyConstraint
from graphjoule.training.recipe import Recipe, load_recipe, parse_overrides
from graphjoule.training.records import read_records
from tests.cli import run

from . import double_precision, facts, largest_difference, same_bits, small_recipe, small_task
from .test_seed_batch import make_runs

AL = "augmented_lagrangian"
EPOCHS = 6


def constrained(model="gcn", num_layers=4, **overrides):
    return small_recipe(model, num_layers, **{"constraint": AL, "c_min": 0.9, "constraint.rho": 1.0} | overrides)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_of_the_zoo_trains_the_same_alone_and_among_several(model):
    with double_precision():
        task, recipe = small_task(), constrained(model)
        together = make_runs(recipe, task, [5, 0, 3])
        assert (together.multipliers >= 0).all()
        for row, seed in enumerate(together.seeds):
            alone = make_runs(recipe, task, [seed])
            # A bias before a PairNorm has no gradient but rounding, 1e-16, which Adam divides by its eps of 1e-8.
            assert largest_difference(together.current_model(row), alone.current_model(0)) <= 1e-7
            torch.testing.assert_close(together.multipliers[row], alone.multipliers[0], rtol=0, atol=1e-7)


def test_an_epoch_is_the_loop_that_anybody_would_write():
    """Loss, step and update by `EnergyConstraint` itself, with torch's Adam."""
    with double_precision():
        task, recipe = small_task(), constrained(dropout=0.0)
        runs = make_runs(recipe, task, [1], epochs=EPOCHS)
        model = build_model(recipe, task, 1)
        split = task.split("public", 1)
        optimiser = torch.optim.Adam(
            model.parameters(), lr=recipe.train.lr, weight_decay=recipe.train.weight_decay["all"]
        )
        with EnergyConstraint(model, task.graph, 0.9, 1.0, layers="convs.*") as constraint:
            for _ in range(EPOCHS):
                logits = model(task.features, task.graph)[split.train]
                optimiser.zero_grad()
                (torch.nn.functional.cross_entropy(logits, task.targets[split.train]) + constraint()).backward()
                optimiser.step()
                constraint.update()
        assert largest_difference(runs.current_model(0), model) <= 1e-10
        torch.testing.assert_close(runs.multipliers[0], constraint.multipliers)
        assert runs.multipliers.max() > 0


def test_multipliers_move_in_the_epochs_that_are_due():
    runs = make_runs(constrained(every=3), small_task(), [0, 1], epochs=2)
    assert not runs.multipliers.any()
    runs.train_epoch()
    assert runs.multipliers.any()
    before = runs.multipliers.clone()
    runs.train_epoch()
    assert runs.multipliers.equal(before)


def test_a_stopped_run_keeps_its_multipliers():
    runs = make_runs(constrained(), small_task(), [0, 1])
    runs.selection.state["stopped"][0] = True
    before = runs.multipliers.clone()
    runs.train_epoch()
    assert runs.multipliers[0].equal(before[0])
    assert not runs.multipliers[1].equal(before[1])


def test_a_restored_snapshot_goes_on_to_the_same_bits_whole_or_in_part():
    task, recipe = small_task(), constrained(epochs=2 * EPOCHS)
    runs = make_runs(recipe, task, [0, 1, 2])
    snapshot = {name: value.clone() for name, value in runs.snapshot().items()}
    assert snapshot["multipliers"].shape == (3, 2, 2)
    fresh = make_runs(recipe, task, [0, 1, 2], epochs=0)
    fresh.restore(snapshot)
    some = make_runs(recipe, task, [0, 1, 2], epochs=0)
    some.restore(snapshot)
    some.keep([2, 0])
    assert some.multipliers.equal(snapshot["multipliers"][[2, 0]])
    for each in (runs, fresh, some):
        for _ in range(EPOCHS):
            each.train_epoch()
    assert all(value.equal(fresh.snapshot()[name]) for name, value in runs.snapshot().items())
    torch.testing.assert_close(some.multipliers, runs.multipliers[[2, 0]], rtol=1e-4, atol=1e-4)


def test_without_a_constraint_nothing_changes_and_nothing_is_saved():
    runs = make_runs(small_recipe("gcn"), small_task(), [0, 1, 2])
    assert "multipliers" not in runs.snapshot()
    runs.keep([1])
    runs.train_epoch()
    free = small_recipe("gcn")
    assert not any(key.startswith("constraint") for key in {**free.settings(), **free.sources})
    assert free.fingerprint() != small_recipe("gcn", constraint="penalty").fingerprint()


def test_validation_and_the_selected_model_are_free_of_hooks():
    result = fit(constrained(), small_task(), [0, 1], device="cpu")
    for model in result.models:
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_constrained_training_is_resumed_and_recorded(tmp_path):
    task, recipe = small_task(), constrained()
    whole = fit(recipe, task, [0, 1], device="cpu", out=tmp_path / "a")
    again = fit(recipe, task, [0, 1], device="cpu", out=tmp_path / "a", resume=True)
    assert [facts(r) for r in again.records] == [facts(r) for r in whole.records]
    assert all(same_bits(a, b) for a, b in zip(again.models, whole.models, strict=True))
    assert whole.records[0].recipe["constraint"]["c_min"] == 0.9
    with pytest.raises(GraphjouleError, match=r"constraint.c_min: 0.9 -> 0.8"):
        fit(constrained(c_min=0.8), task, [0], device="cpu", out=tmp_path / "a", resume=True)


def test_the_constraint_keeps_the_energies_that_training_would_lose():
    task = small_task()
    broken = {}
    for name, recipe in (
        ("free", small_recipe("gcn", 8, epochs=120, dropout=0.0, lr=0.01)),
        ("held", constrained("gcn", 8, epochs=120, dropout=0.0, lr=0.01, c_min=0.5, c_max=2.0)),
    ):
        runs = make_runs(recipe, task, [0, 1], epochs=120)
        broken[name] = 0
        for row in range(2):
            model = runs.current_model(row)
            with EnergyConstraint(model, task.graph, 0.5, 2.0, layers="convs.*") as constraint:
                model.eval()(task.features, task.graph)
            broken[name] += constraint.report().num_broken
    assert broken["held"] < broken["free"]


# The recipe.


def test_short_names_are_the_constraints_where_the_model_has_none_of_that_name():
    recipe = load_recipe("gcn", "cora", 16, parse_overrides([f"constraint={AL}", "c_min=0.3", "rho=2.0"]))
    assert recipe.constraint.model_dump() == {"method": AL, "c_min": 0.3, "c_max": 1.0, "rho": 2.0, "every": 1}
    assert recipe.sources["constraint.c_min"] == recipe.sources["constraint"] == "override"
    assert recipe.sources["constraint.c_max"] == "default"
    assert set(recipe.sources) == set(recipe.settings()) - {"model", "dataset", "num_layers"}
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_a_models_own_limits_are_the_constraints_unless_it_is_told_otherwise():
    recipe = load_recipe("egnn", "cora", 64, {"constraint": "penalty", "c_min": 0.3})
    assert recipe.model.options["c_min"] == recipe.constraint.c_min == 0.3
    assert recipe.constraint.c_max == recipe.model.options["c_max"]
    recipe = load_recipe("egnn", "cora", 64, {"constraint": "penalty", "c_min": 0.3, "constraint.c_min": 0.5})
    assert (recipe.model.options["c_min"], recipe.constraint.c_min) == (0.3, 0.5)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"c_min": 0.3}, '"c_min" is not a setting of gcn'),
        (
            {"constraint.c_min": 0.3},
            "constraint.c_min is set, but there is no constraint: choose one with --constraint.",
        ),
        ({"constraint": "lagrange"}, "lagrange"),
        ({"constraint": AL, "c_min": 1.5}, "c_min is 1.5; it must be between 0 and 1."),
        ({"constraint": AL, "c_min": "much"}, "much"),
        ({"constraint": AL, "every": 0}, "constraint.every = 0 cannot be used"),
        ({"constraint": AL, "c_min": 0.3, "constraint.c_min": 0.3}, "are the same setting: give one of them."),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(overrides, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        load_recipe("gcn", "cora", 16, overrides)


def test_the_command_of_the_issue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = "train --model gcn --layers 4 --constraint augmented_lagrangian --set c_min=0.2 --epochs 2 --json"
    done = run(*arguments.split(), "--device", "cpu")
    assert done.code == 0, done.err
    records = list(read_records(json.loads(done.out)["records"]))
    assert [record.recipe["constraint"]["c_min"] for record in records] == [0.2]
    assert run(*arguments.replace(AL, "lagrange").split()).code == 2


@pytest.mark.parametrize("num_layers", [1, 2, 8])
@pytest.mark.parametrize("model", MODELS)
def test_an_orthogonal_penalty_that_no_depth_could_use_is_refused_and_nothing_is_written(tmp_path, model, num_layers):
    recipe = small_recipe(model, num_layers, orthogonal_penalty=2.0, epochs=1)
    has_weights = any(weight.dim() == 2 for weight in build_model(recipe, small_task(), 0).convs.parameters())
    if has_weights:  # a GCN of two layers has none that is square, but is the same model as a deeper one
        fit(recipe, small_task(), [0], device="cpu", out=tmp_path / "run")
        return
    with pytest.raises(
        GraphjouleError, match=rf"orthogonal_penalty is 2.0, but a graph layer of {model} has no square"
    ):
        fit(recipe, small_task(), [0], device="cpu", out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_looking_for_weights_at_a_greater_depth_draws_no_random_number():
    state = torch.get_rng_state()
    fit(small_recipe("gcn", 2, orthogonal_penalty=2.0, epochs=1), small_task(), [0], device="cpu")
    assert torch.get_rng_state().equal(state)


def test_a_recipe_can_ask_for_the_orthogonal_penalty_alone_which_on_egnn_is_its_own_gamma():
    task = small_task()
    own = small_recipe("egnn", gamma=3.0, epochs=5)
    asked = small_recipe("egnn", gamma=0.0, orthogonal_penalty=3.0, epochs=5)
    results = [fit(recipe, task, [0, 1], device="cpu") for recipe in (own, asked)]
    for a, b in zip(*(result.records for result in results), strict=True):
        assert a.curve["train_loss"] == pytest.approx(b.curve["train_loss"], rel=1e-5)
    assert small_recipe("gcn").fingerprint() != small_recipe("gcn", orthogonal_penalty=1.0).fingerprint()
    assert "orthogonal_penalty" not in {**small_recipe("gcn").settings(), **small_recipe("gcn").sources}
