import copy
import math
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from sklearn import metrics
from torch import nn
from torch_geometric.data import Data

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import FitResult, TrainedRuns, fit, load, mean_prediction, read_runs
from graphjoule.graph import Propagation
from graphjoule.graph.features import SparseFeatures, normalize_rows
from graphjoule.graph.relations import DirectedPropagation, MixedPropagation
from graphjoule.nn import GCN, MODELS
from graphjoule.ops import fold_in, make_key, propagate
from graphjoule.studies.retrain import BOUND, FIRST_EPOCHS
from graphjoule.tasks import Split, Task, load_task
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.task import ModelInput
from graphjoule.terms import EnergyConstraint, EnergySettings, OrthogonalSettings, Term
from graphjoule.training import TrainingInterrupted, load_model
from graphjoule.training.build import build_model, inner_network
from graphjoule.training.calibration import prediction_sets
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.saving import read_tensors, save_model
from graphjoule.training.settings import model_options
from tests.training import (
    PUBLIC,
    assert_same_training,
    double_precision,
    facts,
    largest_difference,
    same_bits,
    small_recipe,
    small_regression,
    small_task,
)
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
    trainings = [(recipe, seed) for seed in range(6) for recipe in recipes]

    def trained(training):
        return fit(training[0], task, [training[1]], device="cpu").models[0]

    def draw():
        while not is_over.is_set():
            torch.rand(100)

    expected = [trained(training) for training in trainings]
    other = threading.Thread(target=draw)
    other.start()
    try:
        with ThreadPoolExecutor(12) as threads:
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
    recipe, task = small_recipe(model, num_layers=3, epochs=3), small_task()
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


@pytest.mark.parametrize("seeds", [3, ["a"], [1.5]])
def test_seeds_that_are_no_whole_numbers_are_refused(tmp_path, seeds):
    refused(tmp_path, r"^seeds are .*; expected a list of whole numbers, such as range\(3\)", seeds=seeds)


def test_one_callback_that_is_no_list_is_refused(tmp_path):
    refused(tmp_path, "callbacks is a builtin_function_or_method; expected a list of objects", callbacks=print)


@pytest.mark.parametrize("task", [Data(x=torch.zeros(3, 7)), "digits"])
def test_what_is_no_task_is_refused(task):
    with pytest.raises(
        GraphjouleError, match=f"^The task is a {type(task).__name__}; expected a Task, such as Task.from"
    ):
        fit("gcn", task)


class _Sloppy(Term):
    def __init__(self, model, graph):
        pass


def sloppy(value):
    return type("Sloppy", (_Sloppy,), {"value": lambda self, state: value(state)})


@pytest.mark.parametrize(
    ("term", "match"),
    [
        (EnergySettings, r"terms has the class EnergySettings; expected settings: EnergySettings\(\)"),
        (lambda model: None, "cannot be called with the model and the graph: too many positional arguments"),
        (sloppy(lambda state: torch.ones(())), r"returned Tensor; expected one number and the state: \(value, state\)"),
        (sloppy(lambda state: (torch.ones(3), state)), r"returned a value of shape \[3\]; expected one number and"),
    ],
)
def test_terms_that_are_none_are_refused_with_a_sentence(term, match):
    with pytest.raises(GraphjouleError, match=match):
        fit(small_recipe("gcn"), small_task(), terms=[term])


@pytest.mark.parametrize("model", [small_recipe("gcn"), partial(pyg.GCN, hidden_channels=4, num_layers=2)])
def test_a_training_under_no_grad_is_the_same_training(model):
    expected = fit(model, small_task(), settings={"epochs": 2}).models[0]
    with torch.no_grad():
        assert same_bits(fit(model, small_task(), settings={"epochs": 2}).models[0], expected)


def test_features_of_another_dtype_than_the_model_are_a_sentence():
    task = replace(small_task(), features=small_task().features.double())
    with pytest.raises(GraphjouleError, match=r"features are torch.float64 and the parameters of GCN"):
        fit(partial(pyg.GCN, hidden_channels=4, num_layers=2), task)


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


def test_what_the_model_refuses_is_refused_before_the_folder_is_made(tmp_path):
    """Settings of our own networks are refused when the recipe is made, see tests/nn/test_table.py."""

    def build(task):
        raise GraphjouleError("width is 3; it must be even.")

    refused(tmp_path, "width is 3; it must be even", build)


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


@pytest.mark.parametrize("num_layers", [1, 2, 4])
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


# Numbers to predict.


def plain_regression(recipe, task, seed):
    """One run as a plain loop: targets in standard deviations of the training targets, torch's Adam, the best epoch."""
    split, model = task.split(), build_model(recipe, task, seed).model
    y = task.targets[:, None] if task.targets.dim() == 1 else task.targets
    center, scale = y[split.train].mean(dim=0), y[split.train].std(dim=0, correction=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=recipe.train.lr, weight_decay=5e-4)
    best = (math.inf,)
    for epoch in range(recipe.train.epochs):
        optimiser.zero_grad()
        output = model.train()(task.features, task.graph, key=fold_in(make_key(seed), epoch))
        distance = (output - (y - center) / scale)[split.train]
        loss = distance.square() if task.objective.error == "squared" else distance.abs()
        loss.mean().backward()
        optimiser.step()
        with torch.no_grad():
            predicted = center + scale * model.eval()(task.features, task.graph)
        val = float((((predicted - y) / scale)[split.val]).square().mean())
        if task.objective.error == "absolute":
            val = float((((predicted - y) / scale)[split.val]).abs().mean())
        if val < best[0]:
            best = val, epoch, predicted
    return best


