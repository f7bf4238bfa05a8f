import csv

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.objective import Classification, MultiLabel, Ordinal, Regression
from graphjoule.training.predictions import coverage_columns, predictions_csv, write_predictions
from tests.graphs import few

P = torch.tensor([[0.2, 0.8], [0.75, 0.25], [1.0, 0.0]], dtype=torch.float64)
PETS = Classification(2, ("cat", "dog"))
KNOWN = torch.tensor([1, -1, 1])


def test_a_row_says_id_class_whether_it_was_given_and_every_probability(tmp_path):
    write_predictions(tmp_path / "p.csv", ["a", "b", "c"], P, KNOWN, PETS)
    assert (tmp_path / "p.csv").read_text().splitlines() == [
        "id,label,given,probability_cat,probability_dog",
        "a,dog,true,0.2,0.8",
        "b,cat,false,0.75,0.25",
        "c,cat,true,1,0",  # the prediction, also where it differs from the label that was given
    ]


@few
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=3, max_size=3))
def test_any_name_survives_the_way_through_the_file(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("p") / "p.csv"
    write_predictions(path, names, P, KNOWN, Classification(2, tuple(names[:2])))
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert [row[0] for row in rows[1:]] == names
    assert rows[0][3:] == [f"probability_{name}" for name in names[:2]]
    assert rows[1][1] == names[1]


def test_numbers_of_a_float32_network_keep_their_bits():
    p = torch.rand(50, 2, generator=torch.Generator().manual_seed(0))
    rows = predictions_csv([str(i) for i in range(50)], p, torch.full((50,), -1), PETS).splitlines()[1:]
    read = torch.tensor([[float(value) for value in row.split(",")[3:]] for row in rows])
    assert read.equal(p)


def test_no_folder_to_write_to_is_a_sentence(tmp_path):
    with pytest.raises(GraphjouleError, match="Cannot write"):
        write_predictions(tmp_path / "no" / "p.csv", ["a", "b", "c"], P, KNOWN, PETS)


@pytest.mark.parametrize(
    ("objective", "head"),
    [
        (
            Regression(2, target_names=("price", "a,b")),
            'id,prediction_price,"prediction_a,b",given,given_price,"given_a,b"',
        ),
        (Regression(2), "id,prediction_0,prediction_1,given,given_0,given_1"),
    ],
)
def test_a_row_of_a_regression_says_id_every_number_and_whether_one_was_given(objective, head):
    values = torch.tensor([[1.0, -2.5], [1e-7, 3e8]])
    known = torch.tensor([[1.0, torch.nan], [0.0, 1.0]])
    text = predictions_csv(["x", "y"], values, known, objective)
    assert text.splitlines() == [head, "x,1,-2.5,true,true,false", "y,1.00000001e-07,300000000,true,true,true"]


def test_ordered_classes_are_predicted_as_they_are_in_the_table():
    ranks, known = torch.tensor([[0.0], [0.5], [1.75], [2.0]]), torch.tensor([0, -1, -1, -1])
    rows = predictions_csv("abcd", ranks, known, Ordinal(3, ("2", "5", "10"))).splitlines()
    assert rows == [
        "id,label,prediction,expected_rank,given",
        "a,2,2,1,true",
        "b,2,3.5,1.5,false",
        "c,10,8.75,2.75,false",
        "d,10,10,3,false",
    ]
    words = predictions_csv("abcd", ranks, known, Ordinal(3, ("low", "middle", "9"))).splitlines()
    assert words[:2] == ["id,label,expected_rank,given", "a,low,1,true"]


def test_a_single_target_with_a_name_has_its_name():
    text = predictions_csv(["x"], torch.tensor([[1.5]]), torch.tensor([torch.nan]), Regression(target_names=("age",)))
    assert text.splitlines() == ["id,prediction_age,given", "x,1.5,false"]


def test_a_name_that_a_spreadsheet_would_run_is_kept_and_said(tmp_path, caplog):
    """An apostrophe before it, as is often advised, would make it another id, and a join would lose its row."""
    names = ["=1+1", "@alice", "-1.5", "+49", "plain"]
    objective = Classification(2, ("=cmd", "b"))
    write_predictions(tmp_path / "p.csv", names, torch.full((5, 2), 0.5), torch.zeros(5).long(), objective)
    with (tmp_path / "p.csv").open(newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == names
    assert caplog.messages == [
        f"{tmp_path / 'p.csv'}: 3 names such as '=1+1' would be run as a formula by a spreadsheet; import its columns "
        "as text there."
    ]
    for objective, shape, known in (
        (MultiLabel(2, ("=cmd", "b")), (1, 2), torch.zeros(1, 2)),
        (Ordinal(2, ("=cmd", "b")), (1, 1), torch.zeros(1).long()),
    ):
        caplog.clear()
        write_predictions(tmp_path / "p.csv", ["a"], torch.zeros(shape), known, objective)
        assert "1 name such as '=cmd' would be run as a formula" in caplog.text
    caplog.clear()
    write_predictions(tmp_path / "q.csv", ["-1.5", "a"], torch.ones(2, 1), torch.zeros(2), Regression())
    assert caplog.messages == []


def test_a_coverage_has_two_columns_for_every_target_and_one_for_labels():
    values, threshold = torch.tensor([[1.0, -2.5]], dtype=torch.float64), torch.tensor([0.5, torch.inf])
    found = coverage_columns(values, Regression(2, target_names=("price", "age")), threshold)
    assert found == {
        "lower_price": ["0.5"],
        "lower_age": ["-inf"],
        "upper_price": ["1.5"],
        "upper_age": ["inf"],
    }
    text = predictions_csv(["x"], values, torch.tensor([[torch.nan, 1.0]]), Regression(2), found)
    head = "id,prediction_0,prediction_1,given,given_0,given_1,lower_price,lower_age,upper_price,upper_age"
    assert text.splitlines() == [head, "x,1,-2.5,true,false,true,0.5,-inf,1.5,inf"]
    labels = coverage_columns(P, MultiLabel(2, ("a", "b")), torch.tensor([0.1]))
    assert labels == {"set": ["", "", "a"]}


def test_a_class_with_the_sign_between_classes_is_refused():
    with pytest.raises(GraphjouleError, match=r"The class 'a;b' has a semicolon"):
        coverage_columns(P, Classification(2, ("a;b", "c")), torch.tensor([0.5]))


def test_several_labels_of_a_node_stand_in_one_cell_as_the_metrics_count_them():
    likes, values = MultiLabel(3, ("tea", "jam", "rye")), torch.tensor([[0.9, 0.5, 0.51], [0.1, 0.2, 0.3]])
    rows = predictions_csv(["x", "y"], values, torch.full((2, 3), torch.nan), likes).splitlines()
    assert [row.split(",")[:3] for row in rows] == [
        ["id", "labels", "given"],
        ["x", "tea;rye", "false"],
        ["y", ";", "false"],  # a blank would be unknown in a table of nodes
    ]
    odd = MultiLabel(2, ("tea;jam", "rye"))
    assert ",tea;jam|rye," in predictions_csv(["x"], torch.ones(1, 2), torch.ones(1, 2), odd)
