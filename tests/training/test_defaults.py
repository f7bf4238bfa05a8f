"""Rules choose what nobody has set; the paper's recipes and the user's settings stay."""

from dataclasses import replace
from pathlib import Path

import pytest

from graphjoule import EGNNClassifier, GraphjouleError, Recipe, fit
from graphjoule.tasks.profile import STEPS, profile
from graphjoule.training import defaults, load_recipe, recipe_for
from graphjoule.training.defaults import RULES, Rule, choose_settings, default_layers, with_choices_of

from . import small_task

ALWAYS = Rule("always", "for any data", lambda p: True, {"train.lr": 0.02}, "measured: 1 point")
PAIR = Rule("pair", "for any data", lambda p: True, {"model.c_min": 0.9, "model.beta": 0.5}, "measured: 2 points")
NEVER = Rule("never", "with a million nodes", lambda p: p.num_nodes > 10**6, {"train.lr": 9.0}, "measured: 3 points")


@pytest.fixture
def rules(monkeypatch):
    def use(*given):
        monkeypatch.setattr(defaults, "RULES", given)

    use(ALWAYS, PAIR, NEVER)
    return use


@pytest.mark.parametrize("dataset", ["cora", "pubmed", "physics"])
@pytest.mark.parametrize("num_layers", [2, 32, 64])
@pytest.mark.parametrize("model", ["egnn", "gcn"])
def test_a_recipe_of_the_paper_stays_to_the_letter(rules, model, dataset, num_layers):
    recipe = load_recipe(model, dataset, num_layers)
    task = replace(small_task(), name=dataset)
    assert choose_settings(recipe, task).recipe == recipe
    assert recipe_for(task, model, num_layers) == recipe
    assert choose_settings(recipe, task).lines() == [f"{dataset} has a recipe of its own: no rule is asked."]


def test_rules_that_fire_set_what_is_open_and_say_so(rules):
    choice = choose_settings(load_recipe("egnn", "small", 4), small_task())
    recipe = choice.recipe
    assert (recipe.train.lr, recipe.model.options["c_min"], recipe.model.options["beta"]) == (0.02, 0.9, 0.5)
    assert [rule.name for rule in choice.fired] == ["always", "pair"]
    assert recipe.sources["train.lr"] == recipe.sources["model.beta"] == "data"
    assert recipe.sources["train.epochs"] == "ours"
    text = "\n".join(choice.lines())
    assert "always (for any data): train.lr = 0.02" in text
    assert "measured: 2 points" in text
    assert "never" not in text
    assert "30 nodes" in text


def test_a_later_rule_wins_and_the_explanation_shows_who(rules):
    rules(ALWAYS, replace(ALWAYS, name="later", settings={"train.lr": 0.03}))
    choice = choose_settings(load_recipe("egnn", "small", 4), small_task())
    assert choice.recipe.train.lr == 0.03
    assert "always (for any data): nothing that another left open" in "\n".join(choice.lines())


def test_the_user_wins_and_a_rule_counts_whole_or_not_at_all(rules):
    recipe = recipe_for(small_task(), "egnn", 4, {"c_min": 0.15, "dropout": 0.1})
    assert (recipe.model.options["c_min"], recipe.model.options["beta"]) == (0.15, 0.1)  # 0.5 would not fit
    assert (recipe.train.lr, recipe.model.options["dropout"]) == (0.02, 0.1)
    assert recipe.sources["model.c_min"] == "override"


def test_limits_of_a_term_follow_the_model(rules):
    recipe = recipe_for(small_task(), "egnn", 4, {"terms.energy.method": "penalty"})
    assert recipe.terms["energy"]["c_min"] == 0.9
    assert recipe.sources["terms.energy.c_min"] == "data"


def test_a_rule_is_for_its_models_alone(rules):
    plain = load_recipe("gcn", "small", 2)
    assert recipe_for(small_task(), "gcn", 2) == plain
    rules(replace(ALWAYS, models=("egnn", "gcn")))
    assert recipe_for(small_task(), "gcn", 2).train.lr == 0.02


