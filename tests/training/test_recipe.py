import tomllib
from importlib import resources
from typing import ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS
from graphjoule.training.recipe import Recipe, load_recipe, parse_blocks, recipe_text
from graphjoule.training.settings import parse_overrides


class Toy:
    parameter_group_names: ClassVar = ("hot", "cold")

    def __init__(
        self, in_channels: int, *, speed: float = 1.5, mode: Literal["up", "down"] = "up", loud: bool = False
    ) -> None: ...


CHOSEN = {"model.name", "model.num_layers", "data.name"}
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
    names = ["model.speed", "model.mode", "train.patience", "train.lr", "train.epochs", "train.weight_decay.hot"]
    assert [recipe.sources[name] for name in names] == ["paper", "default", "released code", "paper", "ours", "ours"]
    assert set(recipe.sources) == set(recipe.settings()) - CHOSEN


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
    assert load_toy(blocks, num_layers=depth).model.options["speed"] == speed


def test_a_block_for_another_dataset_changes_nothing(load_toy):
    other = '[[block]]\ndataset = "snow"\nours = { speed = 9.0 }'
    assert load_toy(other) == load_toy()
    assert load_toy(other, dataset="snow").model.options["speed"] == 9.0


def test_a_block_can_set_the_decay_of_one_group(load_toy):
    assert load_toy("[[block]]\npaper = { weight_decay.cold = 0 }").train.weight_decay == {"hot": 0.5, "cold": 0.0}


def test_an_override_beats_every_block_and_is_marked(load_toy):
    recipe = load_toy('[[block]]\ndataset = "sand"\npaper = { speed = 2.0 }', ["speed=3", "lr=1e-3", "loud=true"])
    assert (recipe.model.options["speed"], recipe.train.lr, recipe.model.options["loud"]) == (3.0, 1e-3, True)
    assert {key for key, source in recipe.sources.items() if source == "override"} == {
        "model.speed",
        "train.lr",
        "model.loud",
    }


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
    assert load_toy(overrides=overrides).train.weight_decay == decay


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
        ("select_on=", r"^select_on = '' cannot be used"),
        ("split=", r"^split = '' cannot be used"),
        ("num_layers=4", r"^num_layers is not a setting to override: choose it with `num_layers`\.$"),
        ("model=gcn", r"choose it with `model`\.$"),
        ("dataset=cora", r"choose it with `dataset`\.$"),
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
        (
            "[[block]]\nours = { speed = 1 }\npaper = { speed = 2 }",
            r"model.speed has two sources, paper and ours: keep one",
        ),
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
            "cora with 8 layers; it has: cora, 4 layers. To use the file, choose `num_layers=4` or add a block.",
        ),
        (
            'dataset = "cora"',
            "sand",
            1,
            "sand with 1 layer; it has: cora, any depth. To use the file, choose its dataset or add a block.",
        ),
        (
            "min_layers = 3",
            "sand",
            2,
            "it has: any dataset, 3 layers or more. To use the file, choose `num_layers=3` or",
        ),
        (
            "max_layers = 3",
            "sand",
            9,
            "it has: any dataset, 3 layers or fewer. To use the file, choose `num_layers=3` or",
        ),
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


# Recipes as facts: round trip, fingerprint, differences.


@settings(deadline=None)
@given(
    c_min=st.floats(0, 1),
    lr=st.floats(1e-8, 10),
    decay=st.floats(0, 1),
    layers=st.integers(1, 999),
    seed=st.none() | st.integers(0),
)
def test_a_recipe_survives_json_with_its_fingerprint(c_min, lr, decay, layers, seed):
    overrides = {"c_min": c_min, "beta": c_min, "lr": lr, "weight_decay.conv": decay, "split_seed": seed}
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
    assert recipe.differences(other) == ["model.c_min: 0.2 -> 0.3", "train.weight_decay.dense: 0.0005 -> 0.0"]
    assert "model.c_min: 0.2 -> not a setting" in recipe.differences(load_recipe("gcn", "cora", 2))
    assert recipe.changes(other) == {"model.c_min": 0.3, "train.weight_decay.dense": 0.0}
    assert recipe.changes(load_recipe("gcn", "cora", 2))["model.c_min"] is None
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
        load_recipe("egnn", "cora", 2).train.lr = 1.0