@pytest.mark.parametrize("error", ["squared", "absolute"])
@pytest.mark.parametrize("num_targets", [1, 2])
def test_a_regression_trains_what_a_plain_loop_trains_and_its_scores_are_scikit_learns(num_targets, error):
    with double_precision():
        task = small_regression(num_targets=num_targets, error=error)
        recipe = small_recipe("gcn", epochs=30, lr=0.03, dropout=0.2)
        result = fit(recipe, task, [3, 0])
        for seed, record, model in zip([3, 0], result.records, result.models, strict=True):
            val, epoch, predicted = plain_regression(recipe, task, seed)
            assert (record.objective, record.selected_epoch) == ("regression", epoch)
            assert record.val["loss"] == pytest.approx(val, rel=1e-6)
            torch.testing.assert_close(model(task.features, task.graph), predicted, rtol=1e-9, atol=1e-9)
            for part, scores in (("val", record.val), ("test", record.test)):
                index = getattr(task.split(), part)
                pair = task.targets[index].numpy(), predicted[index].reshape(task.targets[index].shape).numpy()
                assert scores["r2"] == pytest.approx(metrics.r2_score(*pair), rel=1e-5)
                assert scores["mae"] == pytest.approx(metrics.mean_absolute_error(*pair), rel=1e-5)
                assert scores["rmse"] == pytest.approx(metrics.mean_squared_error(*pair) ** 0.5, rel=1e-5)
            assert tuple(record.curve) == ("train_loss", "val_loss", "val_r2")
            assert record.curve["train_loss"][-1] < 0.7 * record.curve["train_loss"][0]  # it did learn
        assert result.summary.metric.name == "r2"


def test_a_seed_of_a_regression_is_the_same_run_alone_and_among_others():
    task, recipe = small_regression(num_targets=2), small_recipe("gcn", epochs=12, lr=0.03)
    together = fit(recipe, task, [0, 1, 2])
    for seed, record, model in zip(range(3), together.records, together.models, strict=True):
        alone = fit(recipe, task, [seed])
        assert largest_difference(alone.models[0], model) <= 1e-4
        assert alone.records[0].val == pytest.approx(record.val, rel=1e-4)
        assert alone.records[0].run_id == record.run_id


@pytest.mark.parametrize(("factor", "shift"), [(1e6, 0.0), (1e-6, 0.0), (1.0, 1e7)])
@pytest.mark.parametrize("model", ["gcn", partial(pyg.GraphSAGE, hidden_channels=8, num_layers=2)], ids=["gcn", "pyg"])
def test_the_unit_of_the_targets_does_not_matter(model, factor, shift):
    base = small_regression()
    targets = base.targets.double()
    recipe = small_recipe(model, epochs=5) if isinstance(model, str) else model
    settings = {} if isinstance(model, str) else {"epochs": 5}
    first, other = (
        fit(recipe, replace(base, targets=values), [0, 1], settings=settings)
        for values in (targets, targets * factor + shift)
    )
    for a, b in zip(first.records, other.records, strict=True):
        assert a.curve["train_loss"] == pytest.approx(b.curve["train_loss"], rel=1e-5)
        assert a.selected_epoch == b.selected_epoch
        assert b.val["mae"] == pytest.approx(a.val["mae"] * factor, rel=1e-4)
        assert b.test["r2"] == pytest.approx(a.test["r2"], abs=1e-4)


def test_targets_that_nobody_knows_change_nothing():
    task, recipe = small_regression(), small_recipe(epochs=3)
    assert task.targets.isnan().sum() == 1
    known = replace(task, targets=task.targets.nan_to_num(123.0))
    a, b = fit(recipe, task), fit(recipe, known)
    assert facts(a.records[0]) | {"task_sha256": None} == facts(b.records[0]) | {"task_sha256": None}
    drawn = fit(small_recipe(epochs=1, split="per-class-5-5"), task).records[0]
    assert drawn.status == "done"
    assert 29 not in torch.cat([getattr(task.split("per-class-5-5", 0), part) for part in ("train", "val", "test")])


@pytest.mark.parametrize(
    ("select_on", "choose"), [("loss", min), ("mae", min), ("rmse", min), ("r2", max)], ids=lambda value: str(value)
)
def test_the_epoch_is_chosen_by_what_the_recipe_says_in_its_direction(select_on, choose):
    task = small_regression(num_targets=2)
    record = fit(small_recipe("gcn", epochs=15, lr=0.1, patience=15, select_on=select_on), task).records[0]
    curve = record.curve[f"val_{select_on}"]
    assert record.selected_epoch == curve.index(choose(curve))
    assert record.val[select_on] == pytest.approx(choose(curve), rel=1e-5)


def test_what_selects_must_be_a_score_of_the_task(tmp_path):
    said = "`select_on` is 'accuracy'; for regression the choices are: loss, mae, r2, rmse"
    refused(tmp_path, said, small_recipe(select_on="accuracy"), small_regression())
    refused(
        tmp_path, "`select_on` is 'test'; for classification the choices are: accuracy", small_recipe(select_on="test")
    )


def test_a_regression_goes_on_to_the_same_bits_and_loads(tmp_path):
    task, recipe = small_regression(num_targets=2), small_recipe(epochs=9)
    whole = fit(recipe, task, [0, 1, 2], out=tmp_path / "whole")
    stopped(recipe, task, [0, 1, 2], out=tmp_path / "run", epoch=4)
    again = fit(recipe, task, [0, 1, 2], out=tmp_path / "run", resume=True)
    assert [facts(r) for r in again.records] == [facts(r) for r in whole.records]
    assert_same_training(tmp_path / "run", tmp_path / "whole")
    for seed, model in zip(range(3), whole.models, strict=True):
        assert same_bits(load(tmp_path / "run", seed=seed), model)
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert f"Test r2 {whole.summary.metric.text(whole.summary.test_mean, whole.summary.test_std)}" in card


