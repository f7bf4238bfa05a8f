"""The figures of the studies: what is drawn, and that the same records give the same bytes."""

import json
import math
from functools import cache
from itertools import pairwise

import pytest

from graphjoule.report.drawings import DRAWINGS, Evidence, drawings_of, drawn_with, picture
from graphjoule.report.drawings.chart import Chart, Drawing, Key, Mark, Range, draw
from graphjoule.report.drawings.depths import accuracy_over_depth
from graphjoule.report.drawings.evidence import Series, common_limits
from graphjoule.report.drawings.sweeps import RANGES, find_sweeps
from graphjoule.studies import STUDIES, Cell, Collection, find_study
from graphjoule.trace.plots import Line, Panel
from tests.studies import made_up
from tests.studies.test_energy_files import energy_record


@cache
def cells_of(name, datasets=None, layers=None):
    """Cells of a study, kept because each resolves its recipe once and that takes its time."""
    return find_study(name).cells(datasets, None, layers)


def evidence(name, accuracy, seeds=3, energies=(), **chosen):
    """A study of made-up runs; `accuracy` says what a cell reaches, in percent, or None where it is not run."""
    study = find_study(name)
    cells = cells_of(name, **chosen)
    records = [
        made_up(cell, seed, (percent + seed) / 100)
        for cell in cells
        if (percent := accuracy(cell)) is not None
        for seed in range(seeds)
    ]
    return Evidence(study, cells, Collection(records), energies)


def sweep_accuracy(cell):
    return 20.0 if cell.variant.value in {"0", "1"} and cell.variant.component in {"b", "c_min"} else 80.0


def test_every_study_that_is_drawn_is_a_study():
    assert set(DRAWINGS) <= set(STUDIES)
    assert not set(DRAWINGS) & {"table1", "table2"}
    table = find_study("table1")
    assert drawings_of(Evidence(table, table.cells(["cora"], ["gcn"]), Collection())) == []


# Sweeps.


def test_a_sweep_has_a_chart_per_setting_with_means_spread_range_and_own_value():
    (drawing,) = drawings_of(evidence("figure2", sweep_accuracy))
    assert drawing.name == "figure2-cora-64"
    assert [chart.panel.x_label.split(",")[0] for chart in drawing.charts] == ["b", "gamma", "c_min", "c_max"]
    assert [chart.shaded for chart in drawing.charts] == list(RANGES.values())
    b, _, c_min, c_max = drawing.charts
    ((line,), (band,)) = b.panel.lines, b.panel.bands
    assert list(line.x) == [-20.0, -10.0, -5.0, -1.0, 0.0, 1.0]
    assert line.y == pytest.approx([81.0] * 4 + [21.0] * 2)
    assert band.high[0] - line.y[0] == line.y[0] - band.low[0] == pytest.approx(1.0)
    assert (b.mark, c_min.mark, c_max.mark) == (
        Mark(-10.0, line.y[1]),
        Mark(0.15, c_min.panel.lines[0].y[2]),
        Mark(1.0, line.y[0]),
    )
    assert len({chart.y_limits for chart in drawing.charts}) == 1


def test_the_recipes_own_value_is_drawn_where_the_sweep_leaves_it_out():
    found = evidence("figure3", sweep_accuracy)
    for record in [made_up(Cell("egnn", "pubmed", 64), seed, 0.9, created="2999") for seed in range(3)]:
        found.recorded.add(record)
    ((_, sweeps),) = find_sweeps(found).items()
    c_min = sweeps[2]
    assert c_min.own == Mark(0.11, pytest.approx(90.0))
    assert c_min.series.x[:4] == [0.0, 0.1, 0.11, 0.15]
    assert c_min.series.mean[:4] == pytest.approx([21.0, 81.0, 90.0, 81.0])


def test_what_is_not_run_is_a_gap_and_nothing_at_all_is_no_drawing():
    some = evidence("figure2", lambda cell: 80.0 if cell.variant.component == "gamma" else None)
    (drawing,) = drawings_of(some)
    lengths = [len(chart.panel.lines[0].y) if chart.panel.lines else 0 for chart in drawing.charts]
    assert lengths == [1, 7, 1, 1]  # gamma = 20 is the recipe, which is in the other sweeps too
    assert drawings_of(evidence("figure2", lambda cell: None)) == []
    assert picture(drawing).startswith(b"\x89PNG")


