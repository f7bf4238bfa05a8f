import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphjoule.training.selection import Selection

few = settings(deadline=None, max_examples=60)
CPU = torch.device("cpu")
NAMES = ("train_loss", "val_loss", "val_accuracy")


def selection_by(select_on, patience, num_runs=1):
    """By the loss, the less the better, or by the accuracy, the more the better."""
    is_accuracy = select_on == "accuracy"
    return Selection(num_runs, 2, int(is_accuracy), patience, CPU, is_higher_better=is_accuracy)


@dataclass
class Plain:
    """Early stopping of one run as one would write it in a loop."""

    best_epoch: int = -1
    last_epoch: int = -1
    best: tuple[float, float] | None = None
    stopped: bool = False
    failed: bool = False


def plain_selection(rows, select_on, patience):
    """The state after every epoch of one run."""
    state, states, best = Plain(), [], None
    for epoch, (train_loss, val_loss, val_accuracy) in enumerate(rows):
        if not state.stopped:
            state = Plain(**vars(state))
            state.last_epoch = epoch
            if not (math.isfinite(train_loss) and math.isfinite(val_loss)):
                state.failed = state.stopped = True
            else:
                score = val_loss if select_on == "loss" else val_accuracy
                if best is None or (score < best if select_on == "loss" else score > best):
                    best = score
                    state.best_epoch, state.best = epoch, (val_loss, val_accuracy)
                state.stopped = epoch - state.best_epoch >= patience
        states.append(state)
    return states


# Few different values: ties are common. Loss and accuracy are drawn apart, so that one cannot stand in for the other.
finite = st.sampled_from([0.25, 0.5, 0.75, 1.0])
loss = st.one_of(finite, finite, finite, finite, st.sampled_from([math.nan, math.inf, -math.inf]))
accuracy = st.sampled_from([0.0, 0.25, 0.5, 1.0])
run = st.lists(st.tuples(loss, loss, accuracy), min_size=12, max_size=12)


@few
@given(
    runs=st.lists(run, min_size=1, max_size=4),
    select_on=st.sampled_from(["loss", "accuracy"]),
    patience=st.integers(1, 6),
)
def test_every_run_is_stopped_and_selected_as_a_plain_loop_would(runs, select_on, patience):
    selection = selection_by(select_on, patience, len(runs))
    expected = [plain_selection(rows, select_on, patience) for rows in runs]
    for epoch in range(12):
        before = {name: value.clone() for name, value in selection.state.items()}
        was_active = selection.active.clone()
        table = torch.tensor([rows[epoch] for rows in runs])
        improved = selection.update(torch.tensor(epoch), table[:, 0], table[:, 1:])
        for i, states in enumerate(expected):
            now = {name: value[i].tolist() for name, value in selection.state.items() if name != "score"}
            best = None if math.isnan(now["best"][0]) else tuple(now["best"])
            assert now | {"best": best} == vars(states[epoch])
            assert improved[i] == (states[epoch].best_epoch == epoch)
            if not was_active[i]:  # nothing about a stopped run changes
                assert all(selection.state[name][i].allclose(before[name][i], equal_nan=True) for name in before)
    assert selection.active.tolist() == [not states[-1].stopped for states in expected]


def feed(selection, rows):
    for epoch, row in enumerate(rows):
        selection.update(torch.tensor(epoch), torch.tensor(row[:1]), torch.tensor([row[1:]]))
    return {name: value[0].tolist() for name, value in selection.state.items()}


def test_the_first_of_equally_good_epochs_is_selected_and_a_tie_does_not_reset_the_patience():
    state = feed(selection_by("loss", 2), [(1.0, 0.5, 0.1), (1.0, 0.5, 0.9), (1.0, 0.5, 0.9), (1.0, 0.1, 0.9)])
    assert (state["best_epoch"], state["last_epoch"], state["stopped"]) == (0, 2, True)
    assert state["best"] == [0.5, pytest.approx(0.1)]


def test_accuracy_decides_where_the_recipe_says_so_even_if_it_is_zero():
    rows = [(1.0, 0.5, 0.0), (1.0, 9.0, 0.5), (1.0, 0.1, 0.25)]
    by_accuracy = feed(selection_by("accuracy", 100), rows)
    by_loss = feed(selection_by("loss", 100), rows)
    assert (by_accuracy["best_epoch"], by_loss["best_epoch"]) == (1, 2)
    assert feed(selection_by("accuracy", 100), rows[:1])["best_epoch"] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", NAMES[:2])
def test_a_loss_that_is_not_finite_fails_the_run_at_once_and_keeps_its_best_epoch(bad, where):
    broken = [1.0, 0.1, 0.9]
    broken[NAMES.index(where)] = bad
    state = feed(selection_by("loss", 100), [(1.0, 0.5, 0.5), broken, (1.0, 0.01, 0.9)])
    assert state["failed"]
    assert state["stopped"]
    assert (state["best_epoch"], state["last_epoch"]) == (0, 1)