def stopped(model, task, seeds, *, epoch, **options):
    """A call that is asked to stop after some epochs, as by Ctrl-C."""
    seen = []
    with pytest.raises(TrainingInterrupted):
        fit(model, task, seeds, on_progress=seen.append, should_stop=lambda: len(seen) >= epoch, **options)


# Models of anybody's own.


class WithGraph(nn.Module):
    """Called with our operator; has everything that a module may have besides parameters."""

    def __init__(self, in_channels, out_channels, width=6):
        super().__init__()
        self.inside = nn.Linear(in_channels, width)
        self.norm = nn.BatchNorm1d(width)
        self.outside = nn.Linear(width, out_channels)
        self.drop = nn.Dropout(0.3)
        self.register_buffer("factor", torch.tensor(2.0), persistent=False)

    def forward(self, x, graph):
        h = self.norm(self.inside(self.drop(x)))
        return self.outside(F.dropout(self.factor * torch.relu(propagate(h, graph)), 0.2, self.training))


class Attention(nn.Module):
    """Draws inside functions of torch to which no generator can be handed."""

    def __init__(self):
        super().__init__()
        self.inside, self.outside = nn.Linear(7, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5)
        self.drop = nn.Dropout1d(0.3)

    def forward(self, x, edge_index):
        h = self.drop(torch.relu(self.inside(x)))
        h = h + self.attention(h, h, h)[0] + 0.1 * torch.randn_like(h)
        return self.outside(h)


class OpenSizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([pyg.GCNConv(-1, 8), pyg.GCNConv(-1, 3)])

    def forward(self, x, edge_index, edge_weight=None):
        h = self.convs[0](x, edge_index, edge_weight).relu()
        return self.convs[1](F.dropout(h, 0.5, self.training), edge_index, edge_weight)


OWN = {
    "GAT": partial(pyg.GAT, hidden_channels=8, num_layers=2, dropout=0.4, heads=2),
    "GraphSAGE": partial(pyg.GraphSAGE, hidden_channels=8, num_layers=3, dropout=0.2),
    "GCN": partial(pyg.GCN, hidden_channels=8, num_layers=2, dropout=0.5, norm="batch_norm"),
    "of the task": lambda task: pyg.GIN(task.num_features, 8, 2, task.out_channels, dropout=0.3),
    "of nothing": lambda: pyg.GCN(7, 8, 2, 3, dropout=0.3),
    "a class": WithGraph,
    "attention": Attention,
    "open sizes": OpenSizes,
}
QUICK = {"epochs": 4, "lr": 0.05, "patience": 3}
every_own_model = pytest.mark.parametrize("network", OWN.values(), ids=OWN)


@every_own_model
def test_seeds_one_after_the_other_are_each_alone_to_the_bit_and_no_global_number_is_drawn(network):
    task = small_task()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    both = fit(network, task, [3, 8], settings=QUICK)
    assert torch.get_rng_state().equal(before)
    torch.manual_seed(6)  # which must not matter
    for k, seed in enumerate([3, 8]):
        alone = fit(network, task, [seed], settings=QUICK)
        assert facts(alone.records[0]) == facts(both.records[k])
        assert same_bits(alone.models[0], both.models[k])
    assert largest_difference(*both.models) > 1e-3
    assert [record.runs_at_once for record in both.records] == [1, 1]
    assert {record.backend for record in both.records} == {"torch"}
    assert not any(module.training for model in both.models for module in model.modules())


@every_own_model
def test_a_model_of_ones_own_that_was_stopped_goes_on_to_the_same_bits(tmp_path, network):
    task = small_task()
    whole = fit(network, task, [0, 1], settings=QUICK, out=tmp_path / "whole")
    for epoch in (2, 5):  # within the first run, and after the first epoch of the second
        path = tmp_path / str(epoch)
        stopped(network, task, [0, 1], epoch=epoch, settings=QUICK, out=path)
        epochs = []
        result = fit(network, task, [0, 1], settings=QUICK, out=path, resume=True, on_progress=epochs.append)
        assert len(epochs) < sum(record.epochs_run for record in whole.records)
        assert_same_training(path, tmp_path / "whole")
        assert all(same_bits(a, b) for a, b in zip(result.models, whole.models, strict=True))


@pytest.mark.parametrize("name", ["GAT", "GCN", "a class", "attention"])
def test_a_model_of_ones_own_trains_on_clusters_too(name):
    settings = QUICK | {"clusters.parts": 4, "clusters.per_step": 2, "clusters.method": "blocks"}
    both, alone = (fit(OWN[name], small_task(), seeds, settings=settings) for seeds in ([0, 1], [1]))
    assert facts(both.records[1]) == facts(alone.records[0])
    assert same_bits(both.models[1], alone.models[0])


def test_a_model_of_ones_own_in_threads_is_the_same_model():
    task, network = small_task(), OWN["GAT"]
    expected = [fit(network, task, [seed], settings=QUICK).models[0] for seed in range(4)]
    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda seed: fit(network, task, [seed], settings=QUICK).models[0], range(4)))
    assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_model_of_pyg_trains_as_in_a_plain_loop(is_weighted):
    with double_precision():
        task = small_task()
        edges = task.graph.edge_index
        weight = torch.rand(30, 30, generator=torch.Generator().manual_seed(0))
        weight = (weight + weight.T)[edges[0], edges[1]] if is_weighted else None
        task = replace(task, graph=Propagation.from_edge_index(edges, weight, 30))
        network = partial(pyg.GCN, hidden_channels=8, num_layers=2)
        result = fit(network, task, [4], settings={"epochs": 6, "lr": 0.02, "weight_decay": 1e-3})
        torch.manual_seed(4)
        model = network(in_channels=7, out_channels=3)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=1e-3)
        for _ in range(6):
            optimiser.zero_grad()
            output = model(task.features, edges, edge_weight=weight)
            F.cross_entropy(output[PUBLIC.train], task.targets[PUBLIC.train]).backward()
            optimiser.step()
        assert result.records[0].selected_epoch == 5
        torch.testing.assert_close(
            result.models[0](task.features, edges, edge_weight=weight),
            model(task.features, edges, edge_weight=weight),
            rtol=1e-9,
            atol=1e-9,
        )


