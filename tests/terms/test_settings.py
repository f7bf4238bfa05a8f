import subprocess
import sys

import pytest
import torch_geometric.nn as pyg
from torch import nn

from graphjoule.errors import GraphjouleError
from graphjoule.nn import APPNP, GCN
from graphjoule.terms import METHODS, TERMS, EnergyConstraint, EnergySettings, OrthogonalPenalty, OrthogonalSettings
from graphjoule.terms.settings import METHOD_NAMES, graph_layers
from tests.graphs import path3

GRAPH = path3().graph()


def test_settings_make_the_term_of_a_model_and_a_graph():
    constraint = EnergySettings(method="penalty", c_min=0.5)(GCN(3, 4, 2, num_layers=3), GRAPH)
    assert isinstance(constraint, EnergyConstraint)
    assert (constraint.c_min, constraint.c_max, constraint.method) == (0.5, 1.0, METHODS["penalty"])
    penalty = OrthogonalSettings(gamma=3.0)(GCN(3, 4, 2, num_layers=3), GRAPH)
    assert isinstance(penalty, OrthogonalPenalty)
    assert (penalty.gamma, penalty.names) == (3.0, ["convs.1.linear.weight"])


def test_the_names_of_the_methods_are_those_of_the_table():
    assert set(METHOD_NAMES) == set(METHODS)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"c_min": 1.0}, "c_min is 1.0"), ({"c_max": 0.1}, "c_max is 0.1"), ({"rho": 0.0}, "rho is 0.0")],
)
def test_limits_that_no_network_could_keep_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        EnergySettings(**settings)


def test_a_network_without_square_weights_is_refused():
    with pytest.raises(GraphjouleError, match="no graph layer of APPNP has a square weight"):
        OrthogonalSettings()(APPNP(3, 4, 2, num_layers=5), GRAPH)


def test_they_are_known_without_torch():
    code = "import sys, graphjoule.terms.settings as s; assert 'torch' not in sys.modules; print(*s.TERMS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(TERMS)


# Which layers are held.


def test_the_graph_layers_of_a_model_are_its_convs():
    assert graph_layers(GCN(5, 4, 2, num_layers=2)) == "convs.*"
    assert graph_layers(pyg.GAT(5, 4, 2)) == "convs.*"
    assert graph_layers(nn.Linear(2, 2)) is None
