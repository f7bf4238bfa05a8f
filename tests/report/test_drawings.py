"""Studies of made-up runs, drawn: what is shown, and that the same numbers give the same bytes."""

import math
from functools import cache
from itertools import pairwise
from typing import get_args

import pytest

from graphjoule.nn import MODELS
from graphjoule.report import DRAWINGS, Evidence, Series, draw, drawings_of, find_sweeps, picture, variant_styles
from graphjoule.report.drawings import score_limits, style_of
from graphjoule.studies import STUDIES, Cell, Collection, Study, find_study
from graphjoule.tasks.metrics import ACCURACY, MAE
from tests.studies import energy_record, made_up


@cache
def cells_of(name, datasets=None, models=None, layers=None):
    """Cells of a study, kept because each resolves its recipe once and that takes its time."""
    return find_study(name).cells(datasets, models, layers)


def evidence(name, accuracy, seeds=3, energies=(), **chosen):
    """A study of made-up runs; `accuracy` says what a cell reaches, in percent, or None where it is not run."""
    cells = cells_of(name, **chosen)
    records = [
        made_up(cell, seed, (percent + seed) / 100)
        for cell in cells
        if (percent := accuracy(cell)) is not None
        for seed in range(seeds)
    ]
    return Evidence(find_study(name), cells, Collection(records), energies)


def sweep_accuracy(cell):
    return 20.0 if cell.variant.value in {"0", "1"} and cell.variant.component in {"b", "c_min"} else 80.0


def test_every_way_to_draw_is_that_of_a_study():
    kinds = get_args(get_args(Study.model_fields["drawing"].annotation)[0])
    assert set(DRAWINGS) == set(kinds) == {study.drawing for study in STUDIES.values()} - {None}
    table = find_study("table1")
    assert drawings_of(Evidence(table, table.cells(["cora"], ["gcn"]), Collection())) == []


def test_the_ledger_is_drawn_with_every_cell_its_interval_and_its_verdict():
    def accuracy(cell):
        return cell.reference + (-20.0 if cell.model == "gcn" else 0.0)

    (drawing,) = drawings_of(evidence("table1", accuracy, datasets=("cora",)))
    (panel,) = drawing.panels
    assert (drawing.name, len(panel.x_names)) == ("table1-differences", 24)
    assert panel.x_names[0] == "gcn 2"
    interval, point = panel.lines[:2]
    assert point.y == [pytest.approx(-19.0)]  # the seeds add 0, 1 and 2
    assert interval.x == [0, 0]
    assert interval.y[0] < -20 < interval.y[1]
    assert point.colour != panel.lines[-1].colour  # worse, equal
    assert panel.bands[0].low == [-1.0, -1.0]
    assert picture(drawing).startswith(b"\x89PNG")


def test_the_same_records_give_the_same_bytes_and_others_do_not():
    some = {"datasets": ("cora",), "layers": (2, 4)}
    first, second, other = (
        picture(drawings_of(evidence("depth", lambda cell, mean=mean: mean, **some))[0]) for mean in (80.0, 80.0, 79.0)
    )
    assert first == second != other
    assert b"Software" not in first
    assert b"tIME" not in first


def test_limits_hold_every_band_and_those_of_a_share_stay_within_percent():
    low, high = score_limits(ACCURACY, [Series([1.0], [50.0], [2.0], [3]), Series([1.0], [99.9], [1.0], [3])])
    assert low < 48.0
    assert high == 100.0
    assert score_limits(ACCURACY, []) == (0.0, 100.0)
    flat = [Series([1.0], [0.0], [0.0], [1])]
    assert all(map(math.isfinite, score_limits(ACCURACY, flat)))
    low, high = score_limits(MAE, [Series([1.0], [250.0], [10.0], [3])])
    assert low < 240 < 260 < high
    assert score_limits(MAE, flat)[0] < score_limits(MAE, flat)[1]


