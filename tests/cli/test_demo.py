import re
import signal
from importlib import import_module

import pytest
import torch

from graphjoule.cli.demo import change_when_shuffled, energy_table, layer_energies
from graphjoule.fitting import fit
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.tasks import load_task
from graphjoule.training.build import build_model
from graphjoule.training.recipe import load_recipe

from . import run


def test_both_accuracies_and_the_energy_of_every_layer_are_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("demo", "--layers", "3", "--epochs", "2")
    assert result.code == 0
    accuracies = re.findall(r"(EGNN|GCN ) 3 layers: (\d+\.\d) % of test images right  \(2 epochs, \d+ s\)", result.out)
    assert [name.strip() for name, _ in accuracies] == ["EGNN", "GCN"]
    assert "Dirichlet energy after the layer" in result.out
    rows = re.findall(r"│\s+(\d+) │ (\d\.\d\de[+-]\d\d) │[ █]+│ (\d\.\d\de[+-]\d\d) │[ █]+│", result.out)
    assert [int(layer) for layer, _, _ in rows] == [1, 2, 3]
    assert all(float(energy) > 0 for row in rows for energy in row[1:])
    assert re.search(r"those of EGNN by \d+ % and those of GCN by \d+ %", result.out)
    assert "report: runs/demo.html\n" in result.out
    assert [path.name for path in tmp_path.rglob("*.*")] == ["demo.html"]
    page = (tmp_path / "runs/demo.html").read_text()
    assert "egnn, 3 layers, digits" in page
    assert "gcn, 3 layers, digits" in page


def test_a_file_of_the_users_is_refused_before_the_training(tmp_path):
    (tmp_path / "mine.html").write_text("mine")
    result = run("demo", "--report", tmp_path / "mine.html")
    assert (result.code, result.out) == (2, "")
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_shuffled_features_change_what_listens_to_features_alone():
    task = load_task("digits")
    model = build_model(load_recipe("gcn", "digits", 2), task, 0).eval()
    assert change_when_shuffled(model, task) > 0.1
    torch.nn.init.zeros_(model.convs[0].linear.weight)
    torch.nn.init.ones_(model.convs[0].bias)
    assert change_when_shuffled(model, task) == 0


def test_the_accuracy_told_is_that_of_training_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = run("demo", "--layers", "2", "--epochs", "3").out
    record = fit(load_recipe("gcn", "digits", 2, {"epochs": 3}), load_task("digits"), device="cpu").records[0]
    assert f"GCN  2 layers: {100 * record.test_score:.1f} % of test images right" in out


def test_energies_are_those_of_the_layers_outputs():
    task, recipe = load_task("digits"), load_recipe("egnn", "digits", 3)
    model = build_model(recipe, task, 0)
    energies = layer_energies(model, task)
    model.eval()
    with torch.no_grad():
        h = h0 = model.encoder(task.features)
        for conv, energy in zip(model.convs, energies, strict=True):
            h = conv(h, h0, task.graph)
            assert float(dirichlet_energy(h, task.graph)) == pytest.approx(energy, rel=1e-4)


@pytest.mark.parametrize("layers", [1, 2, 32])
def test_the_table_shows_the_first_and_the_last_layers(layers):
    energies = {"egnn": [1.0] * layers, "gcn": [10.0 ** -(k + 1) for k in range(layers)]}
    table = energy_table(energies, layers)
    shown = [int(cell) for cell in table.columns[0].cells]
    assert shown == sorted(set(shown))
    assert {1, min(2, layers), max(1, layers - 1), layers} <= set(shown)
    assert len(shown) <= 14
    told = [float(cell) for cell in table.columns[3].cells]
    assert told == [pytest.approx(energies["gcn"][layer - 1], rel=0.01) for layer in shown]
    bars = [len(cell) for cell in table.columns[4].cells]
    assert bars == sorted(bars, reverse=True)  # the less energy, the shorter


def test_an_energy_of_zero_has_no_bar():
    table = energy_table({"egnn": [1.0], "gcn": [0.0]}, 1)
    assert [next(iter(column.cells)) for column in table.columns][3:] == ["0.00e+00", ""]


def test_ctrl_c_speaks_of_no_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def interrupt(*args, **kwargs):
        return fit(*args, **kwargs | {"on_progress": lambda progress: signal.raise_signal(signal.SIGINT)})

    monkeypatch.setattr(import_module("graphjoule.fitting"), "fit", interrupt)
    result = run("demo", "--layers", "2", "--epochs", "3")
    assert result.code == 130
    assert result.err == "graphjoule: stopped.\n"
