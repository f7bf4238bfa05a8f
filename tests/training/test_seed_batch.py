from dataclasses import replace

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS
from graphjoule.ops import make_key
from graphjoule.tasks import Classification
from graphjoule.terms import EnergyConstraint
from graphjoule.training.build import build_model
from graphjoule.training.recipe import load_recipe

from . import double_precision, largest_difference, make_batch, same_bits, small_recipe, small_task

EPOCHS = 4
BATCH_NORM = {
    "egnn": {"batch_norm": True, "encoder": "mlp"},
    # Without decay: the bias before a batch norm has no gradient but rounding, which Adam and decay amplify together.
    "gcn": {"batch_norm": True, "weight_decay": 0.0},
}


def trained(recipe, task, seeds, epochs=EPOCHS):
    return make_batch(recipe, task, seeds, epochs)


def assert_agree(a, run_a, b, run_b, atol):
    """One run in two programs: parameters, buffers and curve."""
    assert a.seeds[run_a] == b.seeds[run_b]
    assert largest_difference(a.current_model(run_a), b.current_model(run_b)) <= atol
    curves = a.curve[run_a, :EPOCHS], b.curve[run_b, :EPOCHS]
    torch.testing.assert_close(*curves, rtol=0, atol=10 * atol)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("model", ["egnn", "gcn"])
@pytest.mark.parametrize("split", ["public", "per-class-3-3"])
def test_a_seed_alone_and_the_same_seed_among_several_agree(model, split, sparse):
    task, recipe = small_task(sparse=sparse), small_recipe(model, split=split)
    together = trained(recipe, task, [5, 0, 3, 1])
    start = build_model(recipe, task, 3)
    assert largest_difference(together.current_model(2), start) > 1e-3  # it did train
    for run, seed in enumerate(together.seeds):
        assert_agree(together, run, trained(recipe, task, [seed]), 0, atol=1e-5)


@pytest.mark.parametrize("model", ["egnn", "gcn"])
def test_a_seed_alone_and_among_several_agree_with_batch_norm(model):
    with double_precision():
        task, recipe = small_task(), small_recipe(model, **BATCH_NORM[model])
        together = trained(recipe, task, [5, 0, 3])
        for run, seed in enumerate(together.seeds):
            alone = trained(recipe, task, [seed])
            assert_agree(together, run, alone, 0, atol=1e-9)
            assert alone.buffers["convs.0.norm.num_batches_tracked"].tolist() == [EPOCHS]
            assert alone.buffers["convs.0.norm.running_mean"].abs().max() > 1e-3  # the statistics were gathered


def test_a_run_is_the_same_whichever_neighbours_it_has_and_wherever_it_stands():
    task, recipe = small_task(), small_recipe()
    a, b = trained(recipe, task, [0, 1, 2]), trained(recipe, task, [7, 2, 9, 0])
    assert_agree(a, 2, b, 1, atol=1e-5)
    assert_agree(a, 0, b, 3, atol=1e-5)


def test_two_seeds_differ_in_parameters_dropout_and_split():
    task, recipe = small_task(), small_recipe(split="per-class-3-3")
    runs = make_batch(recipe, task, [0, 1])
    assert largest_difference(runs.current_model(0), runs.current_model(1)) > 0.1
    assert not runs.keys[0].equal(runs.keys[1])
    assert not runs.train_index[0].equal(runs.train_index[1])


def test_the_dropout_stream_is_the_seeds_own_and_new_in_every_epoch():
    task = small_task()
    recipe = small_recipe(lr=1e-30)  # parameters stay, so a loss can differ by its masks alone
    runs = trained(recipe, task, [4, 8])
    assert runs.keys.equal(make_key(torch.tensor([4, 8])))
    assert len(set(runs.curve[:, :EPOCHS, 0].flatten().tolist())) == 2 * EPOCHS
    without = trained(small_recipe(lr=1e-30, dropout=0.0, output_dropout=0.0), task, [4, 8])
    assert [len(set(row.tolist())) for row in without.curve[:, :EPOCHS, 0]] == [1, 1]