class Shared(nn.Module):
    """Uses one weight under two names, and one that its user has frozen."""

    def __init__(self):
        super().__init__()
        self.first, self.again = nn.Linear(7, 7), nn.Linear(7, 7)
        self.again.weight = self.first.weight
        self.head = nn.Linear(7, 3)
        self.head.bias.requires_grad_(False)

    def forward(self, x, edge_index):
        return self.head(self.again(torch.relu(self.first(x))))


def test_shared_weights_stay_shared_and_frozen_ones_frozen(tmp_path):
    task = small_task()
    result = fit(Shared, task, [0], settings=QUICK, out=tmp_path / "run")
    model = result.models[0]
    torch.manual_seed(0)
    start = Shared()
    assert model.again.weight is model.first.weight
    assert not model.first.weight.equal(start.first.weight)
    assert model.head.bias.equal(start.head.bias)
    loaded = load_model(tmp_path / "run" / "model-seed-0.safetensors", model=Shared())
    assert same_bits(loaded, model)
    right = loaded(task.features, task.graph.edge_index).argmax(dim=1) == task.targets
    assert result.records[0].test_score == pytest.approx(float(right[PUBLIC.test].double().mean()))


def test_a_record_says_which_model_it_was_and_another_one_is_another_run():
    task = small_task()
    settings = {"epochs": 1}
    record = fit(OWN["GAT"], task, settings=settings).records[0]
    assert (record.model, record.num_layers) == ("torch_geometric.nn.models.basic_gnn.GAT", 2)
    options = record.recipe["model"]["options"]
    assert {key: options[key] for key in ("dropout", "heads")} == {"dropout": 0.4, "heads": 2}
    assert fit(OWN["open sizes"], task, settings=settings).records[0].num_layers == 2
    others = [partial(OWN["GAT"], heads=4), partial(OWN["GAT"], dropout=0.5), OWN["GraphSAGE"], OWN["of nothing"]]
    ids = {record.run_id} | {fit(other, task, settings=settings).records[0].run_id for other in others}
    assert len(ids) == 5


def test_what_a_model_of_ones_own_left_is_loaded_and_predicts(tmp_path):
    for task, networks in ((small_task(), ("GAT", "a class")), (small_regression(), ("GAT", "a class"))):
        for name in networks:
            network, path = OWN[name], tmp_path / task.objective.name / name
            result = fit(network, task, [2, 3], settings=QUICK, out=path)
            built = network(in_channels=7, out_channels=task.out_channels)
            loaded = load_model(path / "model-seed-3.safetensors", model=built)
            assert same_bits(loaded, result.models[1])
            predicted = mean_prediction(
                [loaded], Recipe.from_fields(result.records[1].recipe), task.objective, ModelInput.of(task)
            )
            if task.objective.name == "regression":
                error = (predicted[:, 0] - task.targets)[task.split().test].abs().mean()
                assert float(error) == pytest.approx(result.records[1].test["mae"], rel=1e-5)
            with pytest.raises(GraphjouleError, match="is the user's own; pass a new one"):
                load(path)
            assert "from graphjoule.training import load_model" in (path / "MODEL_CARD.md").read_text()


@pytest.mark.parametrize("model", ["egnn", "gcn", "pairnorm"])
def test_a_class_of_ours_is_the_recipe_with_the_same_settings(model):
    task, network = small_task(), partial(MODELS[model], num_layers=3, hidden_channels=8, dropout=0.25)
    settings = {"lr": 0.02, "epochs": 6, "weight_decay": 1e-3, "patience": 6}
    by_class = fit(network, task, [0, 1, 2], settings=settings)
    defaults = {key: f.default for key, f in model_options(model).model_fields.items()} | {"dropout": 0.25}
    rest = {"split": "public", "normalize_features": False, "select_on": "loss", "hidden_channels": 8}
    by_recipe = fit(load_recipe(model, "small", 3, defaults | settings | rest), task, [0, 1, 2])
    assert [r.run_id for r in by_class.records] == [r.run_id for r in by_recipe.records]
    assert [r.curve for r in by_class.records] == [r.curve for r in by_recipe.records]
    assert all(same_bits(a, b) for a, b in zip(by_class.models, by_recipe.models, strict=True))
    assert {record.runs_at_once for record in by_class.records} == {3}


class TooWide(nn.Linear):
    def forward(self, x, edge_index):
        return super().forward(x)


class MixedDtypes(TooWide):
    def __init__(self):
        super().__init__(7, 3)
        self.other = nn.Parameter(torch.zeros(2, dtype=torch.float16))


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (TooWide(7, 3), "The model is a TooWide; expected a recipe, or a class or function that builds a module"),
        (3, "The model is a int; expected a recipe"),
        ("egn", '"egn" is not a model'),
        (pyg.GAT, "needs in_channels, hidden_channels, num_layers; expected a function of the task, or one with"),
        (lambda one, two: TooWide(7, 3), "needs one, two; expected a function of the task"),
        (dict, "builds no module; expected a class or function that does"),
        (lambda: 3, "returned int; expected a torch.nn.Module"),
        (lambda: TooWide(7, 4), r"TooWide returned \[30, 4\]; expected a tensor of shape \[30, 3\], a row per node"),
        (MixedDtypes, "have the dtypes torch.float16, torch.float32; expected one floating-point dtype"),
        (
            lambda: type("Bare", (nn.Module,), {"forward": lambda self, x, graph: x})(),
            "have the dtypes none; expected one",
        ),
        (GCN, "GCN needs num_layers; add it with functools.partial"),
        (partial(GCN, 5), "The options of GCN need their names"),
        (partial(GCN, num_layers=2, heads=3), "heads = 3 cannot be used: there is no such setting"),
        (partial(GCN, num_layers="2"), "num_layers = '2' cannot be used"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, model, match):
    refused(tmp_path, match, model)


