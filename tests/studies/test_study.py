from pathlib import Path

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS
from graphjoule.studies import STUDIES, Study, Variant, find_study, read_study
from graphjoule.tasks import DATASETS
from graphjoule.training import build_model
from graphjoule.training.recipe import load_recipe
from graphjoule.training.settings import setting_names

from . import load_small


def test_the_studies_are_the_papers_tables_and_figures_and_two_of_our_own():
    figures = [f"figure{number}" for number in range(1, 6)]
    assert list(STUDIES) == ["constraint", "depth", *figures, "table1", "table2"]
    assert all(study.name == name for name, study in STUDIES.items())


def test_table_1_has_the_papers_96_cells_with_their_numbers_and_the_recipes_as_they_are():
    cells = find_study("table1").cells()
    assert len(cells) == 8 * 12
    assert {cell.model for cell in cells} <= set(MODELS)
    assert all(cell.reference is not None for cell in cells)
    by_place = {(cell.model, cell.dataset, cell.num_layers): cell for cell in cells}
    assert by_place["egnn", "pubmed", 64].reference == 80.1
    assert by_place["gcn", "physics", 32].reference == 13.1
    assert by_place["appnp", "arxiv", 16].reference == 65.5
    assert all(cell.recipe == load_recipe(cell.model, cell.dataset, cell.num_layers) for cell in cells)


def test_the_sides_of_the_constraint_study_differ_in_what_holds_them_and_in_nothing_else():
    cells = {(c.model, c.num_layers, c.variant.value): c.recipe for c in find_study("constraint").cells(["cora"])}
    assert len(cells) == 5 * 5 * 3
    for model in ("gcn", "dropedge", "pairnorm", "jknet", "egnn"):
        free, held, orthogonal = (cells[model, 16, side] for side in ("free", "constraint", "orthogonal penalty"))
        assert {line.partition(":")[0] for line in free.differences(held)} == {
            "terms.energy.method",
            "terms.energy.c_min",
            "terms.energy.c_max",
            "terms.energy.rho",
            "terms.energy.every",
        }
        assert free.differences(orthogonal) == [
            "terms.orthogonal.gamma: not a setting -> 20.0",
            "terms.orthogonal.c_max: not a setting -> 1.0",
        ]
        assert (free.model.options["dropout"], free.train.epochs, free.train.patience) == (0.0, 600, 600)
    assert cells["egnn", 16, "constraint"].model.options["gamma"] == 0.0


def test_a_study_can_have_settings_of_a_dataset():
    shorter = {cell.dataset: cell.recipe.train.epochs for cell in find_study("constraint").cells(layers=[2])}
    assert shorter == {"cora": 600, "pubmed": 200, "physics": 200}
    assert {cell.recipe.train.patience for cell in find_study("constraint").cells(["physics"], layers=[2])} == {200}


def test_dropedge_has_one_rate_on_physics_from_16_layers_on_in_the_study_of_the_constraint():
    cells = find_study("constraint").cells(["physics"], ["dropedge"])
    rates = {cell.num_layers: cell.recipe.model.options["edge_dropout"] for cell in cells}
    assert rates == {2: 0.2, 8: 0.2, 16: 0.9, 32: 0.9, 64: 0.9}


def test_the_users_settings_win_over_the_studys_and_the_variants_over_the_users():
    given = {"epochs": 3, "dropout": 0.4, "terms.orthogonal.gamma": 1.0}
    cells = find_study("constraint").cells(["pubmed"], ["gcn"], [2], given)
    assert [cell.overrides for cell in cells] == [given] * 3
    assert {(cell.recipe.train.epochs, cell.recipe.model.options["dropout"]) for cell in cells} == {(3, 0.4)}
    assert [cell.recipe.settings()["terms.orthogonal.gamma"] for cell in cells] == [1.0, 1.0, 20.0]


