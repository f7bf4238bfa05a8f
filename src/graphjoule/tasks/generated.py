"""Tasks that are made on the spot, where distance can be dialled: what a network must carry, and how far, is known.

Each is drawn from a generator of its own with a fixed seed, so a name always means the same data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import SparseFeatures
from graphjoule.tasks.objective import Binary, Classification, Regression
from graphjoule.tasks.pooling import Pooling
from graphjoule.tasks.splits import Split
from graphjoule.tasks.task import Task

_RING_CLASSES = 5
_LEAST_RINGS, _MOST_RINGS, _MOST_RING_NODES = 256, 512, 100_000
_MOST_GRAPHS, _MOST_GRAPH_NODES = 600, 60_000
_MINES, _HIDDEN = 0.2, 0.5  # shares of the cells


def ring_transfer(distance: int, num_rings: int | None = None, *, seed: int = 0) -> Task:
    """Rings of ``2 d`` nodes; the class of the one flagged node is asked for at the opposite node, ``d`` hops away.

    Every node has a random class as a one-hot row, and the source a flag beside it, so no node's own feature says
    anything about a label: chance is 20 %, and a network that reaches fewer than `distance` hops stays there.

    Args:
        distance: hops from the source to the labelled node.
        num_rings: how many rings; by default 512, or fewer so that they have 100,000 nodes, but at least 256: a quarter
            of them is the test split, and few wrong rings should not be many percent.
        seed: what the classes are drawn from.
    """
    if distance < 2:
        raise GraphjouleError(f"The distance of a ring transfer is {distance}; it must be at least 2.")
    length = 2 * distance
    num_rings = num_rings or max(_LEAST_RINGS, min(_MOST_RINGS, _MOST_RING_NODES // length))
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(_RING_CLASSES, (num_rings, length), generator=generator)
    features = torch.zeros(num_rings, length, _RING_CLASSES + 1)
    features.scatter_(2, classes[:, :, None], 1.0)
    features[:, 0, _RING_CLASSES] = 1.0
    targets = torch.full((num_rings, length), -1)
    targets[:, distance] = classes[:, 0]
    node = torch.arange(num_rings * length).view(num_rings, length)
    edges = torch.stack([node, node.roll(-1, dims=1)]).flatten(1)
    return Task(
        name=f"ring-{distance}",
        features=features.flatten(0, 1),
        graph=Propagation.from_edge_index(edges, num_nodes=node.numel(), symmetrize=True),
        targets=targets.flatten(),
        objective=Classification(_RING_CLASSES),
        default_split="stratified-25-25",
    )


# Distances on graphs whose diameter is chosen: the six families of ECHO (Miglior et al. 2025), in code of our own.


def _spine(diameter: int, num_more: int, depth: int, draw: np.random.Generator) -> list[tuple[int, int]]:
    """A path of `diameter` edges with `num_more` nodes that grow from it at random, none so far that a path is longer.

    With a depth of 0 it is a line, of 1 a caterpillar, of 2 a lobster, and beyond a tree.
    """
    edges = [(node, node + 1) for node in range(diameter)]
    room = [min(node, diameter - node, depth) for node in range(diameter + 1)]
    growing = [node for node, left in enumerate(room) if left]
    for node in range(diameter + 1, diameter + 1 + num_more * bool(growing)):
        parent = growing[draw.integers(len(growing))]
        edges.append((parent, node))
        room.append(room[parent] - 1)
        if room[node]:
            growing.append(node)
    return edges


def _grid(height: int, width: int) -> list[tuple[int, int]]:
    cell = np.arange(height * width).reshape(height, width)
    beside = zip(cell[:, :-1].ravel().tolist(), cell[:, 1:].ravel().tolist(), strict=True)
    return [*beside, *zip(cell[:-1].ravel().tolist(), cell[1:].ravel().tolist(), strict=True)]


FAMILIES: dict[str, Callable[[int, np.random.Generator], list[tuple[int, int]]]] = {
    "line": lambda diameter, draw: _spine(diameter, 0, 0, draw),
    "ladder": lambda diameter, draw: _grid(2, diameter),
    "grid": lambda diameter, draw: _grid(height := int(draw.integers(3, min(8, diameter) + 1)), diameter + 2 - height),
    "tree": lambda diameter, draw: _spine(diameter, diameter, diameter, draw),
    "caterpillar": lambda diameter, draw: _spine(diameter, diameter, 1, draw),
    "lobster": lambda diameter, draw: _spine(diameter, diameter, 2, draw),
}
"""The edges of a graph of a given diameter, at least 4, by family."""


def shortest_paths(diameter: int, *, seed: int = 0) -> Task:
    """The distance of every node from the one flagged node of its graph."""
    return _distances("shortest-paths", diameter, seed)


def eccentricity(diameter: int, *, seed: int = 0) -> Task:
    """The distance of every node from the farthest node of its graph; no node has a feature of its own."""
    return _distances("eccentricity", diameter, seed)


def graph_diameter(diameter: int, *, seed: int = 0) -> Task:
    """The diameter of every graph, from outputs that are pooled by their maximum; no node has a feature of its own."""
    return _distances("diameter", diameter, seed)


def _distances(what: str, diameter: int, seed: int) -> Task:
    """Graphs of six families, as many of each, with diameters from half the largest on; six in ten train.

    Args:
        what: "shortest-paths", "eccentricity" or "diameter".
        diameter: the largest diameter, at least 8.
        seed: what graphs and sources are drawn from.
    """
    if diameter < 8:
        raise GraphjouleError(f"The largest diameter of {what} is {diameter}; it must be at least 8.")
    draw = np.random.default_rng(seed)
    num_graphs = len(FAMILIES) * max(10, min(_MOST_GRAPHS, _MOST_GRAPH_NODES // (2 * diameter)) // len(FAMILIES))
    edges, features, targets, batch, start = [], [], [], [], 0
    for number in range(num_graphs):
        make = list(FAMILIES.values())[number % len(FAMILIES)]
        own = np.array(make(int(draw.integers(diameter // 2, diameter + 1)), draw))
        size = int(own.max()) + 1
        source = int(draw.integers(size)) if what == "shortest-paths" else None
        matrix = coo_matrix((np.ones(len(own)), own.T), (size, size))
        hops = shortest_path(matrix, directed=False, unweighted=True, indices=source)
        features.append(np.stack([np.ones(size), np.arange(size) == source], axis=1))
        # From the source; else the farthest of each node, and of all nodes.
        found = hops if source is not None else hops.max(axis=1)
        targets.append(found.max(keepdims=True) if what == "diameter" else found)
        edges.append(own + start)
        batch += [number] * size
        start += size
    dtype = torch.get_default_dtype()
    edge_index = torch.from_numpy(np.concatenate(edges).T.copy())
    node_graph = torch.tensor(batch)
    is_of_graphs = what == "diameter"
    part = torch.from_numpy(draw.permutation(num_graphs) * 5 // num_graphs)  # 0 to 4, as many of each
    part = part if is_of_graphs else part[node_graph]
    groups = (part >= 2, part == 0, part == 1)
    return Task(
        name=f"{what}-{diameter}",
        features=torch.from_numpy(np.concatenate(features)).to(dtype),
        graph=Propagation.from_edge_index(edge_index, num_nodes=start, symmetrize=True),
        targets=torch.from_numpy(np.concatenate(targets)).to(dtype),
        objective=Regression(error="absolute"),
        fixed_splits=(Split("public", None, *(group.nonzero().view(-1) for group in groups)),),
        default_split="public",
        pooling=Pooling(node_graph, "max") if is_of_graphs else None,
    )


def mines(size: int, *, seed: int = 0) -> Task:
    """Minesweeper (Platonov et al. 2023): which cells of a square grid have a mine; a cell has up to eight neighbours.

    A fifth of the cells has one. Half of the cells show how many of their neighbours have one, the others nothing.

    Args:
        size: cells along a side, at least 4.
        seed: what mines and hidden cells are drawn from.
    """
    if size < 4:
        raise GraphjouleError(f"The side of a minefield is {size}; it must be at least 4.")
    draw = np.random.default_rng(seed)
    cell = np.arange(size * size).reshape(size, size)
    pairs = (
        (cell[:, :-1], cell[:, 1:]),
        (cell[:-1], cell[1:]),
        (cell[:-1, :-1], cell[1:, 1:]),
        (cell[:-1, 1:], cell[1:, :-1]),
    )
    edges = torch.from_numpy(np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in pairs], axis=1))
    is_mine = torch.from_numpy(draw.random(size * size) < _MINES)
    count = torch.zeros(size * size, dtype=torch.int64)
    for here, there in (edges, edges.flip(0)):
        count.index_add_(0, here, is_mine[there].long())
    is_hidden = torch.from_numpy(draw.random(size * size) < _HIDDEN)
    features = torch.nn.functional.one_hot(torch.where(is_hidden, 9, count), 10)
    return Task(
        name=f"mines-{size}",
        features=features.to(torch.get_default_dtype()),
        graph=Propagation.from_edge_index(edges, num_nodes=size * size, symmetrize=True),
        targets=is_mine.long(),
        objective=Binary(2),
        default_split="stratified-25-25",
    )


def without_features(task: Task, percent: int, *, seed: int = 0) -> Task:
    """The same task with the features of a share of the nodes set to zero (the setting of PairNorm).

    Nodes that train in the split that came with the data keep theirs.

    Args:
        task: a task about nodes.
        percent: how many of the others lose their features.
        seed: what they are drawn from.
    """
    if not 0 <= percent <= 100:
        raise GraphjouleError(f"{percent} percent of the nodes were to lose their features; it must be from 0 to 100.")
    loses = np.random.default_rng(seed).permutation(task.num_nodes) < round(percent / 100 * task.num_nodes)
    keeps = torch.from_numpy(~loses)
    if len(task.fixed_splits) == 1:
        keeps[task.fixed_splits[0].train.cpu()] = True
    x = task.features
    if isinstance(x, SparseFeatures):
        kept: Tensor | SparseFeatures = x.with_value(torch.where(keeps[x.row()], x.value, 0.0))
    else:
        kept = torch.where(keeps[:, None], x, 0.0)
    return replace(task, name=f"{task.name}-missing-{percent}", features=kept)
