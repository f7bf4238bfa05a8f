"""The study of the constraint: what the instruments say of its sides, in drawings and in numbers."""

import json
import math
from functools import cache

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.nn import GCN
from graphjoule.report.drawings import Evidence, drawings_of, picture
from graphjoule.report.drawings.chart import draw
from graphjoule.report.drawings.instruments import Factors, check_limits, readings
from graphjoule.report.drawings.side_layers import shown_families
from graphjoule.report.drawings.sides import accuracy_of_sides, factors_of, side_style, sides_of
from graphjoule.report.results import Results, fill_page, read_results
from graphjoule.report.results.explored import Trial, read_trials, trials_table
from graphjoule.report.results.fates import fates_table
from graphjoule.report.results.side_words import side_words
from graphjoule.report.results.sides import find_sides
from graphjoule.studies import STUDIES, Collection
from graphjoule.terms import EnergyConstraint
from tests.studies import made_up
from tests.studies.test_energy_files import energy_record

STUDY = STUDIES["constraint"]
FREE, HELD, NEAR = "free", "constraint", "orthogonal penalty"
ALIVE, DEAD = (9.0, 8.95, 8.9), (9.0, 1e-9, 90.0)


@cache
def cells_of(datasets=("cora",), models=("gcn", "egnn"), layers=(2, 8, 16)):
    """Cells of the study, kept because each resolves its recipe once and that takes its time."""
    return tuple(STUDY.cells(datasets, models, layers))


def measured(cell, energies=ALIVE, rank=4.0, gradient=0.1, accuracy=0.5, **changes):
    """A record of all three instruments; the gradient of the first layer, that of the last is 0.1."""
    runs, n = 2, len(energies)
    return energy_record(
        cell,
        energies=energies,
        effective_rank=[[9.0, *[rank] * (n - 2), 5.0]] * runs,
        gradient=[[gradient, *[0.1] * (n - 1)]] * runs,
        test_accuracy=[accuracy] * runs,
        first_layer=1,
        **changes,
    )


def evidence(accuracy=lambda cell: 80.0, energies=(), cells=None, seeds=3):
    cells = cells_of() if cells is None else cells
    records = [
        made_up(cell, seed, (percent + seed) / 100)
        for cell in cells
        if (percent := accuracy(cell)) is not None
        for seed in range(seeds)
    ]
    return Evidence(STUDY, cells, Collection(records), energies)


def collapsing(cell):
    """A free GCN falls with depth; with the weight penalty no network does."""
    falls = cell.model == "gcn" and cell.num_layers > 2 and cell.variant.value != NEAR
    return 30.0 if falls else 80.0


# What the instruments say.


def test_the_limits_are_those_of_the_side_that_is_held_to_them():
    assert factors_of(cells_of()) == Factors(0.98, 1.0)
    assert factors_of([cell for cell in cells_of() if cell.variant.value != HELD]) is None
    assert sides_of(cells_of()) == [FREE, HELD, NEAR]


def test_violations_are_those_of_the_constraint_itself():
    torch.manual_seed(0)
    graph = Propagation.from_edge_index(torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])).to(dtype=torch.float64)
    model, x, seen = GCN(3, 5, 2, num_layers=6).double(), torch.randn(4, 3).double(), []
    for conv in model.convs:
        conv.register_forward_hook(lambda module, given, out: seen.append(dirichlet_energy(out, graph).item()))
    with EnergyConstraint(model, graph, 0.98, 1.0, layers=["convs.*"]) as constraint:
        model(x, graph)
    theirs, ours = constraint.report(), check_limits(seen[:-1], Factors(0.98, 1.0))
    assert [layer.violation for layer in ours.layers] == pytest.approx([layer.violation for layer in theirs.layers])
    assert ours.num_broken == theirs.num_broken > 0


def test_zero_is_within_every_limit_but_below_one_that_is_not():
    factors = Factors(0.5, 1.0)
    assert check_limits([0.0, 0.0, 0.0], factors).max_violation == 0.0
    assert check_limits([1.0, 0.0], factors).max_violation == math.inf
    assert check_limits([0.0, 1.0], factors).max_violation == math.inf
    assert check_limits([1e-300, 1e300], factors).max_violation == math.inf  # past what a float holds
    assert check_limits([4.0], factors) is None
    report = check_limits([4.0, 2.0, 3.0], factors, first_layer=1)
    assert (report.initial, [layer.name for layer in report.layers]) == ("X_1", ["X_2", "X_3"])
    assert report.max_violation == 0.0


