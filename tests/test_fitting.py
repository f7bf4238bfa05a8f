import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import FitResult, fit
from graphjoule.graph.features import normalize_rows
from graphjoule.nn import MODELS
from graphjoule.ops import fold_in, make_key
from graphjoule.tasks import Split, Task, load_task
from graphjoule.tasks.objective import Classification
from graphjoule.training.build import build_model
from graphjoule.training.recipe import load_recipe
from tests.training import PUBLIC, double_precision, facts, largest_difference, same_bits, small_recipe, small_task
from tests.training.test_seed_batch import constrained

STOPPING = {"lr": 0.1, "patience": 3, "epochs": 20}


def plain_training(recipe, task, seed):
    """One run as a plain PyTorch loop: the model's own forward, torch's Adam, early stopping by hand."""
    split = task.split(recipe.data.split, seed)
    model = build_model(recipe, task, seed)
    x = normalize_rows(task.features) if recipe.data.normalize_features else task.features
    parameters = dict(model.named_parameters())
    groups = [
        {"params": [parameters[name] for name in names], "weight_decay": recipe.train.weight_decay[group]}
        for group, names in model.parameter_groups().items()
        if group != "frozen"
    ]
    optimiser = torch.optim.Adam(groups, lr=recipe.train.lr)
    run = SimpleNamespace(curve=[], best=math.inf, selected_epoch=None)
    for epoch in range(recipe.train.epochs):
        model.train()
        optimiser.zero_grad()
        scores = model(x, task.graph, key=fold_in(make_key(seed), epoch))
        loss = F.cross_entropy(scores[split.train], task.targets[split.train]) + model.penalty()
        loss.backward()
        optimiser.step()
        model.eval()
        with torch.no_grad():
            scores = model(x, task.graph)
        val_loss = F.cross_entropy(scores[split.val], task.targets[split.val]).item()
        right = scores.argmax(dim=1) == task.targets
        val_accuracy = right[split.val].double().mean().item()
        run.curve.append((loss.item(), val_loss, val_accuracy))
        score = val_loss if recipe.train.select_on == "loss" else -val_accuracy
        if score < run.best:
            run.best, run.selected_epoch, run.val_loss, run.val_score = score, epoch, val_loss, val_accuracy
            run.test_score = right[split.test].double().mean().item()
            run.state = {name: value.clone() for name, value in model.state_dict().items()}
        if epoch - run.selected_epoch >= recipe.train.patience:
            break
    return run


@pytest.mark.parametrize(
    "recipe",
    [
        small_recipe(**STOPPING),
        small_recipe("gcn", **STOPPING, select_on="accuracy"),
        small_recipe(batch_norm=True, encoder="mlp", freeze_last_shift=True, lr=0.03, patience=4),
        small_recipe(
            split="per-class-2-4", normalize_features=True, activation="relu", weight_init="glorot", gamma=0.1
        ),
    ],
    ids=["egnn", "gcn", "batch norm", "ablation"],
)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_fit_trains_what_a_plain_pytorch_loop_trains(recipe, sparse):
    with double_precision():
        task, seeds = small_task(sparse=sparse), [3, 0, 8]
        result = fit(recipe, task, seeds)
        for seed, record, model in zip(seeds, result.records, result.models, strict=True):
            plain = plain_training(recipe, task, seed)
            assert (record.selected_epoch, record.epochs_run) == (plain.selected_epoch, len(plain.curve))
            curve = torch.tensor(list(record.curve.values())).T
            torch.testing.assert_close(curve, torch.tensor(plain.curve), rtol=1e-5, atol=1e-6)  # six digits are kept
            assert record.val["loss"] == pytest.approx(plain.val_loss, rel=1e-9)
            assert record.val_score == pytest.approx(plain.val_score, abs=1e-6)
            assert record.test_score == pytest.approx(plain.test_score, abs=1e-12)
            for name, value in model.state_dict().items():
                torch.testing.assert_close(value, plain.state[name], rtol=1e-7, atol=1e-9)


