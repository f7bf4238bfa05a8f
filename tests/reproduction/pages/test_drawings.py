"""What the figures show in words, and the numbers behind them."""

import json

import pytest

from graphjoule.report import Evidence
from graphjoule.studies import Cell, Collection, find_study
from reproduction.pages.drawings import describe_record, describe_sweeps, drawn_with, figures_of, means
from tests.report.test_drawings import depth_accuracy, evidence, find_sweeps, sweep_accuracy
from tests.reproduction.pages.side_cells import collapsing
from tests.reproduction.pages.side_cells import evidence as sides
from tests.studies import energy_record


def test_the_numbers_of_a_figure_are_all_that_it_shows():
    (figure,) = figures_of(evidence("figure2", sweep_accuracy))
    data = json.loads(json.dumps(figure.data()))
    assert data["alt"] == figure.alt
    b = data["charts"][0]
    assert b["lines"][0]["x"] == [-20, -10, -5, -1, 0, 1]
    assert b["bands"][0]["low"] == [80, 80, 80, 80, 20, 20]
    assert (b["shaded"], b["mark"]) == ([None, 0.0], [-10, 81])
    assert set(drawn_with()) == {"machine", "matplotlib", "numpy", "pillow"}


def test_the_alternative_texts_say_the_message():
    (figure,) = figures_of(evidence("figure2", sweep_accuracy))
    assert figure.alt == (
        "Test accuracy of EGNN with 64 layers on cora over b, gamma, c_min and c_max. Within the ranges that the paper "
        "recommends the means lie between 21.0 and 81.0 %, outside between 21.0 and 81.0 %."
    )
    (figure,) = figures_of(evidence("depth", depth_accuracy, datasets=("cora",)))
    assert "On cora: GCN 21.0 % at 1,024, GCNII 81.0 % at 1,024, EGNN 81.0 % at 1,024 layers." in figure.alt
    (figure,) = figures_of(sides(collapsing))
    assert "GCN differs most with 8 layers: free 31.0 %, constraint 31.0 %, orthogonal penalty 81.0 %." in figure.alt


def test_energies_are_described_by_the_deepest_network_of_every_model():
    cells = find_study("depth").cells(["cora"], ["gcn"], layers=[4, 2])
    energies = [energy_record(cell, energies=[100.0] + [1e-20] * cell.num_layers) for cell in cells]
    (figure,) = figures_of(Evidence(find_study("depth"), cells, Collection(), energies))
    assert "a small chart for each of 2 depths." in figure.alt
    assert "GCN with 4 layers: 1.5e+02 at first, 1.5e-20 at the lowest, 1.5e-20 at last." in figure.alt
    (figure,) = figures_of(Evidence(find_study("figure1"), cells[:1], Collection(), energies))
    assert figure.alt.startswith("Dirichlet energy of every layer. cora, gcn: test accuracy 50.0 %, energy 150 at")


def test_a_record_is_described_with_its_limits():
    runs = {"trained": [[8.0, 2.0, 1.0], [10.0, 1.0, 3.0], [9.0, 5.0, 2.0]], "test_score": [0.5, 0.75, None]}
    cell = Cell("egnn", "digits", 2, overrides={"c_min": 0.2, "beta": 0.1, "c_max": 0.5})
    record = energy_record(cell, seeds=(0, 1, 2), **runs)
    assert describe_record(record) == (
        "digits, egnn: test accuracy 62.5 %, energy 9 at layer 0, 2 at layer 2, 2 of 2 layers within both limits"
    )
    broken = energy_record(cell, seeds=(0,), initial=[[1.0] * 3], trained=[[9.0, 1.0, 2.0]], test_score=[None])
    assert "1 of 2 layers within both limits" in describe_record(broken)
    assert "test accuracy none" in describe_record(broken)
    assert "limits" not in describe_record(energy_record(Cell("gcn", "digits", 2)))


@pytest.mark.parametrize(
    ("component", "inside"), [("b", [-20, -10, -5, -1, 0]), ("c_min", [0.1, 0.15, 0.2, 0.3, 0.5, 0.75])]
)
def test_ends_belong_to_a_range_and_an_open_one_has_none(component, inside):
    ((_, sweeps),) = find_sweeps(evidence("figure2", lambda cell: 80.0)).items()
    (sweep,) = [one for one in sweeps if one.sweep.component == component]
    within = [x for x in sweep.series.x if x in inside]
    assert len(means(sweep, inside=True)) == len(within)
    assert len(means(sweep, inside=False)) == len(sweep.series.x) - len(within) > 0
    assert describe_sweeps([sweep], "the book") == (
        "Within the ranges that the book recommends the means lie between 81.0 and 81.0 %, outside between 81.0 and "
        "81.0 %."
    )