def test_the_alternative_text_says_the_message():
    (drawing,) = drawings_of(evidence("figure2", sweep_accuracy))
    assert drawing.alt == (
        "Test accuracy of EGNN with 64 layers on cora over b, gamma, c_min and c_max. Within the ranges that the paper "
        "recommends the means lie between 21.0 and 81.0 %, outside between 21.0 and 81.0 %."
    )


@pytest.mark.parametrize(
    ("low", "high", "inside", "outside"),
    [(None, 0.0, (-9, 0), (1,)), (0.1, 0.75, (0.1, 0.75), (0, 1)), (1, None, (1, 99), (0,))],
)
def test_ends_belong_to_a_range_and_an_open_one_has_none(low, high, inside, outside):
    assert all(x in Range(low, high) for x in inside)
    assert not any(x in Range(low, high) for x in outside)


def test_a_sweep_asked_for_elsewhere_has_a_drawing_per_dataset_and_depth():
    found = evidence("figure2", sweep_accuracy, datasets=("digits", "cora"), layers=(2, 3))
    names = [drawing.name for drawing in drawings_of(found)]
    assert names == ["figure2-digits-2", "figure2-digits-3", "figure2-cora-2", "figure2-cora-3"]


# Depth.


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


# Bytes.


def test_the_same_records_give_the_same_bytes_and_others_do_not():
    first, second = (picture(drawings_of(evidence("figure2", sweep_accuracy))[0]) for _ in range(2))
    assert first == second
    assert b"Software" not in first
    assert b"tIME" not in first
    assert picture(drawings_of(evidence("figure2", lambda cell: 79.0))[0]) != first


def test_the_numbers_of_a_drawing_are_all_that_it_shows():
    (drawing,) = drawings_of(evidence("figure2", sweep_accuracy))
    data = json.loads(json.dumps(drawing.data()))
    assert data["alt"] == drawing.alt
    b = data["charts"][0]
    assert b["lines"][0]["x"] == [-20, -10, -5, -1, 0, 1]
    assert b["bands"][0]["low"] == [80, 80, 80, 80, 20, 20]
    assert (b["shaded"], b["mark"]) == ([None, 0.0], [-10, 81])
    assert set(drawn_with()) == {"machine", "matplotlib", "numpy", "pillow"}


def test_shade_ring_and_key_are_drawn():
    panel = Panel("t", "y", [Line("", [1.0, 2.0], [0.0, 1.0])], is_log=False)
    key = [Key("line"), Key("shade", "shade"), Key("ring", "ring")]
    chart = Chart(panel, shaded=Range(None, 0.5), mark=Mark(1.0, 2.0))
    figure = draw(Drawing("n", "a", [chart], "all", columns=1, key=key))
    (axes,) = figure.axes
    left = axes.get_xlim()[0]
    box = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert (box.x0, box.x1) == pytest.approx((left, 0.5))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["line", "shade", "ring"]
    assert any(list(line.get_xdata()) == [1.0] and line.get_markersize() > 8 for line in axes.lines)
    assert figure.get_suptitle() == "all"


@pytest.mark.parametrize("across", [3.0, 5.6, 12.0])
def test_a_long_title_has_as_many_lines_as_its_picture_needs(across):
    title = "Cora: Dirichlet energy of every layer after training, median over the seeds"
    panel = Panel("t", "y", [Line("", [1.0, 2.0])], is_log=False)
    figure = draw(Drawing("n", "a", [Chart(panel)], title, columns=1, size=(across, 3.2)))
    figure.canvas.draw()
    (text,) = [text for text in figure.texts if text.get_text().split() == title.split()]
    box = text.get_window_extent()
    assert 0 < box.x0 < box.x1 < figure.bbox.width


# Numbers.


def test_limits_hold_every_band_and_stay_within_percent():
    low, high = common_limits([Series([1.0], [50.0], [2.0], [3]), Series([1.0], [99.9], [1.0], [3])])
    assert low < 48.0
    assert high == 100.0
    assert common_limits([]) == (0.0, 100.0)
    assert all(map(math.isfinite, common_limits([Series([1.0], [0.0], [0.0], [1])])))


def test_only_the_seeds_that_are_asked_for_count():
    found = evidence("figure2", sweep_accuracy, seeds=4)
    some = Evidence(found.study, found.cells, found.recorded, seeds=[0])
    assert (found.outcome(found.cells[0]).n, some.outcome(found.cells[0]).n) == (4, 1)
