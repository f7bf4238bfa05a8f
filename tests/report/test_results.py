"""The page of results: what is better or worse is counted and named, and what is missing is said with its command."""

import gzip
import json

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.report.drawings import Evidence
from graphjoule.report.results import BLOCKS, Results, fill_page, read_results
from graphjoule.report.results.budgets import budget_table
from graphjoule.report.results.order import find_orders, says, says_collapse
from graphjoule.report.results.page import StudyTime, whole_study
from graphjoule.studies import STUDIES, Collection, make_ledger
from graphjoule.studies.study import Cell
from graphjoule.training.recipe import Recipe
from tests.studies import made_up
from tests.studies.test_energy_files import energy_record

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
    assert "`hidden_channels = 256`: 1 cell, 1 with another verdict." in text  # table 2 has it three times more
    assert "| 85.7 | 85.70 ± 0.21 | matches | 80.00 ± 0.21, n 10 | **worse** |" in text
    assert "`freeze_last_shift = True`: 1 cell, 0 with another verdict." in text
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
    third = all_cells[2].recipe.fingerprint()
    some = [r for r in records if Recipe.model_validate(r.recipe).fingerprint() != third]
    assert "1 cell of 28 not run." in (text := block("figure2", Results(Collection(some))))
    assert "1 cell of 28 has fewer runs" in text


def test_depth_has_its_table():
    some = [cell for cell in cells("depth", ["cora"]) if cell.num_layers in (2, 1024)]
    records = [r for cell in some for r in (runs(cell, 80.0) if cell.model != "gcn" else [made_up(cell, 0, None)])]
    text = block("depth", Results(Collection(records), [energy_record(cell) for cell in some]))
    assert "](images/depth-accuracy.png)" in text
    assert "](images/depth-energy-cora.png)" in text
    assert "| 1,024 | failed | 80.00 ± 0.21 (10) | 80.00 ± 0.21 (10) | +0.00 (p 1.000) |" in text
    assert "| 4 | not run | not run | not run |  |" in text
    assert "Pubmed" not in text
    assert "`graphjoule study depth --datasets cora --layers 4,8,16,32,64,128,256,512`" in text


def test_a_lead_needs_both_models_and_its_p_value_several_runs_of_each():
    gcnii, egnn = STUDIES["depth"].cells(["cora"], ["gcnii", "egnn"], [2])
    text = block("depth", Results(Collection(runs(gcnii, 80.0) + runs(egnn, 82.0))))
    assert "| 2 | not run | 80.00 ± 0.21 (10) | 82.00 ± 0.21 (10) | +2.00 (p < 0.001) |" in text
    one = [made_up(gcnii, 0, 0.81), made_up(egnn, 0, 0.80)]
    assert "(1) | -1.00 |" in block("depth", Results(Collection(one)))
    assert "| 82.00 ± 0.21 (10) |  |" in block("depth", Results(Collection(runs(egnn, 82.0))))


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


# What fewer epochs cost.


def with_curve(cell, seed, losses, accuracies, **more):
    curve = {"train_loss": losses, "val_loss": losses, "val_accuracy": accuracies}
    return made_up(cell, seed, 0.5, curve=curve, epochs_run=len(losses), **more)


def test_whole_runs_are_read_as_if_they_had_ended_at_the_cap_of_deeper_ones():
    found = {(c.dataset, c.model, c.num_layers): c for c in whole_study("depth")}
    cell = found["pubmed", "egnn", 64]
    assert (found["pubmed", "egnn", 128].recipe.train.epochs, cell.recipe.train.select_on) == (200, "val_loss")
    early = [1.0] * 150 + [0.5] + [1.0] * 99 + [0.4]  # best within the cap at epoch 150, and at the very end
    accuracies = [0.1] * 150 + [0.7] + [0.1] * 99 + [0.9]
    steady = [1.0, 0.5, 0.6]
    runs = [with_curve(cell, 0, early, accuracies), with_curve(cell, 1, steady, [0.2, 0.8, 0.3])]
    shallow = with_curve(found["pubmed", "egnn", 2], 0, steady, [0.2, 0.8, 0.3])
    failed = made_up(cell, 2, None, curve={"train_loss": [None], "val_loss": [None], "val_accuracy": [None]})
    text = block("budgets", Results(Collection([*runs, shallow, failed])))
    assert text.splitlines()[2:] == ["| pubmed | egnn | 64 | 3 to 251 (2) | 85.00 | 200 | 75.00 |"]


def test_runs_that_select_by_accuracy_are_read_by_it_and_an_epoch_without_a_loss_never_counts():
    cells = STUDIES["depth"].cells(["cora"], ["gcn"], overrides={"select_on": "val_accuracy"})
    runs = [with_curve(cells[0], 0, [0.1, 0.9, 0.2, None], [0.3, 0.6, 0.5, 0.9])]
    evidence = Evidence(STUDIES["depth"], cells, Collection(runs))
    assert budget_table(evidence).splitlines()[2:] == ["| cora | gcn | 2 | 4 to 4 (1) | 60.00 | 600 | 60.00 |"]


def test_runs_whose_curves_were_left_out_say_nothing_about_fewer_epochs():
    (cell,) = STUDIES["depth"].cells(["cora"], ["gcn"], [64])
    assert block("budgets", Results(Collection(runs(cell, 80.0)))) == "No run with a curve is recorded."


# Runs that blew up.


def test_runs_that_blew_up_are_told_beside_the_same_seeds_with_other_settings():
    place = (["pubmed"], ["egnn"], [1024])
    (cell,), (slow,) = STUDIES["depth"].cells(*place), STUDIES["depth"].cells(*place, overrides={"lr": 0.005})
    accuracies = [0.4, 0.4, 0.4]
    found = [
        with_curve(cell, 0, [1.1, 1.0, 0.9], accuracies),
        with_curve(cell, 1, [1.1, 1.0, 100.0], accuracies),  # not yet
        with_curve(cell, 2, [1.1, None, 7796.75, 3e9], [*accuracies, 0.4]),
        made_up(cell, 3, None, curve={"val_loss": [1.0, 9e9]}),  # failed: no epoch of it counts
        made_up(cell, 4, 0.5),  # its curve was left out
        *(with_curve(slow, seed, [1.2, 1.3, 1.0], accuracies) for seed in (1, 2)),
    ]
    lines = block("blowups", Results(Collection(found))).splitlines()
    assert lines[0].startswith("1 of 3 runs with a recorded curve blew up: the validation loss rose above 100 times")
    assert lines[4:] == [
        "| pubmed | egnn | 1,024 | 2 |  | 4 | epoch 3 | 3e+09 | 50.0 |",
        "| pubmed | egnn | 1,024 | 2 | lr = 0.005 | 3 | none | 1.3 | 50.0 |",
    ]
    assert block("blowups", Results(Collection(found[:2]))).startswith("0 of 2 runs with a recorded curve blew up")


# What the split does.


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
    assert lines[5].endswith("on the split of seed 1 alone it would be +0.00, on that of seed 2 +1.50.")
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
