import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS
from graphjoule.training.recipe import load_recipe
from graphjoule.tuning import Choices, Interval, default_ranges, fit_ranges, parse_range, parse_ranges, with_settings
from graphjoule.tuning.ranges import count_settings, own_values, spelled


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=1e-4..1e-1:log", ("lr", Interval(1e-4, 1e-1, log=True))),
        (" c_min = 0.05 .. 0.5 ", ("c_min", Interval(0.05, 0.5))),
        ("dropout=0...5", ("dropout", Interval(0.0, 0.5))),
        ("srelu_init=-10..-1", ("srelu_init", Interval(-10.0, -1.0))),
        ("weight_decay.dense=1e-6..1e-2:log", ("weight_decay.dense", Interval(1e-6, 1e-2, log=True))),
        ("activation=srelu,relu", ("activation", Choices(("srelu", "relu")))),
        ("batch_norm=true,false", ("batch_norm", Choices((True, False)))),
        ("hidden_channels=16, 64", ("hidden_channels", Choices((16, 64)))),
    ],
)
def test_ranges_as_people_type_them(text, expected):
    assert parse_range(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr", "'lr' is not a range: expected key=low..high"),
        ("lr=", "'lr=' is not a range"),
        ("=1..2", "'=1..2' is not a range"),
        ("lr=0.1", "there is nothing to choose"),
        ("lr=0.1", "or set `lr=0.1`"),
        ("lr=0.1..fast", "'fast' is not a number"),
        ("lr=0.1..nan", "'nan' is not a number"),
        ("lr=0.1..inf", "'inf' is not a number"),
        ("lr=..0.1", "'' is not a number"),
        ("lr=0.1..0.01", "0.1 is not below 0.01"),
        ("lr=0.1..0.1", "0.1 is not below 0.1"),
        ("lr=0..0.1:log", "on a logarithmic scale 0.0 must be above 0"),
        ("lr=0.1..1:linear", "after the colon it says 'linear', expected log"),
        ("activation=relu,relu", "a choice is there twice"),
        ("hidden_channels=16,16.0", "a choice is there twice"),
        ("lr=0.1,,0.2", "a choice is empty"),
        ("lr=0.1,0.2,", "a choice is empty"),
        ("lr=0.1,", "a choice is empty"),
        ("activation=[1],relu", "expected numbers, words, true or false"),
    ],
)
def test_what_is_no_range_gets_a_sentence(text, said):
    with pytest.raises(GraphjouleError) as caught:
        parse_range(text)
    assert said in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_key_has_one_range():
    with pytest.raises(GraphjouleError, match=r"lr has two ranges, 0\.1\.\.1\.0 and 0\.2\.\.1\.0: give one\."):
        parse_ranges(["lr=0.1..1", "lr=0.2..1"])


@given(st.floats(1e-12, 1e6), st.floats(1e-12, 1e6), st.booleans())
def test_the_text_of_an_interval_is_read_as_the_interval(low, high, log):
    if low < high:
        found = Interval(low, high, log=log)
        assert parse_range(f"x={found.text}") == ("x", found)


# What can be searched.


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dataset", ["cora", "digits", "somebody's own"])
def test_every_model_has_ranges_that_can_be_searched_and_hold_the_recipe(model, dataset):
    recipe = load_recipe(model, dataset, 4)
    ranges = fit_ranges(recipe, default_ranges(model))
    assert "lr" in ranges
    assert own_values(recipe, ranges).keys() == ranges.keys()  # the first trial is the recipe itself


def test_only_models_have_ranges():
    with pytest.raises(GraphjouleError, match='"gat" is not a model'):
        default_ranges("gat")


def fitted(text, model="egnn", **overrides):
    recipe = load_recipe(model, "digits", 4, overrides)
    key, found = parse_range(text)
    return fit_ranges(recipe, {key: found})[key]