def test_a_rule_of_what_a_search_varies_in_part_does_not_fire(rules):
    recipe = load_recipe("egnn", "small", 4)
    assert choose_settings(recipe, small_task(), searched=["model.c_min"]).recipe.model.options["beta"] == 0.1
    both = choose_settings(recipe, small_task(), searched=["model.c_min", "model.beta"])
    assert both.recipe.model.options["beta"] == 0.5


def test_a_training_that_goes_on_has_what_was_chosen(rules):
    stored = recipe_for(small_task(), "egnn", 4)
    plain = load_recipe("egnn", "small", 4)
    assert with_choices_of(plain, stored).settings() == stored.settings()
    asked = load_recipe("egnn", "small", 4, {"lr": 0.5})
    assert with_choices_of(asked, stored).train.lr == 0.5
    assert with_choices_of(plain, plain) == plain


def test_fit_by_name_and_the_estimator_start_from_the_same(rules):
    task = small_task()
    (record,) = fit("egnn", task, settings={"epochs": 1}, device="cpu").records
    trained = Recipe.from_fields(record.recipe)
    assert trained.settings() == recipe_for(task, overrides={"epochs": 1}).with_split_of(task).settings()
    assert trained.model.num_layers == default_layers("egnn", "small")
    model = EGNNClassifier(epochs=1, standardize=False, device="cpu").fit((task.features, task.graph), task.targets)
    other = {"data.name", "data.split"}
    assert {k: v for k, v in model.recipe_.settings().items() if k not in other} == {
        k: v for k, v in trained.settings().items() if k not in other
    }
    assert EGNNClassifier(epochs=1, lr=0.4, device="cpu")._recipe(task, 0).train.lr == 0.4
    with pytest.raises(GraphjouleError, match="egnn"):
        fit("egn", task)


# The table itself.


def test_every_rule_has_a_name_of_its_own_and_a_measurement():
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.condition
        assert any(letter.isdigit() for letter in rule.because), rule.name
        for model in rule.models:
            load_recipe(model, "any", 2, rule.settings)  # raises where it cannot be set


def test_the_table_can_be_asked_about_any_task():
    task = small_task()
    facts = profile(task, task.split(seed=0))
    nan = float("nan")
    nothing = replace(facts, explained={}, explained_by_similar=nan, num_classes=0, largest_share=nan, homophily=nan)
    for rule in RULES:
        assert rule.fires(facts) in (True, False)
        assert rule.fires(nothing) in (True, False)


def steps(*shares):
    return dict(zip(STEPS, shares, strict=True))


FACTS = replace(
    profile(small_task(), small_task().split(seed=0)),
    num_columns=100,
    is_nonnegative=True,
    density=0.1,
    row_spread=0.1,
    num_classes=4,
    num_train=80,
    scale=1.0,
    largest_share=0.3,
    chance=0.25,
    homophily=0.8,
    explained=steps(0.1, 0.4, 0.5, 0.6, 0.6, 0.5),
    explained_by_similar=0.2,
)
NUMBERS = replace(FACTS, is_nonnegative=False, density=1.0, row_spread=float("nan"))
BLURRED, ALIKE = steps(0.6, 0.1, 0.2, 0.1, 0.0, 0.0), steps(0.3, 0.2, 0.3, 0.2, 0.1, 0.0)


