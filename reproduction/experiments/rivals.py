"""Rivals of the wave network that the package does not have: A-DGN, GraphCON, and GPS with attention over all nodes.

A-DGN and GraphCON are written with the package's own products, so that all runs train in one program, as those of the
wave do: a test holds A-DGN against PyG's layer. GPS is PyG's, one run after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn
from torch_geometric.nn import GINConv, GPSConv

from graphjoule import load_task
from graphjoule.nn import MODELS, GCNConv, GraphModel

__all__ = ["ADGN", "GPS", "GraphCON", "in_the_table"]

_ENCODINGS = 16  # numbers per node


def _head(channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, out_channels))


class ADGN(GraphModel):
    """A-DGN (Gravina et al., ICLR 2023): ``X += epsilon tanh(X (W - W^T - gamma I)^T + P X U + b)``, the same W and U.

    Args:
        in_channels: number of input features.
        hidden_channels: width of all layers.
        out_channels: number of outputs.
        num_layers: how often.
        epsilon: the step.
        gamma: damping.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        epsilon: float = 0.1,
        gamma: float = 0.1,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers)
        self.epsilon, self.gamma = epsilon, gamma
        self.encoder = nn.Linear(in_channels, hidden_channels)
        self.turn = nn.Linear(hidden_channels, hidden_channels, bias=False)
        self.conv = GCNConv(hidden_channels, hidden_channels, activation="linear")
        self.head = _head(hidden_channels, out_channels)

    def _forward(self, x, graph, keys) -> Tensor:
        """Encoder, layers, head."""
        return self.head(self.propagated(self.encoder(x).relu(), graph))

    def propagated(self, x: Tensor, graph) -> Tensor:
        """All layers."""
        w = self.turn.weight
        turn = w - w.t() - self.gamma * torch.eye(len(w), dtype=w.dtype, device=w.device)
        for _ in range(self.num_layers):
            x = x + self.epsilon * torch.tanh(x @ turn.t() + self.conv(x, graph))
        return x


class GraphCON(GraphModel):
    """GraphCON-GCN (Rusch et al., ICML 2022): ``Y += dt (relu(P X W + b) - gamma X - alpha Y)``, ``X += dt Y``.

    Args:
        in_channels: number of input features.
        hidden_channels: width of all layers.
        out_channels: number of outputs.
        num_layers: how often.
        dt: the step.
        gamma: force back to 0.
        alpha: damping.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        dt: float = 1.0,
        gamma: float = 1.0,
        alpha: float = 1.0,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers)
        self.dt, self.gamma, self.alpha = dt, gamma, alpha
        self.encoder = nn.Linear(in_channels, hidden_channels)
        self.conv = GCNConv(hidden_channels, hidden_channels)
        self.head = _head(hidden_channels, out_channels)

    def _forward(self, x, graph, keys) -> Tensor:
        """Encoder, layers, head."""
        x = y = self.encoder(x).relu()
        for _ in range(self.num_layers):
            y = y + self.dt * (self.conv(x, graph) - self.gamma * x - self.alpha * y)
            x = x + self.dt * y
        return self.head(x)


@contextmanager
def in_the_table(name: str, kind: type[nn.Module]) -> Iterator[None]:
    """Let `MODELS` know a model within the block: `fit` trains all runs of those that it knows at once."""
    is_ours = issubclass(kind, GraphModel)
    if is_ours:
        MODELS[name] = kind
    try:
        yield
    finally:
        if is_ours:
            del MODELS[name]


class GPS(nn.Module):
    """GPS (Rampasek et al., NeurIPS 2022) by PyG's layer: a GIN beside attention of all nodes of a graph, with 4 heads.

    Args:
        in_channels: number of input features.
        out_channels: number of outputs.
        hidden_channels: width of all layers.
        num_layers: number of layers.
        dataset: the name of the generated task, from which nodes get their graph and their encoding.
        encoding: "laplacian" (eigenvectors) or "walk" (how likely a random walk is back after 1, 2, ... steps).
    """

    def __init__(self, in_channels, out_channels, hidden_channels, num_layers, dataset, encoding) -> None:
        super().__init__()
        self.dataset, self.encoding = dataset, encoding
        self.encoder = nn.Linear(in_channels + _ENCODINGS, hidden_channels)
        self.convs = nn.ModuleList(
            GPSConv(hidden_channels, GINConv(_head(hidden_channels, hidden_channels)), heads=4)
            for _ in range(num_layers)
        )
        self.head = _head(hidden_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Outputs of every node."""
        batch, encoding = _places(self.dataset, self.encoding, x.device)
        h = self.encoder(torch.cat([x, encoding], dim=1))
        for conv in self.convs:
            h = conv(h, edge_index, batch)
        return self.head(h)


@cache
def _places(dataset: str, kind: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """The number of the graph that each node is in, and what says where in it, by connected component."""
    graph = load_task(dataset).graph
    row, col = graph.edge_index.numpy()
    adjacency = csr_matrix((np.ones(len(row)), (row, col)), (graph.num_nodes, graph.num_nodes))
    batch = connected_components(adjacency, directed=False)[1]
    starts = np.flatnonzero(np.diff(batch, prepend=-1))  # nodes of a generated graph follow one another
    encoding = np.zeros((graph.num_nodes, _ENCODINGS), dtype=np.float32)
    known: dict[bytes, np.ndarray] = {}  # all rings are alike
    for start, end in zip(starts, [*starts[1:], graph.num_nodes], strict=True):
        own = adjacency[start:end, start:end].toarray()
        key = own.tobytes()
        if key not in known:
            known[key] = _laplacian(own) if kind == "laplacian" else _walk(own)
        encoding[start:end, : known[key].shape[1]] = known[key]
    return torch.from_numpy(batch).long().to(device), torch.from_numpy(encoding).to(device)


def _laplacian(adjacency: np.ndarray) -> np.ndarray:
    """Eigenvectors of the normalised Laplacian by rising eigenvalue, without the first, of mean square 1."""
    root = adjacency.sum(axis=1) ** -0.5
    vectors = np.linalg.eigh(np.eye(len(root)) - root[:, None] * adjacency * root)[1]
    return vectors[:, 1 : 1 + _ENCODINGS] * len(root) ** 0.5


def _walk(adjacency: np.ndarray) -> np.ndarray:
    step = adjacency / adjacency.sum(axis=1, keepdims=True)
    power, found = np.eye(len(step)), []
    for _ in range(_ENCODINGS):
        power = power @ step
        found.append(power.diagonal())
    return np.stack(found, axis=1)