def test_settings_of_a_model_of_ones_own_are_those_of_its_training(tmp_path):
    for settings in ({"hidden_channels": 3}, {"heads": 2}, {"model.heads": 2}):
        refused(tmp_path, "is not a setting of torch_geometric.nn.*GAT", OWN["GAT"], settings=settings)


# Terms.


def test_terms_of_a_call_are_those_of_the_recipe(tmp_path):
    task, seeds = small_task(), [0, 1]
    cases = [
        (EnergySettings(c_min=0.9, rho=1.0), {"terms.energy.c_min": 0.9, "terms.energy.rho": 1.0}),
        (EnergySettings(method="penalty", every=2), {"terms.energy.method": "penalty", "terms.energy.every": 2}),
        (OrthogonalSettings(gamma=3.0), {"terms.orthogonal.gamma": 3.0}),
    ]
    for term, overrides in cases:
        given = fit(small_recipe("gcn", 4), task, seeds, terms=[term])
        asked = fit(small_recipe("gcn", 4, **overrides), task, seeds)
        assert [r.run_id for r in given.records] == [r.run_id for r in asked.records]
        assert [r.curve for r in given.records] == [r.curve for r in asked.records]
        assert given.records[0].recipe["terms"] == asked.records[0].recipe["terms"]
        assert all(same_bits(a, b) for a, b in zip(given.models, asked.models, strict=True))
        assert not same_bits(given.models[0], fit(small_recipe("gcn", 4), task, seeds).models[0])
    refused(tmp_path, "The term energy is given twice", small_recipe("gcn", 4, **cases[0][1]), terms=[cases[0][0]])


class Pull(Term):
    """Pulls the first weight to zero, the harder the longer it is large: the state is how hard, one number per run."""

    def __init__(self, model, graph, step=0.1):
        self.weight, self.step = (lambda: next(model.parameters())), step
        assert graph.num_nodes == 30

    def initial(self):
        return torch.zeros(1)

    def value(self, state):
        size = self.weight().square().sum()
        return (state * size).sum(), size.detach()[None]

    def updated(self, state, seen, epoch):
        return state + self.step * seen


def sizes(result):
    return [float(next(inner_network(model).parameters()).detach().square().sum()) for model in result.models]


@pytest.mark.parametrize("model", [small_recipe("gcn", 3), OWN["GAT"], OWN["GCN"]], ids=["ours", "GAT", "GCN"])
def test_a_term_of_ones_own_with_a_state_trains_with_many_seeds_and_is_resumed(tmp_path, model):
    task, seeds, settings = small_task(), [0, 1], {"epochs": 8, "lr": 0.03}
    options = {"settings": settings, "terms": [partial(Pull, step=0.2)]}
    free = fit(model, task, seeds, settings=settings)
    held = fit(model, task, seeds, out=tmp_path / "whole", **options)
    assert all(b < a for a, b in zip(sizes(free), sizes(held), strict=True))
    for k, seed in enumerate(seeds):
        alone = fit(model, task, [seed], **options)
        assert largest_difference(alone.models[0], held.models[k]) <= 1e-5
    stopped(model, task, seeds, epoch=5, out=tmp_path / "run", **options)
    name = f"{__name__}.Pull"
    tensors, _ = read_tensors(tmp_path / "run" / "checkpoint.safetensors", "checkpoint")
    assert (tensors[f"states.{name}"] > 0).all()
    assert len(tensors[f"states.{name}"]) == len(tensors["seed"])
    fit(model, task, seeds, out=tmp_path / "run", resume=True, **options)
    assert_same_training(tmp_path / "run", tmp_path / "whole")
    assert held.records[0].recipe["terms"] == {name: {"step": 0.2}}
    for other, said in ([], r"other settings \(terms.*step: 0.2 -> not a setting\)"), ([Pull], r"step: 0.2 -> not"):
        with pytest.raises(GraphjouleError, match=said):
            fit(model, task, seeds, out=tmp_path / "run", resume=True, settings=settings, terms=other)


def test_a_state_stays_as_it_is_when_its_run_has_stopped_and_others_leave():
    recipe, task, seeds = small_recipe("gcn", 3, lr=0.1, patience=3, epochs=20), small_task(), range(4)
    together = fit(recipe, task, seeds, terms=[Pull])
    assert len({record.epochs_run for record in together.records}) > 1
    for seed in seeds:
        alone = fit(recipe, task, [seed], terms=[Pull])
        assert alone.records[0].epochs_run == together.records[seed].epochs_run
        assert largest_difference(alone.models[0], together.models[seed]) <= 1e-4


