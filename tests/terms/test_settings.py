import subprocess
import sys

import pytest
import torch_geometric.nn as pyg
from pydantic import ValidationError
from torch import nn

from graphjoule.errors import GraphjouleError
from graphjoule.nn import GCN, SGC
from graphjoule.terms import METHODS, TERMS, EnergySettings, OrthogonalSettings
from graphjoule.terms.settings import METHOD_NAMES
from tests.graphs import normal, random_edges

GRAPH = random_edges(9, 14).graph64()


def test_settings_make_the_term_of_a_model_on_its_graph_layers():
    model, x = GCN(5, 5, 2, num_layers=4).double(), normal(9, 5)
    with EnergySettings(c_min=0.3, c_max=2.0, rho=0.5, every=3, method="penalty")(model, GRAPH) as term:
        model(x, GRAPH)
        assert term.names() == ["input of convs.0", "convs.0", "convs.1", "convs.2"]
    assert (term.c_min, term.c_max, term.rho, term.every, term.method) == (0.3, 2.0, 0.5, 3, METHODS["penalty"])
    penalty = OrthogonalSettings(gamma=2.0, c_max=0.5)(pyg.GCN(5, 4, 4, 2), GRAPH)
    assert penalty.names == ["convs.1.lin.weight", "convs.2.lin.weight"]
    assert (penalty.gamma, penalty.c_max) == (2.0, 0.5)


def test_every_term_of_a_recipe_is_in_the_table_and_every_method_has_a_name():
    assert {"energy": EnergySettings, "orthogonal": OrthogonalSettings} == TERMS
    assert set(METHOD_NAMES) == set(METHODS)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: EnergySettings(c_min=1.5), "c_min is 1.5; it must be between 0 and 1"),
        (lambda: EnergySettings(c_min=0.5, c_max=0.4), "c_max is 0.4"),
        (lambda: EnergySettings(rho=-1.0), "rho is -1.0"),
        (lambda: EnergySettings(method="lagrange"), "method"),
        (lambda: EnergySettings(every=0), "every"),
        (lambda: EnergySettings(c_mim=0.5), "c_mim"),
        (lambda: OrthogonalSettings(gamma=-1.0), "gamma"),
        (lambda: OrthogonalSettings(c_max=0.0), "c_max"),
    ],
)
def test_settings_that_cannot_be_are_refused_when_they_are_made(make, said):
    with pytest.raises(ValidationError, match=said):
        make()


def test_a_penalty_on_weights_that_are_not_there_is_refused():
    for model in (SGC(5, 4, 2, num_layers=1), nn.Sequential(nn.ReLU(), nn.ReLU())):
        with pytest.raises(GraphjouleError, match=f"no graph layer of {type(model).__name__} has a square weight"):
            OrthogonalSettings()(model, GRAPH)
    assert OrthogonalSettings()(GCN(5, 4, 2, num_layers=2), GRAPH).names == []


def test_settings_are_read_without_torch():
    code = "import sys, graphjoule.training.recipe as r; r.load_recipe('gcn', 'cora', 2); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
