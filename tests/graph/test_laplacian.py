"""The form in float32 against that in float64: six digits where float32 answers at all."""

import pytest
import torch

from graphjoule import GraphjouleError
from graphjoule.graph import Propagation, native
from graphjoule.graph.laplacian import QuickForm
from graphjoule.measures.energy import combinatorial_energy, dirichlet_energy

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


@pytest.fixture(autouse=True, params=["native", "torch"])
def loops(request, monkeypatch):
    """All of it with the loops of a C compiler, and without."""
    if request.param == "torch":
        monkeypatch.setattr(native, "_library", lambda: None)
    elif not native.is_built():
        pytest.skip("there is no C compiler")


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
    sums = QuickForm._sums
    monkeypatch.setattr(QuickForm, "_sums", lambda self, y: (multiplied.append(y), sums(self, y))[1])
    monkeypatch.setattr(native, "_library", lambda: None)
    assert graph.laplacian.scaled().quick.of(x) is not None
    assert [y is not x for y in multiplied] == [has_copy]


def lattice():
    """A grid of 80 times 75 with one diagonal."""
    node = torch.arange(NODES).view(80, 75)
    pairs = ((node[:, :-1], node[:, 1:]), (node[:-1], node[1:]), (node[:-1, :-1], node[1:, 1:]))
    edges = torch.cat([torch.stack([first.flatten(), second.flatten()]) for first, second in pairs], dim=1)
    return Propagation.from_edge_index(edges, symmetrize=True)


def two_lattices():
    """A path and a ring of 12, joined: the entries of both are rounded in other directions."""
    left, right = torch.arange(NODES // 2), torch.arange(NODES // 2, NODES)
    pairs = [(left[:-1], left[1:]), *((right[:-k], right[k:]) for k in range(1, 7)), (left[-1:], right[:1])]
    return Propagation.from_edge_index(torch.cat([torch.stack(pair) for pair in pairs], dim=1), symmetrize=True)


def waves(periods):
    """Smooth features that are no kernel: every rounding meets its like."""
    angle = 2 * torch.pi * periods * torch.arange(NODES).double()[:, None] / NODES
    return (angle + torch.linspace(0, 6, 64).double()).cos().float()


@pytest.mark.parametrize("periods", [5, 20, 40, 60, 100, 300])
@pytest.mark.parametrize("graph", [ring(6), ring(40), lattice(), two_lattices()], ids=["6", "40", "grid", "two"])
def test_waves_on_lattices_keep_five_digits(graph, periods):
    for left in (1.0, 0.01, 100.0):
        x = waves(periods)
        x[: NODES // 2] *= left
        for energy in (dirichlet_energy, combinatorial_energy):
            torch.testing.assert_close(energy(x, graph), energy(x.double(), graph), rtol=1e-5, atol=0)


def test_features_that_hide_from_every_other_node_are_seen():
    """A sample at even distances would take the constant for noise."""
    graph = ring(6)
    for step in (2, NODES // 256, NODES // 250):
        x = torch.ones(NODES, 64)
        x[::step] = 0
        torch.testing.assert_close(dirichlet_energy(x, graph), dirichlet_energy(x.double(), graph), rtol=RATIO, atol=0)


@pytest.mark.parametrize("weight", [1e25, 1e-30])
def test_weights_of_any_size_have_their_energy(weight):
    node = torch.arange(NODES)
    weights = torch.full((NODES,), weight, dtype=torch.float64)
    edges = torch.stack([node, (node + 1) % NODES])
    graph = Propagation.from_edge_index(edges, weights, symmetrize=True, dtype=torch.float64)
    for energy in (dirichlet_energy, combinatorial_energy):
        x = 1e7 * noise()
        torch.testing.assert_close(energy(x, graph), energy(x.double(), graph), rtol=RATIO, atol=0)


@pytest.mark.parametrize("rows", [NODES - 1, NODES + 1])
def test_features_of_another_number_of_nodes_are_refused(rows):
    with pytest.raises(GraphjouleError, match=f"has {NODES} nodes but the features have {rows} rows"):
        GRAPHS["random"].laplacian.form(torch.randn(rows, 64))


def test_a_graph_without_edges_has_none():
    graph = Propagation.from_edge_index(torch.zeros(2, 0, dtype=torch.long), num_nodes=NODES)
    assert dirichlet_energy(noise(), graph) == 0


def wave():
    """Features of a path as smooth as can be: an energy of 1e-7 of their size."""
    node = torch.arange(NODES)
    path = Propagation.from_edge_index(torch.stack([node[:-1], node[1:]]), symmetrize=True)
    return path, torch.linspace(0, 3, NODES).cos()[:, None].expand(-1, 64).contiguous()


CASES = {
    "a large mean": lambda: (GRAPHS["random"], near_kernel(GRAPHS["random"], 1e-4)),
    "a small energy": wave,
    "small squares": lambda: (GRAPHS["random"], 1e-23 * noise()),
    "large squares": lambda: (GRAPHS["random"], 1e18 * noise()),
    "a mean whose square is no float32": lambda: (GRAPHS["random"], 1e19 * near_kernel(GRAPHS["random"], 1e-6)),
    "zeros": lambda: (GRAPHS["random"], torch.zeros(NODES, 64)),
    "not a number": lambda: (GRAPHS["random"], noise() * torch.nan),
}


@pytest.mark.parametrize("case", CASES)
def test_where_float32_is_not_good_enough_float64_is_taken(case):
    graph, x = CASES[case]()
    assert graph.laplacian.scaled().quick.of(x) is None
    energy, truth = dirichlet_energy(x, graph), dirichlet_energy(x.double(), graph)
    torch.testing.assert_close(energy, truth, rtol=1e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("share", [1.0, 0.02])
@pytest.mark.parametrize(
    "lay", [lambda x: x.t().contiguous().t(), lambda x: x.repeat(1, 2)[:, ::2]], ids=["t", "strided"]
)
def test_features_may_lie_in_memory_as_they_like(lay, share):
    graph, x = GRAPHS["random"], near_kernel(GRAPHS["random"], share)
    laid = lay(x)
    assert not laid.is_contiguous()
    assert graph.laplacian.scaled().quick.of(laid) is not None
    torch.testing.assert_close(
        dirichlet_energy(laid, graph), dirichlet_energy(laid.double(), graph), rtol=RATIO, atol=0
    )


def test_the_number_does_not_depend_on_what_was_measured_before():
    graph, x = GRAPHS["random"], near_kernel(GRAPHS["random"], 0.2)
    before = dirichlet_energy(x, graph)
    combinatorial_energy(noise(1), graph)
    dirichlet_energy(near_kernel(graph, 0.01), graph)
    assert dirichlet_energy(x, graph).equal(before)
