"""What a task looks like before anything trains: facts about features, training labels and graph, in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from graphjoule.graph.features import SparseFeatures
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.splits import Split
from graphjoule.tasks.task import MAX_SPARSE_DENSITY, Task

STEPS = (0, 1, 2, 4, 8, 16)
"""How often features are averaged over neighbours before a ridge regression learns from them."""
_MOST_ROWS = 500  # of training nodes; a ridge regression of more takes seconds and says the same
_MOST_ENTRIES = 2**26  # of the matrix that is propagated: 0.5 GB
_FEWEST_ROWS = 6
_FEWEST_PAIRS = 20
_RIDGES = (3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
_WIDTHS = (0.3, 1.0, 3.0)
"""Of the Gaussian kernel, as multiples of the median squared distance."""


@dataclass(frozen=True)
class Profile:
    """Facts of a task under one split. Of labels only those of training nodes are read.

    Attributes:
        num_nodes: number of nodes.
        num_columns: number of columns of the features.
        density: share of the features that is not 0.
        is_binary: whether every feature is 0 or 1.
        is_nonnegative: whether no feature is negative.
        scale: root mean square of the features that are not 0.
        row_spread: standard deviation of the rows' sums over their mean; NaN where a feature is negative.
        num_train: number of training nodes.
        num_classes: number of classes; 0 where numbers or several labels are to be predicted.
        largest_share: share of the most frequent class among the training nodes; NaN without classes.
        chance: share of pairs of training nodes that have the same class; NaN without classes.
        homophily: share of edges between training nodes that join the same class; NaN with fewer than 20 such edges.
        degree: mean number of neighbours.
        num_components: number of connected components.
        explained: by number of averaging steps, the share of the variance of the training targets that a ridge
            regression explains in leave-one-out; empty where it cannot be measured.
        explained_by_similar: the same without the graph, by a Gaussian kernel of the features: how much training nodes
            with similar features say of each other; NaN where it cannot be measured.
    """

    num_nodes: int
    num_columns: int
    density: float
    is_binary: bool
    is_nonnegative: bool
    scale: float
    row_spread: float
    num_train: int
    num_classes: int
    largest_share: float
    chance: float
    homophily: float
    degree: float
    num_components: int
    explained: dict[int, float]
    explained_by_similar: float

    @property
    def is_bag(self) -> bool:
        """Whether a row counts few of many things, such as words: most features are 0 and none is negative."""
        return self.is_nonnegative and self.density < MAX_SPARSE_DENSITY

    @property
    def labels_per_class(self) -> float:
        """Training nodes per class; NaN without classes."""
        return self.num_train / self.num_classes if self.num_classes else math.nan

    @property
    def excess_homophily(self) -> float:
        """How much more often than by chance an edge joins a class, 1 for always; NaN where it is not known."""
        return (self.homophily - self.chance) / (1 - self.chance) if self.chance < 1 else math.nan

    @property
    def best_steps(self) -> int | None:
        """The number of averaging steps with which features explain most; None where it cannot be measured."""
        return max(self.explained, key=lambda steps: self.explained[steps]) if self.explained else None

    @property
    def gain(self) -> float:
        """How much more the features explain with the best number of steps than without any; NaN if unknown."""
        return max(self.explained.values()) - self.explained[0] if self.explained else math.nan

    def lines(self) -> list[str]:
        """The facts in words."""
        kind = {True: "0 or 1", False: "none negative" if self.is_nonnegative else "some negative"}[self.is_binary]
        explained = ", ".join(f"{steps}: {share:.0%}" for steps, share in self.explained.items())
        lines = [
            f"features: {self.num_columns:,} columns, {kind}, {self.density:.0%} not 0, of size {self.scale:.3g}",
            f"graph: {self.num_nodes:,} nodes, {self.degree:.1f} neighbours, components: {self.num_components:,}",
            f"training nodes: {self.num_train:,}"
            + (f", {self.num_classes} classes, the largest {self.largest_share:.0%}" if self.num_classes else ""),
        ]
        if not math.isnan(self.homophily):
            lines.append(
                f"edges between training nodes that join a class: {self.homophily:.0%}, by chance {self.chance:.0%}"
            )
        if explained:
            lines += [
                f"explained by features after so many averages over neighbours, leaving one out: {explained}",
                f"explained by nodes with similar features, without the graph: {self.explained_by_similar:.0%}",
            ]
        return lines


def profile(task: Task, split: Split) -> Profile:
    """Measure a task; seconds on a graph of a million nodes, and the same numbers every time.

    Args:
        task: any; of one that predicts whole graphs, features and graph alone are measured.
        split: whose training nodes' targets are read, and no others.

    Example:
        >>> from graphjoule import load_task
        >>> digits = load_task("digits")
        >>> found = profile(digits, digits.split(seed=0))
        >>> found.num_classes, found.num_train, found.explained[4] > found.explained[0]
        (10, 50, True)
    """
    x, graph = _features(task), task.graph
    operator = sp.csr_matrix((_array(graph.value), _array(graph.col), _array(graph.rowptr)), shape=graph.shape)
    values: np.ndarray = x if isinstance(x, np.ndarray) else x.data
    nonzero = values[values != 0]
    train = split.train.cpu().numpy() if task.pooling is None else np.arange(0)
    targets = _array(task.targets)[train]
    is_classes = isinstance(task.objective, Classification)
    explained, explained_by_similar = _explained(
        operator, x, train, _array(task.objective.columns(task.targets[train]))
    )
    counts = np.bincount(targets, minlength=task.out_channels) if is_classes and len(train) else np.ones(0)
    return Profile(
        num_nodes=task.num_nodes,
        num_columns=task.num_features,
        density=nonzero.size / max(x.shape[0] * x.shape[1], 1),
        is_binary=bool((nonzero == 1).all()),
        is_nonnegative=bool((nonzero > 0).all()),
        scale=float(np.sqrt(np.mean(nonzero.astype(np.float64) ** 2))) if nonzero.size else 0.0,
        row_spread=_row_spread(x) if nonzero.size and (nonzero > 0).all() else math.nan,
        num_train=int(split.sizes[0]),
        num_classes=task.out_channels if is_classes else 0,
        largest_share=float(counts.max() / counts.sum()) if counts.size else math.nan,
        chance=float(((counts / counts.sum()) ** 2).sum()) if counts.size else math.nan,
        homophily=_homophily(operator, train, targets) if is_classes else math.nan,
        degree=2 * graph.num_edges / task.num_nodes,
        num_components=int(connected_components(operator, directed=False, return_labels=False)),
        explained=explained,
        explained_by_similar=explained_by_similar,
    )


def _array(tensor: object) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()  # type: ignore[attr-defined]
    return array


def _features(task: Task) -> np.ndarray | sp.csr_matrix:
    x = task.features
    if isinstance(x, SparseFeatures):
        return sp.csr_matrix((_array(x.value), _array(x.col), _array(x.rowptr)), shape=x.shape)
    return _array(x)


def _row_spread(x: np.ndarray | sp.csr_matrix) -> float:
    ones = np.ones(x.shape[1])  # float64: the sum of a row of large float32 may overflow
    sums = x @ ones if sp.issparse(x) else np.einsum("ij,j->i", x, ones)
    return float(sums[sums > 0].std() / sums[sums > 0].mean())


def _homophily(operator: sp.csr_matrix, train: np.ndarray, labels: np.ndarray) -> float:
    inner = sp.triu(operator[train][:, train], k=1).tocoo()
    if inner.nnz < _FEWEST_PAIRS:
        return math.nan
    return float((labels[inner.row] == labels[inner.col]).mean())


def _explained(
    operator: sp.csr_matrix, x: np.ndarray | sp.csr_matrix, train: np.ndarray, y: np.ndarray
) -> tuple[dict[int, float], float]:
    """By number of steps ``k``, the share that a ridge regression from ``P^k X`` explains; and that of a kernel of X.

    It needs the products between training rows alone, ``K = (P^k X)_t (P^k X)_t^T``, so ``P^k`` is applied to the
    training nodes' columns of the identity and never to all features. Squared distances between rows are
    ``K_ii + K_jj - 2 K_ij`` of no step.
    """
    known = ~np.isnan(y).any(axis=1)
    train, y = train[known], y[known]
    most = min(_MOST_ROWS, _MOST_ENTRIES // operator.shape[0])
    if len(train) > most:
        kept = np.linspace(0, len(train) - 1, max(most, 1)).astype(int)
        train, y = train[kept], y[kept]
    total = float(((y - y.mean(axis=0)) ** 2).sum()) if len(train) else 0.0
    if len(train) < _FEWEST_ROWS or total == 0:
        return {}, math.nan
    y = y - y.mean(axis=0)
    walk = np.zeros((operator.shape[0], len(train)), dtype=operator.dtype)
    walk[train, np.arange(len(train))] = 1
    found, done, similar = {}, 0, 0.0
    for steps in STEPS:
        for _ in range(steps - done):
            walk = operator @ walk
        done = steps
        rows = (x.T @ walk).astype(np.float64)
        rows -= rows.mean(axis=1, keepdims=True)
        products = rows.T @ rows
        found[steps] = _left_out(products, y)
        if steps == 0 and np.trace(products) > 0:
            size = np.diag(products)
            distances = np.clip(size[:, None] + size - 2 * products, 0, None)
            scale = float(np.median(distances[distances > 0]))
            similar = max(_left_out(_centred(np.exp(-distances / (width * scale))), y) for width in _WIDTHS)
    return found, similar


def _centred(kernel: np.ndarray) -> np.ndarray:
    mean: np.ndarray = kernel.mean(axis=0)
    centred: np.ndarray = kernel - mean - mean[:, None] + mean.mean()
    return centred


def _left_out(products: np.ndarray, y: np.ndarray) -> float:
    """The share of centred targets that a ridge regression explains in leave-one-out, by the products between rows.

    With ``H = K (K + lambda)^-1`` the error of a row that is left out is ``(y - H y) / (1 - h)``; ``lambda`` is the
    best of a few.
    """
    size = float(np.trace(products)) / len(y)
    if not size > 0:  # features that are all the same explain nothing
        return 0.0
    values, vectors = np.linalg.eigh(products / size + 1 / len(y))
    shares = []
    for ridge in _RIDGES:
        kept = np.clip(values, 0, None) / (np.clip(values, 0, None) + ridge)
        fitted, own = (vectors * kept) @ (vectors.T @ y), np.einsum("ij,j,ij->i", vectors, kept, vectors)
        error = (y - fitted) / np.maximum(1 - own, 1e-9)[:, None]
        shares.append(1 - float((error**2).sum()) / float((y**2).sum()))
    return max(*shares, 0.0)