def test_whole_numbers_are_drawn_where_a_setting_takes_them():
    assert fitted("hidden_channels=16..64:log") == Interval(16, 64, log=True, is_whole=True)
    assert isinstance(fitted("hidden_channels=16..64").low, int)
    assert fitted("dropout=0..0.5") == Interval(0.0, 0.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cmin=0.1..0.2", '"cmin" is not a setting of egnn, did you mean "c_min"?'),
        ("alpha=0.1..0.2", "The choices are: "),
        ("num_layers=2..4", "num_layers is what a search is about"),
        ("select_on=val_loss,val_accuracy", "it cannot be searched; choose it beforehand"),
        ("split_seed=0..9", "split_seed is what a search is about"),
        ("activation=0.1..0.2", "activation takes choices, such as activation=one,another"),
        ("batch_norm=0..1", "batch_norm takes choices"),
        ("hidden_channels=1.5..8", "hidden_channels takes whole numbers"),
        ("lr=-1..1", "lr=-1.0..1.0 cannot be searched: lr = -1.0 cannot be used"),
        ("lr=fast,slow", "lr = 'fast' cannot be used"),
        ("activation=srelu,gelu", "activation=srelu,gelu cannot be searched: activation = 'gelu' cannot be used"),
        ("dropout=0.1..1.5", "dropout=0.1..1.5 cannot be searched: dropout = 1.5 cannot be used"),
        ("c_min=0.05..0.5", "beta is 0.1; it must be between 0 and c_min, which is 0.05"),
    ],
)
def test_what_cannot_be_searched_gets_a_sentence(text, said):
    with pytest.raises(GraphjouleError) as caught:
        fitted(text)
    assert said in str(caught.value)
    assert str(caught.value).endswith(".")


def test_an_end_needs_only_some_values_of_the_others_to_work_with():
    recipe = load_recipe("egnn", "digits", 4)
    assert fit_ranges(recipe, parse_ranges(["c_min=0.05..0.5", "beta=0.01..0.1"]))


def test_nothing_to_search_is_refused():
    with pytest.raises(GraphjouleError, match="There is nothing to search"):
        fit_ranges(load_recipe("egnn", "digits", 4), {})


# A recipe with other settings.


def test_settings_of_every_kind_are_replaced_and_marked():
    recipe = load_recipe("egnn", "digits", 4, {"terms.energy.method": "penalty"})
    changes = {"lr": 0.5, "c_min": 0.3, "weight_decay.dense": 0.1, "weight_decay": 0.2, "terms.energy.rho": 2.0}
    changed = with_settings(recipe, changes)
    assert changed.train.weight_decay == {"conv": 0.2, "dense": 0.1, "shift": 0.2}
    energy = changed.terms["energy"]
    assert (changed.train.lr, changed.model.options["c_min"], energy["rho"]) == (0.5, 0.3, 2.0)
    assert {key for key, source in changed.sources.items() if source == "override"} >= {
        *("train.lr", "model.c_min", "terms.energy.c_min", "terms.energy.rho"),
        *(f"train.weight_decay.{group}" for group in ("conv", "dense", "shift")),
    }
    assert recipe == load_recipe("egnn", "digits", 4, {"terms.energy.method": "penalty"})  # left as it was


@pytest.mark.parametrize(
    ("model", "overrides", "both"),
    [
        ("egnn", {"terms.energy.method": "penalty"}, True),
        ("egnn", {"terms.energy.method": "penalty", "c_min": 0.3}, True),
        ("egnn", {"terms.energy.c_min": 0.3}, False),
        ("egnn", {"terms.energy.c_min": 0.2}, False),  # as the model's by chance alone
    ],
)
def test_a_limit_that_the_constraint_takes_from_the_model_changes_with_it(model, overrides, both):
    recipe = load_recipe(model, "digits", 4, overrides)
    assert recipe.model.options["c_min"] in (0.2, 0.3)
    changed = with_settings(recipe, {"c_min": 0.5})
    trained = load_recipe(model, "digits", 4, overrides | {"c_min": 0.5})  # what train --set c_min=0.5 does
    assert changed.settings() == trained.settings()
    assert (changed.terms["energy"]["c_min"] == 0.5) is both
    assert changed.sources.items() >= trained.sources.items()
    assert with_settings(recipe, {"c_min": 0.5, "terms.energy.c_min": 0.4}).terms["energy"]["c_min"] == 0.4
    assert own_values(recipe, parse_ranges(["c_min=0.1..0.5"])) == {"c_min": recipe.model.options["c_min"]}


def test_a_limit_that_the_model_does_not_have_is_the_constraints():
    recipe = load_recipe("gcn", "digits", 4, {"terms.energy.method": "penalty"})
    ranges = fit_ranges(recipe, parse_ranges(["c_min=0.1..0.5", "rho=0.01..1:log", "every=1..5"]))
    assert own_values(recipe, ranges) == {"c_min": 0.2, "rho": 0.1, "every": 1}
    changed = with_settings(recipe, {"c_min": 0.5, "every": 3}).terms["energy"]
    assert (changed["c_min"], changed["every"]) == (0.5, 3)
    with pytest.raises(GraphjouleError, match='"c_min" is not a setting of gcn'):
        fit_ranges(load_recipe("gcn", "digits", 4), parse_ranges(["c_min=0.1..0.5"]))


