import json

import pytest

from graphjoule.energy import dirichlet_energy
from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS
from graphjoule.studies import Tasks, figure1, find_study, plan_study, work
from graphjoule.tasks import load_task
from graphjoule.training import build_model


@pytest.fixture
def small(monkeypatch):
    """The study on the embedded digits, with two networks of another depth than the paper's."""
    monkeypatch.setattr(figure1, "SETTINGS", {"digits": {"c_max": 0.4, "c_min": 0.15, "beta": 0.1}})
    monkeypatch.setattr(figure1, "STYLES", {name: figure1.STYLES[name] for name in ("gcn", "egnn")})
    return ["--layers", "3", "--seeds", "2", "--epochs", "2", "--device", "cpu"]


def test_the_settings_are_those_of_the_paper():
    assert {name: (s["c_max"], s["c_min"]) for name, s in figure1.SETTINGS.items()} == {
        "cora": (0.4, 0.15),
        "pubmed": (0.4, 0.11),
    }
    assert list(figure1.STYLES) == ["gcn", "gcnii", "egnn"]
    assert len(set(figure1.STYLES.values())) == 3
    for dataset, settings in figure1.SETTINGS.items():
        recipe = figure1.figure_recipe("egnn", dataset, 64)
        assert settings.items() <= recipe.options.items()
        plain = figure1.figure_recipe("gcn", dataset, 64)
        assert "c_min" not in plain.options


def test_records_are_written_drawn_and_not_trained_again(small, tmp_path, capsys, monkeypatch):
    paths = ["--records", str(tmp_path / "records"), "--picture", str(tmp_path / "images" / "figure.png")]
    figure1.main([*small, *paths])
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told[:2]] == ["digits, gcn", "digits, egnn"]
    assert "of 3 layers within both limits" in told[1]
    assert (tmp_path / "images" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == ["digits-egnn-3.json", "digits-gcn-3.json"]

    monkeypatch.setattr(figure1, "fit", None)  # a second training would fail
    figure1.main([*small, *paths])
    figure1.main(["--draw-only", "--layers", "3", *paths])
    assert capsys.readouterr().out.splitlines()[:3] == told


def test_a_record_holds_the_energies_of_both_states(small, tmp_path):
    records = figure1.collect(tmp_path, layers=3, seeds=[4], epochs=2, device="cpu", tell=lambda line: None)
    task = load_task("digits")
    gcn, egnn = records
    assert (gcn.first_layer, len(gcn.trained[0])) == (1, 2)  # the last layer gives class scores
    assert (egnn.first_layer, len(egnn.trained[0])) == (0, 4)
    assert (egnn.recipe["c_max"], egnn.recipe["epochs"], egnn.seeds) == (0.4, 2, [4])
    model = build_model(figure1.figure_recipe("egnn", "digits", 3), task, 4).eval()
    first = float(dirichlet_energy(model.encoder(task.features).detach(), task.graph))
    assert egnn.initial[0][0] == pytest.approx(first, rel=1e-4)
    assert egnn.trained != egnn.initial
    assert json.loads((tmp_path / "digits-egnn-3.json").read_text())["versions"]


def record(model="egnn", **changes):
    fields = {
        "dataset": "digits",
        "model": model,
        "recipe": {"num_layers": 2, "c_min": 0.2, "c_max": 0.5},
        "seeds": [0, 1, 2],
        "first_layer": 0,
        "initial": [[8.0, 2.0, 1.0]] * 3,
        "trained": [[8.0, 2.0, 1.0], [10.0, 1.0, 3.0], [9.0, 5.0, 2.0]],
        "test_accuracy": [0.5, 0.75, None],
        "epochs_run": [1, 1, 1],
        "seconds": 1.0,
        "device": "cpu",
        "versions": {},
    }
    return figure1.EnergyRecord(**(fields | changes))


def test_the_line_is_the_median_and_the_limits_follow_it():
    (top, bottom) = figure1.draw([record()]).axes
    assert "at initialisation" in top.get_title()
    assert [list(line.get_ydata()) for line in bottom.lines][-1] == [9.0, 2.0, 2.0]
    edges = {tuple(vertex) for vertex in bottom.collections[0].get_paths()[0].vertices}
    assert {(1.0, 0.2 * 9.0), (2.0, 0.2 * 2.0), (1.0, 4.5), (2.0, 4.5)} <= {(x, round(y, 9)) for x, y in edges}
    said = figure1.describe(record())
    assert said == (
        "digits, egnn: test accuracy 62.5 %, energy 9 at layer 0, 2 at layer 2, 2 of 2 layers within both limits"
    )
    broken = record(trained=[[9.0, 1.0, 2.0]])
    assert "1 of 2 layers within both limits" in figure1.describe(broken)


def test_a_model_without_limits_has_no_band():
    plain = record("gcn", recipe={"num_layers": 2}, first_layer=1, test_accuracy=[None] * 3)
    assert "limits" not in figure1.describe(plain)
    assert "test accuracy none" in figure1.describe(plain)
    axes = figure1.draw([plain]).axes[1]
    assert not axes.collections
    assert list(axes.lines[-1].get_xdata()) == [1, 2, 3]


def test_what_is_missing_or_damaged_is_said(tmp_path, capsys):
    with pytest.raises(SystemExit, match="graphjoule: There is no record of 64 layers in"):
        figure1.main(["--draw-only", "--records", str(tmp_path)])
    (tmp_path / "cora-gcn-64.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"cora-gcn-64\.json is not a record of energies"):
        figure1.main(["--draw-only", "--records", str(tmp_path)])
    with pytest.raises(GraphjouleError, match="is not a record"):
        figure1.EnergyRecord.read(tmp_path / "none.json")


def test_every_network_of_the_figure_is_in_the_zoo():
    assert set(figure1.STYLES) <= set(MODELS)


def test_it_draws_what_the_study_left_with_the_figures_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(figure1, "SETTINGS", {"digits": {"c_max": 0.4, "c_min": 0.2, "beta": 0.1}})
    overrides = {"epochs": 1, "hidden_channels": 4}
    tasks = Tasks(load_task)
    for name in ("figure1", "depth"):  # of EGNN the two have other settings, of GCN the same
        cells = find_study(name).cells(["digits"], ["gcn", "egnn"], [3], overrides)
        plan = plan_study(cells, [0], tmp_path, tasks, has_energies=True)
        assert work(plan, tasks, device="cpu") == {}
    assert len(list(tmp_path.glob("*/energies.json"))) == 3
    gcn, egnn = figure1._record_paths(tmp_path, 3)
    assert (figure1.EnergyRecord.read(gcn).model, figure1.EnergyRecord.read(egnn).recipe["c_max"]) == ("gcn", 0.4)
    picture = tmp_path / "figure.png"
    figure1.main(["--draw-only", "--layers", "3", "--records", str(tmp_path), "--picture", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