def test_in_single_precision_too():
    recipe, task = small_recipe("gcn", **STOPPING), small_task()
    plain, record = plain_training(recipe, task, 2), fit(recipe, task, [1, 2]).records[1]
    assert record.selected_epoch == plain.selected_epoch
    torch.testing.assert_close(
        torch.tensor(list(record.curve.values())).T, torch.tensor(plain.curve), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("model", ["egnn", "gcn"])
def test_the_same_call_gives_the_same_bits(model):
    recipe, task = small_recipe(model), small_task()
    a, b = fit(recipe, task, [0, 1, 2]), fit(recipe, task, [0, 1, 2])
    assert [facts(r) for r in a.records] == [facts(r) for r in b.records]
    assert all(same_bits(x, y) for x, y in zip(a.models, b.models, strict=True))


def test_a_seed_is_the_same_run_in_any_thread_while_others_train_and_draw():
    task, is_over = load_task("digits"), threading.Event()
    recipes = [load_recipe(model, "digits", 2, {"epochs": 1, "hidden_channels": 8}) for model in ("egnn", "gcn")]
    trainings = [(recipe, seed) for seed in range(24) for recipe in recipes]

    def trained(training):
        return fit(training[0], task, [training[1]], device="cpu").models[0]

    def draw():
        while not is_over.is_set():
            torch.rand(100)

    expected = [trained(training) for training in trainings]
    other = threading.Thread(target=draw)
    other.start()
    try:
        with ThreadPoolExecutor(16) as threads:
            found = list(threads.map(trained, trainings))
    finally:
        is_over.set()
        other.join()
    assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))


def test_a_seed_is_the_same_run_alone_among_others_and_in_groups():
    recipe, task = small_recipe("gcn", **STOPPING), small_task()
    calls = [
        fit(recipe, task, seeds, runs_at_once=n) for seeds, n in [([4], None), ([0, 1, 2, 3, 4, 5], 6), ([9, 4], 1)]
    ]
    found = [next((r, m) for r, m in zip(c.records, c.models, strict=True) if r.seed == 4) for c in calls]
    for record, model in found[1:]:
        assert largest_difference(model, found[0][1]) <= 1e-5
        assert (record.run_id, record.selected_epoch, record.epochs_run, record.test_score) == (
            found[0][0].run_id,
            found[0][0].selected_epoch,
            found[0][0].epochs_run,
            found[0][0].test_score,
        )
    assert [record.runs_at_once for record, _ in found] == [1, 6, 1]


def test_test_labels_change_nothing_but_the_test_accuracy():
    recipe, task = small_recipe("gcn", **STOPPING), small_task()
    labels = task.targets.clone()
    labels[PUBLIC.test] = (labels[PUBLIC.test] + 1) % 3
    a, b = fit(recipe, task, range(4)), fit(recipe, small_task(labels=labels), range(4))
    for left, right, x, y in zip(a.records, b.records, a.models, b.models, strict=True):
        hidden = {"test": None, "task_sha256": None}
        assert facts(left) | hidden == facts(right) | hidden
        assert same_bits(x, y)
    assert [r.test_score for r in a.records] != [r.test_score for r in b.records]


def test_nodes_outside_the_split_may_lack_a_label():
    labels = small_task().targets.clone()
    few = Split("few", None, PUBLIC.train, PUBLIC.val, PUBLIC.test[:4])
    labels[PUBLIC.test[4:]] = -1
    base = small_task()
    task = Task("small", base.features, base.graph, labels, Classification(3), fixed_splits=(few,), default_split="few")
    record = fit(small_recipe(split="few"), task).records[0]
    assert record.test_score in (0.0, 0.25, 0.5, 0.75, 1.0)


def test_every_seed_draws_a_split_of_its_own_unless_the_recipe_fixes_it():
    task = small_task()
    own = fit(small_recipe(split="per-class-2-4", epochs=1), task, [0, 1, 2]).records
    one = fit(small_recipe(split="per-class-2-4", split_seed=7, epochs=1), task, [0, 1, 2]).records
    assert [r.split_sha256 for r in own] == [task.split("per-class-2-4", seed).sha256 for seed in (0, 1, 2)]
    assert len({r.split_sha256 for r in own}) == 3
    assert {r.split_sha256 for r in one} == {task.split("per-class-2-4", 7).sha256}
    assert len({tuple(r.curve["train_loss"]) for r in one}) == 3  # still runs of their own