# The files that come with the package.

IN_PAPER = [name for name in MODELS if name not in ("resgcn", "wave")]
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
    for model in IN_PAPER:
        text = (resources.files("graphjoule.training") / "recipes" / f"{model}.toml").read_text()
        assert {block.dataset for block in parse_blocks(text, model)} == {None, *DATASETS[:-1]}
        assert list(tomllib.loads(text)) == ["block"]


FACTS = [  # the paper's table: dropout, output, decay, lr, gamma, b, c_min below and from 32 layers, beta likewise
    ("cora", 0.6, 0.6, 5e-4, 5e-3, 20, -10, (0.2, 0.15), (0.1, 0.1), 1e-4, 1500, 100, "loss", True, "public"),
    ("pubmed", 0.5, 0.0, 5e-4, 1e-2, 20, -10, (0.12, 0.11), (0.12, 0.11), 1e-4, 1500, 100, "loss", True, "public"),
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
        "loss",
        True,
        "per-class-20-30",
    ),
    ("arxiv", 0.1, 0.0, 0.0, 3e-3, 1e-4, -1, (0.6, 0.75), (0.1, 0.25), 0.0, 1000, 200, "accuracy", False, "public"),
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
        assert recipe.sources["model.c_min"] == "paper"
        assert recipe.sources["train.patience"] == "released code"
        assert not options["freeze_last_shift"]


@pytest.mark.parametrize("dataset", DATASETS[:4])
def test_gcn_is_trained_as_egnn_is_where_the_paper_compares_them(dataset):
    gcn, egnn = load_recipe("gcn", dataset, 16), load_recipe("egnn", dataset, 16)
    assert gcn.train.weight_decay == {"all": egnn.train.weight_decay["dense"]}
    for name in ("train.lr", "train.epochs", "train.patience", "train.select_on", "model.hidden_channels"):
        assert gcn.settings()[name] == egnn.settings()[name], name
    assert gcn.data == egnn.data


def test_a_default_split_takes_the_tasks_own_and_any_other_stays(tiny_task):
    recipe = load_recipe("egnn", "tiny", 2, {"split": "default"})
    resolved = recipe.with_split_of(tiny_task)
    assert resolved.data.split == "per-class-1-1"
    assert resolved.fingerprint() == load_recipe("egnn", "tiny", 2, {"split": "per-class-1-1"}).fingerprint()
    named = load_recipe("egnn", "tiny", 2, {"split": "public"})
    assert named.with_split_of(tiny_task) is named


# The baselines' recipes are what the paper and the released code say, cell by cell of the paper's tables.

BASELINES = [name for name in IN_PAPER if name != "egnn"]
ONE_DECAY = [name for name in BASELINES if name != "gcnii"]
CELLS = {"cora": (2, 16, 64), "pubmed": (2, 16, 64), "physics": (2, 16, 32), "arxiv": (2, 16, 32)}
# Dropout, decay and learning rate are the paper's for a dataset, whatever the model.
PAPER = {
    "cora": (0.6, 5e-4, 5e-3, 1500),
    "pubmed": (0.5, 5e-4, 1e-2, 1500),
    "physics": (0.6, 5e-5, 5e-3, 1500),
    "arxiv": (0.1, 0.0, 3e-3, 1000),
}
EDGE_DROPOUT = {
    "dropedge": {"cora": (0.2, 0.8, 0.8), "pubmed": (0.2, 0.3, 0.9), "physics": (0.2, 0.9, 0.9), "arxiv": (0.1,) * 3},
    "appnp": {"cora": (0.5, 0.8, 0.8), "pubmed": (0.5, 0.9, 0.9), "physics": (0.05, 0.9, 0.9), "arxiv": (0.05,) * 3},
}
OURS = {("dropedge", "physics", 16), ("appnp", "arxiv", 16), ("appnp", "arxiv", 32)}  # nobody says

