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


@dataclass
class Plain:
    """Early stopping of one run as one would write it in a loop."""

    best_epoch: int = -1
    last_epoch: int = -1
    val_loss: float = math.inf
    val_accuracy: float = 0.0
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
                score = val_loss if select_on == "val_loss" else val_accuracy
                if best is None or (score < best if select_on == "val_loss" else score > best):
                    best = score
                    state.best_epoch, state.val_loss, state.val_score = epoch, val_loss, val_accuracy
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
    select_on=st.sampled_from(["val_loss", "val_accuracy"]),
    patience=st.integers(1, 6),
)
def test_every_run_is_stopped_and_selected_as_a_plain_loop_would(runs, select_on, patience):
    selection = Selection(len(runs), select_on, patience, CPU)
    expected = [plain_selection(rows, select_on, patience) for rows in runs]
    for epoch in range(12):
        before = {name: value.clone() for name, value in selection.state.items()}
        was_active = selection.active.clone()
        columns = [torch.tensor([rows[epoch][k] for rows in runs]) for k in range(3)]
        improved = selection.update(torch.tensor(epoch), *columns)
        for i, states in enumerate(expected):
            now = {name: value[i].item() for name, value in selection.state.items() if name != "score"}
            assert now == vars(states[epoch])
            assert improved[i] == (states[epoch].best_epoch == epoch)
            if not was_active[i]:  # nothing about a stopped run changes
                assert all(selection.state[name][i] == before[name][i] for name in before)
    assert selection.active.tolist() == [not states[-1].stopped for states in expected]


def feed(selection, rows):
    for epoch, row in enumerate(rows):
        selection.update(torch.tensor(epoch), *(torch.tensor([value]) for value in row))
    return {name: value.item() for name, value in selection.state.items()}


def test_the_first_of_equally_good_epochs_is_selected_and_a_tie_does_not_reset_the_patience():
    state = feed(Selection(1, "val_loss", 2, CPU), [(1.0, 0.5, 0.1), (1.0, 0.5, 0.9), (1.0, 0.5, 0.9), (1.0, 0.1, 0.9)])
    assert (state["best_epoch"], state["last_epoch"], state["stopped"]) == (0, 2, True)
    assert (state["val_loss"], state["val_accuracy"]) == (0.5, pytest.approx(0.1))


def test_accuracy_decides_where_the_recipe_says_so_even_if_it_is_zero():
    rows = [(1.0, 0.5, 0.0), (1.0, 9.0, 0.5), (1.0, 0.1, 0.25)]
    by_accuracy = feed(Selection(1, "val_accuracy", 100, CPU), rows)
    by_loss = feed(Selection(1, "val_loss", 100, CPU), rows)
    assert (by_accuracy["best_epoch"], by_loss["best_epoch"]) == (1, 2)
    assert feed(Selection(1, "val_accuracy", 100, CPU), rows[:1])["best_epoch"] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", NAMES[:2])
def test_a_loss_that_is_not_finite_fails_the_run_at_once_and_keeps_its_best_epoch(bad, where):
    broken = [1.0, 0.1, 0.9]
    broken[NAMES.index(where)] = bad
    state = feed(Selection(1, "val_loss", 100, CPU), [(1.0, 0.5, 0.5), broken, (1.0, 0.01, 0.9)])
    assert state["failed"]
    assert state["stopped"]
    assert (state["best_epoch"], state["last_epoch"]) == (0, 1)
