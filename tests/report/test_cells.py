from dataclasses import replace

from graphjoule.report import AFTER, Cell
from graphjoule.report.cells import variants
from graphjoule.training.recipe import Recipe, load_recipe

from .cells import cell, examination


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
