"""Two and four ranks against one process: the same losses, gradients and selected epochs, with dropout on."""

from dataclasses import replace

import pytest
import torch

from graphjoule.graph.features import SparseFeatures
from graphjoule.ops import make_key
from graphjoule.parallel import load_part, read_partition, write_partition
from graphjoule.tasks import Split, Task, load_task
from graphjoule.training.build import build_model
from graphjoule.training.recipe import load_recipe
from graphjoule.training.seed_batch import Runs
from reproduction.bench import CitationGraph

from .tasks import Sized, ring_task, small_recipe

EPOCHS = 20
MODELS = {
    "egnn": {"num_layers": 4},
    "gcn": {"num_layers": 3},
    "pairnorm": {"num_layers": 3},
    "dropedge": {"num_layers": 3, "edge_dropout": 0.4},
    "appnp": {"num_layers": 4, "edge_dropout": 0.5},
    "jknet": {"num_layers": 3},
    "gcnii": {"num_layers": 4},
    "sgc": {"num_layers": 3},
}


def runs_of(task: Task, recipe, seeds, splits) -> Runs:
    """Runs in the dtype of the task."""
    torch.set_default_dtype(task.graph.dtype)
    try:
        return Runs(recipe, task, seeds, splits)
    finally:
        torch.set_default_dtype(torch.float32)


