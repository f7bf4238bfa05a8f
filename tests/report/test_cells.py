import functools
from dataclasses import replace

import pytest
from torch_geometric.nn import GraphSAGE

from graphjoule.cli.report import repeat_command
from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.report import AFTER, Cell, cells, report_page
from graphjoule.report.cells import mean_score, metrics_of, score_of, variants
from graphjoule.tasks.metrics import ACCURACY, MAE, R2, RMSE
from graphjoule.tasks.task import ModelInput
from graphjoule.training.recipe import Recipe, load_recipe
from tests.training import small_recipe, small_task

from .cells import cell, examination, record

RECIPE = load_recipe("egnn", "cora", 4)
SHORT = {"epochs": 2, "split": "public"}


def test_a_cell_is_named_by_its_recipe():
    assert Cell(cell().recipe, []).name == "egnn, 4 layers, cora"


def test_cells_of_one_kind_differ_by_their_settings_or_their_place():
    assert variants([cell(overrides={"c_min": value}) for value in (0.3, 0.4)]) == [
        "model.c_min=0.3",
        "model.c_min=0.4",
    ]
    assert variants([replace(cell(), place=name) for name in ("a", "b")]) == ["a", "b"]
    assert variants([cell(), cell("gcn"), cell(layers=8)]) == ["", "", ""]


def test_a_setting_that_the_recipe_has_today_is_not_a_change():
    assert cell().changed_settings == []
    assert Cell(load_recipe("gcn", "cora", 2, {"lr": 0.1}), []).changed_settings == ["train.lr"]


def test_layers_count_from_the_encoder_and_class_scores_are_left_out():
    assert cell().energies(AFTER)[0] == 0
    without_encoder = replace(cell(), states={AFTER: examination([1.0], first="convs.0")})
    first, rows = without_encoder.energies(AFTER)
    assert (first, [row.name for row in rows]) == (1, ["convs.0"])


def test_telling_many_cells_apart_looks_at_each_a_few_times(monkeypatch):
    cells = [cell(overrides={"lr": 0.001 * number}, traced=False) for number in range(1, 41)]
    looks, settings = [], Recipe.settings
    monkeypatch.setattr(Recipe, "settings", lambda recipe: looks.append(recipe) or settings(recipe))
    assert variants(cells)[:2] == ["train.lr=0.001", "train.lr=0.002"]
    assert len(looks) <= 3 * len(cells)


def test_a_network_that_cannot_be_traced_costs_no_report_on_the_others(tmp_path, monkeypatch):
    for name in ("gcn", "sgc"):
        fit(small_recipe(name, epochs=1), small_task(), out=tmp_path / name)
    examined = cells.states_of

    def refusing(model, recipe, *more, **options):
        if recipe.model.name == "sgc":
            raise GraphjouleError("This version refuses it.")
        return examined(model, recipe, *more, **options)

    monkeypatch.setattr(cells, "states_of", refusing)
    found = cells.read_cells(tmp_path, lambda runs: ModelInput.of(small_task()))
    assert {one.recipe.model.name: (one.untraced, bool(one.states)) for one in found} == {
        "gcn": ("", True),
        "sgc": ("This version refuses it.", False),
    }


def test_a_model_of_the_users_own_is_reported_without_its_energies(tmp_path):
    fit(small_recipe("gcn", epochs=1), small_task(), out=tmp_path / "ours")
    fit(
        functools.partial(GraphSAGE, hidden_channels=8, num_layers=2),
        small_task(),
        settings=SHORT,
        out=tmp_path / "own",
    )
    ours, own = cells.read_cells(tmp_path, lambda runs: ModelInput.of(small_task()))
    assert (ours.untraced, bool(ours.states), ours.is_own_model) == ("", True, False)
    assert own.untraced.startswith("torch_geometric.nn.models.basic_gnn.GraphSAGE is a model of your own, which its")
    assert (own.is_own_model, own.changed_settings, repeat_command(own)) == (True, [], "")
    page = report_page([ours, own], title="both", command=repeat_command)
    assert own.untraced in page
    assert page.count("graphjoule train") == 1


def test_the_metrics_are_those_of_the_objective():
    assert metrics_of([record(RECIPE)]) == (ACCURACY,)
    assert metrics_of([record(RECIPE, objective="regression", val={"r2": 0.5}, test={})]) == (R2, MAE, RMSE)


def test_scores_are_read_from_records_and_failed_runs_are_in_no_mean():
    done = [record(RECIPE, seed, test={"accuracy": score}) for seed, score in enumerate((0.5, 0.7))]
    bad = {"accuracy": 0.1}
    failed = record(RECIPE, 2, failure="the loss was no longer finite", val=bad, test=bad)
    assert [score_of(one, "test", ACCURACY) for one in done] == [0.5, 0.7]
    assert score_of(done[0], "test", MAE) is None
    assert mean_score([*done, failed], "test", ACCURACY) == pytest.approx((0.6, 0.02**0.5))
    assert mean_score(done[:1], "val", ACCURACY) == (0.8, None)
    assert mean_score([failed], "val", ACCURACY) == (None, None)