@pytest.mark.parametrize("kind", ["pyg", "regression"])
def test_an_energy_constraint_on_any_model_and_of_a_regression_is_the_loop_that_anybody_would_write(kind):
    with double_precision():
        task = small_task() if kind == "pyg" else small_regression()
        network: Any = partial(pyg.GCN, hidden_channels=8, num_layers=5)
        if kind == "regression":
            network = partial(GCN, hidden_channels=8, num_layers=5, dropout=0.0)
        term = EnergySettings(c_min=0.9, rho=1.0)
        settings = {"epochs": 6, "lr": 0.02, "weight_decay": 0.0}
        record = fit(network, task, [1], terms=[term], settings=settings).records[0]
        torch.manual_seed(1)
        model = network(in_channels=7, out_channels=task.out_channels)
        optimiser, index, losses = torch.optim.Adam(model.parameters(), lr=0.02), task.split().train, []
        y = task.targets[index]
        with EnergyConstraint(model, task.graph, 0.9, 1.0, layers="convs.*") as constraint:
            for _ in range(6):
                optimiser.zero_grad()
                output = model(task.features, task.graph.edge_index)[index]
                standard = (y - y.mean()) / y.std(correction=0) if kind == "regression" else None
                fits = F.cross_entropy(output, y) if standard is None else F.mse_loss(output[:, 0], standard)
                loss = fits + constraint()
                loss.backward()
                optimiser.step()
                constraint.update()
                losses.append(loss.item())
        assert constraint.multipliers.max() > 0
        assert record.curve["train_loss"] == pytest.approx(losses, rel=1e-5)


def test_two_functions_without_names_are_two_terms_and_no_function_is_none(tmp_path):
    task, recipe = small_task(), small_recipe("gcn", epochs=1)
    result = fit(recipe, task, terms=[lambda m, g: Pull(m, g, 0.1), lambda m, g: Pull(m, g, 0.2)])
    assert len(result.records[0].recipe["terms"]) == 2
    model = build_model(recipe, task, 0)
    refused(tmp_path, "terms has a Pull; expected settings such as", recipe, terms=[Pull(model, task.graph)])
    refused(tmp_path, "terms has a str; expected settings", recipe, terms=["energy"])
    refused(tmp_path, "lambda.* returned int; expected a Term", recipe, terms=[lambda m, g: 3])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ours", "GAT", "a class", "attention"])
@pytest.mark.parametrize("make", [small_task, small_regression])
def test_on_a_gpu_a_regression_and_a_model_of_ones_own_train_and_are_resumed(tmp_path, make, name):
    task = make()
    if name == "attention" and task.out_channels != 3:
        pytest.skip("it has three outputs")
    model = small_recipe("gcn") if name == "ours" else OWN[name]
    settings = {"epochs": 30, "lr": 0.02}
    before = torch.cuda.get_rng_state()
    whole = fit(model, task, [0, 1, 2], settings=settings, device="cuda")
    assert torch.cuda.get_rng_state().equal(before)
    stopped(model, task, [0, 1, 2], epoch=2, settings=settings, device="cuda", out=tmp_path / "run")
    again = fit(model, task, [0, 1, 2], settings=settings, device="cuda", out=tmp_path / "run", resume=True)
    for a, b in zip(whole.records, again.records, strict=True):
        assert a.status == "done"
        assert a.curve["train_loss"] == pytest.approx(b.curve["train_loss"], rel=1e-3, abs=1e-4)  # sums in any order
    if name == "ours":
        cpu = fit(model, task, [0, 1, 2], settings=settings, device="cpu")
        for a, b in zip(whole.records, cpu.records, strict=True):
            assert a.curve["train_loss"] == pytest.approx(b.curve["train_loss"], rel=1e-2, abs=1e-3)


# Trained models back from a folder or a file.

SEEDS, OBJECTIVE = [0, 1, 2], Classification(3)


@pytest.fixture(scope="module")
def task():
    return small_task()


