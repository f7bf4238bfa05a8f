import inspect
import tomllib
from importlib import resources
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS
from graphjoule.training.recipe import Recipe, load_recipe, model_options, parse_blocks, parse_override, parse_overrides


class Toy:
    parameter_group_names: ClassVar = ("hot", "cold")

    def __init__(
        self, in_channels: int, *, speed: float = 1.5, mode: Literal["up", "down"] = "up", loud: bool = False
    ) -> None: ...


BASE = """
[[block]]
[block.ours]
lr = 0.1
weight_decay = 0.5
epochs = 10
patience = 5
select_on = "val_loss"
normalize_features = false
split = "public"
"""


@pytest.fixture
def load_toy(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "toy", Toy)

    def load(more="", overrides=(), dataset="sand", num_layers=3):
        file = tmp_path / "toy.toml"
        file.write_text(BASE + more)
        return load_recipe("toy", dataset, num_layers, parse_overrides(overrides), file=file)

    return load


# Which value wins.


def test_a_recipe_is_complete_and_says_where_every_setting_is_from(load_toy):
    recipe = load_toy('[[block]]\ndataset = "sand"\npaper = { speed = 2, lr = 0.2 }\nreleased_code = { patience = 7 }')
    assert recipe.model.options == {"speed": 2.0, "mode": "up", "loud": False}
    assert (recipe.train.lr, recipe.train.patience, recipe.model.hidden_channels) == (0.2, 7, 64)
    assert recipe.train.weight_decay == {"hot": 0.5, "cold": 0.5}
    sources = {key: recipe.sources[key] for key in ["speed", "mode", "patience", "lr", "epochs", "weight_decay.hot"]}
    assert list(sources.values()) == ["paper", "default", "released code", "paper", "ours", "ours"]
    assert set(recipe.sources) == set(recipe.settings()) - {"model", "dataset", "num_layers"}


@pytest.mark.parametrize(("depth", "speed"), [(1, 1.5), (2, 2.0), (8, 2.0), (9, 3.0), (16, 3.0), (17, 4.0), (99, 4.0)])
def test_depth_ranges_include_their_ends_and_later_blocks_win(load_toy, depth, speed):
    blocks = """
[[block]]
min_layers = 2
ours = { speed = 2.0 }
[[block]]
min_layers = 9
max_layers = 16
ours = { speed = 3.0 }
[[block]]
min_layers = 17
ours = { speed = 4.0 }
"""
    assert load_toy(blocks, num_layers=depth).options["speed"] == speed


def test_a_block_for_another_dataset_changes_nothing(load_toy):
    other = '[[block]]\ndataset = "snow"\nours = { speed = 9.0 }'
    assert load_toy(other) == load_toy()
    assert load_toy(other, dataset="snow").options["speed"] == 9.0


def test_a_block_can_set_the_decay_of_one_group(load_toy):
    assert load_toy("[[block]]\npaper = { weight_decay.cold = 0 }").weight_decay == {"hot": 0.5, "cold": 0.0}


def test_an_override_beats_every_block_and_is_marked(load_toy):
    recipe = load_toy('[[block]]\ndataset = "sand"\npaper = { speed = 2.0 }', ["speed=3", "lr=1e-3", "loud=true"])
    assert (recipe.model.options["speed"], recipe.train.lr, recipe.model.options["loud"]) == (3.0, 1e-3, True)
    assert {key for key, source in recipe.sources.items() if source == "override"} == {"speed", "lr", "loud"}


@pytest.mark.parametrize(
    ("overrides", "decay"),
    [
        (["weight_decay=0.1"], {"hot": 0.1, "cold": 0.1}),
        (["weight_decay.hot=0.1"], {"hot": 0.1, "cold": 0.5}),
        (["weight_decay.hot=0", "weight_decay=0.1"], {"hot": 0.0, "cold": 0.1}),
        (["weight_decay={hot=1, cold=2}"], {"hot": 1.0, "cold": 2.0}),
    ],
)
def test_weight_decay_can_be_set_for_all_groups_or_one(load_toy, overrides, decay):
    assert load_toy(overrides=overrides).weight_decay == decay


