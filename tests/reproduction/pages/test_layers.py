"""The sides of the study of the constraint under the instruments, and layer by layer."""

import math

import pytest
import torch

from graphjoule.graph import Propagation
from graphjoule.measures import dirichlet_energy
from graphjoule.nn import GCN
from graphjoule.report import draw, picture
from graphjoule.terms import EnergyConstraint
from reproduction.pages.drawings import figures_of
from reproduction.pages.layers import Factors, check_limits, factors_of, layers_drawing, readings, shown_families
from tests.studies import energy_record

from .side_cells import ALIVE, DEAD, FREE, HELD, cells_of, evidence, measured


def test_the_limits_are_those_of_the_side_that_is_held_to_them():
    assert factors_of(cells_of()) == Factors(0.98, 1.0)
    assert factors_of([cell for cell in cells_of() if cell.variant.value != HELD]) is None


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


def test_the_layers_are_drawn_where_the_sides_differ_most_and_at_the_deepest():
    def accuracy(cell):
        return 0.3 if (cell.num_layers, cell.variant.value) == (8, FREE) else 0.8

    energies = [measured(cell, accuracy=accuracy(cell)) for cell in cells_of()]
    found = shown_families(evidence(energies=energies), "cora")
    assert [family[FREE].resolved.model.num_layers for family in found] == [8, 16]
    assert {record.model for family in found for record in family.values()} == {"gcn"}
    without = [record for record in energies if record.resolved.model.num_layers == 2]
    assert len(shown_families(evidence(energies=without), "cora")) == 1
    assert shown_families(evidence(energies=energies), "pubmed") == []


def test_the_layers_show_shares_of_energy_within_the_limits_rank_and_gradient():
    cells = [cell for cell in cells_of() if (cell.model, cell.num_layers) == ("gcn", 16)]
    free, *others = cells
    energies = [measured(free, DEAD, gradient=0.0), *(measured(cell, ALIVE, gradient=0.2) for cell in others)]
    found = evidence(lambda cell: None, energies, cells)
    drawing, alt = layers_drawing(found, "cora")
    assert drawing.name == "constraint-layers-cora"
    energy, rank, gradient = drawing.panels
    assert energy.title == "GCN, 16 layers: energy"
    assert energy.y_label == "E(X_k) / E(X_1)"
    limits, *spreads = energy.bands
    assert (list(limits.x), list(limits.high)) == ([1, 2, 3], [1.0] * 3)
    assert limits.low == pytest.approx([1.0, 0.98, 0.98**2])
    assert len(spreads) == 3
    assert energy.lines[0].y == pytest.approx([1.0, 1e-9 / 9, 10.0])  # each run by its own first layer
    assert rank.y_limits == (0.0, pytest.approx(1.2 * 5.0))  # the first layer's 9 does not flatten the others
    assert gradient.lines[0].y[0] == 0.0
    figure = draw(drawing)
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear", "log"]
    assert figure.axes[0].get_ylim() == energy.y_limits
    (figure,) = figures_of(found)
    assert figure.data()["charts"][1]["lines"][0]["y"] == [9, 4, 5]
    assert "free: 50.0 %, rank 4.0 at the lowest, gradient 0 at the first layer and 0.1 at the last;" in alt


def test_a_split_without_test_nodes_and_a_dead_first_layer_can_be_drawn():
    cells = [cell for cell in cells_of() if (cell.model, cell.num_layers) == ("gcn", 8)]
    energies = [measured(cell, [0.0, 0.0, 1.0], accuracy=None) for cell in cells]
    drawing, alt = layers_drawing(evidence(lambda cell: None, energies, cells), "cora")
    assert "%" not in alt
    assert picture(drawing).startswith(b"\x89PNG")
