"""The page of results: what is better or worse is counted and named, and what is missing is said with its command."""

import gzip
import json

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.report.results import BLOCKS, Results, fill_page, read_results
from graphjoule.report.results.order import find_orders, says, says_collapse
from graphjoule.report.results.page import StudyTime, whole_study
from graphjoule.studies import STUDIES, Collection, make_ledger
from graphjoule.studies.study import Cell
from studies import made_up
from studies.test_energy_files import energy_record

TABLE1 = STUDIES["table1"]


def block(name, results):
    text = fill_page(f"before\n<!-- results {name} -->\nold\n<!-- end -->\nafter\n", results)
    assert text.startswith(f"before\n<!-- results {name} -->\n")
    assert text.endswith("\n<!-- end -->\nafter\n")
    return text.removeprefix(f"before\n<!-- results {name} -->\n").removesuffix("\n<!-- end -->\nafter\n")


def runs(cell, mean, scale=0.2, n=10):
    return [made_up(cell, seed, (mean + scale * (-1) ** seed) / 100) for seed in range(n)]


def cells(name, datasets):
    return [cell for cell in whole_study(name) if cell.dataset in datasets]


def table1_runs(shift=lambda cell: 0.0, datasets=("cora", "pubmed", "physics")):
    return [record for cell in cells("table1", datasets) for record in runs(cell, cell.paper + shift(cell))]


# Text between marks.


def test_only_what_stands_between_marks_is_made_anew_and_the_second_time_nothing_changes():
    results = Results(Collection())
    page = "By hand: 12.3\n<!-- results time -->\nfrom before\n<!-- end -->\n<!-- results order -->\n<!-- end -->\nB\n"
    once = fill_page(page, results)
    assert "from before" not in once
    assert once.startswith("By hand: 12.3\n")
    assert once.endswith("<!-- end -->\nB\n")
    assert fill_page(once, results) == once


def test_a_mark_that_is_no_block_is_a_sentence():
    with pytest.raises(GraphjouleError, match=r'^"tabel1" is not a block of the results, did you mean "table1"\?'):
        fill_page("<!-- results tabel1 -->\n<!-- end -->", Results(Collection()))


@pytest.mark.parametrize("name", BLOCKS)
def test_without_records_every_block_is_there_and_says_so(name):
    text = block(name, Results(Collection(), unavailable=("arxiv",)))
    assert text
    assert "nan" not in text
    assert "None" not in text


# Verdicts.


def test_the_summary_counts_verdicts_and_names_what_differs():
    def shift(cell):
        return {("egnn", 64, "cora"): -3.0, ("gcn", 2, "physics"): 2.0}.get(
            (cell.model, cell.num_layers, cell.dataset), 0.0
        )

    text = block("summary", Results(Collection(table1_runs(shift)), unavailable=("arxiv",)))
    assert "| cora | 24 | 23 | 0 | 1 | 0 |" in text
    assert "| arxiv | 24 | 0 | 0 | 0 | 24 |" in text
    assert "| egnn | 12 | 8 | 0 | 1 | 3 |" in text
    assert "| all | 96 | 70 | 1 | 1 | 24 |" in text
    # EGNN's cell is in table 2 three times more, and is named once.
    assert (
        "1 cell is worse than in the paper:\n\n"
        "- egnn, 64 layers, cora (table1): 82.70 ± 0.21 against 85.7, -3.00, p < 0.001\n" in text
    )
    assert "1 cell is better than in the paper:\n\n- gcn, 2 layers, physics (table1): 94.40" in text
    assert "| all | 60 | 0 | 0 | 0 | 60 |" in text  # table 2 without the rows that are table 1's
    assert "No cell is worse than in the paper." in block("summary", Results(Collection(table1_runs())))


def test_a_table_has_every_cell_of_the_paper_and_the_commands_for_the_others():
    text = block("table1", Results(Collection(table1_runs(datasets=["cora"])), unavailable=("arxiv",)))
    assert text.count("\n| ") == 96 + 4
    assert "### Table 1, arxiv" in text
    assert text.count("not run: data not available here") == 24
    assert "What is not run: `graphjoule study table1 --datasets arxiv`." in text
    assert "--datasets cora" not in text


# The order of the paper.


def orders(records, datasets=("cora",)):
    return find_orders(make_ledger(cells("table1", datasets), Collection(records)))


def test_the_order_of_the_paper_is_found_in_its_own_numbers():
    (order,) = orders(table1_runs(datasets=["cora"]))
    assert (order.paper[:2], order.ours[:2], order.num_layers) == (("egnn", "gcnii"), ("egnn", "gcnii"), 64)
    assert order.paper_collapsed == order.collapsed == ("gcn", "pairnorm", "dropedge", "sgc")
    assert says(order) == "yes: egnn is first by 0.30 (p 0.005); yes: gcnii is second by 5.90 (p < 0.001)"
    (arxiv,) = orders([], ["arxiv"])
    assert (arxiv.paper[:2], arxiv.paper_collapsed) == (("egnn", "jknet"), ())
    assert (says(arxiv), says_collapse(arxiv)) == ("not run", "not run")


def test_where_the_order_does_not_hold_it_says_so():
    def shift(cell):
        return {("gcnii", 64): 1.0, ("gcn", 64): 40.0}.get((cell.model, cell.num_layers), 0.0)

    (order,) = orders(table1_runs(shift, ["cora"]))
    assert says(order).startswith(
        "**no**: gcnii is first, not egnn by 0.70 (p < 0.001); **no**: egnn is second, not gcnii"
    )
    assert says_collapse(order) == "pairnorm, dropedge, sgc; **not** gcn"
    text = block("order", Results(Collection(table1_runs(shift, ["cora"]))))
    assert "| cora | 64 | egnn, gcnii | gcnii 86.40, egnn 85.70, appnp 79.50 | **no**" in text