def test_table_2_changes_one_component_at_a_time():
    cells = {(c.dataset, c.num_layers, c.variant.component, c.variant.value): c for c in find_study("table2").cells()}
    assert len(cells) == 96
    assert cells["cora", 64, "weight_init", "glorot"].reference == 23.6
    assert cells["arxiv", 32, "activation", "linear"].reference == 71.0
    plain = load_recipe("egnn", "pubmed", 64)
    changes = {
        ("weight_init", "glorot"): ["model.gamma: 20.0 -> 0.0001", "model.weight_init: orthogonal -> glorot"],
        ("weight_init", "orthogonal"): [],
        ("c_min", "0"): ["model.c_min: 0.11 -> 0.0", "model.beta: 0.11 -> 0.0"],
        ("c_min", "tuned"): [],
        ("c_min", "0.95"): ["model.c_min: 0.11 -> 0.95"],
        ("activation", "linear"): ["model.activation: srelu -> linear"],
        ("activation", "srelu"): [],
        ("activation", "relu"): ["model.activation: srelu -> relu"],
    }
    for (component, value), expected in changes.items():
        assert plain.differences(cells["pubmed", 64, component, value].recipe) == expected
    tuned = [c for (*_, value), c in cells.items() if value in ("orthogonal", "tuned", "srelu")]
    table1 = find_study("table1").reference.values["egnn", "", ""]
    assert all(cell.reference == table1[cell.dataset, cell.num_layers] for cell in tuned)


@pytest.mark.parametrize(
    ("name", "dataset", "layers"),
    [("figure2", "cora", 64), ("figure3", "pubmed", 64), ("figure4", "physics", 32), ("figure5", "arxiv", 32)],
)
def test_a_sweep_changes_one_setting_and_goes_through_the_recipes_own_value(name, dataset, layers):
    cells = find_study(name).cells()
    assert {(c.model, c.dataset, c.num_layers) for c in cells} == {("egnn", dataset, layers)}
    assert {c.variant.component for c in cells} == {"b", "gamma", "c_min", "c_max"}
    plain = load_recipe("egnn", dataset, layers)
    for component in ("b", "gamma", "c_max"):
        differences = [plain.differences(c.recipe) for c in cells if c.variant.component == component]
        assert all(len(changed) <= 1 for changed in differences)
        assert [] in differences
    assert all(c.recipe.model.options["beta"] <= c.recipe.model.options["c_min"] for c in cells)


def test_figure_1_has_the_papers_upper_limit_where_the_model_has_one():
    cells = {(c.model, c.dataset): c.recipe for c in find_study("figure1").cells()}
    assert {recipe.model.num_layers for recipe in cells.values()} == {64}
    assert {"c_max": 0.4, "c_min": 0.15, "beta": 0.1}.items() <= cells["egnn", "cora"].model.options.items()
    assert {"c_max": 0.4, "c_min": 0.11, "beta": 0.11}.items() <= cells["egnn", "pubmed"].model.options.items()
    assert cells["gcn", "cora"] == load_recipe("gcn", "cora", 64)


def test_depth_goes_from_2_to_1024_layers():
    cells = find_study("depth").cells(["cora"], ["egnn"])
    assert [cell.num_layers for cell in cells] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


@pytest.mark.parametrize(("dataset", "capped"), [("cora", 600), ("pubmed", 200), ("physics", 200)])
def test_depth_trains_by_the_recipe_as_deep_as_the_paper_and_for_fewer_epochs_beyond(dataset, capped):
    for cell in find_study("depth").cells([dataset]):
        plain = load_recipe(cell.model, dataset, cell.num_layers)
        changed = [f"train.epochs: {plain.train.epochs} -> {capped}"] if cell.num_layers > 64 else []
        assert plain.differences(cell.recipe) == changed
    assert find_study("depth").cells([dataset], ["egnn"], [128], {"epochs": 1500})[0].recipe.train.epochs == 1500


def test_depth_never_lets_a_network_train_for_longer_than_its_recipe_says():
    for cell in find_study("depth").cells(list(DATASETS), layers=[2, 64, 128]):  # the blocks begin at 65
        assert cell.recipe.train.epochs <= load_recipe(cell.model, cell.dataset, cell.num_layers).train.epochs


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_what_a_study_sets_for_its_cells_is_a_setting_of_one_of_its_models(study: Study):
    known = {name for model in study.models for name in setting_names(model)}
    assert {key for cell in study.cells() for key in (*cell.base, *cell.variant.settings)} <= known


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_cell_is_a_network_that_can_be_built(study: Study):
    task = load_small("any")
    for cell in study.cells():
        if cell.num_layers <= 16 or study.name.startswith("figure"):
            small = cell.recipe.model.model_copy(update={"hidden_channels": 2, "num_layers": 2})
            recipe = cell.recipe.model_copy(update={"model": small})
            build_model(recipe, task, seed=0)


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_study_can_be_tried_on_the_digits(study: Study):
    cells = study.cells(["digits"])
    assert len(cells) >= len(study.variants)
    assert all(cell.reference is None for cell in cells)
    assert {cell.recipe.data.split for cell in cells} == {"per-class-5-10"}


