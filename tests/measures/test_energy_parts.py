import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import graphjoule.graph.laplacian
from graphjoule.errors import GraphjouleError
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.measures.energy_parts import class_energies, component_energies
from tests.graphs import edge_lists, few, no_edges, normal, path3, random_edges

seeds = st.integers(0, 2**16)


def parts_by_hand(x, edges, labels):
    """Within, between, unlabelled: one edge at a time."""
    a = edges.adjacency()
    y = x / (1 + a.sum(dim=1)).sqrt()[:, None]
    parts = torch.zeros(3, dtype=torch.float64)
    for i, j in a.triu().nonzero().tolist():
        part = 2 if labels[i] < 0 or labels[j] < 0 else int(labels[i] != labels[j])
        parts[part] += a[i, j] * (y[i] - y[j]).square().sum()
    return parts


@few
@given(edge_lists(), seeds)
def test_classes_are_split_edge_by_edge_and_add_up(edges, seed):
    x, generator = normal(edges.num_nodes, 3, seed=seed), torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 3, (edges.num_nodes,), generator=generator)
    parts = torch.stack(class_energies(x, edges.graph64(), labels))
    torch.testing.assert_close(parts, parts_by_hand(x, edges, labels), rtol=1e-13, atol=1e-300)
    torch.testing.assert_close(parts.sum(), dirichlet_energy(x, edges.graph64()), rtol=1e-11, atol=1e-14)


@few
@given(edge_lists(), seeds)
def test_components_are_measured_each_by_itself(edges, seed):
    x, graph = normal(edges.num_nodes, 3, seed=seed), edges.graph64()
    energies = component_energies(x, graph)
    assert energies.shape == (graph.laplacian.num_components,)
    for number, energy in enumerate(energies):
        alone = x * (graph.laplacian.component == number)[:, None]
        torch.testing.assert_close(energy, dirichlet_energy(alone, graph), rtol=1e-11, atol=1e-14)


def test_many_edges_are_summed_in_pieces(monkeypatch):
    edges, x = random_edges(20, 60, weighted=True), normal(20, 3)
    labels = torch.arange(20) % 3
    whole = torch.stack(class_energies(x, edges.graph64(), labels))
    monkeypatch.setattr(graphjoule.graph.laplacian, "_EDGES_AT_ONCE", 7)
    torch.testing.assert_close(torch.stack(class_energies(x, edges.graph64(), labels)), whole, rtol=1e-14, atol=0)


def test_runs_are_measured_each_by_itself():
    edges, x, labels = random_edges(20, 25), normal(2, 3, 20, 4), torch.arange(20) % 4 - 1
    graph = edges.graph64()
    within = class_energies(x, graph, labels).within
    components = component_energies(x, graph)
    assert within.shape == (2, 3)
    for i, j in ((0, 0), (1, 2)):
        torch.testing.assert_close(within[i, j], class_energies(x[i, j], graph, labels).within)
        torch.testing.assert_close(components[i, j], component_energies(x[i, j], graph))
    torch.testing.assert_close(torch.vmap(lambda run: component_energies(run, graph))(x[0]), components[0])


def test_gradcheck():
    graph, labels = random_edges(weighted=True).graph64(), torch.arange(9) % 3 - 1
    x = normal(9, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: class_energies(x, graph, labels), x)
    assert torch.autograd.gradcheck(lambda x: component_energies(x, graph), x)


def test_weights_can_be_given_with_an_edge_index():
    edges, x, labels = random_edges(20, 25, weighted=True), normal(20, 3), torch.arange(20) % 2
    given = class_energies(x, edges.index, labels, edge_weight=edges.weight)
    assert torch.stack(given).equal(torch.stack(class_energies(x, edges.graph64(), labels)))
    energies = component_energies(x, edges.index, edge_weight=edges.weight)
    assert energies.equal(component_energies(x, edges.graph64()))


def test_nodes_without_edges_are_components_without_energy():
    assert component_energies(normal(4, 2), no_edges(4).graph64()).equal(torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("labels", [torch.zeros(4, dtype=torch.int64), torch.zeros(3), torch.zeros(3, 1).long()])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(GraphjouleError, match="expected one integer for each of the 3 nodes"):
        class_energies(torch.ones(3, 2), path3().graph(), labels)