@pytest.mark.parametrize(
    ("facts", "layers", "fired"),
    [
        (FACTS, 8, ["words with neighbours", "accuracy selects"]),
        (replace(FACTS, largest_share=0.9), 8, ["words with neighbours"]),  # all of one class would be the best epoch
        (replace(FACTS, num_classes=0), 8, ["words with neighbours"]),
        (
            replace(FACTS, explained=BLURRED, homophily=0.25),
            8,
            ["accuracy selects", "neighbours do not help", "words, and edges at random"],
        ),
        (replace(FACTS, scale=0.1), 8, ["words with neighbours", "small features", "accuracy selects"]),
        (
            replace(FACTS, explained=steps(0.05, 0.4, 0.5, 0.6, 0.6, 0.5)),
            2,
            ["words with neighbours", "accuracy selects", "weak features, few layers"],
        ),
        (
            replace(FACTS, explained=steps(0.05, 0.4, 0.5, 0.6, 0.6, 0.05)),
            8,
            ["words with neighbours", "accuracy selects", "weak words that hubs blur"],
        ),
        (NUMBERS, 8, ["free layers", "half dropped", "rate"]),
        (replace(NUMBERS, num_train=40), 8, ["free layers", "half dropped", "rate", "few labels"]),
        (
            replace(NUMBERS, explained=BLURRED, homophily=0.2, num_train=400, num_classes=12),
            8,
            [
                *("free layers", "half dropped", "rate"),
                *("neighbours do not help", "own features first", "many classes in a table"),
            ],
        ),
        (
            replace(NUMBERS, explained=steps(0.0, 0.1, 0.2, 0.4, 0.6, 0.7)),
            8,
            ["free layers", "half dropped", "rate", "noise that neighbours average out"],
        ),
        (
            replace(NUMBERS, explained=steps(0.0, 0.1, 0.2, 0.4, 0.6, 0.7)),
            2,
            ["free layers", "half dropped", "rate", "accuracy selects, few layers", "weak features, few layers"],
        ),
        (
            replace(NUMBERS, explained=steps(0.0, 0.1, 0.2, 0.4, 0.6, 0.7)),
            32,
            ["free layers", "half dropped", "rate", "accuracy selects, many layers"],
        ),
        (
            replace(NUMBERS, explained=steps(0.0, 0.0, 0.0, 0.1, 0.1, 0.0), explained_by_similar=0.0),
            8,
            ["free layers", "half dropped", "rate", "accuracy selects"],
        ),
        (
            replace(NUMBERS, explained=BLURRED, homophily=0.2),
            8,
            ["free layers", "half dropped", "rate", "neighbours do not help", "own features first"],
        ),
        (  # with few labels the rule for them stays
            replace(NUMBERS, explained=BLURRED, homophily=0.2, num_train=40),
            8,
            ["free layers", "half dropped", "rate", "few labels", "neighbours do not help"],
        ),
        (  # only further averages blur
            replace(NUMBERS, explained=steps(0.4, 0.3, 0.41, 0.3, 0.2, 0.0), homophily=0.4),
            8,
            ["free layers", "half dropped", "rate"],
        ),
        (
            replace(NUMBERS, explained_by_similar=0.75),
            8,
            ["free layers", "half dropped", "rate", "own features first"],
        ),
        (
            replace(NUMBERS, explained_by_similar=0.75, num_train=40),
            8,
            ["free layers", "half dropped", "rate", "few labels"],
        ),
        (replace(NUMBERS, explained_by_similar=0.75, num_classes=0), 8, ["free layers", "half dropped", "rate"]),
        (  # a difference of chance
            replace(NUMBERS, explained=steps(*[0.01] * 6), explained_by_similar=0.029, homophily=0.9),
            8,
            ["free layers", "half dropped", "rate"],
        ),
        (replace(NUMBERS, explained_by_similar=0.7), 8, ["free layers", "half dropped", "rate"]),
        (replace(FACTS, explained_by_similar=0.75), 8, ["words with neighbours", "accuracy selects"]),
        (replace(NUMBERS, explained=ALIKE, homophily=0.1), 8, ["free layers", "half dropped", "rate"]),
        (replace(NUMBERS, explained=BLURRED, homophily=0.05), 8, ["free layers", "half dropped", "rate"]),
        (
            replace(FACTS, explained=BLURRED, homophily=0.05),  # of words nothing was measured
            8,
            ["accuracy selects", "neighbours do not help", "words, and edges at random"],
        ),
        (
            replace(NUMBERS, explained=ALIKE, homophily=0.0),
            2,
            ["free layers", "half dropped", "rate", "neighbours differ"],
        ),
    ],
)
def test_facts_decide_which_rules_fire(facts, layers, fired):
    choice = choose_settings(load_recipe("egnn", "small", layers), small_task(), facts=facts)
    assert [rule.name for rule in choice.fired] == fired


def test_the_page_on_settings_has_every_rule():
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    assert [rule.name for rule in RULES if f"\n| {rule.name} | " not in page] == []