def test_a_part_can_be_asked_for_and_settings_overridden():
    cells = find_study("table1").cells(["pubmed", "cora", "cora"], ["gcn"], [3], {"lr": 0.02})
    assert [(c.dataset, c.model, c.num_layers, c.reference) for c in cells] == [
        ("pubmed", "gcn", 3, None),
        ("cora", "gcn", 3, None),
    ]
    assert {c.recipe.train.lr for c in cells} == {0.02}
    (variant,) = [c for c in find_study("table2").cells(["cora"], None, [2], {"lr": 0.02}) if c.variant.value == "0"]
    assert (variant.recipe.train.lr, variant.recipe.model.options["c_min"], variant.recipe.model.options["beta"]) == (
        0.02,
        0.0,
        0.0,
    )


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: find_study("tabel1"), '"tabel1" is not a study, did you mean "table1"?'),
        (lambda: find_study("table1").cells(["coar"]), '"coar" is not a dataset, did you mean "cora"?'),
        (lambda: find_study("table1").cells(None, ["gnc"]), '"gnc" is not a model of table1'),
        (lambda: find_study("table2").cells(None, ["gcn"]), '"gcn" is not a model of table2. The choices are: egnn.'),
        (lambda: find_study("depth").cells(None, None, [0]), r"layers are \[0\]; expected numbers of at least 1."),
    ],
)
def test_unknown_names_get_a_sentence_with_the_choices(ask, sentence):
    with pytest.raises(GraphjouleError, match=sentence.replace("?", r"\?")):
        ask()


# Study files.

SMALL = """
title = "Mine"
datasets = ["cora"]
models = ["egnn", "gcn"]
depths = [2, 4]
"""


def read(folder, text):
    (folder / "mine.toml").write_text(text)
    return read_study(folder / "mine.toml")


def test_a_file_needs_a_title_datasets_models_and_depths(tmp_path):
    study = read(tmp_path, SMALL)
    assert (study.name, study.source) == ("mine", str(tmp_path / "mine.toml"))
    assert [(cell.model, cell.num_layers) for cell in study.cells()] == [
        ("egnn", 2),
        ("egnn", 4),
        ("gcn", 2),
        ("gcn", 4),
    ]
    assert study.variants == (Variant(),)


def test_settings_have_dotted_or_short_names_and_those_a_model_lacks_leave_it_as_it_is(tmp_path):
    text = SMALL + "[[block]]\nsettings.train.weight_decay.conv = 0.5\nsettings.c_max = 0.4\n"
    cells = read(tmp_path, text).cells(layers=[2])
    assert [cell.base for cell in cells] == [{"train.weight_decay.conv": 0.5, "model.c_max": 0.4}] * 2
    egnn, gcn = (cell.recipe for cell in cells)
    assert (egnn.model.options["c_max"], egnn.train.weight_decay["conv"]) == (0.4, 0.5)
    assert gcn.terms == {}  # a short name of the study's EGNN is not a limit for its GCN