every_cell = pytest.mark.parametrize(
    ("dataset", "num_layers"), [(dataset, depth) for dataset, depths in CELLS.items() for depth in depths]
)


@every_cell
@pytest.mark.parametrize("model", BASELINES)
def test_a_baseline_is_trained_as_the_paper_says_for_its_dataset(model, dataset, num_layers):
    recipe, egnn = load_recipe(model, dataset, num_layers), load_recipe("egnn", dataset, num_layers)
    dropout, decay, lr, epochs = PAPER[dataset]
    assert recipe.model.options.get("dropout", dropout) == dropout
    assert (recipe.train.epochs, recipe.model.hidden_channels) == (epochs, 64)
    if model in ONE_DECAY:
        assert (recipe.train.weight_decay, recipe.train.lr) == ({"all": decay}, lr)
        assert recipe.sources["train.weight_decay.all"] == recipe.sources["train.lr"] == "paper"
    for name in ("train.patience", "train.select_on", "data.normalize_features", "data.split", "data.split_seed"):
        assert recipe.settings()[name] == egnn.settings()[name], name
    assert recipe.model.options.get("batch_norm", False) == (dataset == "arxiv" and model != "pairnorm")
    assert not {"default", "override"} & {
        source
        for key, source in recipe.sources.items()
        if key.partition(".")[2] not in ("split_seed", "batch_norm", "scale")
    }


@every_cell
@pytest.mark.parametrize("model", EDGE_DROPOUT)
def test_edge_dropout_is_the_released_codes_at_every_depth_of_the_tables(model, dataset, num_layers):
    recipe = load_recipe(model, dataset, num_layers)
    rates = dict(zip(CELLS[dataset], EDGE_DROPOUT[model][dataset], strict=True))
    assert recipe.model.options["edge_dropout"] == rates[num_layers]
    expected = "ours" if (model, dataset, num_layers) in OURS else "released code"
    assert recipe.sources["model.edge_dropout"] == expected


@every_cell
def test_gcnii_has_the_released_codes_strengths_and_decays(dataset, num_layers):
    recipe = load_recipe("gcnii", dataset, num_layers)
    decays = {"cora": (0.01, 5e-4), "pubmed": (5e-4, 5e-4), "physics": (0.01, 5e-5), "arxiv": (0.0, 0.0)}
    assert tuple(recipe.train.weight_decay[group] for group in ("conv", "dense")) == decays[dataset]
    assert recipe.train.lr == (1e-2 if dataset == "cora" else PAPER[dataset][2])
    assert recipe.model.options["theta"] == (0.4 if dataset == "pubmed" else 0.5)
    assert recipe.model.options["alpha"] == (0.5 if dataset == "arxiv" else 0.1)
    assert {recipe.sources[key] for key in ("model.theta", "model.alpha", "train.weight_decay.conv")} == {
        "released code"
    }


@every_cell
def test_appnp_and_pairnorm_have_the_released_codes_strengths(dataset, num_layers):
    appnp, pairnorm = (load_recipe(model, dataset, num_layers) for model in ("appnp", "pairnorm"))
    assert appnp.model.options["alpha"] == (0.2 if dataset == "arxiv" else 0.1)
    assert pairnorm.model.options["scale"] == 1.0
    assert appnp.sources["model.alpha"] == pairnorm.sources["model.scale"] == "released code"


