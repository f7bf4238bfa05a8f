"""The baselines train: many at once as each alone, again to the bit, and by the recipe of every cell of the tables."""

import pytest
import torch

from graphjoule.fitting import fit
from graphjoule.nn import MODELS
from graphjoule.training.recipe import load_recipe
from graphjoule.training.seed_batch import Runs

from . import facts, largest_difference, same_bits, small_recipe, small_task

BASELINES = [name for name in MODELS if name != "egnn"]
CELLS = {"cora": (2, 16, 64), "pubmed": (2, 16, 64), "physics": (2, 16, 32), "arxiv": (2, 16, 32)}


def trained(recipe, seeds, epochs=6):
    task = small_task(sparse=True)
    runs = Runs(recipe, task, seeds, [task.split("public") for _ in seeds])
    for _ in range(epochs):
        runs.train_epoch()
    return runs


@pytest.mark.parametrize("model", BASELINES)
def test_a_seed_alone_and_among_several_agree(model):
    recipe = small_recipe(model, num_layers=3, lr=0.02)
    together = trained(recipe, [3, 1, 2])
    for row, seed in enumerate([3, 1, 2]):
        alone = trained(recipe, [seed])
        torch.testing.assert_close(alone.curve[0, :6], together.curve[row, :6], rtol=1e-3, atol=1e-4)
        assert largest_difference(alone.current_model(0), together.current_model(row)) < 1e-3


@pytest.mark.parametrize("model", BASELINES)
def test_a_training_repeats_to_the_bit(model):
    recipe, task = small_recipe(model, num_layers=3), small_task()
    first, again = (fit(recipe, task, [0, 1], device="cpu") for _ in range(2))
    assert [facts(record) for record in first.records] == [facts(record) for record in again.records]
    assert all(same_bits(a, b) for a, b in zip(first.models, again.models, strict=True))


@pytest.mark.parametrize("model", BASELINES)
@pytest.mark.parametrize("dataset", CELLS)
def test_the_recipe_of_every_cell_of_the_papers_tables_trains(model, dataset):
    task = small_task(sparse=True)
    for num_layers in CELLS[dataset]:
        recipe = load_recipe(model, dataset, num_layers, {"split": "public", "hidden_channels": 8, "epochs": 2})
        runs = Runs(recipe, task, [0], [task.split("public")])
        before = runs.parameters.clone()
        runs.train_epoch()
        assert runs.curve[0, 0].isfinite().all(), num_layers
        assert not runs.parameters.equal(before), num_layers