# What is refused, and how.


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("sped=1", r'"sped" is not a setting of toy, did you mean "speed"\? The choices are: .*loud, lr, .*speed'),
        ("weight_decay.hit=1", r'"weight_decay.hit" is not a setting of toy, did you mean "weight_decay.hot"'),
        ("sources=1", r'"sources" is not a setting'),
        ("speed=fast", r"^speed = 'fast' cannot be used: it should be a valid number\.$"),
        ('speed="3"', r"^speed = '3' cannot be used: it should be a valid number\.$"),
        ("speed=true", r"^speed = True cannot be used"),
        ("speed=nan", r"^speed = nan cannot be used: it should be a finite number\.$"),
        ("mode=left", r"^mode = 'left' cannot be used: it should be 'up' or 'down'\.$"),
        ("loud=1", r"^loud = 1 cannot be used: it should be true or false\.$"),
        ("epochs=2.5", r"^epochs = 2.5 cannot be used: it should be a valid integer\.$"),
        ("epochs=0", r"^epochs = 0 cannot be used: it should be greater than or equal to 1\.$"),
        ("lr=0", r"^lr = 0 cannot be used: it should be greater than 0\.$"),
        ("weight_decay.hot=-1", r"^weight_decay.hot = -1 cannot be used"),
        ("select_on=test", r"^select_on = 'test' cannot be used: it should be 'val_loss' or 'val_accuracy'\.$"),
        ("split=", r"^split = '' cannot be used"),
        ("num_layers=4", r"^num_layers is not a setting to override: choose it with --layers\.$"),
        ("model=gcn", r"choose it with --model\.$"),
        ("dataset=cora", r"choose it with --dataset\.$"),
        ("speed", r"^'speed' is not a setting: expected key=value"),
        ("=3", r"^'=3' is not a setting: expected key=value"),
    ],
)
def test_a_bad_override_is_a_sentence(load_toy, override, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        load_toy(overrides=[override])


def test_a_setting_given_twice_is_refused_not_decided_by_order(load_toy):
    for twice in [["speed=1", "speed=2"], ["weight_decay={hot=1}", "weight_decay.hot=2"]]:
        with pytest.raises(GraphjouleError, match="is set twice"):
            load_toy(overrides=twice)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            "[[block]]\npapr = { speed = 1 }",
            r'toy\.toml, block 2: "papr" is not a key of a block, did you mean "paper"',
        ),
        (
            '[[block]]\n"released code" = { lr = 1 }',
            r"did you mean \"released_code\"\? The choices are: dataset, .*ours",
        ),
        ("[[block]]\nspeed = 1", r'"speed" is not a key of a block'),
        ('[[block]]\nwhere = "x"', r'"where" is not a key of a block'),
        (
            '[[block]]\ndataset = "sun"\nours = { sped = 1 }',
            r'block 2 \(sun\): "sped" is not a setting of toy, did you mean',
        ),
        ("[[block]]\nours = { num_layers = 1 }", r'block 2: "num_layers" is not a setting of toy'),
        ("[[block]]\nours = { weight_decay.all = 1 }", r'"weight_decay.all" is not a setting of toy'),
        ("[[block]]\nours = { speed = 1 }\npaper = { speed = 2 }", r"speed has two sources, paper and ours: keep one"),
        ("[[block]]\npaper = 3", r"toy\.toml, block 2: paper = 3 cannot be used"),
        ('[[block]]\nmin_layers = "4"', r"block 2: min_layers = '4' cannot be used"),
        (
            "[[block]]\nmin_layers = 4\nmax_layers = 3",
            r"block 2 applies to no depth: min_layers = 4 is above max_layers = 3",
        ),
        (
            '[[block]]\nours = { speed = "1.0" }',
            r"toy\.toml: speed = '1.0' cannot be used: it should be a valid number",
        ),
        ("[extra]", r"must hold \[\[block\]\] tables and nothing else"),
        ("[[block]\n", r"toy\.toml is not valid TOML: .*line"),
    ],
)
def test_a_bad_recipe_file_is_a_sentence_that_says_where(load_toy, more, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        load_toy(more)


@pytest.mark.parametrize(
    ("scope", "dataset", "num_layers", "said"),
    [
        (
            'dataset = "cora"\nmin_layers = 4\nmax_layers = 4',
            "cora",
            8,
            "cora with 8 layers; it has: cora, 4 layers. To use the file, choose --layers 4 or add a block.",
        ),
        (
            'dataset = "cora"',
            "sand",
            1,
            "sand with 1 layer; it has: cora, any depth. To use the file, choose its dataset or add a block.",
        ),
        ("min_layers = 3", "sand", 2, "it has: any dataset, 3 layers or more. To use the file, choose --layers 3 or"),
        ("max_layers = 3", "sand", 9, "it has: any dataset, 3 layers or fewer. To use the file, choose --layers 3 or"),
        ("min_layers = 2\nmax_layers = 3", "sand", 9, "it has: any dataset, 2 to 3 layers. To use the file"),
    ],
)
def test_a_file_for_other_runs_is_refused_and_says_for_which(tmp_path, monkeypatch, scope, dataset, num_layers, said):
    monkeypatch.setitem(MODELS, "toy", Toy)
    (tmp_path / "toy.toml").write_text(BASE.replace("[[block]]", f"[[block]]\n{scope}"))
    with pytest.raises(GraphjouleError) as caught:
        load_recipe("toy", dataset, num_layers, {"lr": 0.1}, file=tmp_path / "toy.toml")
    assert "toy.toml has no block for" in str(caught.value)
    assert said in str(caught.value)


def test_a_missing_value_file_or_model_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "toy", Toy)
    (tmp_path / "toy.toml").write_text(BASE.replace("lr = 0.1\n", ""))
    with pytest.raises(GraphjouleError, match=r"toy\.toml: lr is not given, and it has no default"):
        load_recipe("toy", "sand", 2, file=tmp_path / "toy.toml")
    with pytest.raises(
        GraphjouleError, match=r"Cannot read the recipe file .*absent\.toml: no such file or directory\.$"
    ):
        load_recipe("toy", "sand", 2, file=tmp_path / "absent.toml")
    (tmp_path / "toy.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(GraphjouleError, match=r"Cannot read the recipe file .*toy\.toml: it is not text in UTF-8\.$"):
        load_recipe("toy", "sand", 2, file=tmp_path / "toy.toml")
    with pytest.raises(GraphjouleError, match='no recipe file for the model "toy"'):
        load_recipe("toy", "sand", 2)
    with pytest.raises(
        GraphjouleError, match=r'"egn" is not a model, did you mean "egnn"\? The choices are: appnp, dropedge, egnn,'
    ):
        load_recipe("egn", "cora", 2)
    with pytest.raises(GraphjouleError, match="num_layers = 0 cannot be used"):
        load_recipe("egnn", "cora", 0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x=0.3", 0.3),
        ("x = 5e-4", 5e-4),
        ("x=.5", 0.5),
        ("x=3", 3),
        ("x=true", True),
        ("x=relu", "relu"),
        ('x="0.3"', "0.3"),
        ("x=per-class-20-30", "per-class-20-30"),
        ("x=a=b", "a=b"),
        ("x=none", None),
        ("x=1\ny=2", "1\ny=2"),
    ],
)
def test_override_values_are_read_as_toml_or_else_as_a_bare_string(text, value):
    key, parsed = parse_override(text)
    assert key == "x"
    assert parsed == value
    assert type(parsed) is type(value)