@pytest.mark.parametrize("model", ["egnn", "gcn"])
def test_the_same_seeds_train_to_the_same_bits(model):
    task, recipe = small_task(), small_recipe(model, batch_norm=True)
    a, b = trained(recipe, task, [0, 1]), trained(recipe, task, [0, 1])
    assert a.snapshot().keys() == b.snapshot().keys()
    assert all(value.equal(b.snapshot()[name]) or name == "curve" for name, value in a.snapshot().items())
    assert a.curve[:, :EPOCHS].equal(b.curve[:, :EPOCHS])


def test_the_global_generator_is_neither_read_nor_moved():
    task, recipe = small_task(), small_recipe()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = trained(recipe, task, [0])
    assert torch.get_rng_state().equal(before)
    torch.manual_seed(2)
    assert same_bits(a.current_model(0), trained(recipe, task, [0]).current_model(0))


def test_every_parameter_has_its_groups_decay_and_a_frozen_one_never_changes():
    task = small_task()
    recipe = small_recipe(
        **{"freeze_last_shift": True, "weight_decay.conv": 0.1, "weight_decay.dense": 0.2, "weight_decay.shift": 0.3}
    )
    runs = trained(recipe, task, [0])
    decay, lr = (
        {name: set(values.flatten().tolist()) for name, values in runs.layout.unflatten(flat).items()}
        for flat in (runs.weight_decay.double(), runs.lr.double())
    )
    rounded = {name: {round(value, 6) for value in values} for name, values in decay.items()}
    assert rounded["convs.0.weight"] == rounded["convs.1.weight"] == {0.1}
    assert rounded["encoder.first.weight"] == rounded["head.bias"] == {0.2}
    assert rounded["convs.0.activation.shift"] == {0.3}
    assert lr["convs.1.activation.shift"] == {0.0}
    assert {name for name, values in lr.items() if values == {0.0}} == {"convs.1.activation.shift"}
    start, now = (dict(m.named_parameters()) for m in (build_model(recipe, task, 0), runs.current_model(0)))
    assert [name for name in start if start[name].equal(now[name])] == ["convs.1.activation.shift"]


def test_features_are_normalised_where_the_recipe_says_so():
    task = small_task()
    assert small_recipe().data.normalize_features is False
    assert make_batch(small_recipe(), task, [0]).features is task.features
    scaled = make_batch(small_recipe(normalize_features=True), task, [0]).features
    torch.testing.assert_close(scaled, task.features / task.features.sum(dim=1, keepdim=True))


@pytest.mark.parametrize("model", ["egnn", "gcn"])
def test_a_restored_snapshot_goes_on_to_the_same_bits(model):
    task, recipe = small_task(), small_recipe(model, batch_norm=True, epochs=2 * EPOCHS)
    runs = trained(recipe, task, [0, 1, 2])
    snapshot = {name: value.clone() for name, value in runs.snapshot().items()}
    fresh = make_batch(recipe, task, [0, 1, 2])
    fresh.restore(snapshot)
    for _ in range(EPOCHS):
        runs.train_epoch()
        fresh.train_epoch()
    assert int(fresh.epoch) == 2 * EPOCHS
    assert all(value.equal(fresh.snapshot()[name]) for name, value in runs.snapshot().items())
    assert not snapshot["parameters"].equal(fresh.parameters)  # the snapshot is a copy: training left it alone


def test_runs_that_are_dropped_do_not_change_the_others():
    task, recipe = small_task(), small_recipe(epochs=2 * EPOCHS)
    all_runs, some = (trained(recipe, task, [0, 1, 2, 3]) for _ in range(2))
    some.keep([1, 3])
    assert some.seeds == [1, 3]
    for runs in (all_runs, some):
        for _ in range(EPOCHS):
            runs.train_epoch()
    for row, run in enumerate([1, 3]):
        assert largest_difference(some.current_model(row), all_runs.current_model(run)) <= 1e-5
        torch.testing.assert_close(some.curve[row], all_runs.curve[run], rtol=0, atol=1e-4)