def test_readings_are_medians_over_the_runs():
    runs = {"trained": [[4.0, 4.0, 4.0], [4.0, 2.0, 4.0], [4.0, 1.0, 1.0]], "initial": [[4.0] * 3] * 3}
    record = energy_record(
        cells_of()[0],
        seeds=(0, 1, 2),
        effective_rank=[[5.0, 1.0, 3.0], [5.0, 2.0, 4.0], [1.5, 2.5, 8.0]],
        gradient=[[1.0, 9.0, 2.0], [0.0, 9.0, 0.0], [3.0, 9.0, 2.0]],
        **runs,
    )
    found = readings(record, Factors(0.5, 1.0))
    assert (found.num_layers, found.num_held) == (2, 2.0)
    assert found.violation == pytest.approx(0.0)  # 0, 0 and 1
    assert (found.lowest_rank, found.last_rank) == (1.5, 4.0)
    assert found.gradient_ratio == pytest.approx(1.0)  # of 0.5 and 1.5: the run without any gradient tells nothing


def test_one_hidden_layer_and_old_records_tell_what_they_can():
    one = readings(energy_record(cells_of()[0], energies=[3.0], gradient=[[1.0]] * 2), Factors(0.9, 1.0))
    assert (one.num_layers, one.violation, one.num_held, one.gradient_ratio) == (0, None, None, None)
    old = readings(energy_record(cells_of()[0], energies=[3.0, 3.0]), Factors(0.9, 1.0))
    assert (old.violation, old.lowest_rank, old.last_rank, old.gradient_ratio) == (0.0, None, None, None)


# Drawings.


def test_accuracy_has_a_chart_per_model_with_a_line_and_a_spread_per_side():
    (drawing,) = drawings_of(evidence(collapsing))
    assert (drawing.name, [chart.panel.title for chart in drawing.charts]) == (
        "constraint-accuracy-cora",
        ["GCN", "EGNN"],
    )
    gcn = drawing.charts[0].panel
    assert [list(line.x) for line in gcn.lines] == [[2, 8, 16]] * 3
    assert [line.y[-1] for line in gcn.lines] == pytest.approx([31.0, 31.0, 81.0])
    assert gcn.bands[0].high[0] - gcn.lines[0].y[0] == pytest.approx(1.0)
    assert [key.label for key in drawing.key] == [FREE, HELD, NEAR]
    assert len({(line.colour, line.style) for line in gcn.lines}) == 3
    assert len({chart.y_limits for chart in drawing.charts}) == 1
    assert "GCN differs most with 8 layers: free 31.0 %, constraint 31.0 %, orthogonal penalty 81.0 %." in drawing.alt


def test_what_is_not_run_is_left_out():
    some = evidence(lambda c: None if c.model == "egnn" or (c.variant.value, c.num_layers) == (HELD, 8) else 80.0)
    found = accuracy_of_sides(some, "cora")
    assert list(found) == ["gcn"]
    assert (found["gcn"][FREE].x, found["gcn"][HELD].x) == ([2, 8, 16], [2, 16])
    one_side = evidence(lambda cell: 80.0 if cell.variant.value == NEAR else None)
    (drawing,) = drawings_of(one_side)
    (line,) = drawing.charts[0].panel.lines
    assert (line.colour, line.style) == side_style(2)  # the side keeps its colour
    assert picture(drawing).startswith(b"\x89PNG")
    assert drawings_of(evidence(lambda cell: None)) == []


def test_the_layers_are_drawn_where_the_sides_differ_most_and_at_the_deepest():
    def accuracy(cell):
        return 0.3 if (cell.num_layers, cell.variant.value) == (8, FREE) else 0.8

    energies = [measured(cell, accuracy=accuracy(cell)) for cell in cells_of()]
    found = shown_families(evidence(energies=energies), "cora")
    assert [family[FREE].recipe["num_layers"] for family in found] == [8, 16]
    assert {record.model for family in found for record in family.values()} == {"gcn"}
    without = [record for record in energies if record.recipe["num_layers"] == 2]
    assert len(shown_families(evidence(energies=without), "cora")) == 1
    assert shown_families(evidence(energies=energies), "pubmed") == []


