"""What every model promises for every objective, of nodes and of graphs: one test for all of them."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch_geometric.nn import GraphSAGE

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit, mean_prediction
from graphjoule.nn import MODELS
from graphjoule.parallel.partition import write_partition
from graphjoule.tasks import Binary, Classification, MultiLabel, Pooling, Split, Task
from graphjoule.tasks.objective import OBJECTIVES
from graphjoule.tasks.task import ModelInput
from graphjoule.training.recipe import load_recipe
from tests.known_answers import NUM_GRAPHS, OBJECTIVES_OF, SIZE, known_task

SETTINGS = {"epochs": 4, "lr": 0.02, "weight_decay": 0.0}
OWN = "GraphSAGE of PyG"


def model_of(name):
    if name == OWN:
        return partial(GraphSAGE, hidden_channels=8, num_layers=2)
    return load_recipe(name, "known", 2, {"split": "default", "hidden_channels": 8})


def test_every_objective_has_a_task_with_known_answers():
    assert OBJECTIVES_OF.keys() == OBJECTIVES.keys()


@pytest.mark.parametrize("about_graphs", [False, True], ids=["nodes", "graphs"])
@pytest.mark.parametrize("objective", OBJECTIVES_OF)
@pytest.mark.parametrize("model", [*MODELS, OWN])
def test_every_model_trains_for_every_objective(model, objective, about_graphs):
    task = known_task(objective, about_graphs=about_graphs)
    options = {} if model == OWN else model_of(model).model.options
    off = {name: 0.0 for name in ("dropout", "output_dropout", "edge_dropout", "gamma") if name in options}
    result = fit(model_of(model), task, [0, 1], settings=SETTINGS | off)
    for record in result.records:
        assert (record.status, record.objective) == ("done", objective)
        assert min(record.curve["train_loss"][1:]) < record.curve["train_loss"][0]
        names = ["loss", *(metric.name for metric in task.objective.metrics)]
        assert list(record.val) == list(record.test) == names
        assert all(value is not None for value in record.test.values())
        assert list(record.curve) == ["train_loss", "val_loss", f"val_{task.objective.headline.name}"]
    recipe = load_recipe("gcn", "known", 2)
    predicted = mean_prediction(result.models, recipe, task.objective, ModelInput.of(task))
    assert predicted.shape == (NUM_GRAPHS * (1 if about_graphs else SIZE), task.objective.out_channels)
    if isinstance(task.objective, Classification):
        torch.testing.assert_close(predicted.sum(dim=1), torch.ones(len(predicted), dtype=torch.float64))
    if isinstance(task.objective, Classification | MultiLabel):
        assert 0 <= predicted.min() <= predicted.max() <= 1
    if objective == "ordinal":
        assert 0 <= predicted.min() <= predicted.max() <= 3


GOOD = {
    "classification": ("accuracy", 0.85),
    "binary": ("roc_auc", 0.95),
    "multilabel": ("micro_f1", 0.85),
    "regression": ("r2", 0.85),
    "ordinal": ("mae", -0.45),
}


def pooled(objective: str, how: str) -> Task:
    task = known_task(objective, about_graphs=True)
    return replace(task, pooling=Pooling(task.pooling.batch, how))


@pytest.mark.parametrize("how", [None, "mean", "sum", "max"])
@pytest.mark.parametrize("objective", GOOD)
def test_the_known_answer_is_found(objective, how):
    name, enough = GOOD[objective]
    task = known_task(objective) if how is None else pooled(objective, how)
    recipe = load_recipe("gcn", "known", 1, {"split": "default", "hidden_channels": 16, "dropout": 0.0})
    settings = {"epochs": 40, "lr": 0.1, "weight_decay": 0.0, "select_on": name}
    result = fit(recipe, task, [0], settings=settings)
    score = result.records[0].test[name]
    assert (score if task.objective.metric(name).is_higher_better else -score) > enough
    assert result.summary.metric.name == name
    assert result.summary.test_mean == score


@pytest.mark.parametrize("select_on", ["roc_auc", "average_precision", "macro_f1", "ece", "log_loss"])
@pytest.mark.parametrize("objective", ["classification", "binary", "multilabel"])
def test_any_metric_selects_the_epoch_in_which_it_is_best(objective, select_on):
    task = known_task(objective)
    result = fit(model_of("gcn"), task, [0, 1], settings=SETTINGS | {"select_on": select_on, "epochs": 8})
    metric = task.objective.metric(select_on)
    for record in result.records:
        curve = record.curve[f"val_{select_on}"]
        best = (max if metric.is_higher_better else min)(curve)
        assert record.selected_epoch == curve.index(best)
        assert record.val[select_on] == pytest.approx(best, rel=1e-5)
        assert record.metric == metric


def test_a_run_alone_and_among_others_is_scored_alike():
    task = known_task(
        "multilabel", about_graphs=True, objective=MultiLabel(3, class_weights="balanced", focal_gamma=1.0)
    )
    settings = SETTINGS | {"select_on": "roc_auc"}
    together = fit(model_of("gcn"), task, [0, 1, 2], settings=settings)
    alone = fit(model_of("gcn"), task, [1], settings=settings)
    assert alone.records[0].test == pytest.approx(together.records[1].test, rel=1e-4, abs=1e-5)
    assert alone.records[0].curve["train_loss"] == pytest.approx(together.records[1].curve["train_loss"], rel=1e-4)


def test_weights_and_the_focal_loss_come_from_the_recipe_and_change_the_training_alone():
    task = known_task("binary")
    plain, weighted, focal = (
        fit(model_of("gcn"), task, [0, 1], settings=SETTINGS | more).records[1]
        for more in ({}, {"class_weights": [1.0, 9.0]}, {"focal_gamma": 2.0})
    )
    assert weighted.recipe["train"]["class_weights"] == [1.0, 9.0]
    assert focal.recipe["train"]["focal_gamma"] == 2.0
    assert weighted.test["recall"] > plain.test["recall"] or weighted.test["recall"] == 1
    assert focal.curve["train_loss"][0] < plain.curve["train_loss"][0] < weighted.curve["train_loss"][0]
    assert plain.run_id != weighted.run_id != focal.run_id
    itself = known_task("binary", objective=Binary(class_weights=(1.0, 9.0)))
    assert fit(model_of("gcn"), itself, [1], settings=SETTINGS).records[0].test == pytest.approx(
        weighted.test, rel=1e-3
    )


@pytest.mark.parametrize(
    ("objective", "settings", "said"),
    [
        (
            "regression",
            {"class_weights": "balanced"},
            "`class_weights` is 'balanced', but it is for classes",
        ),
        ("ordinal", {"focal_gamma": 2.0}, "`focal_gamma` is 2.0, but it is for classes and labels"),
        ("binary", {"class_weights": [1.0, 2.0, 3.0]}, "expected 'balanced' or 2 numbers above 0, one per class"),
        ("binary", {"class_weights": "even"}, "`class_weights` is 'even'; expected balanced, or a list of numbers"),
        ("binary", {"focal_gamma": -1.0}, "focal_gamma = -1.0 cannot be used"),
        (
            "regression",
            {"select_on": "accuracy"},
            "`select_on` is 'accuracy'; for regression the choices are: loss",
        ),
    ],
)
def test_what_does_not_fit_an_objective_is_refused(objective, settings, said):
    with pytest.raises(GraphjouleError, match=said):
        fit(model_of("gcn"), known_task(objective), [0], settings=SETTINGS | settings)


def test_a_metric_that_the_validation_nodes_do_not_define_is_refused_before_training():
    task = known_task("binary")
    known, one = task.is_known.nonzero()[:, 0], (task.targets == 0).nonzero()[:, 0]
    rest = known[~torch.isin(known, one[:5])]
    split = Split("public", None, rest[::2], one[:5], rest[1::2])
    task = replace(task, fixed_splits=(split,), default_split="public")
    with pytest.raises(GraphjouleError, match=r"`select_on` is 'roc_auc', which needs validation nodes of both kinds"):
        fit(model_of("gcn"), task, [0], settings=SETTINGS | {"select_on": "roc_auc"})
    record = fit(model_of("gcn"), task, [0], settings=SETTINGS).records[0]
    assert record.val["roc_auc"] is None
    assert record.test["roc_auc"] is not None


def test_graphs_are_not_cut(tmp_path):
    task = known_task("binary", about_graphs=True)
    with pytest.raises(
        GraphjouleError, match="Task 'known' predicts graphs, and a part or a cluster of nodes may hold"
    ):
        fit(model_of("gcn"), task, [0], settings=SETTINGS | {"train.clusters.parts": 4})
    with pytest.raises(GraphjouleError, match="Task 'known' predicts graphs"):
        write_partition(task, 2, tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["mean", "sum", "max"])
@pytest.mark.parametrize("objective", OBJECTIVES_OF)
def test_graphs_and_areas_under_curves_train_on_a_gpu_as_on_a_cpu(objective, how):
    select_on = {"regression": "mae", "ordinal": "accuracy"}.get(objective, "roc_auc")
    task, settings = pooled(objective, how), SETTINGS | {"select_on": select_on, "dropout": 0.0}
    cpu, gpu = (fit(model_of("gcn"), task, [0, 1, 2], settings=settings, device=d).records for d in ("cpu", "cuda"))
    for a, b in zip(cpu, gpu, strict=True):
        assert b.curve["train_loss"] == pytest.approx(a.curve["train_loss"], rel=1e-2)
        assert b.curve[f"val_{select_on}"] == pytest.approx(a.curve[f"val_{select_on}"], abs=0.05)
