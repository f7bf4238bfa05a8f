import csv

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS
from graphjoule.trace.plots import save_figure
from graphjoule.training.recipe import load_recipe
from graphjoule.tuning import (
    Interval,
    Outcome,
    Row,
    fit_ranges,
    parse_ranges,
    read_outcome,
    recipe_text,
    with_settings,
    work,
)
from graphjoule.tuning.board import Address
from graphjoule.tuning.folder import check_folder, mark_folder, write_outcome
from graphjoule.tuning.pictures import draw_importance, draw_parallel
from graphjoule.tuning.queue import TrialQueue
from graphjoule.tuning.search import Evaluation

TEXTS = ["lr=1e-3..1e-1:log", "hidden_channels=8..64", "activation=srelu,relu", "batch_norm=true,false"]
RECIPE = load_recipe("egnn", "cora", 64)
RANGES = fit_ranges(RECIPE, parse_ranges(TEXTS))


def row(slot, value, failure=None, **params):
    return Row(slot, params, value, failure, value, None if value is None else 0.5, 1.5, 1)


ROWS = [
    row(0, 0.9, lr=0.01, hidden_channels=64, activation="srelu", batch_norm=False),
    row(1, 0.4, lr=0.05, hidden_channels=8, activation="relu", batch_norm=True),
    row(2, None, "it diverged.", lr=0.1, hidden_channels=16, activation="relu", batch_norm=True),
    row(3, 0.4, lr=0.03, hidden_channels=32, activation="srelu", batch_norm=True),
    row(4, 90.0, lr=0.002, hidden_channels=33, activation="srelu", batch_norm=False),
]


def outcome(direction="minimize", rows=ROWS, importance=None):
    shares = {"lr": 0.75, "activation": 0.2, "hidden_channels": 0.05, "batch_norm": 0.0}
    return Outcome(rows, direction, RECIPE, shares if importance is None else importance)


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
    board = Address(None, "a").open({}, "minimize")

    def evaluate(params, on_progress):
        value = value_of(params)
        return Evaluation(value, None, {"val_loss": [value], "val_accuracy": [0.5]})

    work(TrialQueue(board, num_trials, RANGES), evaluate)
    return read_outcome(board.study, RECIPE).importance


def test_importance_finds_the_setting_that_matters_and_is_the_same_every_time():
    shares = importance_of(lambda params: params["lr"])
    assert next(iter(shares)) == "lr"
    assert shares["lr"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)
    assert importance_of(lambda params: params["lr"]) == shares


def test_importance_is_not_told_from_nothing():
    assert importance_of(lambda params: 1.0) == {}
    assert importance_of(lambda params: params["lr"], num_trials=3) == {}


# The winner.


def test_a_limit_that_the_constraint_has_from_the_model_is_searched_with_it(tmp_path):
    recipe = with_settings(load_recipe("egnn", "digits", 4, {"constraint": "penalty"}), {"c_min": 0.45})
    text = recipe_text(recipe, searched={"c_min"})
    assert [line for line in text.splitlines() if line.endswith("# searched")] == [
        "c_min = 0.45 # searched",
        '"constraint.c_min" = 0.45 # searched',
    ]
    (tmp_path / "best.toml").write_text(text)
    assert load_recipe("egnn", "digits", 4, file=tmp_path / "best.toml").settings() == recipe.settings()


@pytest.mark.parametrize("model", MODELS)
def test_the_winner_is_read_as_it_was(model, tmp_path):
    odd = {"lr": 0.1 + 0.2, "weight_decay": 1e-300, "normalize_features": False}
    for overrides in ({}, odd, {"constraint": "penalty"}, {"split_seed": 3, "epochs": 7}):
        recipe = load_recipe(model, 'my "graph".csv', 5, overrides)
        path = tmp_path / "best.toml"
        path.write_text(recipe_text(recipe, searched=["lr"], header=["one", "", "two"]), encoding="utf-8")
        again = load_recipe(model, 'my "graph".csv', 5, file=path)
        assert again.settings() == recipe.settings()
        assert again.fingerprint() == recipe.fingerprint()
        defaults = {key for key, source in recipe.sources.items() if source == "default"}
        assert {key for key, source in again.sources.items() if source == "default"} == defaults - {"lr"}


def test_sources_are_kept_and_what_was_searched_is_ours():
    text = recipe_text(RECIPE, searched=["lr", "weight_decay"], header=["about it"])
    assert text.startswith('# about it\n\n[[block]]\ndataset = "cora"\nmin_layers = 64\nmax_layers = 64\n')
    assert "lr = 0.005 # searched" in text
    assert text.count("# searched") == 4  # the rate and three groups' decays
    paper = text[text.index("[block.paper]") : text.index("[block.ours]")]
    assert "c_min = 0.15" in paper
    assert "lr" not in paper.split("[block.released_code]")[0].replace("srelu", "")


def test_it_is_for_its_dataset_and_depth_alone(tmp_path):
    path = tmp_path / "best.toml"
    path.write_text(recipe_text(RECIPE))
    with pytest.raises(
        GraphjouleError, match=r"best\.toml has no block for cora with 2 layers; it has: cora, 64 layers"
    ):
        load_recipe("egnn", "cora", 2, file=path)