@pytest.mark.parametrize("model", EDGE_DROPOUT)
def test_a_depth_between_two_of_the_tables_takes_the_rate_of_the_smaller(model):
    for dataset, depths in CELLS.items():
        between = {(depths[0] + depths[1]) // 2: depths[0], (depths[1] + depths[2]) // 2: depths[1], 99: depths[2]}
        for depth, smaller in between.items():
            rates = [load_recipe(model, dataset, k).model.options["edge_dropout"] for k in (depth, smaller)]
            assert rates[0] == rates[1], (dataset, depth)


@pytest.mark.parametrize("model", [name for name in MODELS if name != "egnn"])
def test_every_recipe_file_says_what_to_run_and_what_its_words_mean(model):
    text = (resources.files("graphjoule.training") / "recipes" / f"{model}.toml").read_text()
    assert f"# Command   graphjoule train --model {model} --dataset cora --layers " in text
    assert max(len(line) for line in text.splitlines()) <= 120


# Clusters.


def egnn(**overrides) -> Recipe:
    return load_recipe("egnn", "cora", 2, overrides)


def test_without_clusters_a_recipe_is_what_it_was():
    plain = egnn()
    assert plain.train.clusters is None
    assert not [name for name in plain.settings() if name.startswith("train.clusters")]
    assert egnn(clusters=None).fingerprint() == plain.fingerprint()


def test_clusters_are_settings_with_sources_that_survive_a_file():
    made = egnn(**{"clusters.parts": 50, "clusters.per_step": 5})
    ours = {name: value for name, value in made.settings().items() if name.startswith("train.clusters")}
    assert ours == {
        "train.clusters.parts": 50,
        "train.clusters.per_step": 5,
        "train.clusters.accumulate": 1,
        "train.clusters.method": "metis",
        "train.clusters.validate_every": 1,
    }
    assert made.sources["train.clusters.parts"] == made.sources["train.clusters.per_step"] == "override"
    assert made.sources["train.clusters.method"] == "default"
    assert Recipe.from_json(made.to_json()) == made
    assert made.fingerprint() != egnn(**{"clusters.parts": 50}).fingerprint() != egnn().fingerprint()
    assert egnn(**{"clusters.parts": 50}).differences(made) == ["train.clusters.per_step: 1 -> 5"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"clusters.parts": 0}, r"^clusters.parts = 0 cannot be used: it should be greater than or equal to 1"),
        ({"clusters.parts": 2.5}, r"^clusters.parts = 2.5 cannot be used: it should be a valid integer"),
        ({"clusters.parts": 3, "clusters.per_step": 4}, "clusters.per_step is 4, but there are 3 clusters"),
        ({"clusters.parts": 3, "clusters.method": "louvain"}, "'louvain' cannot .*: it should be 'metis' or 'blocks'"),
        ({"clusters.per_step": 4}, r"^clusters.parts is not given, and it has no default\.$"),
        ({"clusters.parts": 3, "cluster.method": "x"}, 'did you mean "clusters.method"'),
        (
            {"clusters.parts": 3, "terms.energy.method": "penalty"},
            "^terms.energy and train.clusters exclude each other",
        ),
    ],
)
def test_clusters_that_cannot_be_are_refused_in_a_sentence(overrides, words):
    with pytest.raises(GraphjouleError, match=words):
        egnn(**overrides)


# Terms.

AL = "augmented_lagrangian"


