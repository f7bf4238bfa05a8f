import csv
import sys
from importlib import import_module

import matplotlib
import pytest
from matplotlib import pyplot

from graphjoule.errors import GraphjouleError
from graphjoule.training.recipe import load_recipe
from graphjoule.tuning import Outcome, Row, StorageRef, fit_ranges, parse_ranges, read_outcome, work
from graphjoule.tuning.outcome import check_folder, mark_folder, write_outcome
from graphjoule.tuning.queue import TrialQueue
from graphjoule.tuning.search import Evaluation

optuna = pytest.importorskip("optuna")

module = import_module("graphjoule.tuning.outcome")
TEXTS = ["lr=1e-3..1e-1:log", "hidden_channels=8..64", "activation=srelu,relu", "batch_norm=true,false"]
RECIPE = load_recipe("egnn", "cora", 64)
RANGES = fit_ranges(RECIPE, parse_ranges(TEXTS))


def row(slot, value, failure=None, **params):
    return Row(slot, params, value, failure, {} if value is None else {"val_loss": value, "val_accuracy": 0.5}, 1.5, 1)


ROWS = [
    row(0, 0.9, lr=0.01, hidden_channels=64, activation="srelu", batch_norm=False),
    row(1, 0.4, lr=0.05, hidden_channels=8, activation="relu", batch_norm=True),
    row(2, None, "it diverged.", lr=0.1, hidden_channels=16, activation="relu", batch_norm=True),
    row(3, 0.4, lr=0.03, hidden_channels=32, activation="srelu", batch_norm=True),
    row(4, 90.0, lr=0.002, hidden_channels=33, activation="srelu", batch_norm=False),
]


def outcome(direction="minimize", rows=ROWS, importance=None):
    """An outcome with a study that holds the same trials."""
    shares = {"lr": 0.75, "activation": 0.2, "hidden_channels": 0.05, "batch_norm": 0.0}
    study = optuna.create_study(direction=direction)
    distributions = {name: found.distribution() for name, found in RANGES.items()}
    done = [one for one in rows if one.value is not None]
    study.add_trials([optuna.create_trial(value=o.value, params=o.params, distributions=distributions) for o in done])
    return Outcome(rows, direction, RECIPE, shares if importance is None else importance, study)


def test_the_best_is_the_first_of_equal_ones():
    assert outcome().best.slot == 1
    assert [one.slot for one in outcome().ranked] == [1, 3, 0, 4]
    assert [one.slot for one in outcome("maximize").ranked] == [4, 0, 1, 3]


def test_all_trials_as_a_table():
    table = list(csv.DictReader(outcome().table().splitlines()))
    assert [one["trial"] for one in table] == ["0", "1", "2", "3", "4"]
    assert table[2]["failure"] == "it diverged."
    assert table[2]["value"] == ""
    assert (float(table[1]["lr"]), table[1]["activation"], table[1]["num_attempts"]) == (0.05, "relu", "1")


def importance_of(value_of, num_trials=20):
    stored = StorageRef(None, "a").open({}, "minimize")

    def evaluate(params, on_progress):
        value = value_of(params)
        return Evaluation(value, None, {"metrics": {"val_loss": [value]}})

    work(TrialQueue(stored, num_trials, RANGES), evaluate)
    return read_outcome(stored, RECIPE).importance


def test_importance_finds_the_setting_that_matters_and_is_the_same_every_time():
    shares = importance_of(lambda params: params["lr"])
    assert next(iter(shares)) == "lr"
    assert shares["lr"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)
    assert importance_of(lambda params: params["lr"]) == shares


def test_importance_is_not_told_from_nothing():
    assert importance_of(lambda params: 1.0) == {}
    assert importance_of(lambda params: params["lr"], num_trials=3) == {}


def test_a_limit_that_the_constraint_has_from_the_model_is_marked_as_searched_with_it(tmp_path):
    recipe = load_recipe("egnn", "digits", 4, {"terms.energy.method": "penalty"})
    found = Outcome([row(0, 0.5, c_min=0.45)], "minimize", recipe, {}, optuna.create_study())
    files, _ = write_outcome(found, tmp_path)
    assert [line for line in files["recipe"].read_text().splitlines() if line.endswith("# searched")] == [
        "model.c_min = 0.45 # searched",
        "terms.energy.c_min = 0.45 # searched",
    ]
    assert load_recipe("egnn", "digits", 4, file=files["recipe"]).settings() == found.best_recipe.settings()