# Recipes as facts: round trip, fingerprint, differences.

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    c_min=finite,
    lr=st.floats(1e-8, 10),
    decay=st.floats(0, 1),
    layers=st.integers(1, 999),
    seed=st.none() | st.integers(0),
)
def test_a_recipe_survives_json_with_its_fingerprint(c_min, lr, decay, layers, seed):
    overrides = {"c_min": c_min, "lr": lr, "weight_decay.conv": decay, "split_seed": seed}
    recipe = load_recipe("egnn", "cora", layers, overrides)
    again = Recipe.from_json(recipe.to_json())
    assert again == recipe
    assert again.fingerprint() == recipe.fingerprint()
    assert not recipe.differences(again)


def test_the_fingerprint_depends_on_every_setting_and_not_on_where_it_came_from():
    recipe = load_recipe("egnn", "cora", 2)
    assert load_recipe("egnn", "cora", 2, {"c_min": recipe.model.options["c_min"]}).sources != recipe.sources
    same = load_recipe("egnn", "cora", 2, {"gamma": 20})  # an int where the file says 20.0
    assert same.fingerprint() == recipe.fingerprint()
    others = {"epochs": 7, "split_seed": 1, "weight_decay.shift": 0.7, "beta": 0.05, "batch_norm": True, "split": "x"}
    changed = [load_recipe("egnn", "cora", 2, {key: value}) for key, value in others.items()]
    changed += [load_recipe("egnn", "cora", 3), load_recipe("egnn", "pubmed", 2), load_recipe("gcn", "cora", 2)]
    assert len({r.fingerprint() for r in [recipe, *changed]}) == 1 + len(changed)