def test_the_models_are_those_of_the_selected_epoch_and_ready_to_predict():
    recipe, task = small_recipe("gcn", **STOPPING), small_task()
    result = fit(recipe, task, range(4))
    assert any(r.selected_epoch < r.epochs_run - 1 for r in result.records)
    for record, model in zip(result.records, result.models, strict=True):
        assert not model.training
        right = model(task.features, task.graph).argmax(dim=1) == task.targets
        assert record.val_score == pytest.approx(right[PUBLIC.val].double().mean().item(), abs=1e-6)
        assert record.test_score == pytest.approx(right[PUBLIC.test].double().mean().item(), abs=1e-12)


def test_records_come_in_the_order_of_the_seeds_with_what_the_run_was(tmp_path):
    recipe = small_recipe(epochs=2)
    result = fit(recipe, small_task(), [7, 0, 3], out=tmp_path / "run", runs_at_once=2)
    assert isinstance(result, FitResult)
    assert [r.seed for r in result.records] == [7, 0, 3]
    assert [r.runs_at_once for r in result.records] == [2, 2, 1]
    assert result.folder == tmp_path / "run"
    for record in result.records:
        assert record.recipe == recipe.model_dump()
        assert record.device == "cpu (1 thread)"
        assert record.seconds > 0
        assert record.peak_bytes > 2**24
        assert (record.epochs_run, [len(values) for values in record.curve.values()]) == (2, [2, 2, 2])


def test_progress_speaks_of_the_group_that_trains():
    seen = []
    fit(small_recipe(epochs=2), small_task(), [0, 1, 2], runs_at_once=2, on_progress=seen.append)
    assert [(p.epoch, p.epochs, p.num_active, p.num_runs) for p in seen][::2] == [(1, 2, 2, 2), (1, 2, 1, 1)]


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fit(small_recipe(epochs=2), small_task()).folder is None
    assert list(tmp_path.iterdir()) == []


def test_the_seconds_of_all_runs_add_up_to_the_time_the_training_took():
    start = time.perf_counter()
    result = fit(small_recipe(epochs=10), small_task(), range(4), runs_at_once=2)
    took = time.perf_counter() - start
    assert 0.05 * took < result.summary.seconds <= took


@pytest.mark.parametrize("model", [name for name in MODELS if name != "egnn"])
def test_a_training_repeats_to_the_bit(model):
    recipe, task = small_recipe(model, num_layers=3), small_task()
    first, again = (fit(recipe, task, [0, 1], device="cpu") for _ in range(2))
    assert [facts(record) for record in first.records] == [facts(record) for record in again.records]
    assert all(same_bits(a, b) for a, b in zip(first.models, again.models, strict=True))


# What cannot be trained: a sentence, and nothing is left behind.


