import json
import math

import pytest
import torch
from torch import nn

from graphjoule.errors import GraphjouleError
from graphjoule.trace import LayerTrace, RecordedTrace, Trace, read_trace
from tests.graphs import path3

from . import Plain, single


def recorded():
    model = Plain()
    with Trace(model, path3().graph(), ["energy", "norm"], gradients=True) as trace:
        model(single(3, 2)).sum().backward()
        trace.mark(7)
        model.eval()(single(3, 2))
    return trace


def test_the_table_has_a_line_per_row_and_columns_for_what_differs():
    trace = recorded()
    head, *lines = trace.table().splitlines()
    assert head.split() == ["call", "mark", "mode", "layer", "energy", "norm", "gradient", "weight_gradient"]
    assert [line.split()[:4] for line in lines[2:]] == [["1", "7", "eval", "first"], ["1", "7", "eval", "second"]]
    assert float(lines[0].split()[3]) == pytest.approx(trace.layers[0].energy, rel=0.01)
    one = trace.select(call=1)
    assert one.table().splitlines()[0].split() == ["layer", "energy", "norm"]
    empty = Trace(Plain(), path3().index, ["energy"])
    assert empty.table().split() == ["layer", "energy"]


def test_a_printed_trace_says_how_much_is_there_and_how_to_see_it():
    assert repr(recorded()) == "<Trace: 4 rows of 2 calls; .table() and .plot() show them>"
    assert repr(RecordedTrace([], ["energy"])) == "<RecordedTrace: nothing recorded>"


def test_json_gives_the_trace_back_and_has_null_for_what_is_not_finite():
    trace = recorded()
    again = read_trace(trace.to_json())
    assert again.layers == trace.layers
    assert again.measures == trace.measures
    assert again.table() == trace.table()
    broken = Trace(Plain(), path3().graph(), ["norm"])
    with broken:
        broken._model(torch.full((3, 2), math.nan))
    assert json.loads(broken.to_json())["layers"][0]["values"] == {"norm": None}
    assert math.isnan(read_trace(broken.to_json()).layers[0].norm)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"measures": [], "layers": [{"name": "x"}]}', "null"])
def test_what_is_no_trace_is_refused(text):
    with pytest.raises(GraphjouleError, match="This is not a trace that graphjoule wrote"):
        read_trace(text)


def test_a_row_without_a_measure_says_what_there_is():
    row = LayerTrace("convs.0", {"norm": 1.0})
    with pytest.raises(GraphjouleError, match=r"convs.0 has no 'energy'; recorded are: norm\."):
        row.energy  # noqa: B018
    assert "norm" in row
    assert "energy" not in row


def test_a_trace_is_a_panel_per_measure_with_a_point_per_layer(tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3))
    with Trace(model, path3().graph(), gradients=True) as trace:
        model(torch.ones(3, 2)).sum().backward()
        model(2 * torch.ones(3, 2)).sum().backward()
    figure = trace.plot(tmp_path / "trace.png")
    assert [axes.get_ylabel() for axes in figure.axes] == [
        *("energy", "norm", "rayleigh", "effective rank"),
        *("gradient", "weight gradient"),
    ]
    last = trace.select(call=1).layers
    assert list(figure.axes[1].lines[0].get_ydata()) == pytest.approx([row.norm for row in last])
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["0", "1", "2"]
    assert (tmp_path / "trace.png").stat().st_size > 1000
    first = trace.plot(measures=["norm"], call=0).axes
    assert list(first[0].lines[0].get_ydata()) == pytest.approx([row.norm for row in trace.select(call=0).layers])


def test_runs_are_thin_lines_with_their_median_in_bold():
    values = {0: [1.0, 3.0], 1: [2.0, 5.0], 2: [9.0, 4.0]}
    rows = [LayerTrace(f"l.{k}", {"norm": values[run][k]}, run=run) for k in range(2) for run in values]
    (axes,) = RecordedTrace(rows, ["norm"]).plot().axes
    assert [list(line.get_ydata()) for line in axes.lines] == [*values.values(), [2.0, 4.0]]
    assert axes.lines[-1].get_linewidth() > axes.lines[0].get_linewidth()
    assert "median" in [text.get_text() for text in axes.texts]


def test_what_was_not_recorded_cannot_be_drawn():
    trace = RecordedTrace([LayerTrace("a", {"norm": 1.0})], ["norm"])
    with pytest.raises(GraphjouleError, match="'mad' was not recorded; recorded are: norm"):
        trace.plot(measures=["mad"])
    with pytest.raises(GraphjouleError, match="nothing"):
        RecordedTrace([], ["norm"]).plot()


def test_parts_and_operators_have_columns_and_can_be_chosen():
    rows = [LayerTrace(f"convs.{k}", {"energy": 2.0 + k}, part=p) for k in range(2) for p in ("graph 0", "graph 1")]
    trace = RecordedTrace(rows, ["energy"])
    assert trace.table().splitlines()[0].split() == ["layer", "part", "energy"]
    assert [row.energy for row in trace.select(part="graph 1").layers] == [2.0, 3.0]
    with pytest.raises(GraphjouleError, match=r"holds 2 parts, and a picture is about one: .*part='graph 0'"):
        trace.one_pass("a picture")
    (panel,) = trace.plot().axes
    assert len(panel.lines) == 3  # a line each, and their median
    with pytest.raises(GraphjouleError, match="have different numbers of rows; choose one with"):
        RecordedTrace(rows[:3], ["energy"]).plot()
    walk = RecordedTrace([LayerTrace("a", {"energy": 1.0}, operator="sum")], ["energy"])
    assert walk.table().splitlines()[0].split() == ["layer", "operator", "energy"]


def test_rows_of_operators_that_cannot_be_compared_are_no_pass():
    rows = [LayerTrace(name, {"energy": 1.0}, operator=name) for name in ("random_walk", "attention")]
    assert len(RecordedTrace(rows, ["energy"]).one_pass("check")) == 2
    rows.append(LayerTrace("c", {"energy": 1.0}))
    with pytest.raises(GraphjouleError, match=r"operators, random_walk and symmetric, .*Trace\(..., operator=...\)"):
        RecordedTrace(rows, ["energy"]).one_pass("check")


def test_averages_weigh_nodes_alike_and_keep_runs_modes_and_parts_apart():
    rows = [
        LayerTrace("a", {"norm": n, "mad": m}, num_nodes=k, call=c, mark=1, run=run, gradient=n)
        for c, (n, m, k) in enumerate([(3.0, 0.1, 10), (4.0, 0.5, 30)])
        for run in range(2)
    ]
    rows.append(LayerTrace("a", {"norm": 9.0, "mad": 0.0}, call=2, mark=1, training=True))
    first, second, third = RecordedTrace(rows, ["norm", "mad"]).averaged().layers
    assert (first.run, second.run, third.training, third.call) == (0, 1, True, 1)
    assert first.norm == first.gradient == pytest.approx(math.sqrt((9 + 16) / 2))
    assert first["mad"] == pytest.approx(0.4)
    assert third.weight_gradient is None
    assert third["mad"] == 0.0