def test_the_fingerprint_is_the_same_in_every_version_of_this_package():
    # Records of past runs are found by it: when this fails, a resumed study trains everything again.
    settings = {"hidden_channels": 64, "dropout": 0.5, "batch_norm": False, "lr": 0.5, "weight_decay": 0.0, "epochs": 3}
    settings |= {"patience": 2, "select_on": "val_loss", "normalize_features": False, "split": "x", "split_seed": None}
    recipe = load_recipe("gcn", "none", 2, settings)
    assert recipe.fingerprint() == "3a00a8e6d1ffebcba3952abbd405b871daed21be775a22fc29d1f80fe04a13d6"


def test_differences_are_readable():
    recipe = load_recipe("egnn", "cora", 2)
    other = load_recipe("egnn", "cora", 2, {"c_min": 0.3, "weight_decay.dense": 0.0})
    assert recipe.differences(other) == ["c_min: 0.2 -> 0.3", "weight_decay.dense: 0.0005 -> 0.0"]
    assert "c_min: 0.2 -> not a setting" in recipe.differences(load_recipe("gcn", "cora", 2))
    assert recipe.changes(other) == {"c_min": 0.3, "weight_decay.dense": 0.0}
    assert recipe.changes(load_recipe("gcn", "cora", 2))["c_min"] is None
    assert recipe.changes(recipe) == {}


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"c_min"', '"c_mim"', "c_mim = 0.2 cannot be used: there is no such setting"),
        ('"egnn"', '"egnm"', 'did you mean "egnn"'),
        ('"lr": 0.005', '"lr": "0.005"', "lr = '0.005' cannot be used"),
        ('"dense": 0.0005,', "", "weight_decay must have one value for each of conv, dense, shift"),
        ('"epochs": 1500,', "", "epochs is not given"),
        ("{", "", "Invalid JSON"),
    ],
)
def test_a_foreign_recipe_is_refused_with_a_sentence(old, new, sentence):
    text = load_recipe("egnn", "cora", 2).to_json()
    assert old in text
    with pytest.raises(GraphjouleError, match=sentence):
        Recipe.from_json(text.replace(old, new, 1))


def test_a_recipe_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        load_recipe("egnn", "cora", 2).lr = 1.0


# The files that come with the package.

DATASETS = ["cora", "pubmed", "physics", "arxiv", "digits", "never-heard-of"]


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_shipped_recipe_builds_its_model_at_every_depth(model, dataset):
    for num_layers in [1, 2, 16, 31, 32, 33]:
        recipe = load_recipe(model, dataset, num_layers)
        built = MODELS[model](5, recipe.model.hidden_channels, 3, num_layers, **recipe.model.options)
        assert set(built.parameter_groups()) == set(recipe.train.weight_decay)
        assert "override" not in recipe.sources.values()


def test_every_block_names_a_dataset_that_is_tested_here():
    for model in MODELS:
        text = (resources.files("graphjoule") / "recipes" / f"{model}.toml").read_text()
        assert {block.dataset for block in parse_blocks(text, model)} == {None, *DATASETS[:-1]}
        assert list(tomllib.loads(text)) == ["block"]


