from itertools import pairwise

import pytest

from graphjoule.report.drawings import drawings_of, picture
from graphjoule.report.drawings.chart import draw
from graphjoule.report.drawings.depths import accuracy_over_depth
from graphjoule.studies import find_study
from tests.studies import energy_record

from . import evidence


def depth_accuracy(cell):
    return None if cell.num_layers == 8 else 20.0 if (cell.model, cell.num_layers > 8) == ("gcn", True) else 80.0


def test_depth_has_a_line_per_model_with_its_spread_and_leaves_out_what_is_not_run():
    found = evidence("depth", depth_accuracy, datasets=("cora", "pubmed"))
    (drawing,) = drawings_of(found)
    assert (drawing.name, [chart.panel.title for chart in drawing.charts]) == ("depth-accuracy", ["Cora", "Pubmed"])
    panel = drawing.charts[0].panel
    assert [line.label for line in panel.lines] == ["GCN", "GCNII", "EGNN"]
    assert len({(line.colour, line.style) for line in panel.lines}) == 3
    assert list(panel.lines[0].x) == [2, 4, 16, 32, 64, 128, 256, 512, 1024]
    assert panel.lines[0].y[1:3] == pytest.approx([81.0, 21.0])
    assert "On cora: GCN 21.0 % at 1,024, GCNII 81.0 % at 1,024, EGNN 81.0 % at 1,024 layers." in drawing.alt
    figure = draw(drawing)
    figure.canvas.draw()
    labels = figure.axes[0].get_xticklabels()
    assert labels[-1].get_text() == "1024"
    boxes = [label.get_window_extent() for label in labels]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert accuracy_over_depth(evidence("depth", lambda cell: None)) == {}


def test_energies_have_a_small_chart_per_depth_on_one_scale():
    cells = find_study("depth").cells(["cora"], layers=[4, 2])
    last = {("gcn", 4): 1e-20}  # the energies of two layers span too little for a logarithmic axis of their own
    energies = [
        energy_record(cell, energies=[100.0] + [last.get((cell.model, cell.num_layers), 50.0)] * cell.num_layers)
        for cell in cells
    ]
    found = evidence("depth", lambda cell: None, energies=energies, datasets=("cora", "pubmed"), layers=(4, 2))
    (drawing,) = drawings_of(found)
    assert (drawing.name, [chart.panel.title for chart in drawing.charts]) == (
        "depth-energy-cora",
        ["2 layers", "4 layers"],
    )
    assert [key.label for key in drawing.key] == ["GCN", "GCNII", "EGNN"]
    line = drawing.charts[1].panel.lines[2]
    assert line.y == pytest.approx([150.0] + [75.0] * 4)  # the median of one and two times the energies
    figure = draw(drawing)
    assert {axes.get_ylim() for axes in figure.axes} == {drawing.charts[0].y_limits}
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    assert "GCN with 4 layers: 1.5e+02 at first, 1.5e-20 at the lowest, 1.5e-20 at last." in drawing.alt


def test_long_lines_are_thinned_with_both_ends():
    (cell,) = find_study("depth").cells(["cora"], ["egnn"], [1024])
    record = energy_record(cell, energies=[float(k + 1) for k in range(1025)])
    (drawing,) = drawings_of(evidence("depth", lambda cell: None, energies=[record], datasets=("cora",)))
    (line,) = drawing.charts[0].panel.lines
    assert len(line.y) == 200
    assert (line.x[0], line.x[-1], line.y[-1]) == (0, 1024, pytest.approx(1.5 * 1025))


def test_energies_of_nothing_but_zero_can_be_drawn():
    (cell,) = find_study("depth").cells(["cora"], ["gcn"], [2])
    (drawing,) = drawings_of(evidence("depth", lambda cell: None, energies=[energy_record(cell, energies=[0.0])]))
    assert picture(drawing).startswith(b"\x89PNG")