def test_short_names_are_the_terms_where_the_model_has_none_of_that_name():
    recipe = load_recipe("gcn", "cora", 16, parse_overrides([f"terms.energy.method={AL}", "c_min=0.3", "rho=2.0"]))
    assert recipe.terms["energy"] == {"method": AL, "c_min": 0.3, "c_max": 1.0, "rho": 2.0, "every": 1}
    assert recipe.sources["terms.energy.c_min"] == recipe.sources["terms.energy.method"] == "override"
    assert recipe.sources["terms.energy.c_max"] == "default"
    assert set(recipe.sources) == set(recipe.settings()) - CHOSEN
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_a_models_own_limits_are_the_terms_unless_it_is_told_otherwise():
    recipe = load_recipe("egnn", "cora", 64, {"terms.energy.method": "penalty", "c_min": 0.3})
    assert recipe.model.options["c_min"] == recipe.terms["energy"]["c_min"] == 0.3
    assert recipe.terms["energy"]["c_max"] == recipe.model.options["c_max"]
    recipe = load_recipe(
        "egnn", "cora", 64, {"terms.energy.method": "penalty", "c_min": 0.3, "terms.energy.c_min": 0.5}
    )
    assert (recipe.model.options["c_min"], recipe.terms["energy"]["c_min"]) == (0.3, 0.5)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"c_min": 0.3}, '^"c_min" is not a setting of gcn'),
        ({"rho": 0.3}, '^"rho" is not a setting of gcn. .*terms.energy.rho'),
        ({"gamma": 0.3}, '^"gamma" is not a setting of gcn'),
        ({"terms.energy.method": "lagrange"}, "^terms.energy.method = 'lagrange' cannot be used"),
        ({"terms.energy.method": AL, "c_min": 1.5}, "^terms.energy.c_min is 1.5; it must be between 0 and 1."),
        ({"terms.energy.method": AL, "c_min": "much"}, "^terms.energy.c_min = 'much' cannot be used"),
        ({"terms.energy.every": 0}, "^terms.energy.every = 0 cannot be used"),
        ({"terms.energy.method": AL, "c_min": 0.3, "terms.energy.c_min": 0.3}, "is set twice, .*: give it once."),
        ({"terms.entropy.rho": 1.0}, '^"terms.entropy.rho" is not a setting of gcn'),
    ],
)
def test_bad_settings_of_a_term_are_refused_with_a_sentence(overrides, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        load_recipe("gcn", "cora", 16, overrides)


# Written to a file.

CORA = load_recipe("egnn", "cora", 64)


@pytest.mark.parametrize("model", MODELS)
def test_a_recipe_that_was_written_is_read_as_it_was(model, tmp_path):
    odd = {"lr": 0.1 + 0.2, "weight_decay": 1e-300, "normalize_features": False}
    for overrides in ({}, odd, {"terms.energy.method": "penalty"}, {"split_seed": 3, "epochs": 7}):
        recipe = load_recipe(model, 'my "graph" 😀.csv', 5, overrides)
        path = tmp_path / "best.toml"
        path.write_text(recipe_text(recipe, searched=["lr"], header=["one", "", "two"]), encoding="utf-8")
        again = load_recipe(model, 'my "graph" 😀.csv', 5, file=path)
        assert again.settings() == recipe.settings()
        assert again.fingerprint() == recipe.fingerprint()
        defaults = {key for key, source in recipe.sources.items() if source == "default"}
        assert {key for key, source in again.sources.items() if source == "default"} == defaults - {"train.lr"}


def test_sources_are_kept_and_what_was_searched_is_ours():
    text = recipe_text(CORA, searched=["lr", "weight_decay"], header=["about it"])
    assert text.startswith('# about it\n\n[[block]]\ndataset = "cora"\nmin_layers = 64\nmax_layers = 64\n')
    assert "train.lr = 0.005 # searched" in text
    assert text.count("# searched") == 4  # the rate and three groups' decays
    paper = text[text.index("[block.paper]") : text.index("[block.ours]")]
    assert "model.c_min = 0.15" in paper
    assert "train.lr" not in paper.split("[block.released_code]")[0]


def test_it_is_for_its_dataset_and_depth_alone(tmp_path):
    path = tmp_path / "best.toml"
    path.write_text(recipe_text(CORA))
    with pytest.raises(
        GraphjouleError, match=r"best\.toml has no block for cora with 2 layers; it has: cora, 64 layers"
    ):
        load_recipe("egnn", "cora", 2, file=path)
