"""Graphs of any size that look like citations: most nodes have few neighbours, a few have thousands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from graphjoule import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.tasks import Classification, Split, Task

# Node number i is cited with a weight of (i + 1)^-0.75. At the size of ogbn-arxiv the largest hub then has 14,488
# neighbours; the real one has 13,161.
_TAIL = 0.75
_TRAIN_SHARE, _VAL_SHARE = 90_941 / 169_343, 29_799 / 169_343  # of ogbn-arxiv's official split


@dataclass(frozen=True)
class CitationGraph:
    """A node classification task to generate: same numbers, same task, on every machine.

    Neighbours are drawn without regard to communities, so gathers find nothing in a cache: the hard case, for all.

    Attributes:
        num_nodes: number of nodes.
        num_edges: number of undirected edges, exactly.
        num_features: number of columns of the dense features.
        num_classes: number of classes.
        seed: what everything is drawn from.
    """

    num_nodes: int
    num_edges: int
    num_features: int = 128
    num_classes: int = 10
    seed: int = 0

    def task(self, name: str) -> Task:
        """Generate the task; its one split is called "public"."""
        # RandomState and not default_rng: NumPy promises that its stream never changes.
        random = np.random.RandomState(self.seed)
        edges = citation_edges(self.num_nodes, self.num_edges, random)
        labels = random.randint(self.num_classes, size=self.num_nodes)
        centres = random.standard_normal((self.num_classes, self.num_features))
        noise = random.standard_normal((self.num_nodes, self.num_features))
        return Task(
            name=name,
            features=torch.from_numpy((centres[labels] + noise).astype(np.float32)),
            graph=Propagation.from_edge_index(edges, num_nodes=self.num_nodes, symmetrize=True),
            targets=torch.from_numpy(labels.astype(np.int64)),
            objective=Classification(self.num_classes),
            fixed_splits=(_public_split(self.num_nodes, random),),
            default_split="public",
        )


@dataclass(frozen=True)
class PowerLawGraph:
    """As `CitationGraph`, but ten million nodes take less than a minute.

    An edge that is drawn twice counts once, so there are a few less than asked for; and another version of NumPy may
    draw others.

    Attributes:
        num_nodes: number of nodes.
        mean_degree: neighbours of a node in the mean, nearly.
        num_features: number of columns of the dense features.
        num_classes: number of classes.
        seed: what everything is drawn from.
    """

    num_nodes: int
    mean_degree: int = 10
    num_features: int = 16
    num_classes: int = 10
    seed: int = 0

    def task(self, name: str) -> Task:
        """Generate the task; its one split is called "public"."""
        random = np.random.default_rng(self.seed)
        graph = self._graph(random)
        labels = random.integers(self.num_classes, size=self.num_nodes)
        features = random.standard_normal((self.num_nodes, self.num_features), dtype=np.float32)
        features += random.standard_normal((self.num_classes, self.num_features), dtype=np.float32)[labels]
        return Task(
            name=name,
            features=torch.from_numpy(features),
            graph=graph,
            targets=torch.from_numpy(labels),
            objective=Classification(self.num_classes),
            fixed_splits=(_public_split(self.num_nodes, random),),
            default_split="public",
        )

    def _graph(self, random: np.random.Generator) -> Propagation:
        """The operator, by SciPy's counting sort, several times as fast as `Propagation.from_edge_index`."""
        n, count = self.num_nodes, self.num_nodes * self.mean_degree // 2
        source = random.integers(n, size=count, dtype=np.int32)
        # The integral of x^-0.75 is 4 x^0.25: the inverse draws from the weights above without a search in their sum.
        place = (1 + ((n + 1) ** (1 - _TAIL) - 1) * random.random(count)) ** (1 / (1 - _TAIL)) - 1
        target = random.permutation(n).astype(np.int32)[np.minimum(place.astype(np.int32), n - 1)]
        del place
        loops = np.arange(n, dtype=np.int32)  # one of each node; those that were drawn fall on them
        row, col = np.concatenate([source, target, loops]), np.concatenate([target, source, loops])
        pattern = scipy.sparse.coo_array((np.ones(len(row), dtype=np.int8), (row, col)), shape=(n, n)).tocsr()
        del row, col
        entries = np.diff(pattern.indptr)
        scale = 1 / np.sqrt(entries.astype(np.float64))
        value = (np.repeat(scale, entries) * scale[pattern.indices]).astype(np.float32)
        degree = torch.from_numpy(entries.astype(np.float64) - 1)
        rowptr, col, value = (torch.from_numpy(each) for each in (pattern.indptr, pattern.indices, value))
        return Propagation(rowptr, col, value, degree)


def citation_edges(num_nodes: int, num_edges: int, random: np.random.RandomState) -> Tensor:
    """Distinct undirected edges without loops, each once: any node cites, hubs are cited.

    Args:
        num_nodes: number of nodes.
        num_edges: how many edges, at most a quarter of all pairs, beyond which the hubs would run out of partners.
        random: what to draw from.

    Returns:
        ``edge_index`` of shape ``[2, num_edges]``.
    """
    most = num_nodes * (num_nodes - 1) // 8
    if not 0 <= num_edges <= most:
        raise GraphjouleError(f"{num_edges} edges were asked for; with {num_nodes} nodes it must be 0 to {most}.")
    cumulative = np.cumsum(np.arange(1, num_nodes + 1) ** -_TAIL)
    cited = random.permutation(num_nodes)  # hubs stand anywhere, not in the first rows
    keys = np.empty(0, dtype=np.int64)
    while len(keys) < num_edges:
        count = int(1.1 * (num_edges - len(keys))) + 16
        source = random.randint(num_nodes, size=count)
        target = cited[np.searchsorted(cumulative, random.random_sample(count) * cumulative[-1], side="right")]
        low, high = np.minimum(source, target), np.maximum(source, target)
        keys = np.unique(np.concatenate([keys, (low * num_nodes + high)[low != high]]))
    keys = np.sort(random.permutation(keys)[:num_edges])  # the surplus goes at random: keys are ordered by node
    return torch.from_numpy(np.stack([keys // num_nodes, keys % num_nodes]))


def _public_split(num_nodes: int, random: np.random.RandomState | np.random.Generator) -> Split:
    order = torch.from_numpy(random.permutation(num_nodes))
    num_train, num_val = round(_TRAIN_SHARE * num_nodes), round(_VAL_SHARE * num_nodes)
    train, val, test = torch.tensor_split(order, [num_train, num_train + num_val])
    return Split("public", None, train, val, test)
