from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.graph.features import SparseFeatures
from graphjoule.ops import fold_in, make_key
from graphjoule.parallel.clusters import Clusters, feature_rows, induced_graph
from tests.graphs import edge_lists, few, normal, random_edges

PART = torch.tensor([2, 0, 1, 1, 0, 2, 2, 3, 4, 4])


@few
@given(edge_lists(), st.data())
def test_the_induced_operator_is_a_principal_part_of_the_whole(edges, data):
    chosen = data.draw(st.sets(st.integers(0, edges.num_nodes - 1), min_size=1))
    nodes, graph = torch.tensor(sorted(chosen)), edges.graph64()
    induced = induced_graph(graph, nodes)
    assert induced.to_dense().equal(graph.to_dense()[nodes][:, nodes])
    assert induced.degree.equal(graph.degree[nodes])
    assert induced.rowptr.dtype == induced.col.dtype == torch.int32
    assert induced.num_edges == int((edges.adjacency()[nodes][:, nodes] > 0).sum()) // 2
    for start, stop in pairwise(induced.rowptr.tolist()):  # columns are sorted, which products rely on
        assert induced.col[start:stop].equal(induced.col[start:stop].sort().values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_induced_operator_is_symmetric_and_of_the_dtype(dtype):
    graph = random_edges(50, 400, weighted=True).graph(dtype=dtype)
    p = induced_graph(graph, torch.arange(0, 50, 3)).to_dense()
    assert p.dtype == dtype
    assert p.equal(p.t())


@pytest.mark.parametrize("nodes", [[0], [3, 7, 8], list(range(10))])
def test_rows_of_features_dense_and_sparse(nodes):
    x, nodes = normal(10, 6), torch.tensor(nodes)
    assert feature_rows(x, nodes).equal(x[nodes])
    zeros = x * (x > 0.7)
    rows, want = feature_rows(SparseFeatures.from_dense(zeros), nodes), SparseFeatures.from_dense(zeros[nodes])
    for name in ("rowptr", "col", "value", "t_rowptr", "t_col", "to_transposed"):
        assert getattr(rows, name).equal(getattr(want, name)), name
        assert getattr(rows, name).dtype == getattr(want, name).dtype, name


@pytest.mark.parametrize("per_step", [1, 2, 3, 5])
def test_an_epoch_has_every_cluster_once_and_keeps_it_whole(per_step):
    groups = Clusters(PART).groups(make_key(0), per_step)
    assert len(groups) == -(-5 // per_step)
    assert sorted(torch.cat(groups).tolist()) == list(range(10))
    for nodes in groups:
        assert nodes.equal(nodes.sort().values)
        assert all(set((part == PART).nonzero().flatten().tolist()) <= set(nodes.tolist()) for part in PART[nodes])


def test_the_order_is_the_keys_and_differs_between_epochs_and_seeds():
    clusters = Clusters(torch.arange(40))

    def order(seed, epoch):
        return tuple(int(nodes) for nodes in clusters.groups(fold_in(make_key(seed), epoch), 1))

    assert order(3, 7) == order(3, 7)
    assert len({order(seed, epoch) for seed in range(5) for epoch in range(5)}) == 25


def test_every_cluster_comes_everywhere():
    clusters = Clusters(torch.arange(8))
    first = torch.stack([torch.cat(clusters.groups(fold_in(make_key(1), e), 1)) for e in range(1000)])
    for place in first.unbind(1):
        assert torch.bincount(place, minlength=8).min() > 75  # 125 are expected; this is 4.8 deviations below
        assert torch.bincount(place, minlength=8).max() < 175


def test_the_smallest_group_is_known_beforehand():
    assert [Clusters(PART).smallest_group(n) for n in (1, 2, 3, 5)] == [1, 1, 3, 10]
