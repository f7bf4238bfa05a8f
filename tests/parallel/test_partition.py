import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.parallel.partition import cut_edges, cut_nodes
from reproduction.bench import CitationGraph
from tests.graphs import edge_lists, few, no_edges, path3, random_edges


def grid(side: int) -> Propagation:
    node = torch.arange(side * side).view(side, side)
    right, down = torch.stack([node[:, :-1], node[:, 1:]]), torch.stack([node[:-1], node[1:]])
    return Propagation.from_edge_index(torch.cat([right.flatten(1), down.flatten(1)], dim=1), symmetrize=True)


@few
@given(edge_lists(), st.integers(1, 7), st.sampled_from(["metis", "blocks"]), st.integers(0, 3))
def test_every_node_has_a_part_and_no_part_is_empty(edges, num_parts, method, seed):
    num_parts = min(num_parts, edges.num_nodes)
    part = cut_nodes(edges.graph(), num_parts, method, seed)
    assert part.shape == (edges.num_nodes,)
    assert part.dtype == torch.int64
    assert part.unique().tolist() == list(range(num_parts))


@pytest.mark.parametrize("num_parts", [2, 3, 16, 50])
def test_metis_parts_are_even_and_the_same_for_the_same_seed(num_parts):
    graph = random_edges(1600, 4000).graph()
    part = cut_nodes(graph, num_parts)
    assert part.equal(cut_nodes(graph, num_parts))
    sizes = torch.bincount(part)
    assert sizes.max() <= 1.1 * 1600 / num_parts + 1


def test_another_seed_cuts_otherwise():
    graph = CitationGraph(3_000, 9_000, num_features=2, num_classes=2).task("citations").graph
    assert len({tuple(cut_nodes(graph, 10, seed=seed).tolist()) for seed in (0, 1, 2)}) == 3


def test_metis_cuts_fewer_edges_than_blocks_of_a_shuffled_grid():
    graph, order = grid(30), torch.randperm(900, generator=torch.Generator().manual_seed(0))
    row, col = graph.row(), graph.col.long()
    shuffled = Propagation.from_edge_index(order[torch.stack([row, col])])
    by_metis, by_blocks = (cut_edges(shuffled, cut_nodes(shuffled, 9, method)) for method in ("metis", "blocks"))
    assert by_metis < 200 < 1400 < by_blocks  # of 1740 edges; the best nine squares cut 120


def test_blocks_are_in_order_and_within_one_node_of_each_other():
    part = cut_nodes(no_edges(11).graph(), 4, "blocks")
    assert part.equal(part.sort().values)
    assert sorted(torch.bincount(part).tolist()) == [2, 3, 3, 3]


def test_two_components_are_not_cut():
    two = torch.cat([torch.combinations(torch.arange(8)), torch.combinations(torch.arange(8, 16))]).t()
    graph = Propagation.from_edge_index(two, symmetrize=True)
    part = cut_nodes(graph, 2)
    assert cut_edges(graph, part) == 0
    assert torch.bincount(part).tolist() == [8, 8]


def test_heavy_edges_are_kept_and_light_ones_cut():
    ring = torch.stack([torch.arange(16), (torch.arange(16) + 1) % 16])
    weight = torch.ones(16, dtype=torch.float64)
    weight[[3, 11]] = 1e-4
    graph = Propagation.from_edge_index(ring, weight, symmetrize=True)
    part = cut_nodes(graph, 2)
    assert cut_edges(graph, part) == 2
    assert part[3] != part[4]
    assert part[11] != part[12]


@pytest.mark.parametrize("edges", [no_edges(1), no_edges(5), path3()], ids=["one node", "no edges", "path"])
@pytest.mark.parametrize("method", ["metis", "blocks"])
def test_one_part_and_one_node_per_part(edges, method):
    assert cut_nodes(edges.graph(), 1, method).tolist() == [0] * edges.num_nodes
    assert sorted(cut_nodes(edges.graph(), edges.num_nodes, method).tolist()) == list(range(edges.num_nodes))


def test_nearly_as_many_parts_as_nodes_leave_none_empty():
    graph = random_edges(60, 200).graph()
    for num_parts in range(50, 60):
        assert cut_nodes(graph, num_parts).unique().numel() == num_parts


def test_cut_edges_counts_each_edge_once_and_no_loop():
    edges = random_edges(9, 14)
    part = torch.arange(9) % 3
    a = edges.adjacency() > 0
    between = sum(1 for i in range(9) for j in range(i) if a[i, j] and part[i] != part[j])
    assert cut_edges(edges.graph(), part) == between


def test_a_graph_with_hubs_is_cut_evenly_too():
    graph = CitationGraph(20_000, 100_000, num_features=4, num_classes=2).task("citations").graph
    assert torch.bincount(cut_nodes(graph, 50)).max() < 500


@pytest.mark.parametrize(
    ("num_parts", "method", "seed", "words"),
    [
        (0, "metis", 0, "number of parts is 0; for a graph of 3 nodes it must be from 1 to 3"),
        (4, "blocks", 0, "number of parts is 4; for a graph of 3 nodes it must be from 1 to 3"),
        (2, "louvain", 0, "'louvain'; choose one of metis, blocks"),
        (2, "metis", -1, "seed to cut nodes by is -1"),
    ],
)
def test_parts_that_cannot_be_are_refused_in_a_sentence(num_parts, method, seed, words):
    with pytest.raises(GraphjouleError, match=words):
        cut_nodes(path3().graph(), num_parts, method, seed)


def test_without_metis_the_sentence_names_the_extra_and_the_other_method(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(GraphjouleError, match=r'graphjoule\[partition\].*"blocks"'):
        cut_nodes(path3().graph(), 2)
    assert cut_nodes(path3().graph(), 2, "blocks").tolist() == [0, 0, 1]
