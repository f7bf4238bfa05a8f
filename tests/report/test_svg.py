import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.report.svg import (
    NARROW,
    Band,
    Bars,
    Chart,
    Dots,
    Line,
    draw,
    draw_plane,
    linear_ticks,
    log_ticks,
    value_range,
)

LEFT, RIGHT, TOP, BOTTOM = 68, 720 - 14, 12, 380 - 46


def chart(*lines, **more):
    return Chart("title", "layer", "energy", [Line("a", range(len(y)), y) for y in lines], **more)


def points(picture, number=0):
    path = re.findall(r'<path class="line s\d" d="([^"]*)"', picture)[number]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_a_linear_axis_is_linear():
    assert points(draw(chart([0.0, 1.0, 4.0]))) == [(LEFT, BOTTOM), ((LEFT + RIGHT) / 2, 253.5), (RIGHT, TOP)]


def test_a_logarithmic_axis_has_equal_steps_for_equal_ratios():
    ys = [y for _, y in points(draw(chart([1.0, 1e-3, 1e-6], is_log=True)))]
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.11)
    assert TOP < ys[0] < ys[2] < BOTTOM


def test_what_is_too_small_for_the_axis_lies_at_its_bottom():
    ys = [y for _, y in points(draw(chart([1.0, 0.0, 1e-40], is_log=True)))]
    assert ys[1:] == [BOTTOM, BOTTOM]


def test_without_a_positive_value_the_axis_is_linear():
    assert value_range(chart([0.0, 0.0], is_log=True)) == ((0.0, 1.0), False)


def test_a_missing_value_is_a_gap():
    picture = draw(chart([1.0, None, 2.0, math.nan, 3.0]))
    assert re.search(r'd="M[\d. ]+M[\d. ]+M[\d. ]+"', picture)


@pytest.mark.parametrize("lines", [[], [[]], [[None]], [[1.0]], [[0.0]], [[5.0, 5.0]]])
@pytest.mark.parametrize("is_log", [False, True])
def test_few_values_are_drawn(lines, is_log):
    picture = draw(chart(*lines, is_log=is_log))
    assert picture.startswith("<svg")
    assert "nan" not in picture


def test_one_value_is_a_dot():
    assert 'h0.1"' in draw(chart([1.0]))


def test_a_band_spans_its_limits():
    picture = draw(chart([0.0, 4.0], band=Band("limits", [0, 1], [0.0, 1.0], [4.0, 4.0])))
    assert '<polygon class="band" points="68,12 706,12 706,253.5 68,334">' in picture


def test_a_mark_stands_at_its_place():
    assert f'<line class="mark" x1="{LEFT}" x2="{LEFT}"' in draw(chart([1.0, 2.0], mark=0.0))


def test_labels_are_escaped():
    picture = draw(Chart('"><b>', "<i>", "<u>", [Line("<s>", [0], [1.0])], Band("<p>", [0], [0.0], [1.0])))
    assert not re.search(r"<(b|i|u|s|p)>", picture)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_linear_ticks_are_few_even_and_inside(low, width):
    ticks = linear_ticks(low, low + width)
    slack = 1e-6 * (abs(low) + width)
    assert len(ticks) <= 7
    assert all(low - slack <= tick <= low + width + slack for tick in ticks)


@given(st.floats(-30, 10), st.floats(0.01, 30))
def test_log_ticks_are_positive_few_and_inside(exponent, decades):
    low, high = 10**exponent, 10 ** (exponent + decades)
    ticks = log_ticks(low, high)
    assert len(ticks) <= 12
    assert all(low * 0.999999 <= tick <= high * 1.000001 for tick in ticks)
    assert ticks == sorted(set(ticks))


def test_bars_stand_between_their_edges_on_the_axis():
    bars = Bars("n", [0, 1, 3], [5.0, 10.0], ["few", "many < all"])
    picture = draw(Chart("t", "x", "y", [], bars=bars, x_range=(0, 4), y_range=(0, 10), size=NARROW))
    left, right, bottom = 68, 480 - 14, 340 - 46
    wide = (right - left) / 4
    found = re.findall(r'<rect class="bar" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', picture)
    (x1, y1, w1, h1), (x2, y2, w2, h2) = ([float(value) for value in each] for each in found)
    assert (x1, x2) == (pytest.approx(left + 0.5), pytest.approx(left + wide + 0.5, abs=0.2))
    assert (w1, w2) == (pytest.approx(wide - 1, abs=0.2), pytest.approx(2 * wide - 1, abs=0.2))
    assert (y1 + h1, y2 + h2, y2) == (bottom, bottom, 12)
    assert h1 == pytest.approx(h2 / 2)
    assert "many &lt; all" in picture


def test_dots_keep_to_the_axes_and_ticks_may_be_named():
    dots = [Dots("a < b", [0.0, 0.5, 9.0], [0.0, 0.5, 9.0], "p3")]
    picture = draw(Chart("t", "x", "y", [], dots=dots, x_range=(0, 1), y_range=(0, 1), x_ticks=[(0.5, "half")]))
    (path,) = re.findall(r'<path class="dots p3" d="([^"]*)"><title>a &lt; b', picture)
    assert path == f"M{LEFT} {BOTTOM}hM{(LEFT + RIGHT) / 2:g} {(TOP + BOTTOM) / 2:g}hM{RIGHT} {TOP}h".replace("h", "h0")
    assert ">half<" in picture
    assert ">0.2<" in draw(Chart("t", "x", "y", [], x_range=(0, 1)))  # not whole numbers alone


def test_a_plane_has_a_path_for_every_group_empty_ones_too():
    picture = draw_plane("t", 500, [("a", "p0", [(1, 2), (3, 4)]), ("b", "p1", [])])
    assert re.findall(r'class="dots (p\d)" d="([^"]*)"', picture) == [("p0", "M1 2h0M3 4h0"), ("p1", "")]
