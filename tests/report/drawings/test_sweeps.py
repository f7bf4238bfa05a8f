import pytest

from graphjoule.report.drawings import drawings_of, picture
from graphjoule.report.drawings.chart import Mark, Range
from graphjoule.report.drawings.sweeps import find_sweeps
from graphjoule.studies import Cell
from tests.studies import made_up

from . import evidence, sweep_accuracy


def test_a_sweep_has_a_chart_per_setting_with_means_spread_range_and_own_value():
    (drawing,) = drawings_of(evidence("figure2", sweep_accuracy))
    assert drawing.name == "figure2-cora-64"
    assert [chart.panel.x_label.split(",")[0] for chart in drawing.charts] == ["b", "gamma", "c_min", "c_max"]
    ranges = [Range(None, 0.0), Range(1.0, None), Range(0.1, 0.75), Range(0.2, 1.0)]
    assert [chart.shaded for chart in drawing.charts] == ranges
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
