"""How much of a difference from the paper is the split's."""

from graphjoule.studies import Collection
from reproduction.pages import Results
from tests.studies import made_up

from . import TABLE1, block, cells, runs


def on_splits(cell, accuracies):
    return [made_up(cell, seed, accuracy / 100) for seed, accuracy in enumerate(accuracies)]


def test_one_split_that_moves_all_cells_is_told_from_noise():
    gcn, egnn, dead = TABLE1.cells(["physics"], ["gcn", "egnn"], [2]) + TABLE1.cells(["physics"], ["gcn"], [32])
    same = on_splits(gcn, [93.3, 92.4, 94.2]) + on_splits(egnn, [93.2, 92.6, 93.8])
    text = block("splits", Results(Collection(same + on_splits(dead, [13.1, 50.0, 90.0]))))
    lines = text.splitlines()
    assert lines[2:4] == [
        "| physics | gcn | 2 | 92.4 | 93.30 | 92.40 | 94.20 | 1.00 |",
        "| physics | egnn | 2 | 92.6 | 93.20 | 92.60 | 93.80 | 1.00 |",
    ]
    assert lines[4] == ""
    assert "ours are +0.75 points from the paper" in lines[5]
    assert "on the split of seed 1 alone it would be +0.00, on that of seed 2 +1.50. All cells share" in lines[5]
    assert lines[5].endswith("against the scatter of a split it has p 0.478 and is undecided.")  # t = 0.75 / 0.866, 2
    opposite = on_splits(gcn, [93.3, 92.4, 94.2]) + on_splits(egnn, [93.2, 93.8, 92.6])
    assert "| -1.00 |" in block("splits", Results(Collection(opposite)))


def test_cells_that_share_a_split_or_no_seeds_say_nothing_about_splits():
    nothing = "No cells with a split of their own for every seed are recorded."
    public = [record for cell in cells("table1", ["cora"]) for record in runs(cell, 80.0)]
    assert block("splits", Results(Collection(public))) == nothing
    one_for_all = TABLE1.cells(["physics"], ["gcn", "egnn"], [2], {"split_seed": 0})
    records = [record for cell in one_for_all for record in runs(cell, 93.0)]
    assert block("splits", Results(Collection(records))) == nothing
    gcn, egnn = TABLE1.cells(["physics"], ["gcn", "egnn"], [2])
    apart = runs(gcn, 93.0, n=4) + [made_up(egnn, seed, 0.93) for seed in range(4, 8)]
    assert block("splits", Results(Collection(apart))) == nothing


def test_a_cell_that_is_the_same_on_all_splits_has_no_correlation():
    gcn, egnn = TABLE1.cells(["physics"], ["gcn", "egnn"], [2])
    text = block("splits", Results(Collection(runs(gcn, 93.0, scale=0.0) + runs(egnn, 93.0))))
    assert "| 93.00 | 93.00 | 93.00 |  |" in text
