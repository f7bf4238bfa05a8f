import builtins
import math

import pytest
from matplotlib.figure import Figure

from graphjoule.errors import GraphjouleError
from graphjoule.trace.plots import (
    PALETTE,
    Band,
    Key,
    Line,
    Panel,
    check_picture_path,
    draw_panel,
    draw_panels,
    save_figure,
)
from tests.forked import exit_code


def drawn(*lines, bands=(), names=()):
    figure = Figure()
    axes = figure.add_subplot()
    draw_panel(axes, Panel("title", "energy", lines, bands, x_names=names))
    return axes


def labels(axes):
    return {text.get_text(): text for text in axes.texts if text.get_text()}


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1.0, 2.0, 5.0], "linear"),
        ([1.0, 100.0], "log"),
        ([1.0, 0.0], "log"),  # what has vanished shall be seen to
        ([-1.0, 100.0], "linear"),
        ([0.0, 0.0], "linear"),
        ([math.nan, math.inf], "linear"),
        ([1.0, math.nan, 1e5], "log"),
    ],
)
def test_the_scale_is_logarithmic_where_values_span_much(values, scale):
    assert drawn(Line("x", values)).get_yscale() == scale


def test_a_line_that_falls_far_leaves_the_panel_at_its_bottom():
    axes = drawn(Line("x", [1.0, 1e-3, 0.0, 1e-40]))
    (line,) = axes.lines
    assert axes.get_ylim()[0] == pytest.approx(1e-16)
    assert list(line.get_ydata())[:2] == [1.0, 1e-3]
    assert all(0 < y < 1e-16 for y in line.get_ydata()[2:])
    assert labels(axes)["x"].xy[1] == pytest.approx(0, abs=0.01)
    assert drawn(Line("x", [1.0, 1e-3])).get_ylim()[0] > 1e-4


def test_a_band_below_the_lines_is_not_cut_off():
    axes = drawn(Line("x", [1.0, 20.0]), bands=[Band("limits", [0, 1], [1e-4, 1e-4], [30.0, 30.0])])
    assert axes.get_ylim()[0] < 1e-4
    edges = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert edges.min() == pytest.approx(1e-4)


def test_values_that_are_not_finite_are_gaps():
    (line,) = drawn(Line("x", [1.0, math.inf, 2.0])).lines
    assert math.isnan(line.get_ydata()[1])


def test_labels_stand_at_the_ends_of_their_lines_in_their_colours_and_apart():
    axes = drawn(
        Line("high", [1.0, 8.0], colour=PALETTE[0]),
        Line("near", [1.0, 7.99], colour=PALETTE[1]),
        Line("low", [1.0, 1.0], colour=PALETTE[2]),
        Line("", [1.0, 4.0]),
    )
    found = labels(axes)
    assert set(found) == {"high", "near", "low"}
    assert [found[name].get_color() for name in ("high", "near", "low")] == list(PALETTE[:3])
    heights = {name: text.xy[1] for name, text in found.items()}
    assert heights["low"] < 0.2 < 0.8 < heights["near"] < heights["high"]
    assert heights["high"] - heights["near"] >= 0.06
    two = labels(drawn(Line("a\nb", [1.0, 2.0]), Line("c\nd", [1.0, 2.0])))
    assert abs(two["a\nb"].xy[1] - two["c\nd"].xy[1]) >= 0.12


def test_colours_and_styles_tell_lines_apart():
    assert len(set(PALETTE)) == len(PALETTE) == 7
    axes = drawn(Line("a", [1, 2], style="--"), Line("b", [2, 1], x=[3, 4]))
    assert [line.get_linestyle() for line in axes.lines] == ["--", "-"]
    assert list(axes.lines[1].get_xdata()) == [3, 4]


def test_a_band_is_behind_the_lines_with_its_label_inside():
    axes = drawn(Line("x", [1.0, 2.0]), bands=[Band("limits", [0, 1], [0.5, 1.0], [3.0, 3.0])])
    assert len(axes.collections) == 1
    assert labels(axes)["limits"].xy == (1, 3.0)


def test_few_layers_are_named_and_many_numbered():
    few, many = ["encoder", "convs.0"], [f"convs.{k}" for k in range(13)]
    assert [tick.get_text() for tick in drawn(Line("x", [1, 2]), names=few).get_xticklabels()] == few
    assert "convs.0" not in [tick.get_text() for tick in drawn(Line("x", range(13)), names=many).get_xticklabels()]