@pytest.fixture(scope="module")
def trained(task, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    return fit(small_recipe(), task, SEEDS, out=path)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("normalize", [False, True])
def test_train_save_load_predict_gives_the_same_probabilities_to_the_bit(tmp_path, task, model, normalize):
    recipe = small_recipe(model, normalize_features=normalize, epochs=2)
    result = fit(recipe, task, [0, 4], out=tmp_path / "run")
    given = ModelInput.of(task)
    before = mean_prediction(result.models, recipe, OBJECTIVE, given)
    runs = read_runs(tmp_path / "run")
    assert list(runs.models) == [0, 4]
    assert runs.predict(given).equal(before)
    assert runs.data == task.facts()
    assert torch.allclose(before.sum(dim=1), torch.ones(task.num_nodes, dtype=torch.float64))


def test_the_mean_is_over_the_softmax_of_every_run_and_features_are_normalised_as_in_training(task):
    recipe = small_recipe(normalize_features=True)
    result = fit(recipe, task, [0, 1])
    with torch.no_grad():
        scores = [model(normalize_rows(task.features), task.graph) for model in result.models]
    expected = sum(score.double().softmax(dim=1) for score in scores) / 2
    assert torch.allclose(mean_prediction(result.models, recipe, OBJECTIVE, ModelInput.of(task)), expected, atol=1e-15)
    right = expected.argmax(dim=1)[task.split().val] == task.targets[task.split().val]
    assert right.dtype == torch.bool


def test_scores_that_are_not_finite_are_no_prediction(task):
    model = fit(small_recipe(), task, [0]).models[0]
    given = ModelInput.of(task)
    large = copy.deepcopy(model)
    for weight in large.parameters():
        weight.data.mul_(1e30)
    with pytest.raises(GraphjouleError, match=r"30 nodes of 30 are not finite.*weights or the features are so large"):
        mean_prediction([large], small_recipe(), OBJECTIVE, given)
    features = given.features.clone()
    features[3] = torch.nan
    with pytest.raises(GraphjouleError, match="not finite, so there is no prediction: the features are not finite"):
        mean_prediction([model], small_recipe(), OBJECTIVE, replace(given, features=features))
    broken = copy.deepcopy(model)
    name, weight = next(iter(broken.named_parameters()))
    weight.data.fill_(torch.nan)
    with pytest.raises(GraphjouleError, match=f"The scores of 30 nodes of 30 .*weights .*first is {name}.*blew up"):
        mean_prediction([model, broken], small_recipe(), OBJECTIVE, given)


def test_load_gives_the_run_that_validated_best_or_the_one_asked_for(trained):
    best = min(trained.records, key=lambda record: record.val["loss"]).seed
    assert same_bits(load(trained.folder), trained.models[best])
    for seed in SEEDS:
        assert same_bits(load(trained.folder, seed=seed), trained.models[seed])
        assert same_bits(load(RunFolder(trained.folder).model_path(seed)), trained.models[seed])
    assert not load(trained.folder).training


def test_selection_by_accuracy_is_by_accuracy(tmp_path, task):
    result = fit(small_recipe(select_on="accuracy"), task, SEEDS, out=tmp_path / "run")
    best = max(result.records, key=lambda record: (record.val_score, -record.seed)).seed
    assert same_bits(load(tmp_path / "run"), result.models[best])


def test_a_moved_folder_and_a_lone_file_are_enough(tmp_path, trained, task):
    shutil.copytree(trained.folder, tmp_path / "elsewhere")
    shutil.copy(trained.folder / "model-seed-1.safetensors", tmp_path / "model")
    given = ModelInput.of(task)
    expected = mean_prediction([trained.models[1]], small_recipe(), OBJECTIVE, given)
    assert read_runs(tmp_path / "elsewhere", seed=1).predict(given).equal(expected)
    alone = read_runs(tmp_path / "model")
    assert alone.predict(given).equal(expected)
    assert (alone.recipe, alone.data) == (small_recipe(), task.facts())


@pytest.mark.gpu
def test_a_model_trained_on_one_device_predicts_on_the_other(tmp_path, task):
    on_gpu = fit(small_recipe(), task, [0], device="cuda", out=tmp_path / "run")
    given = ModelInput.of(task)
    cpu, gpu = (read_runs(tmp_path / "run").predict(given, device) for device in ("cpu", "cuda"))
    assert next(load(tmp_path / "run", "cuda").parameters()).is_cuda
    assert torch.allclose(cpu, gpu, atol=1e-4)
    assert on_gpu.summary.n == 1


def test_what_cannot_be_loaded_is_a_sentence(tmp_path, trained, trap):
    cases = [
        (lambda: load(tmp_path / "no"), "There is no run"),
        (lambda: read_runs(tmp_path / "no"), "There is no run"),
        (lambda: read_runs(tmp_path), "holds no training"),
        (lambda: load(tmp_path), "holds no training"),
        (lambda: load(trained.folder, seed=9), "There is no finished run with seed 9 in .*; the seeds are: 0, 1, 2"),
        (lambda: load(trained.folder / "model-seed-1.safetensors", seed=1), "is one model; name its folder"),
        (lambda: load(trained.folder, "tpu"), "device is 'tpu'"),
        (lambda: mean_prediction([], small_recipe(), OBJECTIVE, ModelInput.of(small_task())), "There is no model"),
    ]
    for call, said in cases:
        with pytest.raises(GraphjouleError, match=said):
            call()
    torch.save(trap, tmp_path / "model.pt")
    with pytest.raises(GraphjouleError, match="is not a whole graphjoule model"):
        load(tmp_path / "model.pt")
    assert not trap.sprung.exists()


def test_a_folder_in_which_every_run_failed(tmp_path, task):
    fit(small_recipe(lr=1e30), task, [0], out=tmp_path / "run")
    with pytest.raises(GraphjouleError, match=r"No run in .* has finished"):
        load(tmp_path / "run")
    for call in (load, read_runs):
        with pytest.raises(
            GraphjouleError, match=r"model-seed-0.safetensors is the model of a run that failed \(seed 0"
        ):
            call(tmp_path / "run" / "model-seed-0.safetensors")


def test_a_model_file_that_says_its_run_failed_is_refused_anywhere(tmp_path, trained, task):
    save_model(tmp_path / "copy", trained.models[0], small_recipe(), seed=0, data=task.facts(), status="failed")
    for call in (load, read_runs):
        with pytest.raises(GraphjouleError, match="copy is the model of a run that failed"):
            call(tmp_path / "copy")


@pytest.mark.parametrize("num_targets", [1, 2])
def test_a_regression_predicts_the_mean_of_its_runs_in_the_unit_of_its_targets(tmp_path, num_targets):
    task = small_regression(num_targets=num_targets)
    result = fit(small_recipe("gcn"), task, [0, 1], out=tmp_path / "run")
    predicted = read_runs(tmp_path / "run").predict(ModelInput.of(task))
    with torch.no_grad():
        expected = sum(model(task.features, task.graph) for model in result.models) / 2
    assert predicted.shape == (30, num_targets)
    torch.testing.assert_close(predicted, expected, rtol=1e-12, atol=1e-12)
    assert 30 < float(predicted.mean()) < 60
    best = max(result.records, key=lambda record: -record.val["loss"]).seed
    assert same_bits(load(tmp_path / "run"), result.models[best])


@pytest.mark.parametrize("select_on", ["r2", "mae"])
def test_the_best_run_of_a_regression_is_best_in_the_right_direction(tmp_path, select_on):
    result = fit(small_recipe("gcn", select_on=select_on), small_regression(), SEEDS, out=tmp_path / "run")
    choose = max if select_on == "r2" else min
    best = choose(result.records, key=lambda record: record.val[select_on]).seed
    assert same_bits(load(tmp_path / "run"), result.models[best])


def test_what_is_promised_about_held_back_digits_holds(tmp_path, caplog):
    task, coverage, num_runs = load_task("digits"), 0.8, 16
    recipe = load_recipe("gcn", "digits", 2, {"epochs": 30, "hidden_channels": 32, "split": "stratified-10-60"})
    fit(recipe, task, seeds=range(num_runs), out=tmp_path / "run")
    runs = read_runs(tmp_path / "run")
    shares = {"scores": [], "sets": []}
    for seed, model in runs.models.items():
        test = task.split("stratified-10-60", seed).test
        alone = TrainedRuns(runs.recipe, runs.data, {seed: model}, {seed: runs.calibrations[seed]})
        plain, calibrated = (alone.predict(ModelInput.of(task), is_calibrated=value) for value in (False, True))
        assert plain.argmax(dim=1).equal(calibrated.argmax(dim=1))
        assert not torch.allclose(plain, calibrated)
        p, threshold, truth = plain[test], alone.threshold(coverage), task.targets[test][:, None]
        shares["scores"].append((1 - p.gather(1, truth) <= threshold).double().mean())
        shares["sets"].append(prediction_sets(task.objective, p, threshold).gather(1, truth).double().mean())
    scores, sets = (torch.stack(shares[name]) for name in ("scores", "sets"))
    error = float(scores.std()) / math.sqrt(num_runs)
    assert error < 0.02
    assert abs(float(scores.mean()) - coverage) < 2 * error
    assert (sets >= scores).all()
    assert "validation" not in caplog.text  # with 178 of them nothing is to be said


def test_a_coverage_says_where_it_does_not_hold(tmp_path, caplog):
    task = small_task()
    fit(small_recipe(epochs=2), task, out=tmp_path / "run")
    runs = read_runs(tmp_path / "run")
    split = runs.recipe.data.split
    runs.threshold(0.5)
    assert "validation nodes a coverage of 0.5 has a standard error of" in caplog.text
    assert (f"the split {split} has as many validation nodes of every class" in caplog.text) == split.startswith("per")
    with pytest.raises(GraphjouleError, match=r"coverage is 1\.5; it must be between 0 and 1"):
        runs.threshold(1.5)
    older = TrainedRuns(runs.recipe, runs.data, runs.models)
    for call in (lambda: older.threshold(0.9), lambda: older.predict(ModelInput.of(task), is_calibrated=True)):
        with pytest.raises(GraphjouleError, match="The model of seed 0 was saved without its calibration"):
            call()


def test_models_that_follow_directions_train_on_them_and_the_others_refuse():
    arrows = torch.tensor([[k, (k + step) % 20] for k in range(20) for step in (1, 2, 5)]).t()
    graph = DirectedPropagation.of(arrows)
    task = Task("arrows", torch.randn(20, 4), graph, torch.arange(20) % 2, Classification(2), (), "stratified-20-0")
    for name in MODELS:
        recipe = load_recipe(name, "arrows", 2, {"epochs": 2} | ({} if name == "sgc" else {"hidden_channels": 4}))
        if MODELS[name].needs_undirected:
            with pytest.raises(GraphjouleError, match="needs edges that count in both directions"):
                fit(recipe, task, device="cpu")
            with pytest.raises(GraphjouleError, match="needs edges that count in both directions"):
                MODELS[name](4, 4, 2, 2)(task.features, graph)
        else:
            assert fit(recipe, task, seeds=[0, 1], device="cpu").summary.n == 2
    types = replace(task, graph=MixedPropagation.of([graph.undirected, graph.undirected]))
    recipe = load_recipe("dropedge", "arrows", 2, {"epochs": 2})
    with pytest.raises(GraphjouleError, match="DropEdge needs one undirected graph"):
        fit(recipe, types, device="cpu")


# The same twice: what a record is worth.


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_on_one_kind_of_gpu_the_same_seeds_give_the_same_records_to_the_bit(name):
    task, recipe = load_task("digits"), load_recipe(name, "digits", 8, {"epochs": 60})
    first, second = (fit(recipe, task, range(3), device="cuda") for _ in range(2))
    for one, other in zip(first.records, second.records, strict=True):
        assert facts(one) == facts(other)  # curves and scores: a kernel that adds in any order shows here by its model


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_a_seed_of_the_gpu_repeated_on_the_cpu_agrees_until_rounding_grows(name):
    task, recipe = load_task("digits"), load_recipe(name, "digits", 8, {"epochs": FIRST_EPOCHS})
    (gpu,), (cpu,) = (fit(recipe, task, [0], device=device).records for device in ("cuda", "cpu"))
    assert gpu.curve["train_loss"] == pytest.approx(cpu.curve["train_loss"], rel=BOUND)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_rows_with_negative_features_are_not_divided_by_their_sums_in_silence(is_sparse, caplog):
    x = small_task().features
    x = x if not isinstance(x, SparseFeatures) else x.to_dense()
    for features, asked in ((x.abs(), True), (x - 0.5, False), (x - 0.5, True)):
        task = replace(small_task(), features=SparseFeatures.from_dense(features) if is_sparse else features)
        fit(small_recipe("gcn", 2), task, settings={"epochs": 1, "normalize_features": asked}, device="cpu")
        said = "negative features, and rows are divided by their sums" in caplog.text
        assert said == (asked and bool((features < 0).any()))


def test_a_model_file_under_the_name_of_another_is_refused(tmp_path):
    fit(small_recipe("gcn"), small_task(), (0, 1), out=tmp_path / "run")
    one, other = (tmp_path / "run" / f"model-seed-{seed}.safetensors" for seed in (0, 1))
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1]), other.write_bytes(contents[0])
    for seed in (0, None):
        with pytest.raises(
            GraphjouleError, match=r"model-seed-0\.safetensors is the model of seed 1, and not the one that"
        ):
            read_runs(tmp_path / "run", seed=seed)
    assert list(read_runs(one).models) == [1]
    fit(small_recipe("egnn"), small_task(), (0,), out=tmp_path / "other")
    one.write_bytes((tmp_path / "other" / one.name).read_bytes())
    with pytest.raises(GraphjouleError, match="is the model of egnn with other settings, and not the one that was"):
        read_runs(tmp_path / "run", seed=0)
