from dataclasses import replace

import pytest
import torch
import torch_geometric.nn as pyg

from graphjoule import fit
from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from graphjoule.nn import GCN, MODELS
from graphjoule.ops import fold_in, make_key
from graphjoule.tasks import Regression
from graphjoule.terms import Consistency, ConsistencySettings

from ..known_answers import known_task
from ..training import double_precision, make_batch, small_recipe, small_task


class Mean(torch.nn.Module):
    def forward(self, x, edge_index):
        return x.mean(dim=1)


EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def test_the_term_is_the_squared_distance_to_the_sharpened_mean_of_the_views():
    term = Consistency(GCN(3, 4, 2, num_layers=2), views=2, temperature=0.5, weight=3.0, warmup=10)
    seen = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]], requires_grad=True)
    target = torch.tensor([0.7**2, 0.3**2]) / (0.7**2 + 0.3**2)
    distance = ((0.9 - target[0]) ** 2 + (0.1 - target[1]) ** 2) / 2
    distance += ((0.5 - target[0]) ** 2 + (0.5 - target[1]) ** 2) / 2
    value, _ = term.joined(torch.tensor(5.0), seen)
    torch.testing.assert_close(value, 3.0 * 0.5 * distance)
    (grad,) = torch.autograd.grad(value, seen)  # the target has none
    torch.testing.assert_close(grad[1, 0], 3.0 * 0.5 * (torch.tensor([0.5, 0.5]) - target))
    assert term.joined(torch.tensor(0.0), seen)[0].item() == 0  # at the beginning of the warm-up
    torch.testing.assert_close(term.joined(torch.tensor(99.0), seen)[0], 3.0 * distance)
    state = term.updated(torch.zeros(2), seen, torch.tensor(7))
    assert state.tolist() == [7.0, 7.0]
    certain = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]])
    assert term.joined(torch.tensor(99.0), certain)[0].item() == 0  # and not NaN


@pytest.mark.parametrize("drop", ["nodes", "features"])
def test_a_view_drops_whole_nodes_or_columns_and_scales_up_the_others_of_sparse_features_too(drop):
    x = torch.rand(40, 30) * (torch.rand(40, 30) > 0.8)
    term = Consistency(GCN(30, 4, 2, num_layers=2), drop=drop, p=0.5)
    dense, sparse = (term.view(each, make_key(3)) for each in (x, SparseFeatures.from_dense(x)))
    torch.testing.assert_close(sparse.to_dense(), dense)
    along = 1 if drop == "nodes" else 0
    is_dropped = (dense == 0).all(dim=along) & (x != 0).any(dim=along)
    assert 5 < int(is_dropped.sum()) < 35
    kept = ~(dense == 0).all(dim=along)
    pick = (lambda t: t[kept]) if drop == "nodes" else (lambda t: t[:, kept])
    torch.testing.assert_close(pick(dense), 2 * pick(x))
    assert not term.view(x, make_key(4)).equal(dense)
    assert Consistency(GCN(30, 4, 2, num_layers=2), p=0.0).view(x, make_key(3)).equal(x)


@pytest.mark.parametrize(
    ("model", "sparse", "drop"),
    [*((model, True, "nodes") for model in MODELS), ("egnn", True, "features"), ("egnn", False, "nodes")],
)
def test_views_on_the_axis_of_runs_are_the_views_one_by_one_in_value_and_gradient(model, sparse, drop):
    settings = {"views": 2, "warmup": 0, "p": 0.4, "drop": drop}
    with double_precision():
        recipe = small_recipe(model, **{f"terms.consistency.{name}": value for name, value in settings.items()})
        found = []
        for seeds in ([4, 1], [4], [1]):  # together on the axis of runs, and as a module of one's own is trained
            batch = make_batch(recipe, small_task(sparse=sparse), seeds)
            if len(seeds) > 1:
                losses, gradient, _ = batch._gradient()
            else:
                batch.model.is_stackable = False
                batch._fill(batch.model, 0, batch.parameters, batch.buffers)
                losses, _ = batch._train_losses()
                gradient = batch._backward(losses.sum(), {name: each[0] for name, each in batch.buffers.items()})[None]
            found.append((losses.detach(), gradient))
        (together, gradient), *alone = found
        one_by_one, expected = map(torch.cat, zip(*alone, strict=True))
        torch.testing.assert_close(together, one_by_one, rtol=0, atol=1e-12)
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)
        assert gradient.abs().max() > 1e-4
        batch.terms["consistency"].weight = 0.0
        assert (batch._train_losses()[0] - together[1]).abs().min() > 1e-6  # the term is part of it