def test_the_selected_model_is_the_one_of_the_best_epoch_buffers_included():
    task, recipe = small_task(), small_recipe("gcn", batch_norm=True, lr=0.1, epochs=20, select_on="accuracy")
    runs = make_batch(recipe, task, [0, 1, 2])
    kept = []
    for _ in range(recipe.train.epochs):
        runs.train_epoch()
        kept.append([runs.current_model(run) for run in range(3)])
    best = runs.selection.state["best_epoch"].tolist()
    assert min(best) < recipe.train.epochs - 1  # or the last model would do
    for run, epoch in enumerate(best):
        assert same_bits(runs.selected_model(run), kept[epoch][run])
        model = runs.selected_model(run).eval()
        assert runs.selected_output(run).equal(model(task.features, task.graph))


@pytest.mark.parametrize("split", ["public", "stratified-30-30"])
def test_weights_of_classes_are_each_runs_own_and_stay_with_it(split):
    labels = small_task().targets.clone()
    labels[1::3] = 0  # of class 1 nothing is left
    task = replace(small_task(labels=labels), objective=Classification(3, class_weights="balanced", focal_gamma=1.0))
    recipe = small_recipe(split=split, epochs=2 * EPOCHS, select_on="roc_auc")
    runs = trained(recipe, task, [0, 1, 2])
    for row, seed in enumerate([0, 1, 2]):
        counts = torch.bincount(task.targets[task.split(split, seed).train], minlength=3)
        expected = torch.where(counts > 0, counts.sum() / (2 * counts), 1.0)
        torch.testing.assert_close(runs.factors[row], expected)
    fresh = make_batch(recipe, task, [0, 1, 2])
    fresh.restore({name: value.clone() for name, value in runs.snapshot().items()})
    fresh.keep([2])
    runs.train_epoch()
    fresh.train_epoch()
    torch.testing.assert_close(fresh.curve[0, EPOCHS], runs.curve[2, EPOCHS], rtol=1e-4, atol=1e-5)
    assert_agree(runs, 1, trained(recipe, task, [1], EPOCHS + 1), 0, atol=1e-5)


# The baselines.

WITHOUT_NORM = {"resgcn": {"batch_norm": False}}  # see the comment on BATCH_NORM
BASELINES = [name for name in MODELS if name != "egnn"]
CELLS = {"cora": (2, 16, 64), "pubmed": (2, 16, 64), "physics": (2, 16, 32), "arxiv": (2, 16, 32)}


@pytest.mark.parametrize("model", BASELINES)
def test_a_seed_of_a_baseline_alone_and_among_several_agree(model):
    recipe = small_recipe(model, num_layers=3, lr=0.02, **WITHOUT_NORM.get(model, {}))
    together = trained(recipe, small_task(sparse=True), [3, 1, 2])
    for row, seed in enumerate([3, 1, 2]):
        alone = trained(recipe, small_task(sparse=True), [seed])
        torch.testing.assert_close(alone.curve[0, :EPOCHS], together.curve[row, :EPOCHS], rtol=1e-3, atol=1e-4)
        assert largest_difference(alone.current_model(0), together.current_model(row)) < 1e-3


@pytest.mark.parametrize("model", BASELINES)
@pytest.mark.parametrize("dataset", CELLS)
def test_the_recipe_of_every_cell_of_the_papers_tables_trains(model, dataset):
    task = small_task(sparse=True)
    for num_layers in CELLS[dataset]:
        recipe = load_recipe(model, dataset, num_layers, {"split": "public", "hidden_channels": 8, "epochs": 2})
        runs = make_batch(recipe, task, [0])
        before = runs.parameters.clone()
        runs.train_epoch()
        assert runs.curve[0, 0].isfinite().all(), num_layers
        assert not runs.parameters.equal(before), num_layers


# Terms.

AL = "augmented_lagrangian"


