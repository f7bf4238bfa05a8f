"""The same numbers give the same bytes, and a drawing shows what its data say."""

import json
from typing import get_args

import pytest

from graphjoule.report.drawings import DRAWINGS, Evidence, drawings_of, drawn_with, picture
from graphjoule.report.drawings.chart import Chart, Drawing, Key, Mark, Range, draw
from graphjoule.studies import STUDIES, Collection, Study, find_study
from graphjoule.trace.plots import Line, Panel

from . import evidence, sweep_accuracy


def test_every_way_to_draw_is_that_of_a_study():
    kinds = get_args(get_args(Study.model_fields["drawing"].annotation)[0])
    assert set(DRAWINGS) == set(kinds) == {study.drawing for study in STUDIES.values()} - {None}
    assert {STUDIES[name].drawing for name in ("table1", "table2")} == {None}
    table = find_study("table1")
    assert drawings_of(Evidence(table, table.cells(["cora"], ["gcn"]), Collection())) == []


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