# Pictures.


def texts(figure):
    axes = figure.axes[0]
    return [*(t.get_text() for t in axes.texts), *(t.get_text() for t in axes.get_xticklabels()), axes.get_title()]


def test_importance_is_a_bar_per_setting():
    figure = draw_importance(outcome())
    assert [bar.get_width() for bar in figure.axes[0].patches] == pytest.approx([0.0, 5.0, 20.0, 75.0])
    assert "75 %" in texts(figure)


def test_importance_of_nothing_is_not_drawn():
    with pytest.raises(GraphjouleError, match="There are too few trials"):
        draw_importance(outcome(importance={}))


def test_every_trial_is_a_line_and_the_best_is_on_top():
    figure = draw_parallel(outcome(), RANGES)
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 5]
    assert len(lines) == 4
    best = max(lines, key=lambda line: line.get_zorder())
    assert best.get_color() == "#D55E00"
    assert best.get_linewidth() == max(line.get_linewidth() for line in lines)
    # lr, activation, hidden_channels, batch_norm, value: 0.05 on a log axis, relu is the second of two
    assert list(best.get_ydata()) == pytest.approx([0.849485, 1.0, 0.0, 0.0, 0.0])
    assert all(0 <= y <= 1 for line in lines for y in line.get_ydata())
    told = texts(figure)
    assert {"srelu", "relu", "0.001", "0.01", "0.1", "True", "False", "lr\n(log)", "validation loss"} <= set(told)
    assert any("trial 1" in text for text in told)


def test_a_short_logarithmic_axis_has_ticks_too():
    short = {**RANGES, "lr": Interval(0.008, 0.06, log=True)}
    rows = [row for row in ROWS if short["lr"].contains(row.params["lr"])]
    assert {"0.008", "0.02", "0.05", "0.06"} - set(texts(draw_parallel(outcome(rows=rows), short))) <= {"0.05"}


def test_values_grow_upwards_whichever_way_is_better():
    up = draw_parallel(outcome("maximize", ROWS[:2]), RANGES)
    best = max((line for line in up.axes[0].lines if len(line.get_xdata()) == 5), key=lambda line: line.get_zorder())
    assert best.get_ydata()[-1] == 1.0


@pytest.mark.parametrize("rows", [ROWS[:1], [ROWS[1], ROWS[3]]])
def test_one_trial_or_equal_ones_can_be_drawn(rows, tmp_path):
    save_figure(draw_parallel(outcome(rows=rows), RANGES), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_the_folder_holds_the_winner_the_table_and_the_pictures(tmp_path):
    files, missing = write_outcome(outcome(), RANGES, tmp_path / "new", header=["x"])
    assert {name: path.name for name, path in files.items()} == {
        "recipe": "best.toml",
        "trials": "trials.csv",
        "importance": "importance.png",
        "parallel": "parallel.png",
    }
    assert missing == []
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in files.values())
    best = load_recipe("egnn", "cora", 64, file=files["recipe"])
    assert (best.lr, best.hidden_channels, best.options["activation"]) == (0.05, 8, "relu")


def test_without_matplotlib_or_enough_trials_the_rest_is_written_and_why_is_said(tmp_path, monkeypatch):
    files, missing = write_outcome(outcome(importance={}), RANGES, tmp_path)
    assert list(files) == ["recipe", "trials", "parallel"]
    assert missing[0].startswith("There are too few trials")

    def absent():
        raise GraphjouleError("Drawing needs matplotlib.")

    monkeypatch.setattr("graphjoule.trace.plots._figure_class", absent)
    files, missing = write_outcome(outcome(), RANGES, tmp_path)
    assert (list(files), missing) == (["recipe", "trials"], ["Drawing needs matplotlib."])


# Whose folder it is.


def test_a_folder_is_the_searchs_that_marked_it(tmp_path):
    about = {"model": "sgc", "num_layers": 2, "dataset": "digits", "seeds": [0, 1]}
    check_folder(tmp_path / "new", "a", about)
    assert not (tmp_path / "new").exists()
    mark_folder(tmp_path / "new", "a", about)
    mark_folder(tmp_path / "new", "b", about)  # too late: it keeps its owner
    write_outcome(outcome(), RANGES, tmp_path / "new")
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
    with pytest.raises(GraphjouleError, match=f"holds {name}, and nothing there says that graphjoule wrote it; choose"):
        check_folder(tmp_path, "a", {}, ["a.log"])


def test_a_journal_that_was_begun_before_the_folder_was_marked_is_the_searchs_own(tmp_path):
    address = Address(str(tmp_path / "a.log"), "a")
    with address.open({}, "minimize").leases.turn():
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(address.file_names)
    check_folder(tmp_path, "a", {}, address.file_names)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"name": "a", "about": 3}', "\\xff"])
def test_a_damaged_mark_is_a_sentence(tmp_path, text):
    (tmp_path / "search.json").write_text(text)
    with pytest.raises(GraphjouleError, match=r"search\.json is damaged or no search's; choose another folder"):
        check_folder(tmp_path, "a", {})
