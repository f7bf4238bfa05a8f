"""The examples run, and say what they are there to show."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from graphjoule.cli.train import worth_lines
from graphjoule.tasks import load_tables
from graphjoule.training.comparison import read_comparison
from tests.cli import run

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_the_energy_of_a_pyg_model(capsys):
    runpy.run_path(str(EXAMPLES / "energy_of_a_pyg_model.py"))
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["layer", "energy", "norm"]
    energies = [float(line.split()[1]) for line in lines[:32]]
    assert [line.split()[0] for line in lines[:32]] == [f"convs.{k}" for k in range(32)]
    assert energies[-1] < 1e-9 * energies[0]
    assert "over-smoothing by norm collapse, from convs." in "\n".join(lines[32:])
    code = (EXAMPLES / "energy_of_a_pyg_model.py").read_text().split('"""')[2]
    statements = [line for line in code.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(statements) <= 10


def test_the_constraint_holds_a_pyg_model_within_its_limits(capsys):
    runpy.run_path(str(EXAMPLES / "constrained_pyg_model.py"))
    assert "with limits: 0 of 6 layers" in capsys.readouterr().out


def test_models_of_pyg_train_through_fit(capsys):
    runpy.run_path(str(EXAMPLES / "train_pyg_models.py"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["GAT", "GraphSAGE"]
    assert all(float(line.split()[1]) > 85 for line in lines)


def test_the_customers_are_tables_that_can_be_trained_on(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "customers.py"))
    assert capsys.readouterr().out == "2500 customers, 900 of a known kind, 7500 calls\n"
    for edges in ("calls.csv", "strangers.csv"):
        task = load_tables("customers.csv", edges, test_fraction=0.3)
        assert (task.num_nodes, int(task.is_known.sum()), task.objective.num_classes) == (2500, 900, 4)


@pytest.mark.parametrize("name", ["calls", "strangers"])
def test_the_page_on_the_customers_says_what_the_records_say(name):
    root = EXAMPLES.parent
    found = read_comparison(root / "reproduction" / "results" / "what-now" / f"{name}.json")
    assert "\n".join(worth_lines(found)[1:]) in (root / "docs" / "what-now.md").read_text()
    assert found.answers["graph"].answer == {"calls": "helps", "strangers": "does not help"}[name]


NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def code_cells(path):
    """The code of a notebook, a text per cell."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_notebook(path, monkeypatch, folder):
    """Run all cells in order, in one namespace and in an empty folder, as Jupyter would; returns the namespace."""
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(folder)
    names = {"__name__": "__main__"}
    for number, code in enumerate(code_cells(path), start=1):
        exec(compile(code, f"{path.name}, cell {number}", "exec"), names)
    pytest.importorskip("matplotlib.pyplot").close("all")
    return names


def run_here(words, **options):
    """`subprocess.run` for ``python -m graphjoule WORDS``, in this process, which has imported torch already."""
    assert words[:3] == [sys.executable, "-m", "graphjoule"]
    assert options == {"capture_output": True, "text": True}
    result = run(*words[3:])
    return subprocess.CompletedProcess(words, result.code, result.out, result.err)


def test_from_a_csv_to_a_decision(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(subprocess, "run", run_here)
    names = run_notebook(EXAMPLES / "own_csv_to_decision.ipynb", monkeypatch, tmp_path)
    said = capsys.readouterr().out
    assert "one feature for each of 3 categories; " in said  # the check of the tables
    assert names["record"].test["macro_f1"] > 0.7
    assert re.search(r"^ *leaves( +\d\.\d\d){3} +\d+$", said, flags=re.MULTILINE)  # scores by class
    assert [row["given"] for row in names["now"]] == ["false"] * 40
    assert names["hits"] > 3 * names["by_chance"]  # calling whom the model names is better than chance
    assert len(names["calls"]) == 10


def test_a_deep_model_of_ones_own_is_mended(monkeypatch, tmp_path, capsys):
    names = run_notebook(EXAMPLES / "own_pyg_model_mended.ipynb", monkeypatch, tmp_path)
    assert "over-smoothing by norm collapse" in capsys.readouterr().out
    accuracies = {name: accuracy for name, (_, accuracy) in names["trained"].items()}
    assert names["shallow"][1] > 85
    assert accuracies.pop("as it was") < 40
    assert min(accuracies.values()) > 60
    assert (tmp_path / "energies.png").stat().st_size > 5000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_plain(path):
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert cells[0]["cell_type"] == "markdown"
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), "strip the outputs"
    assert not re.search(r"/(home|tmp|root|work|Users)/", text)
    assert not any(line.startswith(("!", "%")) for code in code_cells(path) for line in code.splitlines())


def test_every_notebook_is_run():
    assert [path.name for path in NOTEBOOKS] == ["own_csv_to_decision.ipynb", "own_pyg_model_mended.ipynb"]
