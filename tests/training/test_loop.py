import pytest
import torch

from graphjoule.training.loop import CURVE_NAMES, StopRequest, TrainingInterrupted, train
from graphjoule.training.seed_batch import Runs

from . import PUBLIC, largest_difference, small_recipe, small_task

SEEDS = [0, 1, 2, 3, 4, 5]


def stopping_recipe(**overrides):
    """Runs that stop at different epochs, one of them never."""
    return small_recipe("gcn", **{"lr": 0.1, "patience": 3, "epochs": 30} | overrides)


class Watched:
    """One call of `train` and everything it told."""

    def __init__(self, recipe, seeds, *, save_every=1000, stop_at=None):
        self.runs = Runs(recipe, small_task(), seeds, [PUBLIC] * len(seeds))
        self.stop, self.stop_at = StopRequest(), stop_at
        self.progress, self.saved, self.rows, self.interrupted = [], [], [], None
        self.results = {}
        results = train(
            self.runs,
            dict.fromkeys(seeds, PUBLIC),
            stop=self.stop,
            save=lambda runs: self.saved.append((int(runs.epoch), list(runs.seeds))),
            save_every=save_every,
            on_progress=self.on_progress,
        )
        try:
            for result in results:
                assert result.seed not in self.results
                self.results[result.seed] = result
        except TrainingInterrupted as interrupted:
            self.interrupted = interrupted

    def on_progress(self, progress):
        self.progress.append(progress)
        self.rows.append(len(self.runs.seeds))
        self.stop.requested = progress.epoch == self.stop_at


@pytest.fixture(scope="module")
def together():
    return Watched(stopping_recipe(), SEEDS, save_every=4)


@pytest.fixture(scope="module")
def alone():
    return {seed: Watched(stopping_recipe(), [seed]).results[seed] for seed in SEEDS}


def test_every_run_gives_one_result_whose_curve_is_as_long_as_it_ran(together):
    assert sorted(together.results) == SEEDS
    lengths = {result.epochs_run for result in together.results.values()}
    assert len(lengths) > 2, "the runs should stop at different epochs for this test to mean something"
    for result in together.results.values():
        assert tuple(result.curve) == CURVE_NAMES
        assert all(len(values) == result.epochs_run for values in result.curve.values())
        assert result.epochs_run in (result.selected_epoch + 1 + 3, 30)


def test_a_run_among_others_that_stop_and_are_dropped_ends_as_it_does_alone(together, alone):
    for seed in SEEDS:
        ours, other = together.results[seed], alone[seed]
        assert (ours.selected_epoch, ours.epochs_run, ours.test_score, ours.val_score) == (
            other.selected_epoch,
            other.epochs_run,
            other.test_score,
            other.val_score,
        )
        assert largest_difference(ours.model, other.model) <= 1e-5
        torch.testing.assert_close(torch.tensor(list(ours.curve.values())), torch.tensor(list(other.curve.values())))


@pytest.mark.parametrize(
    ("ends", "rows"),
    [
        ([3, 5, 9, 9], [4, 4, 4, 3, 3, 2, 2, 2, 2]),
        ([2, 4, 8, 8, 8, 8, 8, 8], [8, 8, 8, 8, 6, 6, 6, 6]),  # one in eight stays until it has company
        ([2, 2, 2], [3, 3]),  # and no epoch more than the longest run needs
    ],
)
def test_stopped_runs_leave_the_program_once_they_are_a_quarter_of_it(monkeypatch, ends, rows):
    def train_epoch(self):
        """Nothing but the end of the runs whose time has come."""
        for row, seed in enumerate(self.seeds):
            self.selection.state["last_epoch"][row] = min(int(self.epoch), ends[seed] - 1)
            self.selection.state["stopped"][row] = int(self.epoch) + 1 >= ends[seed]
        self.epoch += 1

    monkeypatch.setattr(Runs, "train_epoch", train_epoch)
    watched = Watched(small_recipe(epochs=20), list(range(len(ends))))
    assert watched.rows == rows
    assert [watched.results[seed].epochs_run for seed in range(len(ends))] == ends


def test_the_result_is_that_of_the_selected_epoch(together):
    task = small_task()
    for result in together.results.values():
        at = result.selected_epoch
        assert result.curve["val_loss"].index(min(result.curve["val_loss"])) == at
        assert (result.val_loss, result.val_score) == (
            result.curve["val_loss"][at],
            result.curve["val_accuracy"][at],
        )
        right = result.model.eval()(task.features, task.graph).argmax(dim=1) == task.targets
        assert result.test_score == pytest.approx(right[PUBLIC.test].double().mean().item(), abs=1e-12)
        assert result.val_score == pytest.approx(right[PUBLIC.val].double().mean().item(), abs=1e-6)
    assert len({result.test_score for result in together.results.values()}) > 1


def test_progress_comes_every_epoch_and_tells_the_means_of_the_runs_that_still_train(together):
    results = together.results.values()
    assert [progress.epoch for progress in together.progress] == list(range(1, len(together.progress) + 1))
    for progress in together.progress[:-1]:
        active = [r for r in results if r.epochs_run > progress.epoch]
        assert (progress.epochs, progress.num_runs, progress.num_active) == (30, len(SEEDS), len(active))
        for name in CURVE_NAMES:
            mean = sum(r.curve[name][progress.epoch - 1] for r in active) / len(active)
            assert getattr(progress, name) == pytest.approx(mean, rel=1e-5)


def test_the_state_is_saved_every_so_many_epochs_without_the_runs_that_have_left(together):
    assert [epoch for epoch, _ in together.saved] == list(range(4, len(together.rows), 4))
    for epoch, seeds in together.saved:
        assert len(seeds) == together.rows[epoch]  # rows of the next epoch


def test_a_stop_request_saves_the_state_of_that_epoch_and_raises():
    watched = Watched(stopping_recipe(), SEEDS, stop_at=5)
    assert watched.interrupted.epoch == 5
    assert str(watched.interrupted) == "stopped after epoch 5"
    assert watched.saved == [(5, SEEDS)]
    assert len(watched.progress) == 5


def test_a_stop_request_in_the_last_epoch_lets_the_runs_finish():
    watched = Watched(small_recipe(epochs=3), [0, 1], stop_at=3)
    assert watched.interrupted is None
    assert sorted(watched.results) == [0, 1]


def test_epochs_are_a_limit_and_the_last_epoch_counts():
    result = Watched(small_recipe(epochs=1), [0]).results[0]
    assert (result.epochs_run, result.selected_epoch) == (1, 0)