def test_panels_stand_two_in_a_row_and_no_text_is_clipped():
    panels = [Panel("", name, [Line("a long label here", [1.0, 1e-9])]) for name in "abc"]
    figure = draw_panels(panels, title="title")
    figure.draw_without_rendering()
    grid = [axes.get_subplotspec().get_gridspec().get_geometry() for axes in figure.axes]
    assert grid == [(2, 2)] * 3
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert 0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert 0 <= box.y0 <= box.y1 <= figure.bbox.y1
    with pytest.raises(GraphjouleError, match="nothing to draw"):
        draw_panels([])


def test_axes_can_be_the_same_in_several_panels_with_ticks_dots_and_a_legend():
    shared = {"x_scale": "log2", "x_ticks": [2, 4, 8], "y_limits": (0.1, 100.0)}
    lines = [Line("x", [1.0, 2.0, 4.0], x=[2, 4, 8])]
    panels = [Panel("", "energy", lines, dots=dots, **shared) for dots in ("none", "last", "all")]
    figure = draw_panels(panels, columns=1, legend=[Key("what a line is")])
    assert [axes.get_ylim() for axes in figure.axes] == [(0.1, 100.0)] * 3
    assert {(axes.get_xscale(), axes.get_yscale()) for axes in figure.axes} == {("log", "log")}
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["2", "4", "8"]
    assert [[len(line.get_xdata()) for line in axes.lines[1:]] for axes in figure.axes] == [[], [1], [3]]
    assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == (3, 1)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["what a line is"]


def test_shade_ring_and_legend_are_drawn():
    panel = Panel("t", "y", [Line("", [1.0, 2.0], [0.0, 1.0])], is_log=False, shaded=(None, 0.5), ring=(1.0, 2.0))
    figure = draw_panels([panel], legend=[Key("line"), Key("shade", "shade"), Key("ring", "ring")])
    (axes,) = figure.axes
    box = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert (box.x0, box.x1) == pytest.approx((axes.get_xlim()[0], 0.5))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["line", "shade", "ring"]
    assert any(list(line.get_xdata()) == [1.0] and line.get_markersize() > 8 for line in axes.lines)


@pytest.mark.parametrize("across", [3.0, 5.6, 12.0])
def test_a_long_title_has_as_many_lines_as_its_picture_needs(across):
    title = "Cora: Dirichlet energy of every layer after training, median over the seeds"
    figure = draw_panels([Panel("t", "y", [Line("", [1.0, 2.0])], is_log=False)], title=title, size=(across, 3.2))
    figure.canvas.draw()
    (text,) = [text for text in figure.texts if text.get_text().split() == title.split()]
    box = text.get_window_extent()
    assert 0 < box.x0 < box.x1 < figure.bbox.width


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_is_written_whole_and_the_same_each_time(tmp_path, ending):
    for name in ("a", "b"):
        figure = draw_panels([Panel("", "energy", [Line("x", [1.0, 2.0])])])
        save_figure(figure, tmp_path / f"{name}.{ending}")
    first, second = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("a", "b"))
    assert len(first) > 1000
    if ending == "png":
        assert first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a.{ending}", f"b.{ending}"]


def test_what_cannot_be_drawn_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(GraphjouleError, match=r"Cannot draw a\.txt: its ending must be one of .*pdf.*png.*svg"):
        check_picture_path("a.txt")
    with pytest.raises(GraphjouleError, match="Cannot draw a: its ending"):
        check_picture_path("a")
    figure = draw_panels([Panel("", "energy", [Line("x", [1.0])])])
    with pytest.raises(GraphjouleError, match="Cannot write"):
        save_figure(figure, tmp_path / "none" / "a.png")


def test_without_matplotlib_a_sentence_says_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(GraphjouleError, match=r"pip install 'graphjoule\[plot\]'"):
        draw_panels([Panel("", "energy", [Line("x", [1.0])])])


def test_importing_graphjoule_imports_no_matplotlib():
    code = "import graphjoule, graphjoule.trace.plots, sys; sys.exit('matplotlib' in sys.modules)"
    assert exit_code(code) == 0