def test_scores_are_in_order_the_first_counts_and_only_the_seeds_that_are_asked_for():
    found = evidence("figure2", sweep_accuracy, seeds=4)
    first, second = found.cells[0], found.cells[-1]
    series = found.series([(2.0, first), (1.0, first), (2.0, second), (3.0, Cell("gcn", "digits", 3))])
    assert (series.x, series.n) == ([1.0, 2.0], [4, 4])
    assert series.mean == pytest.approx([81.5, 81.5])
    some = Evidence(found.study, found.cells, found.recorded, seeds=[0])
    assert (found.outcome(first).n, some.outcome(first).n) == (4, 1)
    assert (some.series([(1.0, first)]).mean, some.series([(1.0, first)]).std) == ([80.0], [0.0])


def depth_accuracy(cell):
    return None if cell.num_layers == 8 else 20.0 if (cell.model, cell.num_layers > 8) == ("gcn", True) else 80.0


def test_depth_has_a_line_per_model_with_its_spread_and_leaves_out_what_is_not_run():
    (drawing,) = drawings_of(evidence("depth", depth_accuracy, datasets=("cora", "pubmed")))
    assert (drawing.name, [panel.title for panel in drawing.panels]) == ("depth-accuracy", ["Cora", "Pubmed"])
    panel = drawing.panels[0]
    assert panel.y_label == "test accuracy, %"
    assert [line.label for line in panel.lines] == ["GCN", "GCNII", "EGNN"]
    assert len({(line.colour, line.style) for line in panel.lines}) == 3
    assert list(panel.lines[0].x) == [2, 4, 16, 32, 64, 128, 256, 512, 1024]
    assert panel.lines[0].y[1:3] == pytest.approx([81.0, 21.0])
    figure = draw(drawing)
    figure.canvas.draw()
    labels = figure.axes[0].get_xticklabels()
    assert labels[-1].get_text() == "1024"
    boxes = [label.get_window_extent() for label in labels]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert drawings_of(evidence("depth", lambda cell: None)) == []


def test_variants_in_a_study_of_depth_have_lines_of_their_own():
    found = evidence("constraint", lambda cell: 80.0, datasets=("cora",), models=("gcn",), layers=(2, 8))
    study = found.study.model_copy(update={"drawing": "depth"})
    (drawing,) = drawings_of(Evidence(study, found.cells, found.recorded))
    lines = drawing.panels[0].lines
    assert [line.label for line in lines] == ["GCN, free", "GCN, constraint", "GCN, orthogonal penalty"]
    assert len({(line.colour, line.style) for line in lines}) == 3


def test_scores_that_are_no_share_have_their_own_name_and_scale():
    (cell,) = cells_of("depth", ("cora",), ("gcn",), (2,))
    scores = {"val": {"r2": 0.5}, "test": {"r2": -0.25}, "objective": "regression"}
    records = [made_up(cell, seed, 0.5, **scores) for seed in range(2)]
    (drawing,) = drawings_of(Evidence(find_study("depth"), [cell], Collection(records)))
    assert (drawing.name, drawing.panels[0].y_label) == ("depth-r2", "test r2")
    low, high = drawing.panels[0].y_limits
    assert low < drawing.panels[0].lines[0].y[0] == -0.25 < high < 1


def test_energies_have_a_small_panel_per_depth_on_one_scale():
    cells = cells_of("depth", ("cora",), None, (4, 2))
    last = {("gcn", 4): 1e-20}  # the energies of two layers span too little for a logarithmic axis of their own
    energies = [
        energy_record(cell, energies=[100.0] + [last.get((cell.model, cell.num_layers), 50.0)] * cell.num_layers)
        for cell in cells
    ]
    found = evidence("depth", lambda cell: None, energies=energies, datasets=("cora", "pubmed"), layers=(4, 2))
    (drawing,) = drawings_of(found)
    assert (drawing.name, [p.title for p in drawing.panels]) == ("depth-energy-cora", ["2 layers", "4 layers"])
    assert [key.label for key in drawing.legend] == ["GCN", "GCNII", "EGNN"]
    line = drawing.panels[1].lines[2]
    assert line.y == pytest.approx([150.0] + [75.0] * 4)  # the median of one and two times the energies
    figure = draw(drawing)
    assert {axes.get_ylim() for axes in figure.axes} == {drawing.panels[0].y_limits}
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}


