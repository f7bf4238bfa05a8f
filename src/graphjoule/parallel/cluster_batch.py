"""The part of a task that one step on clusters sees: some nodes, their features, and the edges between them."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.csr import entries_of_rows, row_starts
from graphjoule.graph.features import Features, SparseFeatures
from graphjoule.ops import fold_in
from graphjoule.parallel.partition import cut_nodes
from graphjoule.training.recipes.clustered import ClusterSettings


class Clusters:
    """The nodes of a graph in clusters, and the groups of clusters that an epoch goes over.

    Args:
        part: the cluster of every node, see `graphjoule.parallel.partition.cut_nodes`.
    """

    def __init__(self, part: Tensor) -> None:
        self.num_parts = int(part.max()) + 1
        self.sizes = torch.bincount(part, minlength=self.num_parts)
        ends = self.sizes.cumsum(0)[:-1]
        self._nodes = torch.tensor_split(torch.argsort(part, stable=True), ends)
        self.sha256 = hashlib.sha256(part.numpy().tobytes()).hexdigest()

    def groups(self, key: Tensor, per_step: int) -> list[Tensor]:
        """Nodes of each group of an epoch, ascending: every cluster once, in an order that the key alone decides.

        Args:
            key: of a run and an epoch, see `graphjoule.ops.make_key`.
            per_step: clusters in a group; the last one may have fewer.
        """
        words = fold_in(key.cpu(), torch.arange(self.num_parts, dtype=torch.int32))
        order: list[int] = torch.argsort(words[:, 0], stable=True).tolist()
        starts = range(0, self.num_parts, per_step)
        return [torch.cat([self._nodes[c] for c in order[s : s + per_step]]).sort().values for s in starts]

    def smallest_group(self, per_step: int) -> int:
        """The fewest nodes that a group can have."""
        rest = self.num_parts % per_step or per_step
        return int(self.sizes.sort().values[:rest].sum())


def cut_clusters(graph: Propagation, settings: ClusterSettings) -> Clusters:
    """The clusters that a recipe asks for: one cut for all runs, the same whenever it is made."""
    return Clusters(cut_nodes(graph, settings.parts, settings.method))


def induced_graph(graph: Propagation, nodes: Tensor) -> Propagation:
    """The rows and columns of ``P`` that belong to some nodes, its entries as they are.

    A neighbour that is there weighs what it weighs in the whole graph; one that is not there is missing. To normalise
    the subgraph anew, so that the neighbours at hand weigh more, was worse by validation on Physics: in seven pairs of
    runs (2 and 8 layers, 50 clusters, 1 and 5 per step) its loss was 10 to 34 % higher, its accuracy never higher
    (reproduction/results/clusters/operator-*.json).

    Args:
        graph: the whole graph, on the CPU.
        nodes: which of its nodes, ascending.

    Returns:
        The operator with node ``nodes[i]`` as number i, and with the degrees of the whole graph.

    Example:
        >>> path = Propagation.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 3]]), symmetrize=True)
        >>> induced_graph(path, torch.tensor([0, 1, 3])).to_dense()
        tensor([[0.5000, 0.4082, 0.0000],
                [0.4082, 0.3333, 0.0000],
                [0.0000, 0.0000, 0.5000]])
    """
    number = torch.full((graph.num_nodes,), -1, dtype=torch.int32)
    number[nodes] = torch.arange(len(nodes), dtype=torch.int32)
    row, entry = entries_of_rows(graph.rowptr, nodes)
    col = number[graph.col[entry].long()]
    kept = col >= 0
    return Propagation(row_starts(row[kept], len(nodes)), col[kept], graph.value[entry[kept]], graph.degree[nodes])


def feature_rows(x: Features, nodes: Tensor) -> Features:
    """The features of some nodes, dense or sparse as they are.

    Args:
        x: features of all nodes, on the CPU.
        nodes: which of them.
    """
    if isinstance(x, Tensor):
        return x[nodes]
    row, entry = entries_of_rows(x.rowptr, nodes)
    col = x.col[entry]
    to_transposed = torch.argsort(col, stable=True)
    return SparseFeatures(
        rowptr=row_starts(row, len(nodes)),
        col=col,
        value=x.value[entry],
        t_rowptr=row_starts(col.long(), x.num_features),
        t_col=row[to_transposed].int(),
        to_transposed=to_transposed,
    )