# The folder.


@pytest.mark.parametrize(
    ("rows", "direction"), [(ROWS, "minimize"), (ROWS[:1], "maximize"), ([ROWS[1], ROWS[3]], "maximize")]
)
def test_pictures_of_any_number_of_trials(rows, direction, tmp_path):
    before, figures = dict(matplotlib.rcParams), pyplot.get_fignums()
    files, _ = write_outcome(outcome(direction, rows, None if len(rows) > 3 else {}), tmp_path)
    assert ("importance" in files) is (len(rows) > 3)
    assert files["parallel"].stat().st_size > 1000
    assert dict(matplotlib.rcParams) == before  # Optuna's plots change the style
    assert pyplot.get_fignums() == figures


def test_a_loss_that_diverged_does_not_stretch_the_axis(tmp_path, monkeypatch):
    limits = []
    save = module.save_figure

    def spy(figure, path):
        limits.append(figure.axes[0].get_ylim())
        save(figure, path)

    monkeypatch.setattr(module, "save_figure", spy)
    write_outcome(outcome(), tmp_path)
    assert limits[1] == (0.4, 0.9)


def test_the_folder_holds_the_winner_the_table_and_the_pictures(tmp_path):
    files, missing = write_outcome(outcome(), tmp_path / "new", header=["x"])
    assert {name: path.name for name, path in files.items()} == {
        "recipe": "best.toml",
        "trials": "trials.csv",
        "importance": "importance.png",
        "parallel": "parallel.png",
    }
    assert missing == []
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in files.values())
    best = load_recipe("egnn", "cora", 64, file=files["recipe"])
    assert (best.train.lr, best.model.hidden_channels, best.model.options["activation"]) == (0.05, 8, "relu")


def test_without_matplotlib_or_enough_trials_the_rest_is_written_and_why_is_said(tmp_path, monkeypatch):
    files, missing = write_outcome(outcome(importance={}), tmp_path)
    assert list(files) == ["recipe", "trials", "parallel"]
    assert missing[0].startswith("There are too few trials")

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    files, (said,) = write_outcome(outcome(), tmp_path)
    assert list(files) == ["recipe", "trials"]
    assert said.startswith("Drawing needs matplotlib")


# Whose folder it is.


def test_a_folder_is_the_searchs_that_marked_it(tmp_path):
    about = {"model.name": "sgc", "model.num_layers": 2, "data.name": "digits", "seeds": [0, 1]}
    check_folder(tmp_path / "new", "a", about)
    assert not (tmp_path / "new").exists()
    mark_folder(tmp_path / "new", "a", about)
    mark_folder(tmp_path / "new", "b", about)  # too late: it keeps its owner
    write_outcome(outcome(), tmp_path / "new")
    check_folder(tmp_path / "new", "a", about)
    with pytest.raises(GraphjouleError, match=r"new belongs to another search, 'a' \(sgc, 2 layers, digits\); choose"):
        check_folder(tmp_path / "new", "b", about)
    with pytest.raises(
        GraphjouleError, match=r"begun with something else \(seeds: \[0, 1\] -> \[3\]\); choose another"
    ):
        check_folder(tmp_path / "new", "a", about | {"seeds": [3]})


@pytest.mark.parametrize("name", ["best.toml", "trials.csv", "importance.png", "parallel.png", "notes.txt"])
def test_files_that_no_search_has_marked_are_not_overwritten(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(GraphjouleError, match=f"holds {name}, which this command did not begin; choose"):
        check_folder(tmp_path, "a", {}, ["a.log"])


def test_a_journal_that_was_begun_before_the_folder_was_marked_is_the_searchs_own(tmp_path):
    ref = StorageRef(str(tmp_path / "a.log"), "a")
    leases = ref.open({}, "minimize").leases
    with leases.turn(), leases.hold(optuna.create_trial(value=1.0)):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(ref.file_names)
    check_folder(tmp_path, "a", {}, ref.file_names)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"name": "a", "about": 3}', "\\xff"])
def test_a_damaged_mark_is_a_sentence(tmp_path, text):
    (tmp_path / "search.json").write_text(text)
    with pytest.raises(GraphjouleError, match=r"search\.json is damaged, or not of a search; choose another folder"):
        check_folder(tmp_path, "a", {})