def test_long_lines_are_thinned_with_both_ends_and_zeros_can_be_drawn():
    (cell,) = cells_of("depth", ("cora",), ("egnn",), (1024,))
    record = energy_record(cell, energies=[float(k + 1) for k in range(1025)])
    (drawing,) = drawings_of(Evidence(find_study("depth"), [cell], Collection(), [record]))
    (line,) = drawing.panels[0].lines
    assert len(line.y) == 200
    assert (line.x[0], line.x[-1], line.y[-1]) == (0, 1024, pytest.approx(1.5 * 1025))
    dead = energy_record(cell, energies=[0.0])
    assert picture(drawings_of(Evidence(find_study("depth"), [cell], Collection(), [dead]))[0]).startswith(b"\x89PNG")


SIDES = {"datasets": ("cora",), "models": ("gcn", "egnn"), "layers": (2, 8, 16)}


def test_sides_have_a_panel_per_model_with_a_line_and_a_spread_per_variant():
    free, held, near = variant_styles(cells_of("constraint", **SIDES))
    (drawing,) = drawings_of(evidence("constraint", lambda c: 80.0 if c.variant.value == near else 30.0, **SIDES))
    assert (drawing.name, [p.title for p in drawing.panels]) == ("constraint-accuracy-cora", ["GCN", "EGNN"])
    gcn = drawing.panels[0]
    assert [list(line.x) for line in gcn.lines] == [[2, 8, 16]] * 3
    assert [line.y[-1] for line in gcn.lines] == pytest.approx([31.0, 31.0, 81.0])
    assert gcn.bands[0].high[0] - gcn.lines[0].y[0] == pytest.approx(1.0)
    assert [key.label for key in drawing.legend] == [free, held, near]
    assert len({(line.colour, line.style) for line in gcn.lines}) == 3
    assert len({panel.y_limits for panel in drawing.panels}) == 1


def test_a_side_keeps_its_colour_where_others_are_not_run_and_a_model_without_runs_has_no_panel():
    name, style = list(variant_styles(cells_of("constraint", **SIDES)).items())[2]
    one_side = evidence("constraint", lambda c: 80.0 if (c.variant.value, c.model) == (name, "gcn") else None, **SIDES)
    (drawing,) = drawings_of(one_side)
    (panel,) = drawing.panels
    assert [(line.colour, line.style) for line in panel.lines] == [style]
    assert picture(drawing).startswith(b"\x89PNG")
    assert drawings_of(evidence("constraint", lambda cell: None, **SIDES)) == []


def test_energies_of_sides_have_a_panel_per_model_and_depth():
    cells = cells_of("constraint", **SIDES)
    (drawing,) = drawings_of(
        evidence("constraint", lambda cell: None, energies=[energy_record(cell) for cell in cells], **SIDES)
    )
    assert drawing.name == "constraint-energy-cora"
    assert [panel.title for panel in drawing.panels][:3] == ["GCN, 2 layers", "EGNN, 2 layers", "GCN, 8 layers"]
    assert [len(panel.lines) for panel in drawing.panels] == [3] * 6


def limits_of(*networks, **changes):
    """Figure 1 of some networks of two layers, each a model and a dataset."""
    settings = {"c_min": 0.2, "beta": 0.1, "c_max": 0.5}
    cells = [Cell(model, data, 2, overrides=settings if model == "egnn" else {}) for model, data in networks]
    runs = {"trained": [[8.0, 2.0, 1.0], [10.0, 1.0, 3.0], [9.0, 5.0, 2.0]], "test_score": [0.5, 0.75, None]}
    records = [energy_record(cell, seeds=(0, 1, 2), **(runs | changes)) for cell in cells]
    (drawing,) = drawings_of(Evidence(find_study("figure1"), cells, Collection(), records))
    return drawing.panels


def test_the_networks_of_figure_1_are_drawn_each_in_its_own_way():
    models = find_study("figure1").models
    assert set(models) <= set(MODELS)
    colours, lines = zip(*map(style_of, (*models, "another")), strict=True)
    assert (len(set(colours)), len(set(lines))) == (4, 4)


