"""Small graphs for tests: hypothesis strategies that reach the odd ones, and their naive dense truth."""

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from graphjoule.graph import Propagation

few = settings(deadline=None, max_examples=15)  # torch is slow at first touch, and two cores are shared


@dataclass(frozen=True, eq=False)
class Edges:
    """What a user passes: PyG's `edge_index`, maybe weights, and how many nodes there are."""

    index: Tensor
    weight: Tensor | None
    num_nodes: int

    def graph(self, **options) -> Propagation:
        return Propagation.from_edge_index(self.index, self.weight, self.num_nodes, **options)

    def graph64(self) -> Propagation:
        return self.graph(dtype=torch.float64)

    def adjacency(self) -> Tensor:
        """A, edge by edge: no self-loops; duplicates count once without weights and add up with weights."""
        a = torch.zeros(self.num_nodes, self.num_nodes, dtype=torch.float64)
        for k, (i, j) in enumerate(self.index.t().tolist()):
            if i != j:
                a[i, j] = 1 if self.weight is None else a[i, j] + self.weight[k].double()
        return a

    def dense(self) -> Tensor:
        return dense_propagation(self.adjacency())

    def permuted(self, permutation: Tensor) -> "Edges":
        """The same graph when node `permutation[i]` is called `i`."""
        return Edges(torch.argsort(permutation)[self.index], self.weight, self.num_nodes)


def dense_propagation(adjacency: Tensor) -> Tensor:
    """D~^-1/2 (A + I) D~^-1/2, one entry at a time."""
    a = adjacency + torch.eye(len(adjacency), dtype=torch.float64)
    d = a.sum(dim=1)
    p = torch.empty_like(a)
    for i in range(len(a)):
        for j in range(len(a)):
            p[i, j] = a[i, j] / (d[i].sqrt() * d[j].sqrt())
    return p


@st.composite
def edge_lists(draw: st.DrawFn, weighted: bool | None = None, directed: bool = False) -> Edges:
    """Any graph of up to 7 nodes: isolated nodes, no edges, one node, duplicates, self-loops, weights of zero.

    An undirected graph's edges stand in both directions, in any order, so duplicates add up in different orders too.
    """
    num_nodes = draw(st.integers(1, 7))
    node = st.integers(0, num_nodes - 1)
    weights = st.one_of(st.just(0.0), st.floats(1e-3, 4.0))
    triples = draw(st.lists(st.tuples(node, node, weights), max_size=16))
    if not directed:
        triples = draw(st.permutations(triples + [(j, i, w) for i, j, w in triples]))
    index = torch.tensor([(i, j) for i, j, _ in triples], dtype=torch.int64).view(-1, 2).t()
    weighted = draw(st.booleans()) if weighted is None else weighted
    weight = torch.tensor([w for _, _, w in triples], dtype=torch.float64) if weighted else None
    return Edges(index, weight, num_nodes)


def random_edges(num_nodes: int = 9, num_edges: int = 14, *, seed: int = 0, weighted: bool = False) -> Edges:
    """An undirected random graph; may have self-loops, duplicates and isolated nodes."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(num_nodes, (2, num_edges), generator=generator)
    weight = torch.rand(num_edges, generator=generator, dtype=torch.float64).repeat(2) if weighted else None
    return Edges(torch.cat([half, half.flip(0)], dim=1), weight, num_nodes)


def no_edges(num_nodes: int) -> Edges:
    return Edges(torch.empty(2, 0, dtype=torch.int64), None, num_nodes)


def path3() -> Edges:
    """0 - 1 - 2."""
    return Edges(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), None, 3)


def k33() -> Edges:
    """The complete bipartite graph between {0, 1, 2} and {3, 4, 5}; its P has eigenvalues 1, 1/4, -1/2."""
    half = torch.cartesian_prod(torch.arange(3), torch.arange(3, 6)).t()
    return Edges(torch.cat([half, half.flip(0)], dim=1), None, 6)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers from a generator of their own."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
