"""The audit as a whole."""

import json
import math

import pytest
import torch
from hypothesis import given

from graphjoule.errors import GraphjouleError
from graphjoule.measures import spectrum
from graphjoule.theory import Setting, audit, srelu_energy_limit
from tests.graphs import Edges, edge_lists, few, k33, no_edges, path3
from tests.theory import has_edges, settings


def test_an_audit_says_the_same_in_lines_and_in_json():
    result = audit(k33().graph(), Setting(c_min=0.2, beta=0.1, num_layers=3))
    text = "\n".join(result.lines())
    assert "6 nodes, 9 edges, 1 connected component; c_min 0.2" in text
    assert "Lemma 1 fails here: lambda_0 + lambda_max = 2.25" in text
    assert "is broken by some features at layers 1, 3." in text
    fields = json.loads(result.to_json())
    assert fields["spectrum"]["lambda_max"]["value"] == pytest.approx(1.5)
    assert [found["verdict"] for found in fields["lemmas"]][:2] == ["fails here", "holds here"]
    assert fields["layers"][0]["total_min"] == pytest.approx([0.04, 0.04])
    assert len(fields["layers"]) == 3
    assert "A node sees what random walks of 2.17 steps on average bring, 8 with endless depth" in text
    assert fields["reach"]["egnn"]["mean_steps"] == pytest.approx(0.8 * (1 + 0.9 + 0.81))
    assert fields["reach"]["sgc"]["most_steps"] is None
    assert "appnp, 3 layers" in text


@pytest.mark.parametrize("num_nodes", [1, 4])
def test_an_audit_without_edges_says_that_there_is_no_energy(num_nodes):
    result = audit(no_edges(num_nodes).graph(), Setting())
    assert (result.layers, result.lemmas, result.limit) == ([], [], None)
    assert "The graph has no edges: every feature has energy 0" in "\n".join(result.lines())
    assert json.loads(result.to_json())["spectrum"]["num_components"] == num_nodes


def test_an_audit_of_two_components_says_what_energy_cannot_see():
    two = Edges(torch.cat([path3().index, path3().index + 3], dim=1), None, 6)
    assert "The graph has 2 connected components" in audit(two.graph(), Setting()).meaning()[0]


@few
@given(edge_lists(), settings())
def test_an_audit_never_fails(edges, setting):
    result = audit(edges.graph(), setting)
    assert len(result.layers) == (setting.num_layers if has_edges(edges) else 0)
    assert all(math.isfinite(end) for layer in result.layers for end in layer.total_max)
    assert result.lines()[0] == result.title()
    json.loads(result.to_json())


def test_what_is_no_setting_and_no_graph_is_refused_in_a_sentence():
    index = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(GraphjouleError, match=r"The setting is 7; expected a Setting"):
        audit(index, 7)
    with pytest.raises(GraphjouleError, match="The graph is of type str; expected a Propagation or an edge_index"):
        spectrum("x")
    with pytest.raises(GraphjouleError, match=r"energy is -1\.0; no energy is negative"):
        srelu_energy_limit(-1.0, index, torch.zeros(3))
    assert srelu_energy_limit(2.0, index, torch.zeros(3)) == pytest.approx(2.0)
