"""The rungs, with trials that were written by hand; the whole search is in test_automatic.py."""

from dataclasses import replace

import pytest
import torch

from graphjoule.training.budget import Budget
from graphjoule.tuning import Trial, hide_test
from graphjoule.tuning.halving import Halving, standard_error
from graphjoule.tuning.ranges import parse_range
from tests.training import small_recipe, small_task
from tests.training.test_budget import Clock

NAMES = {"gcn-1": ("gcn", 1), "sgc-1": ("sgc", 1), "gcn-4": ("gcn", 4)}


def make(tmp_path, *trials, seconds=100, task=None, **settings):
    recipes = {name: small_recipe(*kind, **settings) for name, kind in NAMES.items()}
    seen = hide_test(task or small_task(), recipes["gcn-1"], [0, 1])
    given = (Budget(seconds, Clock()), tmp_path, torch.device("cpu"), lambda progress: None, lambda: False)
    search = Halving(recipes, seen, [0, 1], *given)
    search.trials = list(trials)
    return search


def trial(name, score, rung="first", loss=0.0, **more):
    model, num_layers = NAMES[name.partition("-v")[0]]
    return Trial(rung=rung, name=name, model=model, num_layers=num_layers, score=score, loss=loss, seeds=[0], **more)


def names(trials):
    return [each.name for each in trials]


def test_the_score_ranks_then_the_loss_then_who_came_first(tmp_path):
    found = trial("gcn-1", 0.5, loss=2.0), trial("sgc-1", 0.5, loss=1.0), trial("gcn-4", None, failure="it broke")
    assert names(make(tmp_path, *found).ranked()) == ["sgc-1", "gcn-1"]
    assert names(make(tmp_path, trial("gcn-1", 0.5), trial("sgc-1", 0.5)).ranked()) == ["gcn-1", "sgc-1"]


def test_scores_within_a_standard_error_of_the_best_are_ranked_by_the_loss(tmp_path):
    num_val = len(make(tmp_path).seen.splits[0].val)
    share = (0.8 * num_val + 1) / (num_val + 2)
    error = (share * (1 - share) / num_val) ** 0.5
    near, far = (trial("sgc-1", 0.8 - times * error, loss=1.0) for times in (0.99, 1.01))
    best, last = trial("gcn-1", 0.8, loss=2.0), trial("gcn-4", 0.1, loss=0.5)
    assert names(make(tmp_path, best, near, last).ranked()) == ["sgc-1", "gcn-1", "gcn-4"]
    assert names(make(tmp_path, best, far, last).ranked()) == ["gcn-1", "sgc-1", "gcn-4"]
    assert names(make(tmp_path, best, near, last).standings()) == ["sgc-1", "gcn-1", "gcn-4"]
    # Other metrics have no such error: the score decides, and the lower one where lower is better.
    assert names(make(tmp_path, best, near, last, select_on="log_loss").ranked()) == ["gcn-4", "sgc-1", "gcn-1"]
    broken = best.model_copy(update={"loss": None})
    assert names(make(tmp_path, broken, near).ranked()) == ["sgc-1", "gcn-1"]


def test_the_standings_of_a_rung_are_in_the_order_that_chose_from_it(tmp_path):
    """A better score of an earlier rung does not decide which of the finalists are within a standard error."""
    num_val = len(make(tmp_path).seen.splits[0].val)
    error = (0.5 / num_val) ** 0.5
    finalists = [trial("gcn-1", 0.5, "seeds", loss=2.0), trial("sgc-1", 0.5 - 0.3 * error, "seeds", loss=1.0)]
    search = make(tmp_path, *finalists, trial("gcn-4", 1.0))
    assert names(search.standings()[:2]) == names(search.ranked(of="seeds")) == ["sgc-1", "gcn-1"]


def test_finalists_are_of_different_models_first_and_within_two_standard_errors(tmp_path):
    num_val = len(make(tmp_path).seen.splits[0].val)
    error = standard_error(0.9, num_val)
    one = [trial("gcn-1", 0.9), *(trial(f"gcn-1-v{k}", 0.9, "variations", loss=0.1 * k) for k in (1, 2, 3, 4))]
    near, far = (trial("sgc-1", 0.9 - times * error, loss=9.0) for times in (1.99, 2.01))
    assert names(make(tmp_path, *one, near)._finalists()) == ["gcn-1", "sgc-1", "gcn-1-v1", "gcn-1-v2"]
    assert names(make(tmp_path, *one, far)._finalists()) == ["gcn-1", "gcn-1-v1", "gcn-1-v2", "gcn-1-v3"]
    assert make(tmp_path)._finalists() == []
    # Other metrics have no such error.
    by_loss = make(tmp_path, *one, far, select_on="log_loss")._finalists()
    assert names(by_loss) == ["sgc-1", "gcn-1", "gcn-1-v1", "gcn-1-v2"]