def test_reference_values_come_from_a_table_beside_the_file_or_from_the_file(tmp_path):
    (tmp_path / "their.csv").write_text("model,cora_2,cora_4\negnn,80.5,\n,70,71\n")
    from_table = read(tmp_path, SMALL + '[reference]\ntable = "their.csv"\n')
    rows = '[[reference.rows]]\nmodel = "egnn"\ncora_2 = 80.5\n[[reference.rows]]\ncora_2 = 70\ncora_4 = 71\n'
    for study in (from_table, read(tmp_path, SMALL + rows)):
        assert [cell.reference for cell in study.cells()] == [80.5, 71.0, 70.0, 71.0]  # a row without a model is any's


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("title = ", "mine.toml is not valid TOML"),
        ('title = "Mine"', "mine.toml: datasets is missing."),
        (SMALL + "layers = [2]", '"layers" is not a key of a study. The choices are: block, datasets, depths'),
        (
            SMALL.replace("[2, 4]", "[0]"),
            "depths.default.1 = 0 cannot be used: it should be greater than or equal to 1",
        ),
        (SMALL.replace("[2, 4]", '["2"]'), "depths.default.1 = '2' cannot be used: it should be a valid integer."),
        (SMALL.replace("[2, 4]", "{ cora = 2 }"), "depths.cora = 2 cannot be used: it should be a list."),
        (SMALL.replace("[2, 4]", "{ pubmed = [2] }"), "depths has no list for cora and no default."),
        (SMALL.replace("[2, 4]", "{ coar = [2] }"), '"coar" is not a dataset in depths, did you mean "cora"'),
        (SMALL.replace('["cora"]', '"cora"'), "datasets = 'cora' cannot be used: it should be a list."),
        (SMALL.replace('"cora"', '"coar"'), '"coar" is not a dataset, did you mean "cora"'),
        (SMALL.replace('"gcn"', '"gnc"'), '"gnc" is not a model, did you mean '),
        (SMALL + "has_energies = 1", "has_energies = 1 cannot be used: it should be true or false."),
        (
            SMALL + 'drawing = "pie"',
            "drawing = 'pie' cannot be used: it should be 'depth', 'differences', 'energies'",
        ),
        (
            SMALL + "[[block]]\nsettings = { epoch = 2 }",
            '"epoch" is not a setting of egnn or gcn, did you mean "epochs"',
        ),
        (SMALL + "[[variant]]\nat_most = { gama = 2 }", '"gama" is not a setting of egnn or gcn, did you mean "gamma"'),
        (SMALL + "[[block]]\nsettings = 2", "block.1.settings = 2 cannot be used: it should be a table."),
        (SMALL + "[[sweep]]\ncomponent = 2", "sweep.1.component = 2 cannot be used: it should be text in quotes."),
        (SMALL + "[[reference.rows]]\ncora = 2", 'reference row 1: "cora" is not a column; expected model, component'),
        (
            SMALL + "[[reference.rows]]\ncora_2 = true",
            "reference row 1: cora_2 = True cannot be used: expected a number",
        ),
        (
            SMALL + "[[reference.rows]]\nmodel = 2",
            "reference row 1: model = 2 cannot be used: expected a name in quotes",
        ),
        (SMALL + '[[reference.rows]]\nmodel = "gnc"', '"gnc" is not a model of the reference, did you mean '),
        (
            SMALL + '[[reference.rows]]\nvalue = "1"',
            "the reference has a row for 1, and no variant of the study is that.",
        ),
        (
            SMALL + "[[reference.rows]]\ncora_2 = 80\n[[reference.rows]]\ncora_2 = 30",
            "reference row 2: an earlier row has cora_2 of any model too; expected one of them.",
        ),
        (
            SMALL + "[[reference.rows]]\ncora_9 = 80",
            "the reference has cora_9, and the study no network of 9 layers there; its depths for cora are: 2, 4.",
        ),
        (
            SMALL + '[[variant]]\ncomponent = "x"\nvalue = "1"\n' * 2,
            "the study has two variants x 1; their names must differ.",
        ),
        (SMALL + '[reference]\ntable = "no.csv"', "mine.toml: reference.table = 'no.csv': no such file or directory."),
        (
            SMALL + '[reference]\ntable = "bad.csv"',
            "bad.csv', line 3: could not convert string to float: 'x'; expected",
        ),
        (SMALL + '[reference]\ntable = "a"\nrows = []', "reference has both table and rows; expected one of them."),
    ],
)
def test_a_file_that_cannot_be_used_is_a_sentence_with_the_key_and_what_was_expected(tmp_path, text, sentence):
    (tmp_path / "bad.csv").write_text("cora_2\n70\nx\n")
    with pytest.raises(GraphjouleError) as error:
        read(tmp_path, text)
    assert "mine.toml" in str(error.value)
    assert sentence in str(error.value)
    assert str(error.value).endswith(".")


def test_the_example_of_the_docs_is_a_study(tmp_path):
    page = (Path(__file__).parents[2] / "docs/studies.md").read_text()
    study = read(tmp_path, page.split("```toml\n")[1].split("```")[0])
    assert len(study.cells()) == 2 * 2 * 2 + 2 * 3 * 2
    assert [cell.reference for cell in study.cells(["cora"], ["gcn"], [2])] == [None, 82.0]
    keys = {field.alias or name for name, field in Study.model_fields.items()}
    assert [key for key in keys if f"`{key}`" not in page and f"[{key}]" not in page] == []