def test_the_line_is_the_median_and_the_limits_follow_it():
    before, after = limits_of(("egnn", "digits"))
    assert before.title == "Digits, 2 layers, at initialisation"
    assert after.title == "Digits, 2 layers, after training"
    *runs, median = after.lines
    assert [list(run.y) for run in runs] == [[8.0, 2.0, 1.0], [10.0, 1.0, 3.0], [9.0, 5.0, 2.0]]
    assert (median.label, list(median.y), list(median.x)) == ("EGNN\n62.5 % right", [9.0, 2.0, 2.0], [0, 1, 2])
    (band,) = after.bands
    assert (list(band.x), band.low, band.high) == ([1, 2], [0.2 * 9.0, 0.2 * 2.0], [4.5, 4.5])


def test_a_model_without_limits_and_without_test_nodes_has_no_band_and_no_score():
    panel = limits_of(("gcn", "digits"), first_layer=1, test_score=[None] * 3)[1]
    assert not panel.bands
    assert (panel.lines[-1].label, list(panel.lines[-1].x)) == ("GCN", [1, 2, 3])


def test_every_dataset_has_a_panel_for_each_state_with_all_its_networks():
    found = limits_of(("egnn", "digits"), ("gcn", "digits"), ("egnn", "cora"))
    assert [panel.title.split(",")[0] for panel in found] == ["Digits", "Cora"] * 2
    assert [sum(line.label != "" for line in panel.lines) for panel in found] == [2, 1, 2, 1]


def test_figure_1_is_drawn_from_the_energies_of_its_own_settings():
    cells = find_study("figure1").cells(["cora"])
    other = [energy_record(Cell("egnn", "cora", 64))]  # c_max = 1, not the figure's
    assert drawings_of(Evidence(find_study("figure1"), cells, Collection(), other)) == []


def test_a_sweep_has_a_panel_per_setting_with_means_spread_range_and_own_value():
    (drawing,) = drawings_of(evidence("figure2", sweep_accuracy))
    assert drawing.name == "figure2-cora-64"
    assert [panel.x_label.split(",")[0] for panel in drawing.panels] == ["b", "gamma", "c_min", "c_max"]
    assert [panel.shaded for panel in drawing.panels] == [(None, 0.0), (1.0, None), (0.1, 0.75), (0.2, 1.0)]
    b, _, c_min, c_max = drawing.panels
    ((line,), (band,)) = b.lines, b.bands
    assert list(line.x) == [-20.0, -10.0, -5.0, -1.0, 0.0, 1.0]
    assert line.y == pytest.approx([81.0] * 4 + [21.0] * 2)
    assert band.high[0] - line.y[0] == line.y[0] - band.low[0] == pytest.approx(1.0)
    assert (b.ring, c_min.ring, c_max.ring) == ((-10.0, line.y[1]), (0.15, c_min.lines[0].y[2]), (1.0, line.y[0]))
    assert len({panel.y_limits for panel in drawing.panels}) == 1


def test_the_recipes_own_value_is_drawn_where_the_sweep_leaves_it_out():
    own = Cell("egnn", "pubmed", 64).recipe.fingerprint()
    found = evidence("figure3", lambda cell: 89.0 if cell.recipe.fingerprint() == own else sweep_accuracy(cell))
    ((_, sweeps),) = find_sweeps(found).items()
    c_min = sweeps[2]
    assert c_min.own == (0.11, pytest.approx(90.0))
    assert c_min.series.x[:4] == [0.0, 0.1, 0.11, 0.15]
    assert c_min.series.mean[:4] == pytest.approx([21.0, 81.0, 90.0, 81.0])


def test_what_is_not_run_is_a_gap_and_nothing_at_all_is_no_drawing():
    some = evidence("figure2", lambda cell: 80.0 if cell.variant.component == "gamma" else None)
    (drawing,) = drawings_of(some)
    lengths = [len(panel.lines[0].y) if panel.lines else 0 for panel in drawing.panels]
    assert lengths == [1, 7, 1, 1]  # gamma = 20 is the recipe, which is in the other sweeps too
    assert drawings_of(evidence("figure2", lambda cell: None)) == []
    assert picture(drawing).startswith(b"\x89PNG")


def test_a_sweep_asked_for_elsewhere_has_a_drawing_per_dataset_and_depth():
    found = evidence("figure2", sweep_accuracy, datasets=("digits", "cora"), layers=(2, 3))
    names = [drawing.name for drawing in drawings_of(found)]
    assert names == ["figure2-digits-2", "figure2-digits-3", "figure2-cora-2", "figure2-cora-3"]