def test_scores_that_no_accuracy_can_have_are_ranked_too(tmp_path):
    assert names(make(tmp_path, trial("gcn-1", -3.0), trial("sgc-1", 1e16)).ranked()) == ["sgc-1", "gcn-1"]


def test_what_a_rung_takes_follows_from_the_rungs_before_it_alone(tmp_path):
    before = [trial("gcn-1", 0.5), trial("sgc-1", 0.4)]
    search = make(tmp_path, *before, trial("sgc-1", 1.0, rung="best"))
    assert names(search.ranked(before="best")) == ["gcn-1", "sgc-1"]
    assert names(search.ranked()) == ["sgc-1", "gcn-1"]


def test_candidates_of_later_rungs_stand_first_and_those_without_a_result_last(tmp_path):
    search = make(
        tmp_path,
        trial("gcn-4", None, failure="it broke"),
        trial("gcn-1", 0.9),
        trial("sgc-1", 0.5),
        trial("sgc-1", 0.4, rung="seeds"),
        trial("gcn-1-v1", 0.95, rung="variations"),
    )
    assert names(search.standings()) == ["sgc-1", "gcn-1-v1", "gcn-1", "gcn-4"]


def test_an_epoch_is_judged_by_the_nearest_depth_of_the_same_model(tmp_path):
    search = make(tmp_path)
    assert search._epoch_seconds(trial("gcn-4", None)) == 0.0
    search.trials = [trial("sgc-1", 0.5, epoch_seconds=1.0)]
    assert search._epoch_seconds(trial("gcn-1", None)) == 1.0
    search.trials.append(trial("gcn-1", 0.5, epoch_seconds=3.0))
    assert search._epoch_seconds(trial("gcn-4", None)) == pytest.approx(3.0 * 6 / 3)


def test_a_candidate_that_could_not_make_ten_epochs_is_not_begun(tmp_path):
    search = make(tmp_path, trial("gcn-1", 0.5, epoch_seconds=9.0), trial("sgc-1", 0.5, epoch_seconds=0.1))
    search.work.mkdir()
    search._rung("first", [trial("gcn-4", None)])
    assert search.trials[-1].name == "gcn-4"
    assert search.trials[-1].failure.startswith("not tried: an epoch may take 18 s, and it had 3")
    assert [path.name for path in search.work.iterdir()] == ["auto.json"]


def test_variations_are_drawn_from_their_number_alone_and_never_twice(tmp_path):
    search, again = make(tmp_path), make(tmp_path)
    leader = trial("gcn-1", 0.5, changes={"lr": 0.02})
    drawn = [search._draw(search.recipes["gcn-1"], leader, number) for number in range(4)]
    assert drawn == [again._draw(again.recipes["gcn-1"], leader, number) for number in range(4)]
    assert len({recipe.fingerprint() for _, recipe in drawn}) == 4
    assert all(changes.keys() <= {"lr", "weight_decay", "dropout", "normalize_features"} for changes, _ in drawn)
    assert {recipe.model.hidden_channels for _, recipe in drawn} == {8}  # which was asked for
    search.recipes["gcn-1-v1"] = drawn[0][1]
    assert search._draw(search.recipes["gcn-1"], leader, 0) != drawn[0]


def test_rows_are_divided_by_their_sums_only_where_no_feature_is_negative(tmp_path):
    keys = []
    for task in (replace(small_task(), features=-small_task().features), small_task()):
        search = make(tmp_path, task=task)
        drawn = [search._draw(search.recipes["gcn-1"], trial("gcn-1", 0.5), number) for number in range(12)]
        keys.append({key for changes, _ in drawn for key in changes})
    assert "normalize_features" not in keys[0]
    assert "normalize_features" in keys[1]


@pytest.mark.parametrize(
    ("text", "ends"),
    [("lr=1e-3..1e-1:log", (0.001, 0.01, 0.1)), ("dropout=0..0.8", (0.0, 0.4, 0.8)), ("encoder=a,b", ("a", "b", "b"))],
)
def test_a_range_has_a_value_at_every_share(text, ends):
    _, found = parse_range(text)
    assert tuple(found.at(share) for share in (0.0, 0.5, 1.0)) == ends
