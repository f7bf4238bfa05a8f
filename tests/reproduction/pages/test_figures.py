"""A figure has its picture, its numbers, and what is missing with the command for it."""

from graphjoule.studies import STUDIES, Collection
from graphjoule.training import Recipe
from reproduction.pages import Results
from reproduction.pages.page import whole_study
from tests.studies import energy_record, made_up

from . import block, cells, runs


def test_a_figure_has_its_picture_its_numbers_and_what_is_missing():
    some = [cell for cell in whole_study("figure2") if cell.variant.component != "c_max"]
    text = block("figure2", Results(Collection([r for cell in some for r in runs(cell, 80.0)])))
    assert text.startswith("![Test accuracy of EGNN with 64 layers on cora over b, gamma, c_min and c_max.](")
    assert "](../docs/images/figure2-cora-64.png)" in text
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
    assert "](../docs/images/depth-accuracy.png)" in text
    assert "](../docs/images/depth-energy-cora.png)" in text
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