def test_a_view_of_a_training_is_what_its_key_says():
    with double_precision():
        recipe = small_recipe("gcn", **{"terms.consistency.views": 2, "dropout": 0.0})
        batch = make_batch(recipe, small_task(), [4])
        keys = fold_in(fold_in(batch.keys, batch.epoch.int())[:, None], torch.arange(2, dtype=torch.int32))
        term, model, index = batch.terms["consistency"], batch.current_model(0), batch.train_index[0]
        losses = [
            torch.nn.functional.cross_entropy(
                model(term.view(batch.features, key), batch.task.graph)[index], batch.task.targets[index]
            )
            for key in keys[0]
        ]
        assert abs(losses[0] - losses[1]) > 1e-4
        torch.testing.assert_close(batch._train_losses()[0][0], sum(losses) / 2)  # the weight is 0 in the first epoch


def test_the_statistics_of_batch_norms_are_the_mean_over_the_views():
    recipe = small_recipe("gcn", **{"terms.consistency.views": 3, "batch_norm": True})
    batch = make_batch(recipe, small_task(), [4, 1], epochs=2)
    assert batch.buffers["convs.0.norm.num_batches_tracked"].tolist() == [2, 2]
    assert batch.buffers["convs.0.norm.running_mean"].abs().max() > 1e-3


def test_with_the_energies_constrained_too_both_terms_are_there():
    recipe = small_recipe("gcn", 4, **{"terms.consistency.views": 2, "terms.energy.c_min": 0.5, "epochs": 3})
    result = fit(recipe, small_task(), [0, 1])
    assert [record.status for record in result.records] == ["done", "done"]


def test_a_model_of_the_users_own_computes_its_views_one_by_one_and_two_calls_agree():
    def network(task):
        return pyg.GCN(task.num_features, 8, num_layers=2, out_channels=task.out_channels, dropout=0.5)

    term = ConsistencySettings(views=2, warmup=0)
    runs = [fit(network, small_task(), [3], terms=[term], settings={"epochs": 3}).records[0] for _ in range(2)]
    plain = fit(network, small_task(), [3], settings={"epochs": 3}).records[0]
    assert runs[0].curve == runs[1].curve != plain.curve
    assert runs[0].recipe["terms"]["consistency"]["views"] == 2


def test_the_classes_of_whole_graphs_have_views_too():
    settings = {"epochs": 2, "terms.consistency.views": 2, "terms.consistency.warmup": 0}
    record = fit("gcn", known_task("classification", about_graphs=True), settings=settings).records[0]
    assert record.status == "done"


def test_in_a_loop_of_ones_own_the_term_calls_the_model():
    torch.manual_seed(0)
    model = pyg.GCN(3, 4, num_layers=2, out_channels=2)
    term = Consistency(model, views=3, warmup=10)
    scores, value = term(torch.rand(3, 3), EDGES, epoch=10)
    assert scores.shape == (3, 3, 2)
    value.backward()
    assert model.convs[0].lin.weight.grad.abs().max() > 0
    with pytest.raises(GraphjouleError, match="There are no scores yet"):
        term.value(torch.zeros(()))
    with pytest.raises(GraphjouleError, match=r"Mean returned \[3\]; consistency needs class scores"):
        Consistency(Mean())(torch.rand(3, 3), EDGES, epoch=10)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"views": 1}, "views is 1; it must be from 2 to 64"),
        ({"drop": "edges"}, "drop is 'edges'; the choices are: nodes, features"),
        ({"p": 1.0}, "p is 1.0"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"weight": -1.0}, "weight is -1.0"),
        ({"warmup": -1}, "warmup is -1"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(options, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        Consistency(GCN(3, 4, 2, num_layers=2), **options)


def test_what_has_no_classes_of_nodes_is_refused():
    numbers = replace(small_task(), objective=Regression(), targets=torch.rand(30))
    settings = {"terms.consistency.views": 2, "select_on": "loss"}
    with pytest.raises(
        GraphjouleError, match=r"`terms.consistency` compares classes, and the objective of 'small' is reg"
    ):
        fit(small_recipe(**settings), numbers)
    with pytest.raises(GraphjouleError, match=r"terms.consistency and train.clusters exclude each other"):
        small_recipe(**settings, **{"clusters.parts": 2})
    with pytest.raises(GraphjouleError, match=r"train.average and train.clusters exclude each other"):
        small_recipe(average=0.9, **{"clusters.parts": 2})


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["egnn", "wave", "gcnii", "appnp", "gcn"])
def test_a_captured_epoch_on_the_gpu_has_the_views_of_the_cpu(model):
    settings = {"terms.consistency.views": 4, "terms.consistency.warmup": 2, "epochs": 8, "label_smoothing": 0.1}
    recipe = small_recipe(model, 3, **settings, average=0.9)
    task = small_task(sparse=True)
    cpu, gpu = (fit(recipe, task, [0, 1, 2], device=device).records for device in ("cpu", "cuda"))
    for one, other in zip(cpu, gpu, strict=True):
        torch.testing.assert_close(
            torch.tensor(other.curve["train_loss"]), torch.tensor(one.curve["train_loss"]), rtol=1e-3, atol=1e-3
        )
