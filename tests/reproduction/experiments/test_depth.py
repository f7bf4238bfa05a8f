"""The experiment on depth and the study files beside it can be planned and run."""

import json
from pathlib import Path

import pytest
import torch

from graphjoule.nn import MODELS
from graphjoule.studies import find_study
from reproduction.experiments import depth
from reproduction.experiments.record import Cells

STUDIES = sorted((Path(__file__).resolve().parents[3] / "reproduction" / "studies").glob("*.toml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_cell_of_a_study_file_has_a_recipe(path):
    cells = list(find_study(str(path)).cells())
    assert len({cell.name for cell in cells}) == len(cells) > 3
    for cell in cells:
        assert cell.recipe.model.num_layers == cell.num_layers


def test_a_second_call_computes_only_what_is_missing(tmp_path, capsys):
    file, cpu = tmp_path / "cells.jsonl", torch.device("cpu")
    Cells(file, 60, cpu).get("one", {"lr": 1}, lambda: {"test_accuracy": [0.5]})
    again = Cells(file, 0, cpu)
    assert again.get("one", {"lr": 1}, lambda: pytest.fail("computed twice"))["test_accuracy"] == [0.5]
    for key, settings in (("one", {"lr": 2}), ("two", {"lr": 1})):
        with pytest.raises(SystemExit, match=f"Out of time before {key}"):
            again.get(key, settings, dict)
    assert [json.loads(line)["key"] for line in file.read_text().splitlines()] == ["one"]


def test_a_cell_with_fewer_runs_than_asked_is_made_anew(tmp_path, capsys):
    cells = Cells(tmp_path / "cells.jsonl", 60, torch.device("cpu"))
    cells.get("one", {}, lambda: {"epochs": [5] * 3}, runs=3)
    assert len(cells.get("one", {}, lambda: pytest.fail("computed twice"), runs=3)["epochs"]) == 3
    assert len(cells.get("one", {}, lambda: {"epochs": [5] * 10}, runs=10)["epochs"]) == 10


@pytest.mark.parametrize("model", ["wave", "gcnii", "adgn", "graphcon", "gps"])
def test_models_and_rivals_train_on_a_ring(model):
    settings = depth._RING | depth._SEARCHED[model][0] | {"lr": 0.01, "epochs": 1, "patience": 1}
    result = depth.train(model, "ring-2", 2, settings, 1, torch.device("cpu"))
    row = depth.cell(result, model=model)
    assert row["failed"] == 0
    assert len(row["test_accuracy"]) == 1
    assert not {"adgn", "graphcon", "gps"} & MODELS.keys()