def epochs_of(task: Task, recipe, seeds, num_epochs=EPOCHS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Curve, the last parameters and the first gradient of some runs."""
    splits = [task.split(recipe.data.split, seed) for seed in seeds]
    runs = runs_of(task, recipe, seeds, splits)
    before = runs.parameters.clone()
    runs.train_epoch()
    # After one step Adam's first moment is a tenth of the gradient and the decay of the parameters before it.
    gradient = 10 * runs.moment1 - runs.weight_decay * before
    for _ in range(num_epochs - 1):
        runs.train_epoch()
    return runs.curve[:, :num_epochs].clone(), runs.parameters.clone(), gradient


def part_epochs(group, folder, recipe, seeds, num_epochs=EPOCHS):
    return epochs_of(load_part(folder, group.rank, group), recipe, seeds, num_epochs)


def assert_equal_training(
    world, folder, task, recipe, size, seeds=(0,), method="blocks", num_epochs=EPOCHS, expected=None
):
    write_partition(task, size, folder, method)
    curve, parameters, gradient = expected or epochs_of(task, recipe, list(seeds), num_epochs)
    answers = world.run(part_epochs, size, str(folder), recipe, list(seeds), num_epochs)
    for other in answers[1:]:
        assert all(mine.equal(theirs) for mine, theirs in zip(answers[0], other, strict=True))
    torch.testing.assert_close(answers[0][0][..., :2], curve[..., :2], rtol=1e-5, atol=1e-7)
    # Of 29,799 nodes some have two classes that are equal up to rounding; of a few hundred none.
    torch.testing.assert_close(answers[0][0][..., 2], curve[..., 2], rtol=0, atol=3e-4)
    assert torch.linalg.vector_norm(answers[0][2] - gradient) <= 1e-6 * torch.linalg.vector_norm(gradient)
    return answers[0], (curve, parameters, gradient)


@pytest.mark.parametrize("model", MODELS)
def test_two_ranks_train_as_one_process_does(world, tmp_path, model):
    assert_equal_training(world, tmp_path, ring_task(), small_recipe(model, **MODELS[model]), 2)


@pytest.mark.parametrize("model", ["egnn", "pairnorm", "dropedge"])
def test_four_ranks_train_as_one_process_does(world, tmp_path, model):
    assert_equal_training(world, tmp_path, ring_task(), small_recipe(model, **MODELS[model]), 4)


def test_sparse_features_draw_the_masks_of_the_whole(world, tmp_path):
    task = ring_task(sparse=True)
    assert isinstance(task.features, SparseFeatures)
    assert_equal_training(world, tmp_path, task, small_recipe("gcn", 2), 2)


@pytest.mark.parametrize("model", ["egnn", "gcn"])
def test_batch_norm_takes_its_statistics_over_all_ranks(world, tmp_path, model):
    encoder = {"encoder": "mlp"} if model == "egnn" else {}
    recipe = small_recipe(model, 3, batch_norm=True, **encoder)
    # The gradient of a bias before a batch norm is rounding alone, and Adam with decay blows it up to steps of its
    # learning rate, within one epoch in float32 and within five in float64. The training loss does not see that bias.
    assert_equal_training(world, tmp_path, ring_task().to(dtype=torch.float64), recipe, 2, num_epochs=3)


def test_running_statistics_are_those_of_one_process(world, tmp_path):
    task, recipe = ring_task().to(dtype=torch.float64), small_recipe("gcn", 3, batch_norm=True)
    write_partition(task, 2, tmp_path, "blocks")
    expected = buffers_of(task, recipe)
    assert expected["convs.0.norm.num_batches_tracked"].tolist() == [3]
    for buffers in world.run(part_buffers, 2, str(tmp_path), recipe):
        assert buffers.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(buffers[name], value)


def buffers_of(task, recipe):
    runs = runs_of(task, recipe, [0], [task.split(recipe.data.split)])
    for _ in range(3):
        runs.train_epoch()
    return {name: value.clone() for name, value in runs.buffers.items()}


def part_buffers(group, folder, recipe):
    return buffers_of(load_part(folder, group.rank, group), recipe)


def test_many_seeds_train_at_once_each_with_its_own_split(world, tmp_path):
    recipe = small_recipe("egnn", 3, split="per-class-3-4")
    parts, whole = assert_equal_training(world, tmp_path, ring_task(), recipe, 2, seeds=(0, 1, 2))
    assert parts[0].shape == (3, EPOCHS, 3)
    assert not whole[0][0].equal(whole[0][1])


def test_many_seeds_of_a_model_with_norms_and_edge_masks(world, tmp_path):
    for model in ("pairnorm", "dropedge"):
        recipe = small_recipe(model, 3, split="per-class-3-4")
        assert_equal_training(world, tmp_path / model, ring_task(), recipe, 2, seeds=(4, 5), num_epochs=8)


def test_a_partition_with_an_empty_halo(world, tmp_path):
    ends = torch.arange(19)
    edges = torch.cat([torch.stack([ends, ends + 1]), torch.stack([ends, ends + 1]) + 21], dim=1)
    task = ring_task(edges=edges)
    assert_equal_training(world, tmp_path, task, small_recipe("gcn", 3), 2)
    assert read_partition(tmp_path).num_halo == (0, 0)


def test_a_rank_whose_neighbours_need_nothing(world, tmp_path):
    """Of four ranks the last has isolated nodes alone, so it sends and receives nothing while the others do."""
    ends = torch.arange(28)
    task = ring_task(edges=torch.stack([ends, ends + 1]))
    assert_equal_training(world, tmp_path, task, small_recipe("egnn", 3), 4)
    assert read_partition(tmp_path).num_halo[3] == 0


def test_a_rank_without_a_training_or_validation_node(world, tmp_path):
    task = ring_task(train=torch.arange(6))
    split = task.fixed_splits[0]
    split = Split("public", None, split.train, torch.arange(6, 14), torch.arange(14, 41))
    task = replace(task, fixed_splits=(split,))
    assert_equal_training(world, tmp_path, task, small_recipe("egnn", 3), 2)
    assert load_part(tmp_path, 1, Sized(2)).split().train.numel() == 0


def test_metis_gives_the_same_training(world, tmp_path):
    pytest.importorskip("pymetis")
    assert_equal_training(world, tmp_path, ring_task(), small_recipe("egnn", 3), 2, method="metis")


def test_deep_stacks_with_checkpoint_segments(world, tmp_path):
    assert_equal_training(world, tmp_path, ring_task(), small_recipe("egnn", 70), 2, num_epochs=4)


@pytest.mark.parametrize("model", ["egnn", "gcn", "appnp"])
def test_float64(world, tmp_path, model):
    task, recipe = ring_task().to(dtype=torch.float64), small_recipe(model, 3)
    write_partition(task, 2, tmp_path, "blocks")
    expected = scores_of(task, recipe)
    parts = world.run(part_scores, 2, str(tmp_path), recipe)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-13, atol=1e-13)


def scores_of(task, recipe):
    model = build_model(recipe, task, 0).double().train()
    return model(task.features, task.graph, key=make_key(3)).detach()


def part_scores(group, folder, recipe):
    return scores_of(load_part(folder, group.rank, group), recipe)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("model", ["egnn", "gcn", "pairnorm"])
def test_cora(world, tmp_path, data_root, model, size):
    task, recipe = load_task("cora", data_root), load_recipe(model, "cora", 4, {})
    assert_equal_training(world, tmp_path, task, recipe, size)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["egnn", "gcn", "pairnorm"])
def test_a_synthetic_graph_of_the_size_of_arxiv(world, tmp_path, model):
    task = CitationGraph(169_343, 1_157_799).task("synthetic")
    recipe = load_recipe(model, "synthetic", 3, {"split": "public", "hidden_channels": 16})
    expected = epochs_of(task, recipe, [0])
    for size in (2, 4):
        assert_equal_training(world, tmp_path / str(size), task, recipe, size, expected=expected)
