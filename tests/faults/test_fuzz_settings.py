"""What people write: recipes, overrides, study files, ranges, journals. Whatever is in them, a result or a sentence."""

import json
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.studies import find_study
from graphjoule.training.budget import Budget
from graphjoule.training.recipe import Recipe, load_recipe, parse_blocks
from graphjoule.training.settings import parse_overrides
from graphjoule.tuning.outcome import check_folder, mark_folder
from graphjoule.tuning.ranges import parse_ranges
from graphjoule.tuning.storage import StorageRef

from .fuzz import EDITS, JSON_EDITS, JSON_LIKE, fuzzed, json_file, json_mutated, mutated, takes

RECIPE_FILE = (resources.files("graphjoule.training") / "recipes" / "gcn.toml").read_bytes()
STUDY_FILE = (resources.files("graphjoule.studies") / "figure2.toml").read_bytes()
RECIPE = json.loads(load_recipe("egnn", "cora", 4).to_json())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("settings")


@fuzzed
@given(EDITS | st.binary(max_size=100))
def test_a_recipe_file(folder, data):
    (folder / "mine.toml").write_bytes(data if isinstance(data, bytes) else mutated(RECIPE_FILE, data))
    takes(lambda: load_recipe("gcn", "cora", 2, file=folder / "mine.toml"))


@fuzzed
@given(st.text(max_size=100))
def test_blocks_of_anything(text):
    takes(lambda: parse_blocks(text, "mine.toml"))


@fuzzed
@given(JSON_EDITS.map(lambda edits: json_mutated(RECIPE, edits)) | JSON_LIKE)
def test_a_recipe_as_json(fields):
    takes(lambda: Recipe.from_fields(fields).fingerprint())
    takes(lambda: Recipe.from_json(json.dumps(fields)))


@fuzzed
@given(st.text(max_size=60) | st.binary(max_size=60))
def test_json_of_anything(text):
    takes(lambda: Recipe.from_json(text))


NUMBERS = st.sampled_from(["1e-4", "0.1", "-1", "nan", "1e999", "2", "10", "inf", "", "true"])
ENDS = st.sampled_from(["", ":log", ":int", ":step=2", ":log:log", ":step=0"])
TIMES = ["1", "0", "90", "1e5", ".", "-", " ", "s", "min", "h", "d", "9" * 400]
SETTINGS = st.sampled_from(["lr", "c_min", "terms.energy.c_max", "weight_decay"])


@fuzzed
@given(st.lists(st.text(max_size=30) | st.builds("{}={}".format, SETTINGS, st.text(max_size=20)), max_size=3))
def test_overrides(texts):
    takes(lambda: load_recipe("egnn", "cora", 4, parse_overrides(texts)))


@fuzzed
@given(EDITS | st.binary(max_size=100))
def test_a_study_file(folder, data):
    (folder / "study.toml").write_bytes(data if isinstance(data, bytes) else mutated(STUDY_FILE, data))

    def cells():
        for cell in find_study(str(folder / "study.toml")).cells()[:3]:
            _ = cell.recipe

    takes(cells)


STUDY_TABLE = [(resources.files("graphjoule.studies") / name).read_bytes() for name in ("table2.toml", "table2.csv")]


@fuzzed
@given(EDITS | st.just([]), EDITS | st.binary(max_size=100))
def test_a_study_with_a_table_of_reference_values(folder, study, table):
    (folder / "table2.toml").write_bytes(mutated(STUDY_TABLE[0], study))
    (folder / "table2.csv").write_bytes(table if isinstance(table, bytes) else mutated(STUDY_TABLE[1], table))
    takes(lambda: find_study(str(folder / "table2.toml")).cells(["cora"], layers=[2]))


RANGE = st.builds("{}={}{}{}{}".format, SETTINGS, NUMBERS, st.sampled_from(("..", ",", "")), NUMBERS, ENDS)


@fuzzed
@given(st.lists(RANGE | st.text(max_size=30), max_size=3), st.floats(0, 1))
def test_ranges(texts, share):
    takes(lambda: [found.at(share) for found in parse_ranges(texts).values()])


@fuzzed
@given(st.text(max_size=30) | st.lists(st.sampled_from(TIMES), max_size=5).map("".join) | st.floats() | st.integers())
def test_times(given):
    takes(lambda: Budget.of(given).left)


@pytest.fixture(scope="module")
def journal(folder):
    pytest.importorskip("optuna")
    ref = StorageRef(str(folder / "journal.log"), "a")
    storage = ref.open({"lr": 0.1}, "minimize")
    for value in (0.5, 0.25):
        storage.study.tell(storage.study.ask(), value)
    return (folder / "journal.log").read_bytes()


@fuzzed
@given(EDITS)
def test_a_journal(folder, journal, edits):
    (folder / "spoiled.log").write_bytes(mutated(journal, edits))
    takes(lambda: StorageRef(str(folder / "spoiled.log"), "a").open({"lr": 0.1}, "minimize").trials())


@fuzzed
@given(st.tuples(st.just(mutated), EDITS) | st.tuples(st.just(json_file), JSON_EDITS))
def test_a_mark_of_a_search(folder, change):
    about = {"lr": [0.1, 0.2], "model.name": "gcn"}
    mark_folder(folder / "tune", "mine", about)
    (folder / "marked").mkdir(exist_ok=True)
    (folder / "marked/search.json").write_bytes(change[0]((folder / "tune/search.json").read_bytes(), change[1]))
    takes(lambda: check_folder(folder / "marked", "mine", about, ()))