def test_the_checks_for_options_are_made_once_for_a_model_and_anew_for_another_of_its_name(monkeypatch):
    class Other(Toy):
        def __init__(self, in_channels: int, *, loud: bool = True) -> None: ...

    monkeypatch.setitem(MODELS, "toy", Toy)
    first = model_options("toy")
    assert model_options("toy") is first
    monkeypatch.setitem(MODELS, "toy", Other)
    assert set(model_options("toy").model_fields) == {"loud"} < set(first.model_fields)


def test_no_model_option_has_the_name_of_another_setting():
    for name, model in MODELS.items():
        taken = set(Recipe.model_fields) & set(inspect.signature(model.__init__).parameters)
        assert taken <= {"num_layers", "hidden_channels"}, name


FACTS = [  # the paper's table: dropout, output, decay, lr, gamma, b, c_min below and from 32 layers, beta likewise
    ("cora", 0.6, 0.6, 5e-4, 5e-3, 20, -10, (0.2, 0.15), (0.1, 0.1), 1e-4, 1500, 100, "val_loss", True, "public"),
    ("pubmed", 0.5, 0.0, 5e-4, 1e-2, 20, -10, (0.12, 0.11), (0.12, 0.11), 1e-4, 1500, 100, "val_loss", True, "public"),
    (
        "physics",
        0.6,
        0.6,
        5e-5,
        5e-3,
        20,
        -5,
        (0.12, 0.12),
        (0.1, 0.1),
        1e-4,
        1500,
        100,
        "val_loss",
        True,
        "per-class-20-30",
    ),
    ("arxiv", 0.1, 0.0, 0.0, 3e-3, 1e-4, -1, (0.6, 0.75), (0.1, 0.25), 0.0, 1000, 200, "val_accuracy", False, "public"),
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact[0])
def test_the_egnn_recipes_are_the_papers(fact):
    dataset, dropout, output, decay, lr, gamma, b, c_min, beta, shift, *rest = fact
    for num_layers, deep in [(2, 0), (31, 0), (32, 1), (64, 1)]:
        recipe = load_recipe("egnn", dataset, num_layers)
        options = recipe.model.options
        assert (options["dropout"], options["output_dropout"], recipe.train.lr) == (dropout, output, lr)
        assert (options["gamma"], options["srelu_init"], options["c_max"]) == (gamma, b, 1)
        assert (options["c_min"], options["beta"]) == (c_min[deep], beta[deep])
        assert recipe.train.weight_decay == {"conv": 0.0, "dense": decay, "shift": shift}
        assert [
            recipe.train.epochs,
            recipe.train.patience,
            recipe.train.select_on,
            recipe.data.normalize_features,
            recipe.data.split,
        ] == rest
        assert (recipe.model.hidden_channels, recipe.data.split_seed) == (64, None)
        assert options["batch_norm"] == (options["encoder"] == "mlp") == (dataset == "arxiv")
        assert recipe.sources["c_min"] == "paper"
        assert recipe.sources["patience"] == "released code"
        assert not options["freeze_last_shift"]


@pytest.mark.parametrize("dataset", DATASETS[:4])
def test_gcn_is_trained_as_egnn_is_where_the_paper_compares_them(dataset):
    gcn, egnn = load_recipe("gcn", dataset, 16), load_recipe("egnn", dataset, 16)
    assert gcn.weight_decay == {"all": egnn.weight_decay["dense"]}
    for name in [
        "lr",
        "epochs",
        "patience",
        "select_on",
        "normalize_features",
        "split",
        "split_seed",
        "hidden_channels",
    ]:
        assert getattr(gcn, name) == getattr(egnn, name), name


def test_a_default_split_takes_the_tasks_own_and_any_other_stays(tiny_task):
    recipe = load_recipe("egnn", "tiny", 2, {"split": "default"})
    resolved = recipe.with_split_of(tiny_task)
    assert resolved.split == "per-class-1-1"
    assert resolved.fingerprint() == load_recipe("egnn", "tiny", 2, {"split": "per-class-1-1"}).fingerprint()
    named = load_recipe("egnn", "tiny", 2, {"split": "public"})
    assert named.with_split_of(tiny_task) is named