def refused(tmp_path, match, recipe=None, task=None, seeds=(0,), **options):
    recipe, task = recipe or small_recipe(), task or small_task()
    with pytest.raises(GraphjouleError, match=match) as caught:
        fit(recipe, task, seeds, out=tmp_path / "run", **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seeds", [[], [1, 1], [0, -1], [2**32], [2**64]])
def test_seeds_that_are_no_set_of_numbers_are_refused(tmp_path, seeds):
    refused(tmp_path, r"^seeds are \[.*\]; expected one or more different numbers", seeds=seeds)


def test_a_split_without_test_nodes_trains_and_has_no_test_accuracy():
    with_test, without = (
        fit(small_recipe(split=split, split_seed=0), small_task()) for split in ("stratified-50-10", "stratified-50-0")
    )
    assert with_test.records[0].test_score is not None
    assert (without.records[0].status, without.records[0].test_score) == ("done", None)
    assert without.summary.test_mean is None
    assert without.summary.val_mean == without.records[0].val_score


def test_the_default_split_is_the_tasks_own_and_the_record_says_which():
    result = fit(small_recipe(split="default"), small_task())
    assert result.records[0].split == result.records[0].recipe["data"]["split"] == "public"
    assert facts(result.records[0])["run_id"] == fit(small_recipe(), small_task()).records[0].run_id


def test_a_split_without_train_or_validation_nodes_is_refused(tmp_path):
    refused(tmp_path, "The train part of split 'per-class-0-4' is empty", small_recipe(split="per-class-0-4"))
    refused(tmp_path, "'per-class-4-0' of small has no validation nodes", small_recipe(split="per-class-4-0"))
    refused(tmp_path, "Class 0 has 10 labelled nodes", small_recipe(split="per-class-9-9"))
    refused(tmp_path, "Unknown split 'pubic' for task 'small'", small_recipe(split="pubic"))


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ({"c_min": -0.1}, "c_min is -0.1; it must be in"),
        ({"c_min": 1.5}, "c_min is 1.5"),
        ({"beta": 0.3}, "beta is 0.3; it must be between 0 and c_min, which is 0.2"),
        ({"gamma": -1.0}, "gamma is -1.0"),
        ({"c_max": 0.0}, "c_max is 0.0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_settings_that_the_model_refuses_are_refused_before_the_folder_is_made(tmp_path, overrides, match):
    refused(tmp_path, match, small_recipe(**overrides))


@pytest.mark.parametrize("device", ["tpu", "meta", "cpuu", "mps"])
def test_an_unknown_device_is_refused(tmp_path, device):
    refused(tmp_path, f"^device is '{device}'; choose one of auto, cpu, cuda", device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_where_there_is_none_is_refused(tmp_path, device):
    refused(tmp_path, "torch finds no CUDA device here; choose cpu or auto", device=device)


@pytest.mark.parametrize("options", [{"runs_at_once": 0}, {"runs_at_once": -1}, {"checkpoint_every": 0}])
def test_counts_below_one_are_refused(tmp_path, options):
    refused(tmp_path, r"^\w+ is -?\d; it must be at least 1", **options)


# Terms of a recipe.


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
    assert whole.records[0].recipe["terms"]["energy"]["c_min"] == 0.9
    with pytest.raises(GraphjouleError, match=r"terms.energy.c_min: 0.9 -> 0.8"):
        fit(constrained(**{"terms.energy.c_min": 0.8}), task, [0], device="cpu", out=tmp_path / "a", resume=True)


@pytest.mark.parametrize("num_layers", [1, 2, 8])
@pytest.mark.parametrize("model", MODELS)
def test_an_orthogonal_penalty_that_no_depth_could_use_is_refused_and_nothing_is_written(tmp_path, model, num_layers):
    recipe = small_recipe(model, num_layers, **{"terms.orthogonal.gamma": 2.0}, epochs=1)
    has_weights = any(weight.dim() == 2 for weight in build_model(recipe, small_task(), 0).convs.parameters())
    if has_weights:  # a GCN of two layers has none that is square, but is the same model as a deeper one
        fit(recipe, small_task(), [0], device="cpu", out=tmp_path / "run")
        return
    said = rf"terms.orthogonal.gamma is 2.0, but no graph layer of {MODELS[model].__name__} has a square weight"
    with pytest.raises(GraphjouleError, match=said):
        fit(recipe, small_task(), [0], device="cpu", out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_penalty_on_weights_draws_no_random_number():
    state = torch.get_rng_state()
    fit(small_recipe("gcn", 2, **{"terms.orthogonal.gamma": 2.0}, epochs=1), small_task(), [0], device="cpu")
    assert torch.get_rng_state().equal(state)


def test_a_recipe_can_ask_for_the_orthogonal_penalty_alone_which_on_egnn_is_its_own_gamma():
    task = small_task()
    own = small_recipe("egnn", gamma=3.0, epochs=5)
    asked = small_recipe("egnn", gamma=0.0, **{"terms.orthogonal.gamma": 3.0}, epochs=5)
    results = [fit(recipe, task, [0, 1], device="cpu") for recipe in (own, asked)]
    for a, b in zip(*(result.records for result in results), strict=True):
        assert a.curve["train_loss"] == pytest.approx(b.curve["train_loss"], rel=1e-5)
    assert small_recipe("gcn").fingerprint() != small_recipe("gcn", **{"terms.orthogonal.gamma": 1.0}).fingerprint()
    assert "terms.orthogonal.gamma" not in {**small_recipe("gcn").settings(), **small_recipe("gcn").sources}
