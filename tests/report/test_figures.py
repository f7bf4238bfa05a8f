import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.report import Cell
from graphjoule.report.figures import companions, curve_charts, energy_chart, mean_curves
from graphjoule.training.evaluation import spread
from graphjoule.training.recipe import load_recipe

from .cells import cell, record

RECIPE = load_recipe("egnn", "cora", 4)
LOSSES = ["train_loss", "val_loss"]


def run(seed, losses, selected=None):
    curve = {"train_loss": losses, "val_loss": losses, "val_accuracy": [0.5] * len(losses)}
    return record(RECIPE, seed, curve=curve, epochs_run=len(losses), selected_epoch=selected)


def test_the_mean_is_that_of_all_runs():
    losses = np.random.default_rng(0).random((3, 20)).round(6)
    found = mean_curves([run(seed, list(row)) for seed, row in enumerate(losses)], LOSSES)
    epochs, values = found
    np.testing.assert_allclose(values[0], losses.mean(axis=0), rtol=1e-5)
    assert epochs == list(range(20))


def test_it_ends_where_half_of_the_runs_have_stopped():
    assert mean_curves([run(0, [1.0] * 10), run(1, [2.0] * 4)], LOSSES)[0][-1] == 9
    epochs, values = mean_curves([run(0, [1.0] * 10), run(1, [2.0] * 4), run(2, [3.0] * 6)], LOSSES)
    assert epochs[-1] == 5
    assert values[1] == [2.0] * 4 + [2.0, 2.0]


def test_a_value_that_is_none_is_in_no_mean():
    assert mean_curves([run(0, [1.0, None]), run(1, [3.0, 5.0])], LOSSES)[1][0] == [2.0, 5.0]
    assert mean_curves([run(0, [None])], LOSSES)[1][0] == [None]


def test_the_selected_epoch_is_the_median_and_one_of_them():
    runs = [run(k, [1.0] * 9, k * k) for k in range(3)]
    assert [chart.mark for chart in curve_charts(Cell(RECIPE, runs), 9)] == [1, 1]
    assert curve_charts(Cell(RECIPE, [run(0, [1.0])]), 9)[0].mark is None
    assert mean_curves([], LOSSES) == ([], [[], []])


@given(st.integers(0, 3000), st.integers(2, 300))
def test_kept_epochs_are_few_spread_and_hold_both_ends(count, most):
    kept = spread(count, most)
    assert len(kept) <= most
    assert kept == sorted(set(kept))
    if count:
        assert (kept[0], kept[-1]) == (0, count - 1)
        gaps = np.diff(kept)
        assert gaps.size == 0 or gaps.max() - gaps.min() <= 1


def test_models_are_compared_at_one_depth_of_one_dataset():
    cells = [
        cell(),
        cell("gcn"),
        cell("gcn", layers=8),
        cell("gcn", dataset="pubmed"),
        cell("sgc", traced=False),
        cell(overrides={"c_min": 0.5}),
    ]
    assert companions(cells, cells[0]) == [cells[0], cells[1]]
    assert companions(cells, cells[5]) == [cells[5], cells[1]]  # of two EGNNs the one that is looked at
    assert [line.label for line in energy_chart(cells, cells[0]).lines] == ["egnn", "gcn"]
    assert [line.label for line in energy_chart(cells, cells[2]).lines] == ["at initialisation", "after training"]


def test_the_score_that_selects_is_drawn_in_its_own_unit():
    losses, score = curve_charts(cell(), 240)
    assert [line.label for line in losses.lines] == ["training loss", "validation loss"]
    assert (score.title, score.y_label) == ("Validation accuracy over the epochs: egnn, 4 layers, cora", "accuracy, %")
    assert [line.label for line in score.lines] == ["validation accuracy"]
    assert list(score.lines[0].y) == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert (losses.mark, score.mark) == (4, 4)