def test_the_layers_show_shares_of_energy_within_the_limits_rank_and_gradient():
    cells = [cell for cell in cells_of() if (cell.model, cell.num_layers) == ("gcn", 16)]
    free, *others = cells
    energies = [measured(free, DEAD, gradient=0.0), *(measured(cell, ALIVE, gradient=0.2) for cell in others)]
    (drawing,) = drawings_of(evidence(lambda cell: None, energies, cells))
    assert drawing.name == "constraint-layers-cora"
    energy, rank, gradient = drawing.charts
    assert energy.panel.title == "GCN, 16 layers: energy"
    assert energy.panel.y_label == "E(X_k) / E(X_1)"
    limits, *spreads = energy.panel.bands
    assert (list(limits.x), list(limits.high)) == ([1, 2, 3], [1.0] * 3)
    assert limits.low == pytest.approx([1.0, 0.98, 0.98**2])
    assert len(spreads) == 3
    assert energy.panel.lines[0].y == pytest.approx([1.0, 1e-9 / 9, 10.0])  # each run by its own first layer
    assert rank.y_limits == (0.0, pytest.approx(1.2 * 5.0))  # the first layer's 9 does not flatten the others
    assert gradient.panel.lines[0].y[0] == 0.0
    figure = draw(drawing)
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear", "log"]
    assert figure.axes[0].get_ylim() == energy.y_limits
    assert json.loads(json.dumps(drawing.data()))["charts"][1]["lines"][0]["y"] == [9, 4, 5]
    assert "free: 50.0 %, rank 4.0 at the lowest, gradient 0 at the first layer and 0.1 at the last;" in drawing.alt


def test_a_split_without_test_nodes_and_a_dead_first_layer_can_be_drawn():
    cells = [cell for cell in cells_of() if (cell.model, cell.num_layers) == ("gcn", 8)]
    energies = [measured(cell, [0.0, 0.0, 1.0], accuracy=None) for cell in cells]
    (drawing,) = drawings_of(evidence(lambda cell: None, energies, cells))
    assert "%" not in drawing.alt
    assert picture(drawing).startswith(b"\x89PNG")


# Numbers.


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

    told, table = fates_table(find_sides(evidence(collapsing, [instruments(cell) for cell in cells_of()])))
    assert told.startswith("The range of every number in gcn, which collapse in some cells")
    assert "| 4 collapsed | 31.0 to 31.0 % | 1 to 1 | 1.1 to 1.1 | 5 to 5 | 1e-08 to 1e-08 |" in table
    assert "| 2 alive | 81.0 to 81.0 % | 1 to 1 | 3.3 to 3.3 | 5 to 5 | 1 to 1 |" in table
    assert fates_table(find_sides(evidence(lambda cell: 80.0, [instruments(cell) for cell in cells_of()]))) == []
    assert fates_table(find_sides(evidence(collapsing))) == []


def test_the_block_has_pictures_and_table():
    cells = STUDY.cells(["cora"], ["gcn"], [8])
    records = [made_up(cell, seed, (80 + seed) / 100) for cell in cells for seed in range(3)]
    text = fill_page(
        "<!-- results constraint -->\n<!-- end -->\n", Results(Collection(records), [measured(c) for c in cells])
    )
    assert "](images/constraint-accuracy-cora.png)" in text
    assert "](images/constraint-layers-cora.png)" in text
    assert "| gcn | 8 | orthogonal penalty | 81.00 ± 1.00 (3) | 1 | 2 of 2 |" in text
    assert "`graphjoule study constraint --datasets physics`" in text


# What was tried first.


def trial(accuracies, **settings):
    return Trial(settings=settings, val_accuracy=accuracies, selected_epoch=[3] * len(accuracies), seconds=1.0)


def test_trials_are_listed_the_best_first():
    table = trials_table([trial([0.3]), trial([0.5, 0.7], rho=1.0, dropout=0.6), trial([0.4, 0.4], rho=0.1)])
    assert table.splitlines() == [
        "| rho | dropout | validation accuracy (n) | selected epoch, median |",
        "|---|---|---|---|",
        "| 1.0 | 0.6 | 60.0 ± 14.1 (2) | 3 |",
        "| 0.1 |  | 40.0 ± 0.0 (2) | 3 |",
        "|  |  | 30.0 (1) | 3 |",
    ]


def test_trials_are_read_from_the_studys_folder(tmp_path):
    (tmp_path / "constraint").mkdir()
    path = tmp_path / "constraint" / "explored.jsonl"
    path.write_text("".join(t.model_dump_json() + "\n" for t in (trial([0.5], rho=1.0), trial([0.25]))))
    results = read_results(tmp_path)
    assert [t.settings for t in results.explored["constraint"]] == [{"rho": 1.0}, {}]
    assert "| 1.0 | 50.0 (1) | 3 |" in fill_page("<!-- results explored -->\n<!-- end -->\n", results)


@pytest.mark.parametrize("text", ['{"settings": {}}', "no JSON", '{"settings": {}, "val_accuracy": [], "seconds": 1}'])
def test_a_file_that_holds_no_trials_is_a_sentence(tmp_path, text):
    (tmp_path / "explored.jsonl").write_text(text)
    with pytest.raises(
        GraphjouleError,
        match=r"explored\.jsonl is not a file of trials: expected seconds, selected_epoch, settings, val_accuracy in",
    ):
        read_trials(tmp_path / "explored.jsonl")
