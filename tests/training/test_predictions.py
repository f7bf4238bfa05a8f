import csv

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.training.predictions import predictions_csv, write_predictions
from tests.graphs import few

P = torch.tensor([[0.2, 0.8], [0.75, 0.25], [1.0, 0.0]], dtype=torch.float64)
KNOWN = torch.tensor([1, -1, 1])


def test_a_row_says_id_class_whether_it_was_given_and_every_probability(tmp_path):
    write_predictions(tmp_path / "p.csv", ["a", "b", "c"], P, KNOWN, ["cat", "dog"])
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
    write_predictions(path, names, P, KNOWN, names[:2])
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert [row[0] for row in rows[1:]] == names
    assert rows[0][3:] == [f"probability_{name}" for name in names[:2]]
    assert rows[1][1] == names[1]


def test_numbers_of_a_float32_network_keep_their_bits():
    p = torch.rand(50, 2, generator=torch.Generator().manual_seed(0))
    rows = predictions_csv([str(i) for i in range(50)], p, torch.full((50,), -1), ["a", "b"]).splitlines()[1:]
    read = torch.tensor([[float(value) for value in row.split(",")[3:]] for row in rows])
    assert read.equal(p)


def test_no_folder_to_write_to_is_a_sentence(tmp_path):
    with pytest.raises(GraphjouleError, match="Cannot write"):
        write_predictions(tmp_path / "no" / "p.csv", ["a", "b", "c"], P, KNOWN, ["cat", "dog"])
