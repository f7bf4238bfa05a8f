"""The study of the constraint in numbers."""

from graphjoule.report import Evidence
from graphjoule.studies import Collection
from reproduction.pages import Results, fill_page
from reproduction.pages.sides import collapse_table, find_sides, side_words
from tests.studies import made_up

from .side_cells import ALIVE, DEAD, FREE, HELD, STUDY, cells_of, collapsing, evidence, measured


def test_the_table_has_every_number_of_every_side():
    energies = [measured(cell, DEAD if cell.variant.value == FREE else ALIVE) for cell in cells_of()]
    text = "\n".join(side_words(evidence(collapsing, energies)))
    assert "c_min = 0.98 and c_max = 1." in text
    assert "| gcn | 8 | free | 31.00 ± 1.00 (3) | 9e+09 | 0 of 2 | 4.0 | 5.0 | 1 | 1.0 |" in text
    assert "| gcn | 8 | constraint | 31.00 ± 1.00 (3) | 1 | 2 of 2 | 4.0 | 5.0 | 1 | 1.0 |" in text
    assert text.count("\n| gcn |") == 9
    assert "orthogonal penalty: better than free in 2 of 6 places (model and depth), worse in 0." in text
    assert "constraint: better than free in 0 of 6 places" in text
    assert "not run" not in text


def test_without_instruments_or_runs_the_table_says_what_there_is():
    some = evidence(lambda cell: 80.0 if cell.num_layers == 8 else None, seeds=1)
    text = "\n".join(side_words(some))
    assert "| gcn | 8 | free | 80.00 (1) |  |  |  |  |  | 1.0 |" in text
    assert "12 cells of 18 not run. What runs them:  \n`graphjoule study constraint --datasets cora" in text
    failed = Evidence(STUDY, cells_of(), Collection([made_up(cells_of()[0], 0, None)]))
    assert "| gcn | 2 | free | failed |" in "\n".join(side_words(failed))
    assert side_words(evidence(lambda cell: None))[0].startswith("18 cells of 18 not run.")
    assert "place" in "\n".join(side_words(evidence(lambda cell: 80.0 if cell.variant.value == HELD else None)))


def test_only_the_seeds_that_are_asked_for_count():
    whole = evidence()
    some = Evidence(STUDY, whole.cells, whole.recorded, seeds=[1])
    assert {side.outcome.n for side in find_sides(some)} == {1}


def test_collapsed_and_alive_are_set_side_by_side_in_models_that_have_both():
    def instruments(cell):
        rank, gradient = (1.1, 1e-9) if collapsing(cell) < 50 else (3.3, 0.1)
        return measured(cell, rank=rank, gradient=gradient)

    about, table = collapse_table(find_sides(evidence(collapsing, [instruments(cell) for cell in cells_of()])))
    assert about.startswith("The range of every number in gcn, which collapse in some cells")
    assert "| 4 collapsed | 31.0 to 31.0 % | 1 to 1 | 1.1 to 1.1 | 5 to 5 | 1e-08 to 1e-08 |" in table
    assert "| 2 alive | 81.0 to 81.0 % | 1 to 1 | 3.3 to 3.3 | 5 to 5 | 1 to 1 |" in table
    assert collapse_table(find_sides(evidence(lambda cell: 80.0, [instruments(cell) for cell in cells_of()]))) == []
    assert collapse_table(find_sides(evidence(collapsing))) == []


def test_the_block_has_pictures_and_table():
    cells = STUDY.cells(["cora"], ["gcn"], [8])
    records = [made_up(cell, seed, (80 + seed) / 100) for cell in cells for seed in range(3)]
    text = fill_page(
        "<!-- results constraint -->\n<!-- end -->\n", Results(Collection(records), [measured(c) for c in cells])
    )
    assert "](../docs/images/constraint-accuracy-cora.png)" in text
    assert "](../docs/images/constraint-layers-cora.png)" in text
    assert "| gcn | 8 | orthogonal penalty | 81.00 ± 1.00 (3) | 1 | 2 of 2 |" in text
    assert "`graphjoule study constraint --datasets physics`" in text
