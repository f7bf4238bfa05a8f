"""The form in float32 against that in float64: six digits, or none."""

import pytest
import torch

from graphjoule.energy import combinatorial_energy, dirichlet_energy
from graphjoule.graph import Propagation
from graphjoule.quick_form import QuickForm

NODES = 6000  # times 64 channels: large enough for the way in float32
RATIO = 1e-6


def ring(neighbours):
    """Every node has the same neighbours ahead and behind, so that roundings of the entries add up."""
    node = torch.arange(NODES)
    edges = [torch.stack([node, (node + ahead) % NODES]) for ahead in range(1, neighbours // 2 + 1)]
    return Propagation.from_edge_index(torch.cat(edges, dim=1), num_nodes=NODES, symmetrize=True)


def random_graph(num_components=1, *, weighted=False):
    generator = torch.Generator().manual_seed(num_components)
    size = NODES // num_components
    first = torch.arange(NODES)
    ends = torch.randint(0, size, (2, 3 * NODES), generator=generator)
    ends += size * torch.randint(0, num_components, (3 * NODES,), generator=generator)
    chain = torch.stack([first[:-1], first[1:]])[:, (first[1:] % size) != 0]  # so that pieces hold together
    edges = torch.cat([ends, chain], dim=1)
    weight = torch.rand(edges.size(1), generator=generator) + 0.01 if weighted else None
    return Propagation.from_edge_index(edges, weight, num_nodes=NODES, symmetrize=True)


def noise(seed=0):
    return torch.randn(NODES, 64, generator=torch.Generator().manual_seed(seed))


def near_kernel(graph, share):
    """Features that are the kernel of ``I - P`` but for a share of noise."""
    kernel = graph.laplacian.scale[:, None].float() * torch.linspace(-2, 3, 64)
    return kernel + share * kernel.norm() / NODES**0.5 / 8 * noise()


GRAPHS = {
    "random": random_graph(),
    "weighted": random_graph(weighted=True),
    "four components": random_graph(4),
    "ring of 2": ring(2),
    "ring of 6": ring(6),
    "ring of 12": ring(12),
}


@pytest.mark.parametrize("share", [10.0, 0.3, 0.1, 0.03, 1e-3, 1e-6])
@pytest.mark.parametrize("name", GRAPHS)
def test_six_digits_are_those_of_float64(name, share):
    graph = GRAPHS[name]
    x = near_kernel(graph, share)
    for energy in (dirichlet_energy, combinatorial_energy):
        torch.testing.assert_close(energy(x, graph), energy(x.double(), graph), rtol=RATIO, atol=0)


@pytest.mark.parametrize(("share", "has_copy"), [(10.0, False), (0.3, False), (0.03, True), (0.02, True)])
def test_the_kernel_is_taken_off_only_where_it_is_most_of_the_features(monkeypatch, share, has_copy):
    graph, x = GRAPHS["random"], near_kernel(GRAPHS["random"], share)
    multiplied = []
    product = QuickForm._product
    monkeypatch.setattr(
        QuickForm, "_product", lambda self, y, matrix: (multiplied.append(y), product(self, y, matrix))[1]
    )
    assert graph.laplacian._quick.of(x, graph.laplacian.scale) is not None
    assert [y is not x for y in multiplied] == [has_copy]


def wave():
    """Features of a path as smooth as can be: an energy of 1e-7 of their size."""
    node = torch.arange(NODES)
    path = Propagation.from_edge_index(torch.stack([node[:-1], node[1:]]), symmetrize=True)
    return path, torch.linspace(0, 3, NODES).cos()[:, None].expand(-1, 64).contiguous()


def hidden_hub():
    """All that is large stands on nodes beside those of the sample."""
    graph = GRAPHS["random"]
    x = 1e-3 * noise()
    x[1::2] += 1e4 * graph.laplacian.scale[1::2, None].float()
    x[0::2] += 1e4 * graph.laplacian.scale[0::2, None].float() * (1 + 1e-6 * noise()[0::2])
    return graph, x


CASES = {
    "a large mean": lambda: (GRAPHS["random"], near_kernel(GRAPHS["random"], 1e-4)),
    "a small energy": wave,
    "small squares": lambda: (GRAPHS["random"], 1e-23 * noise()),
    "large squares": lambda: (GRAPHS["random"], 1e18 * noise()),
    "a smooth half": hidden_hub,
    "zeros": lambda: (GRAPHS["random"], torch.zeros(NODES, 64)),
    "not a number": lambda: (GRAPHS["random"], noise() * torch.nan),
}


@pytest.mark.parametrize("case", CASES)
def test_where_float32_is_not_good_enough_float64_is_taken(case):
    graph, x = CASES[case]()
    assert graph.laplacian._quick.of(x, graph.laplacian.scale) is None
    energy, truth = dirichlet_energy(x, graph), dirichlet_energy(x.double(), graph)
    torch.testing.assert_close(energy, truth, rtol=1e-7, atol=0, equal_nan=True)


def test_the_number_does_not_depend_on_what_was_measured_before():
    graph, x = GRAPHS["random"], near_kernel(GRAPHS["random"], 0.2)
    before = dirichlet_energy(x, graph)
    combinatorial_energy(noise(1), graph)
    dirichlet_energy(near_kernel(graph, 0.01), graph)
    assert dirichlet_energy(x, graph).equal(before)