def test_a_lead_within_the_spread_is_called_so_and_models_that_are_not_run_are_named():
    def of(model, mean):
        return [r for cell in cells("table1", ["cora"]) if cell.model == model for r in runs(cell, mean, 2.0)]

    (order,) = orders([*of("egnn", 85.2), *of("gcnii", 85.0), *of("jknet", 70.0)])
    assert "egnn is first by 0.20 (p 0.83" in says(order)
    assert ", not significantly)" in says(order)
    assert says(order).endswith("; without appnp, dropedge, gcn, pairnorm, sgc")
    assert says_collapse(order) == "not run: gcn, pairnorm, dropedge, sgc"
    (alone,) = orders(of("egnn", 85.0))
    assert says(alone) == "only egnn is run"


# Other readings.


def test_every_recorded_reading_is_listed_and_one_that_changes_a_verdict_stands_out():
    plain, wide, frozen = (
        TABLE1.cells(["cora"], ["egnn"], [64], overrides)[0]
        for overrides in ({}, {"hidden_channels": 256}, {"freeze_last_shift": True})
    )
    results = Results(Collection([*runs(plain, 85.7), *runs(wide, 80.0), *runs(frozen, 85.7)]))
    text = block("readings", results)
    assert "`hidden_channels = 256`: 4 cells, 4 with another verdict." in text  # table 2 has the cell three times more
    assert "| 85.7 | 85.70 ± 0.21 | matches | 80.00 ± 0.21, n 10 | **worse** |" in text
    assert "`freeze_last_shift = True`: 4 cells, 0 with another verdict." in text
    assert "hidden_channels = 256: 80.00 (worse)" in block("table1", results)


# Figures.


def test_a_figure_has_its_picture_its_numbers_and_what_is_missing():
    some = [cell for cell in whole_study("figure2") if cell.variant.component != "c_max"]
    text = block("figure2", Results(Collection([r for cell in some for r in runs(cell, 80.0)])))
    assert text.startswith("![Test accuracy of EGNN with 64 layers on cora over b, gamma, c_min and c_max. Within")
    assert "](images/figure2-cora-64.png)" in text
    assert "| c_min | 0.1 to 0.75 | 80.00 to 80.00 | 80.00 to 80.00 | 0: 80.00 ± 0.21 (10), 0.1: 80.00 ± 0.21" in text
    assert "6 cells of 28 not run. What runs them:  \n`graphjoule study figure2 --datasets cora`" in text


def test_cells_with_fewer_runs_than_the_others_are_counted_and_told_how_to_fill():
    all_cells = whole_study("figure2")
    records = [r for cell in all_cells for r in runs(cell, 80.0, n=7 if cell.variant.value == "-20" else 10)]
    text = block("figure2", Results(Collection(records)))
    assert "-20: 80.03 ± 0.21 (7), **-10: 80.00 ± 0.21 (10)**" in text
    assert (
        "1 cell of 28 has fewer runs than the others. What runs the rest:  \n`graphjoule study figure2 --datasets"
        in text
    )
    assert "fewer" not in block("figure2", Results(Collection([r for cell in all_cells for r in runs(cell, 80.0)])))


def test_depth_has_its_table():
    some = [cell for cell in cells("depth", ["cora"]) if cell.num_layers in (2, 1024)]
    records = [r for cell in some for r in (runs(cell, 80.0) if cell.model != "gcn" else [made_up(cell, 0, None)])]
    text = block("depth", Results(Collection(records), [energy_record(cell) for cell in some]))
    assert "](images/depth-accuracy.png)" in text
    assert "](images/depth-energy-cora.png)" in text
    assert "| 1,024 | failed | 80.00 ± 0.21 (10) | 80.00 ± 0.21 (10) | not run |" in text
    assert "`graphjoule study depth --datasets cora --layers 4,8,16,32,64,128,256,512`" in text


# Files.


def test_results_are_read_from_a_folder_of_studies(tmp_path):
    for name in ("table1", "depth", "more", "bodies"):
        (tmp_path / name).mkdir()
    own = dict(zip(("table1", "more", "bodies"), TABLE1.cells(["cora"], ["egnn"]), strict=True))
    for name, cell in own.items():
        text = "".join(record.model_dump_json() + "\n" for record in runs(cell, 80.0))
        (tmp_path / name / "x.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "depth" / "energies.json").write_text(energy_record(Cell("gcn", "cora", 2)).model_dump_json())
    time = {"wall_seconds": 700, "workers": 3, "device": "H", "command": "graphjoule study table1"}
    (tmp_path / "table1" / "time.json").write_text(json.dumps(time))
    results = read_results(tmp_path, ["more"])
    assert {record.num_layers for record in results.recorded} == {2, 16}  # what is in bodies counts for nothing
    assert [record.model for record in results.energies] == ["gcn"]
    assert block("time", results) == (
        "- `graphjoule study table1`: 12 min (700 s by the clock) on one H, 3 processes at once."
    )


def test_a_time_that_is_none_is_a_sentence(tmp_path):
    (tmp_path / "time.json").write_text('{"wall_seconds": 3}')
    with pytest.raises(
        GraphjouleError, match="is not the time of a study: expected command, device, wall_seconds, workers in"
    ):
        StudyTime.read(tmp_path / "time.json")