def constrained(model="gcn", num_layers=4, **overrides):
    return small_recipe(
        model, num_layers, **{"terms.energy.method": AL, "terms.energy.c_min": 0.9, "terms.energy.rho": 1.0} | overrides
    )


@pytest.mark.parametrize("model", MODELS)
def test_every_model_of_the_zoo_trains_the_same_alone_and_among_several(model):
    with double_precision():
        task, recipe = small_task(), constrained(model, **WITHOUT_NORM.get(model, {}))
        together = trained(recipe, task, [5, 0, 3])
        assert (together.states["energy"] >= 0).all()
        for row, seed in enumerate(together.seeds):
            alone = trained(recipe, task, [seed])
            # A bias before a PairNorm has no gradient but rounding, 1e-16, which Adam divides by its eps of 1e-8.
            assert largest_difference(together.current_model(row), alone.current_model(0)) <= 1e-7
            torch.testing.assert_close(together.states["energy"][row], alone.states["energy"][0], rtol=0, atol=1e-7)


def test_an_epoch_is_the_loop_that_anybody_would_write():
    """Loss, step and update by `EnergyConstraint` itself, with torch's Adam."""
    with double_precision():
        task, recipe = small_task(), constrained(dropout=0.0)
        runs = trained(recipe, task, [1], epochs=EPOCHS)
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
        torch.testing.assert_close(runs.states["energy"][0], constraint.multipliers)
        assert runs.states["energy"].max() > 0


def test_multipliers_move_in_the_epochs_that_are_due():
    runs = trained(constrained(**{"terms.energy.every": 3}), small_task(), [0, 1], epochs=2)
    assert not runs.states["energy"].any()
    runs.train_epoch()
    assert runs.states["energy"].any()
    before = runs.states["energy"].clone()
    runs.train_epoch()
    assert runs.states["energy"].equal(before)


def test_a_certified_network_has_weights_within_their_limits_after_every_step_and_alone_as_among_several():
    task = small_task()
    recipe = small_recipe("egnn", num_layers=3, certified=True, c_max=0.5, gamma=0.0, lr=0.2)
    together = make_batch(recipe, task, [5, 0, 3])
    for _ in range(4):
        together.train_epoch()
        for run in range(3):
            weights = [conv.weight for conv in together.current_model(run).convs]
            norms = [float(torch.linalg.matrix_norm(weight.detach(), ord=2)) for weight in weights]
            assert all(0.5 * limit < norm <= limit for norm, limit in zip(norms, [0.5**0.5, 1, 1], strict=True))
    assert largest_difference(make_batch(recipe, task, [0], 4).current_model(0), together.current_model(1)) <= 1e-4


def test_a_stopped_run_keeps_its_weights_to_the_bit_where_others_are_held():
    batch = make_batch(small_recipe("egnn", certified=True, lr=0.2), small_task(), [0, 1], 2)
    batch.selection.state["stopped"][0] = True
    before = batch.parameters.clone()
    batch.train_epoch()
    assert batch.parameters[0].equal(before[0])
    assert not batch.parameters[1].equal(before[1])


def test_a_stopped_run_keeps_its_multipliers():
    runs = trained(constrained(), small_task(), [0, 1])
    runs.selection.state["stopped"][0] = True
    before = runs.states["energy"].clone()
    runs.train_epoch()
    assert runs.states["energy"][0].equal(before[0])
    assert not runs.states["energy"][1].equal(before[1])


def test_a_restored_snapshot_goes_on_to_the_same_bits_whole_or_in_part():
    task, recipe = small_task(), constrained(epochs=2 * EPOCHS)
    runs = trained(recipe, task, [0, 1, 2])
    snapshot = {name: value.clone() for name, value in runs.snapshot().items()}
    assert snapshot["states.energy"].shape == (3, 2, 2)
    fresh = make_batch(recipe, task, [0, 1, 2])
    fresh.restore(snapshot)
    some = make_batch(recipe, task, [0, 1, 2])
    some.restore(snapshot)
    some.keep([2, 0])
    assert some.states["energy"].equal(snapshot["states.energy"][[2, 0]])
    for each in (runs, fresh, some):
        for _ in range(EPOCHS):
            each.train_epoch()
    assert all(value.equal(fresh.snapshot()[name]) for name, value in runs.snapshot().items())
    torch.testing.assert_close(some.states["energy"], runs.states["energy"][[2, 0]], rtol=1e-4, atol=1e-4)


