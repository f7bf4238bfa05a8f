import shlex

import pytest

from graphjoule.cli.study import _depths, _names
from graphjoule.cli.train import parse_seeds
from graphjoule.studies import find_study
from graphjoule.studies.command import study_commands
from graphjoule.training.recipe import parse_overrides

TABLE1 = find_study("table1")


def cells_of(commands):
    """What the command line makes of commands: all their cells and seeds."""
    cells, seeds = [], []
    for command in commands:
        words = shlex.split(command)[2:]
        options = list(zip(words[1::2], words[2::2], strict=True))
        given, sets = dict(options), [value for name, value in options if name == "--set"]
        cells += find_study(words[0]).cells(
            _names(given["--datasets"]),
            _names(given.get("--models")),
            _depths(given.get("--layers")),
            parse_overrides(sets),
        )
        seeds.append(parse_seeds(given.get("--seeds", "10")))
    return cells, seeds


@pytest.mark.parametrize("seeds", [range(10), range(3), [3, 7], [7], [0]])
@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"epochs": 5, "hidden_channels": 8},
        {"split_seed": None, "select_on": "val_accuracy", "lr": 1e-05},
        {"batch_norm": True},
    ],
)
def test_a_command_trains_the_cells_it_is_made_for_and_no_others(seeds, overrides):
    wanted = TABLE1.cells(["cora", "physics"], ["gcn", "egnn"], [2, 5], overrides)
    cells, found = cells_of(study_commands(TABLE1, wanted, seeds))
    assert [(c.name, c.overrides) for c in cells] == [(c.name, c.overrides) for c in wanted]
    assert found == [list(seeds)] * 2


def test_cells_that_are_no_rectangle_take_several_commands():
    wanted = [
        *TABLE1.cells(["cora"], ["gcn", "sgc"], [2, 16]),
        *TABLE1.cells(["cora"], ["egnn"]),
        *TABLE1.cells(["pubmed"], ["egnn"], [64]),
    ]
    commands = study_commands(TABLE1, wanted)
    assert commands == [
        "graphjoule study table1 --datasets cora --models gcn,sgc --layers 2,16",
        "graphjoule study table1 --datasets cora --models egnn",
        "graphjoule study table1 --datasets pubmed --models egnn --layers 64",
    ]
    assert [cell.name for cell in cells_of(commands)[0]] == [cell.name for cell in wanted]


def test_what_is_the_studys_own_is_not_said_and_nothing_takes_no_command():
    assert study_commands(TABLE1, []) == []
    figure5 = find_study("figure5")
    assert study_commands(figure5, figure5.cells()) == ["graphjoule study figure5 --datasets arxiv"]
    depth = find_study("depth")
    assert study_commands(depth, depth.cells(["cora"])) == ["graphjoule study depth --datasets cora"]
