import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.report.curves import mean_curves, spread
from graphjoule.training.recipe import load_recipe

from .cells import record

RECIPE = load_recipe("egnn", "cora", 4)


def run(seed, losses, selected=None):
    curve = {"train_loss": losses, "val_loss": losses, "val_accuracy": [0.5] * len(losses)}
    return record(RECIPE, seed, curve=curve, epochs_run=len(losses), selected_epoch=selected)


def test_the_mean_is_that_of_all_runs():
    losses = np.random.default_rng(0).random((3, 20)).round(6)
    found = mean_curves([run(seed, list(row)) for seed, row in enumerate(losses)])
    np.testing.assert_allclose(found.values["train_loss"], losses.mean(axis=0), rtol=1e-5)
    assert found.epochs == list(range(20))


def test_it_ends_where_half_of_the_runs_have_stopped():
    assert mean_curves([run(0, [1.0] * 10), run(1, [2.0] * 4)]).epochs[-1] == 9
    found = mean_curves([run(0, [1.0] * 10), run(1, [2.0] * 4), run(2, [3.0] * 6)])
    assert found.epochs[-1] == 5
    assert found.values["val_loss"] == [2.0] * 4 + [2.0, 2.0]


def test_a_value_that_is_none_is_in_no_mean():
    assert mean_curves([run(0, [1.0, None]), run(1, [3.0, 5.0])]).values["train_loss"] == [2.0, 5.0]
    assert mean_curves([run(0, [None])]).values["train_loss"] == [None]


def test_the_selected_epoch_is_the_median_and_one_of_them():
    assert mean_curves([run(k, [1.0] * 9, k * k) for k in range(3)]).selected == 1
    assert mean_curves([run(0, [1.0])]).selected is None
    assert mean_curves([]).epochs == []


@given(st.integers(0, 3000), st.integers(2, 300))
def test_kept_epochs_are_few_spread_and_hold_both_ends(count, most):
    kept = spread(count, most)
    assert len(kept) <= most
    assert kept == sorted(set(kept))
    if count:
        assert (kept[0], kept[-1]) == (0, count - 1)
        gaps = np.diff(kept)
        assert gaps.size == 0 or gaps.max() - gaps.min() <= 1
