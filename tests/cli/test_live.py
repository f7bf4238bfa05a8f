"""Energies of every layer in the terminal: a table below the bar, or lines where there is no terminal."""

import sys

import pytest
from rich.console import Console

from graphjoule.cli.live import LayerTable
from graphjoule.trace import LayerTrace

from . import TINY, refused, run


def rows(*energies):
    return [
        LayerTrace(f"convs.{k}", {"energy": energy, "norm": 1.0, "rayleigh": energy / 100})
        for k, energy in enumerate(energies)
    ]


def test_a_table_on_a_terminal_has_bars_and_what_is_not_finite(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    table = LayerTable("gcn")
    assert not table.__rich__().columns
    table.show(20, rows(100.0, 1e-4, float("nan")))
    console = Console(width=80, file=sys.stdout)
    console.print(table)
    lines = capsys.readouterr().out.splitlines()
    assert "energy of every layer after epoch 20" in lines[0]
    assert [line.split()[:3] for line in lines[2:]] == [
        ["1", "100", "1"],
        ["2", "0.0001", "1e-06"],
        ["3", "nan", "nan"],
    ]
    assert [line.count("█") for line in lines[2:]] == [24, 12, 0]


def test_a_deep_network_has_some_of_its_layers_in_the_table_and_on_the_line(capsys):
    table = LayerTable("gcn")
    table.show(5, rows(*range(64, 0, -1)))
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "gcn: epoch 5, energy of layer 1: 64, 14: 51, 26: 39, 39: 26, 51: 14, 64: 1; lowest E / |X|^2 0.01 at layer 64"
    )
    assert table.__rich__().row_count == 16


def test_a_training_prints_energies_of_all_layers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("train", *TINY, "--model", "gcn", "--live", "--on-collapse", "warn", "--out", tmp_path / "run")
    assert result.code == 0
    assert "gcn, 2 layers, digits: epoch 1, energy of layer 1: " in result.err
    assert "energy" not in result.out


@pytest.mark.parametrize("more", [("--processes", "2"), ("--clusters", "2")])
@pytest.mark.parametrize("option", [("--live",), ("--on-collapse", "stop")])
def test_a_training_in_parts_is_not_watched(tmp_path, option, more):
    said = refused(tmp_path, "train", *option, *more, "--out", tmp_path / "run")
    assert f"{option[0]} looks at the whole graph in one process" in said
