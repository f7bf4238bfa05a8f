"""The examples run, and say what they are there to show."""

import runpy
from pathlib import Path

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
