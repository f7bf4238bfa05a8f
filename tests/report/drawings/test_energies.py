"""Figure 1: the line is the median of the runs, and the limits follow it."""

from graphjoule.nn import MODELS
from graphjoule.report.drawings import Evidence, drawings_of
from graphjoule.report.drawings.energies import describe, panels, style_of
from graphjoule.studies import Cell, Collection, find_study
from tests.studies import energy_record


def record(model="egnn", dataset="digits", **changes):
    settings = {"c_min": 0.2, "beta": 0.1, "c_max": 0.5} if model == "egnn" else {}
    fields = {
        "trained": [[8.0, 2.0, 1.0], [10.0, 1.0, 3.0], [9.0, 5.0, 2.0]],
        "test_score": [0.5, 0.75, None],
    }
    return energy_record(Cell(model, dataset, 2, overrides=settings), seeds=(0, 1, 2), **(fields | changes))


def test_the_networks_of_the_figure_are_in_the_zoo_and_drawn_each_in_its_own_way():
    models = find_study("figure1").models
    assert models == ("gcn", "gcnii", "egnn")
    assert set(models) <= set(MODELS)
    colours, lines = zip(*map(style_of, (*models, "another")), strict=True)
    assert (len(set(colours)), len(set(lines))) == (4, 4)


def test_the_line_is_the_median_and_the_limits_follow_it():
    before, after = panels([record()])
    assert ("at initialisation" in before.title, "after training" in after.title) == (True, True)
    *runs, median = after.lines
    assert [list(run.y) for run in runs] == record().trained
    assert (median.label, list(median.y), list(median.x)) == ("EGNN\n62.5 % right", [9.0, 2.0, 2.0], [0, 1, 2])
    (band,) = after.bands
    assert (list(band.x), band.low, band.high) == ([1, 2], [0.2 * 9.0, 0.2 * 2.0], [4.5, 4.5])
    assert describe(record()) == (
        "digits, egnn: test accuracy 62.5 %, energy 9 at layer 0, 2 at layer 2, 2 of 2 layers within both limits"
    )
    assert "1 of 2 layers within both limits" in describe(record(trained=[[9.0, 1.0, 2.0]]))


def test_a_model_without_limits_has_no_band():
    plain = record("gcn", first_layer=1, test_score=[None] * 3)
    assert "limits" not in describe(plain)
    assert "test accuracy none" in describe(plain)
    panel = panels([plain])[1]
    assert not panel.bands
    assert list(panel.lines[-1].x) == [1, 2, 3]


def test_every_dataset_has_a_panel_for_each_state_with_all_its_networks():
    found = panels([record(), record("gcn"), record(dataset="cora")])
    assert [panel.title.split(",")[0] for panel in found] == ["Digits", "Cora"] * 2
    assert [sum(line.label != "" for line in panel.lines) for panel in found] == [2, 1, 2, 1]


def test_figure_1_is_drawn_from_the_studys_energies():
    cells = find_study("figure1").cells(["cora"])
    found = Evidence(find_study("figure1"), cells, Collection(), [energy_record(cell) for cell in cells])
    (drawing,) = drawings_of(found)
    assert [chart.panel.title for chart in drawing.charts] == [
        "Cora, 64 layers, at initialisation",
        "Cora, 64 layers, after training",
    ]
    assert "cora, egnn: test accuracy 50.0 %" in drawing.alt
    other = [energy_record(Cell("egnn", "cora", 64))]  # c_max = 1, not the figure's
    assert drawings_of(Evidence(find_study("figure1"), cells, Collection(), other)) == []