def test_without_a_constraint_nothing_changes_and_nothing_is_saved():
    runs = trained(small_recipe("gcn"), small_task(), [0, 1, 2])
    assert "states.energy" not in runs.snapshot()
    runs.keep([1])
    runs.train_epoch()
    free = small_recipe("gcn")
    assert not any(key.startswith("terms") for key in {**free.settings(), **free.sources})
    assert free.fingerprint() != small_recipe("gcn", **{"terms.energy.method": "penalty"}).fingerprint()


def test_the_constraint_keeps_the_energies_that_training_would_lose():
    task = small_task()
    broken = {}
    for name, recipe in (
        ("free", small_recipe("gcn", 8, epochs=30, dropout=0.0, lr=0.01)),
        (
            "held",
            constrained(
                "gcn", 8, epochs=30, dropout=0.0, lr=0.01, **{"terms.energy.c_min": 0.5, "terms.energy.c_max": 2.0}
            ),
        ),
    ):
        runs = trained(recipe, task, [0, 1], epochs=30)
        broken[name] = 0
        for row in range(2):
            model = runs.current_model(row)
            with EnergyConstraint(model, task.graph, 0.5, 2.0, layers="convs.*") as constraint:
                model.eval()(task.features, task.graph)
            broken[name] += constraint.report().num_broken
    assert broken["held"] < broken["free"]


def test_the_average_of_the_weights_is_what_is_validated_and_kept_and_a_snapshot_has_it():
    task = small_task()
    batch = make_batch(small_recipe(average=0.5), task, [0, 1])
    plain = make_batch(small_recipe(), task, [0, 1])
    average = plain.parameters.clone()
    for epoch in range(1, 4):
        batch.train_epoch()
        plain.train_epoch()
        average = average.lerp(plain.parameters, 1 - min(0.5, (1 + epoch) / (10 + epoch)))
        torch.testing.assert_close(batch.parameters, plain.parameters)  # it changes no step
        torch.testing.assert_close(batch.averages, average)
    assert not batch.curve[:, :3, 1:].equal(plain.curve[:, :3, 1:])
    last = batch.selection.state["best_epoch"] == 2
    torch.testing.assert_close(batch.best_parameters[last], average[last])
    again = make_batch(small_recipe(average=0.5), task, [0, 1])
    again.restore(batch.snapshot())
    again.train_epoch()
    batch.train_epoch()
    assert again.averages.equal(batch.averages)
    assert again.curve.nan_to_num().equal(batch.curve.nan_to_num())


def test_batch_norms_have_the_momentum_that_the_recipe_says():
    task = small_task()
    own, in_step = (
        make_batch(small_recipe("resgcn", **given), task, [0, 1], 1) for given in ({}, {"norm_momentum": 1})
    )
    name = "convs.0.norm"  # torch's own momentum is a tenth, from a mean of 0 and a variance of 1
    torch.testing.assert_close(own.buffers[f"{name}.running_mean"], in_step.buffers[f"{name}.running_mean"] / 10)
    torch.testing.assert_close(
        own.buffers[f"{name}.running_var"], 0.9 + in_step.buffers[f"{name}.running_var"] / 10, atol=1e-5, rtol=1e-5
    )
    assert in_step.buffers[f"{name}.running_mean"].abs().max() > 1e-3
    with pytest.raises(GraphjouleError, match=r"norm_momentum is 0\.5, and gcn has no batch norm"):
        make_batch(small_recipe("gcn", norm_momentum=0.5), task, [0])