@pytest.mark.parametrize(
    ("model", "overrides", "texts", "said"),
    [
        (
            "gcn",
            {},
            ["weight_decay=0..1", "weight_decay.all=0..2"],
            "weight_decay has two ranges, its own and that of ",
        ),
        (
            "gcn",
            {"terms.energy.method": "penalty"},
            ["c_min=0.1..0.5", "terms.energy.c_min=0.1..0.4"],
            "that of terms.energy.c_min: ",
        ),
    ],
)
def test_a_range_of_which_nothing_is_left_is_refused(model, overrides, texts, said):
    with pytest.raises(GraphjouleError, match=said):
        fit_ranges(load_recipe(model, "digits", 4, overrides), parse_ranges(texts))


def test_a_shared_range_is_for_the_groups_without_one_of_their_own():
    recipe = load_recipe("gcnii", "digits", 4)
    assert fit_ranges(recipe, parse_ranges(["weight_decay=0..1", "weight_decay.conv=0..2"]))
    for changes in ({"weight_decay": 0.5, "weight_decay.conv": 2.0}, {"weight_decay.conv": 2.0, "weight_decay": 0.5}):
        assert with_settings(recipe, changes).train.weight_decay == {"conv": 2.0, "dense": 0.5}


def test_a_penalty_can_be_searched_whether_or_not_the_recipe_has_one():
    key = "terms.orthogonal.gamma"
    ranges = parse_ranges([f"{key}=0.1..100:log"])
    without, having = (load_recipe("gcn", "digits", 4, given) for given in ({}, {key: 20.0}))
    for recipe, first in ((without, {}), (having, {key: 20.0})):
        assert fit_ranges(recipe, ranges) == ranges
        assert own_values(recipe, ranges) == first
        changed = with_settings(recipe, {key: 0.5})
        assert (changed.terms["orthogonal"]["gamma"], changed.sources[key]) == (0.5, "override")


def test_a_penalty_is_not_searched_where_a_model_has_nothing_to_pull():
    with pytest.raises(
        GraphjouleError, match=r"gamma=0\.1\.\.100\.0 cannot be searched: .* no graph layer .* has a square"
    ):
        fitted("terms.orthogonal.gamma=0.1..100", "sgc")


@pytest.mark.parametrize("overrides", [{}, {"terms.energy.method": "penalty"}, {"terms.orthogonal.gamma": 1.0}])
@pytest.mark.parametrize("model", MODELS)
def test_every_setting_stands_for_itself(model, overrides):
    recipe = load_recipe(model, "digits", 4, overrides)
    chosen = ("model.name", "model.num_layers", "data.name")
    assert all(key in spelled(recipe, key) for key in recipe.settings() if key not in chosen)


def test_a_value_that_cannot_be_used_gets_a_sentence():
    with pytest.raises(GraphjouleError, match="lr = -1 cannot be used"):
        with_settings(load_recipe("egnn", "digits", 4), {"lr": -1})


def test_a_shared_weight_decay_begins_at_the_recipe_only_where_the_groups_agree():
    ranges = parse_ranges(["weight_decay=1e-6..1e-2:log"])
    assert own_values(load_recipe("gcn", "digits", 2), ranges) == {"weight_decay": 5e-4}
    assert own_values(load_recipe("egnn", "digits", 2), ranges) == {}
    assert own_values(load_recipe("gcn", "digits", 2, {"weight_decay": 0.1}), ranges) == {}


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        (["activation=srelu,relu"], 2),
        (["activation=srelu,relu", "hidden_channels=16..19"], 8),
        (["activation=srelu,relu", "lr=0.1..0.2"], None),
    ],
)
def test_settings_are_counted_where_they_can_be(texts, count):
    assert count_settings(fit_ranges(load_recipe("egnn", "digits", 4), parse_ranges(texts))) == count


def test_optuna_draws_the_same_values():
    distributions = pytest.importorskip("optuna").distributions
    assert Choices(("a", "b")).distribution() == distributions.CategoricalDistribution(("a", "b"))
    assert Interval(2, 4, is_whole=True).distribution() == distributions.IntDistribution(2, 4)
    assert Interval(0.1, 0.2, log=True).distribution() == distributions.FloatDistribution(0.1, 0.2, log=True)
