from dataclasses import replace

import pytest

from graphjoule.report import paper_table
from graphjoule.report.figures import chosen_first, companions, energy_chart
from graphjoule.report.words import against_paper, headline_cells, repeat_command
from graphjoule.tasks.facts import CategoryColumn, NumberColumn, Source, SourceFile, TableColumns, TaskFacts

from .cells import cell, record


def own_data(numbers):
    columns = TableColumns(
        id="id",
        label="the class",
        numbers=tuple(NumberColumn(name=name, mean=0, std=1) for name in numbers),
        categories=(CategoryColumn(name="job", categories=("a", "b")),),
        source="src",
        target="dst",
    )
    files = (
        SourceFile(role="nodes", path="my nodes.csv", sha256="0"),
        SourceFile(role="edges", path="edges.csv", sha256="0"),
    )
    return TaskFacts(
        name="my nodes.csv",
        num_nodes=3,
        num_edges=2,
        num_features=3,
        num_classes=2,
        num_labels=3,
        class_names=None,
        sha256="0",
        source=Source(files=files, columns=columns),
    )


def test_the_papers_table_has_every_cell():
    table = paper_table()
    assert len(table) == 8 * 12
    assert table["pubmed", "gcnii", 16] == 79.8


@pytest.mark.parametrize(
    ("seeds", "told"), [([0], "1"), ([0, 1, 2], "3"), ([3, 7], "3,7"), ([5], "5,"), ([1, 0], "2"), ([], "1")]
)
def test_seeds_are_told_as_the_command_takes_them(seeds, told):
    one = cell()
    command = repeat_command(replace(one, records=[record(one.recipe, seed) for seed in seeds]))
    assert command == f"graphjoule train --dataset cora --model egnn --layers 4 --seeds {told}"


def test_overrides_are_repeated_as_the_command_reads_them():
    overrides = {"freeze_last_shift": True, "split_seed": None, "activation": "relu", "weight_decay": 0.125}
    command = repeat_command(cell(overrides=overrides))
    words = ("freeze_last_shift=true", "activation=relu", "weight_decay.conv=0.125")
    assert all(f"--set {word}" in command for word in words)
    assert "split_seed" not in command  # is what the recipe says anyway


def test_own_files_are_named_with_their_columns_and_their_split():
    command = repeat_command(replace(cell(dataset="my nodes.csv"), data=own_data(["x", "y"])))
    assert command == (
        "graphjoule train --nodes 'my nodes.csv' --edges edges.csv --id id --label 'the class' --features x,y,job "
        "--one-hot job --source src --target dst --model egnn --layers 4 --seeds 2 --set split=default"
    )


@pytest.mark.parametrize("numbers", [["a,b"], [f"x{k}" for k in range(40)]])
def test_columns_that_no_option_can_name_are_left_to_the_default(numbers):
    assert "--features" not in repeat_command(replace(cell(), data=own_data(numbers)))


def test_there_is_one_headline_per_dataset():
    cells = [cell(dataset="cora"), cell("gcn", dataset="cora"), cell(dataset="pubmed")]
    assert headline_cells(cells) == [cells[0], cells[2]]


def test_the_page_opens_with_a_cell_that_was_traced():
    cells = [cell(traced=False), cell("gcn")]
    assert chosen_first(cells, [cells[0]]) == 1
    assert chosen_first(cells[:1], cells[:1]) == 0


def test_models_are_compared_at_one_depth_of_one_dataset():
    cells = [
        cell(),
        cell("gcn"),
        cell("gcn", layers=8),
        cell("gcn", dataset="pubmed"),
        cell("sgc", traced=False),
        cell(overrides={"c_min": 0.5}),
    ]
    assert companions(cells, cells[0]) == [cells[0], cells[1]]
    assert companions(cells, cells[5]) == [cells[5], cells[1]]  # of two EGNNs the one that is looked at
    assert [line.label for line in energy_chart(cells, cells[0]).lines] == ["egnn", "gcn"]
    assert [line.label for line in energy_chart(cells, cells[2]).lines] == ["at initialisation", "after training"]


def test_a_cell_trained_before_its_recipe_changed_is_repeated_as_it_was_and_set_beside_no_paper():
    plain = cell(dataset="cora")
    before = plain.recipe.model_copy(update={"lr": 0.5})
    old = replace(plain, recipe=before, records=[record(before, 0)])
    assert repeat_command(old).endswith("--set lr=0.5")
    paper = {plain.key: 80.0}
    assert against_paper(old, paper) == ("", "")
    assert against_paper(replace(plain, records=[record(plain.recipe, 0)]), paper)[0] == "80.0"


def test_a_split_that_the_data_chose_is_no_change():
    named = cell(dataset="somewhere").recipe.model_copy(update={"split": "public"})
    assert "--set" not in repeat_command(replace(cell(dataset="somewhere"), recipe=named))
