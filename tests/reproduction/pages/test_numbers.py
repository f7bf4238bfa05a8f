"""Numbers within sentences are those of the records."""

import pytest

from graphjoule import GraphjouleError
from graphjoule.studies import Collection
from reproduction.pages import Results
from reproduction.pages.numbers import with_numbers

from . import TABLE1, runs


@pytest.fixture(scope="module")
def results():
    egnn, gcnii = TABLE1.cells(["cora"], ["egnn", "gcnii"], [64])
    wide = TABLE1.cells(["cora"], ["egnn"], [64], {"hidden_channels": 256})[0]
    return Results(Collection([*runs(egnn, 85.7), *runs(gcnii, 80.0), *runs(wide, 84.0)]))


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("mean table1 egnn cora 64", "85.70 ± 0.21"),
        ("mean0 table1 egnn cora 64", "86"),
        ("mean1 table1 gcnii cora 64", "80.0"),
        ("lead table1 egnn gcnii cora 64", "5.70"),
        ("lead_p table1 egnn gcnii cora 64", "< 0.001"),
        ("reading table1 egnn cora 64 hidden_channels=256", "84.00 ± 0.21"),
        ("count table1 run", "2"),
        ("count table1 worse cora", "1"),
        ("farthest table1 gcnii", "5.40"),
        ("missing table1 12", "4"),
    ],
)
def test_a_marked_number_is_made_anew(results, words, number):
    text = f"before <!--= {words} -->99.99<!--/--> after"
    assert with_numbers(text, results) == f"before <!--= {words} -->{number}<!--/--> after"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("maen table1 egnn cora 64", '"maen" is not a form of a number'),
        ("mean table1 egnn cora 16", "table1 egnn cora 16 is not one cell with runs"),
        ("reading table1 egnn cora 64 lr=1", "has no reading lr=1"),
    ],
)
def test_a_mark_that_names_nothing_is_a_sentence(results, words, said):
    with pytest.raises(GraphjouleError, match=said):
        with_numbers(f"<!--= {words} -->1<!--/-->", results)
