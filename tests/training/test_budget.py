import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.training.budget import Budget, in_words, parse_seconds
from tests.training import facts, small_recipe, small_task


class Clock:
    """A clock that goes on by a second whenever it is asked."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("90s", 90), ("2min", 120), (" 1.5 h", 5400), ("1h30min", 5400), ("1d", 86400), ("45", 45), (3, 3), (0.5, 0.5)],
)
def test_times_are_read_as_people_write_them(given, seconds):
    assert parse_seconds(given) == seconds


@pytest.mark.parametrize(
    "given", ["", "soon", "2m", "2 minutes", "-1s", "0", "0min", 0, -3, float("nan"), float("inf"), True, None, "1e9h"]
)
def test_what_is_no_time_is_refused_with_examples(given):
    with pytest.raises(GraphjouleError, match=r"`budget` is .*; expected a time above 0, such as 90s, 2min"):
        parse_seconds(given)


def test_days_are_said_as_days():
    assert [in_words(seconds) for seconds in (1, 99, 100, 7200, 86400, 3 * 86400)] == [
        "1 s",
        "99 s",
        "2 min",
        "2.0 h",
        "24.0 h",
        "3.0 days",
    ]


def test_a_budget_is_spent_from_when_it_is_made_and_gives_parts():
    clock = Clock()
    budget = Budget(10, clock)
    clock.now = 4
    part = budget.part(3)
    assert (part.seconds, part.is_up) == (3, False)
    clock.now = 20
    assert budget.is_up
    assert part.is_up
    assert budget.left < 0
    assert Budget.of(budget) is budget
    assert Budget.of("2min").seconds == 120


def test_a_training_ends_between_epochs_with_what_it_has():
    """Each epoch asks the clock once, so ten seconds are some epochs; the run is recorded as done."""
    whole = fit(small_recipe(epochs=40), small_task(), [0, 1], device="cpu")
    cut = fit(small_recipe(epochs=40), small_task(), [0, 1], device="cpu", budget=Budget(10, Clock()))
    assert {record.epochs_run for record in whole.records} == {40}
    for long, short in zip(whole.records, cut.records, strict=True):
        assert (short.status, short.epochs_run < 12, short.epochs_run > 3) == ("done", True, True)
        assert short.curve["val_loss"] == long.curve["val_loss"][: short.epochs_run]
        assert short.selected_epoch < short.epochs_run
        assert short.test["accuracy"] >= 0


def test_a_budget_that_is_not_reached_changes_nothing():
    with_budget, without = (
        fit(small_recipe(), small_task(), [0], device="cpu", budget=budget).records[0] for budget in ("1h", None)
    )
    assert facts(with_budget) == facts(without)


def test_groups_that_train_one_after_the_other_share_the_budget():
    cut = fit(
        small_recipe(epochs=60), small_task(), [0, 1, 2], device="cpu", runs_at_once=1, budget=Budget(40, Clock())
    )
    epochs = [record.epochs_run for record in cut.records]
    assert min(epochs) >= 5
    assert max(epochs) < 25


def test_a_training_that_was_cut_is_not_repeated_by_resume(tmp_path):
    recipe = small_recipe(epochs=40)
    first = fit(recipe, small_task(), [0], device="cpu", out=tmp_path / "run", budget=Budget(6, Clock()))
    again = fit(recipe, small_task(), [0], device="cpu", out=tmp_path / "run", resume=True)
    assert again.records == first.records


@pytest.mark.parametrize("budget", ["soon", 0, "2m"])
def test_a_wrong_budget_is_refused_before_anything_is_written(tmp_path, budget):
    with pytest.raises(GraphjouleError, match="budget"):
        fit(small_recipe(), small_task(), out=tmp_path / "run", budget=budget)
    assert not (tmp_path / "run").exists()


def test_on_clusters_a_run_ends_after_its_first_validation_at_the_earliest():
    """Before it no epoch is selected, so there would be no model."""
    clusters = {"train.clusters.parts": 2, "train.clusters.method": "blocks", "train.clusters.validate_every": 5}
    cut = fit(small_recipe(epochs=40, **clusters), small_task(), device="cpu", budget=Budget(1, Clock()))
    assert [(record.status, record.epochs_run) for record in cut.records] == [("done", 5)]
