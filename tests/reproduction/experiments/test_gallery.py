"""Every architecture of the gallery can be trained and looked at, by its own operator."""

import pytest
import torch

from graphjoule.trace import Trace
from reproduction.experiments import gallery
from tests.known_answers import known_task

OPERATORS = {"GATv2": "attention", "GIN": "sum", "SAGE": "random_walk"}


@pytest.fixture(scope="module")
def task():
    return known_task("classification")


QUICK = ("GCN", "A-DGN", "APPNP", "EGNN")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in gallery.ARCHITECTURES]
)
def test_a_cell_has_energy_rank_and_reach_of_both_states(name, task, monkeypatch):
    monkeypatch.setattr(gallery, "_PROBES", 4)
    row = gallery.train(name, 3, task, seed=0, epochs=1)
    for state in ("initial", "trained"):
        found = row[state]
        assert all(len(found[measure]) == 3 and None not in found[measure] for measure in gallery.MEASURES)
        assert 0 <= found["reach"]["mean"] <= found["reach"]["range"] <= 1  # rings of three nodes: all are neighbours
    assert row["initial"] != row["trained"]
    assert (row["trained"]["reach"]["elsewhere"] > 0) == (name == "GPS")  # which attends to all nodes


@pytest.mark.parametrize("name", OPERATORS)
def test_the_energy_is_that_of_the_layers_own_operator(name, task):
    model, inputs = gallery.build(name, 2, task, seed=0)
    found = gallery.look(model, task, inputs)["energy"]
    with torch.no_grad(), Trace(model.eval(), watch=["convs.*"], operator=OPERATORS[name]) as trace:
        model(*inputs)
    assert found == [float(f"{row['energy']:.5g}") for row in trace.layers]


def test_one_weight_for_all_layers_of_adgn(task):
    model, _ = gallery.build("A-DGN", 4, task, seed=0)
    assert len({id(layer.conv) for layer in model.convs}) == 1
    assert len(model.convs) == 4
