import pytest
import torch
from graphjoule.training.objective import build_model

from graphjoule.ops import make_key
from graphjoule.training.seed_batch import Runs

from . import double_precision, largest_difference, same_bits, small_recipe, small_task

EPOCHS = 6
BATCH_NORM = {
    "egnn": {"batch_norm": True, "encoder": "mlp"},
    # Without decay: the bias before a batch norm has no gradient but rounding, which Adam and decay amplify together.
    "gcn": {"batch_norm": True, "weight_decay": 0.0},
}


def make_runs(recipe, task, seeds, epochs=EPOCHS):
    """Runs of these seeds after some epochs."""
    seed_of_split = {seed: seed if recipe.data.split_seed is None else recipe.data.split_seed for seed in seeds}
    runs = Runs(recipe, task, seeds, [task.split(recipe.data.split, seed_of_split[seed]) for seed in seeds])
    for _ in range(epochs):
        runs.train_epoch()
    return runs


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
    together = make_runs(recipe, task, [5, 0, 3, 1])
    start = build_model(recipe, task, 3)
    assert largest_difference(together.current_model(2), start) > 1e-3  # it did train
    for run, seed in enumerate(together.seeds):
        assert_agree(together, run, make_runs(recipe, task, [seed]), 0, atol=1e-5)


@pytest.mark.parametrize("model", ["egnn", "gcn"])
def test_a_seed_alone_and_among_several_agree_with_batch_norm(model):
    with double_precision():
        task, recipe = small_task(), small_recipe(model, **BATCH_NORM[model])
        together = make_runs(recipe, task, [5, 0, 3])
        for run, seed in enumerate(together.seeds):
            alone = make_runs(recipe, task, [seed])
            assert_agree(together, run, alone, 0, atol=1e-9)
            assert alone.buffers["convs.0.norm.num_batches_tracked"].tolist() == [EPOCHS]
            assert alone.buffers["convs.0.norm.running_mean"].abs().max() > 1e-3  # the statistics were gathered


def test_a_run_is_the_same_whichever_neighbours_it_has_and_wherever_it_stands():
    task, recipe = small_task(), small_recipe()
    a, b = make_runs(recipe, task, [0, 1, 2]), make_runs(recipe, task, [7, 2, 9, 0])
    assert_agree(a, 2, b, 1, atol=1e-5)
    assert_agree(a, 0, b, 3, atol=1e-5)


def test_two_seeds_differ_in_parameters_dropout_and_split():
    task, recipe = small_task(), small_recipe(split="per-class-3-3")
    runs = make_runs(recipe, task, [0, 1], epochs=0)
    assert largest_difference(runs.current_model(0), runs.current_model(1)) > 0.1
    assert not runs.keys[0].equal(runs.keys[1])
    assert not runs.train_index[0].equal(runs.train_index[1])


def test_the_dropout_stream_is_the_seeds_own_and_new_in_every_epoch():
    task = small_task()
    recipe = small_recipe(lr=1e-30)  # parameters stay, so a loss can differ by its masks alone
    runs = make_runs(recipe, task, [4, 8])
    assert runs.keys.equal(make_key(torch.tensor([4, 8])))
    assert len(set(runs.curve[:, :EPOCHS, 0].flatten().tolist())) == 2 * EPOCHS
    without = make_runs(small_recipe(lr=1e-30, dropout=0.0, output_dropout=0.0), task, [4, 8])
    assert [len(set(row.tolist())) for row in without.curve[:, :EPOCHS, 0]] == [1, 1]


@pytest.mark.parametrize("model", ["egnn", "gcn"])
def test_the_same_seeds_train_to_the_same_bits(model):
    task, recipe = small_task(), small_recipe(model, batch_norm=True)
    a, b = make_runs(recipe, task, [0, 1]), make_runs(recipe, task, [0, 1])
    assert a.snapshot().keys() == b.snapshot().keys()
    assert all(value.equal(b.snapshot()[name]) or name == "curve" for name, value in a.snapshot().items())
    assert a.curve[:, :EPOCHS].equal(b.curve[:, :EPOCHS])


def test_the_global_generator_is_neither_read_nor_moved():
    task, recipe = small_task(), small_recipe()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = make_runs(recipe, task, [0])
    assert torch.get_rng_state().equal(before)
    torch.manual_seed(2)
    assert same_bits(a.current_model(0), make_runs(recipe, task, [0]).current_model(0))


def test_every_parameter_has_its_groups_decay_and_a_frozen_one_never_changes():
    task = small_task()
    recipe = small_recipe(
        **{"freeze_last_shift": True, "weight_decay.conv": 0.1, "weight_decay.dense": 0.2, "weight_decay.shift": 0.3}
    )
    runs = make_runs(recipe, task, [0])
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
    assert small_recipe().normalize_features is False
    assert make_runs(small_recipe(), task, [0], epochs=0).features is task.features
    scaled = make_runs(small_recipe(normalize_features=True), task, [0], epochs=0).features
    torch.testing.assert_close(scaled, task.features / task.features.sum(dim=1, keepdim=True))


@pytest.mark.parametrize("model", ["egnn", "gcn"])
def test_a_restored_snapshot_goes_on_to_the_same_bits(model):
    task, recipe = small_task(), small_recipe(model, batch_norm=True, epochs=2 * EPOCHS)
    runs = make_runs(recipe, task, [0, 1, 2])
    snapshot = {name: value.clone() for name, value in runs.snapshot().items()}
    fresh = make_runs(recipe, task, [0, 1, 2], epochs=0)
    fresh.restore(snapshot)
    for _ in range(EPOCHS):
        runs.train_epoch()
        fresh.train_epoch()
    assert int(fresh.epoch) == 2 * EPOCHS
    assert all(value.equal(fresh.snapshot()[name]) for name, value in runs.snapshot().items())
    assert not snapshot["parameters"].equal(fresh.parameters)  # the snapshot is a copy: training left it alone


def test_runs_that_are_dropped_do_not_change_the_others():
    task, recipe = small_task(), small_recipe(epochs=2 * EPOCHS)
    all_runs, some = (make_runs(recipe, task, [0, 1, 2, 3]) for _ in range(2))
    some.keep([1, 3])
    assert some.seeds == [1, 3]
    for runs in (all_runs, some):
        for _ in range(EPOCHS):
            runs.train_epoch()
    for row, run in enumerate([1, 3]):
        assert largest_difference(some.current_model(row), all_runs.current_model(run)) <= 1e-5
        torch.testing.assert_close(some.curve[row], all_runs.curve[run], rtol=0, atol=1e-4)


def test_the_selected_model_is_the_one_of_the_best_epoch_buffers_included():
    task, recipe = small_task(), small_recipe("gcn", batch_norm=True, lr=0.1, epochs=20, select_on="val_accuracy")
    runs = make_runs(recipe, task, [0, 1, 2], epochs=0)
    kept = []
    for _ in range(recipe.train.epochs):
        runs.train_epoch()
        kept.append([runs.current_model(run) for run in range(3)])
    best = runs.selection.state["best_epoch"].tolist()
    assert min(best) < recipe.train.epochs - 1  # or the last model would do
    for run, epoch in enumerate(best):
        assert same_bits(runs.selected_model(run), kept[epoch][run])
        model = runs.selected_model(run).eval()
        assert runs.selected_logits(run).equal(model(task.features, task.graph))
