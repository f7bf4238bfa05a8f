"""What is better or worse is counted and named, and other readings of the paper are listed."""

from graphjoule.studies import Collection
from reproduction.pages import Results

from . import TABLE1, block, runs, table1_runs


def test_the_summary_counts_verdicts_and_names_what_differs():
    def shift(cell):
        return {("egnn", 64, "cora"): -3.0, ("gcn", 2, "physics"): 2.0}.get(
            (cell.model, cell.num_layers, cell.dataset), 0.0
        )

    text = block("summary", Results(Collection(table1_runs(shift)), unavailable=("arxiv",)))
    assert "| cora | 24 | 23 | 0 | 1 | 0 | 0 |" in text
    assert "| arxiv | 24 | 0 | 0 | 0 | 0 | 24 |" in text
    assert "| egnn | 12 | 8 | 0 | 1 | 0 | 3 |" in text
    assert "| all | 96 | 70 | 1 | 1 | 0 | 24 |" in text
    # EGNN's cell is in table 2 three times more, and is named once.
    assert (
        "1 cell is worse than in the paper:\n\n"
        "- egnn, 64 layers, cora (table1): 82.70 ± 0.21 against 85.7, -3.00 ± 0.26, p < 0.001\n" in text
    )
    assert "1 cell is better than in the paper:\n\n- gcn, 2 layers, physics (table1): 94.40" in text
    assert "| all | 60 | 0 | 0 | 0 | 0 | 60 |" in text  # table 2 without the rows that are table 1's
    assert "No cell is worse than in the paper." in block("summary", Results(Collection(table1_runs())))


def test_every_recorded_reading_is_listed_and_one_that_changes_a_verdict_stands_out():
    plain, wide, frozen = (
        TABLE1.cells(["cora"], ["egnn"], [64], overrides)[0]
        for overrides in ({}, {"hidden_channels": 256}, {"freeze_last_shift": True})
    )
    results = Results(Collection([*runs(plain, 85.7), *runs(wide, 80.0), *runs(frozen, 85.7)]))
    text = block("readings", results)
    assert "`hidden_channels = 256`: 1 cell, 1 with another verdict." in text  # table 2 has it three times more
    assert "| 85.7 | 85.70 ± 0.21 | equal | 80.00 ± 0.21, n 10 | **worse** |" in text
    assert "`freeze_last_shift = True`: 1 cell, 0 with another verdict." in text
    assert "hidden_channels = 256: 80.00 (worse)" in block("table1", results)
