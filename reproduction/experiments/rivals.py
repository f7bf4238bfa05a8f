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
from scipy.sparse import eye as identity
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn
from torch_geometric.nn import GINConv, GPSConv

from graphjoule import load_task
from graphjoule.nn import MODELS, FeatureLinear, GCNConv, GraphModel
from graphjoule.ops import dropout

__all__ = ["ADGN", "GPS", "GraphCON", "in_the_table"]

_ENCODINGS = 16  # numbers per node
_DENSE = 1000  # the most nodes whose eigenvectors are all computed


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
        dropout: dropout of the input and before the head.
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
        dropout: float = 0.0,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers)
        self.epsilon, self.gamma, self.dropout = epsilon, gamma, dropout
        self.encoder = FeatureLinear(in_channels, hidden_channels)
        self.turn = nn.Linear(hidden_channels, hidden_channels, bias=False)
        self.conv = GCNConv(hidden_channels, hidden_channels, activation="linear")
        self.head = _head(hidden_channels, out_channels)

    def _forward(self, x, graph, keys) -> Tensor:
        """Encoder, layers, head."""
        h = self.propagated(self.encoder(x, self.dropout, keys[0]).relu(), graph)
        return self.head(dropout(h, self.dropout, keys[-1]))

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
        dropout: dropout of the input and before the head.
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
        dropout: float = 0.0,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers)
        self.dt, self.gamma, self.alpha, self.dropout = dt, gamma, alpha, dropout
        self.encoder = FeatureLinear(in_channels, hidden_channels)
        self.conv = GCNConv(hidden_channels, hidden_channels)
        self.head = _head(hidden_channels, out_channels)

    def _forward(self, x, graph, keys) -> Tensor:
        """Encoder, layers, head."""
        x = y = self.encoder(x, self.dropout, keys[0]).relu()
        for _ in range(self.num_layers):
            y = y + self.dt * (self.conv(x, graph) - self.gamma * x - self.alpha * y)
            x = x + self.dt * y
        return self.head(dropout(x, self.dropout, keys[-1]))


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
        dataset: the name of the task, from which nodes get their graph and their encoding.
        encoding: "laplacian" (eigenvectors) or "walk" (how likely a random walk is back after 1, 2, ... steps).
        dropout: dropout of the input and before the head.
    """

    def __init__(self, in_channels, out_channels, hidden_channels, num_layers, dataset, encoding, dropout=0.0) -> None:
        super().__init__()
        self.dataset, self.encoding = dataset, encoding
        self.encoder = nn.Linear(in_channels + _ENCODINGS, hidden_channels)
        self.convs = nn.ModuleList(
            GPSConv(hidden_channels, GINConv(_head(hidden_channels, hidden_channels)), heads=4)
            for _ in range(num_layers)
        )
        self.head = _head(hidden_channels, out_channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Outputs of every node."""
        batch, encoding = _places(self.dataset, self.encoding, x.device)
        h = self.encoder(torch.cat([self.dropout(x), encoding], dim=1))
        for conv in self.convs:
            h = conv(h, edge_index, batch)
        return self.head(self.dropout(h))


@cache
def _places(dataset: str, kind: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """The number of the graph that each node is in, and what says where in it.

    A connected component of a generated task is a graph; a real one, whose components are mixed, is one graph.
    """
    graph = load_task(dataset).graph
    row, col = graph.edge_index.numpy()
    adjacency = csr_matrix((np.ones(len(row)), (row, col)), (graph.num_nodes, graph.num_nodes))
    batch = connected_components(adjacency, directed=False)[1]
    if (np.diff(batch) < 0).any():  # nodes of a generated graph follow one another
        batch = np.zeros_like(batch)
    starts = np.flatnonzero(np.diff(batch, prepend=-1))
    encoding = np.zeros((graph.num_nodes, _ENCODINGS), dtype=np.float32)
    known: dict[bytes, np.ndarray] = {}  # all rings are alike
    for start, end in zip(starts, [*starts[1:], graph.num_nodes], strict=True):
        own = adjacency[start:end, start:end].tocsr()
        key = own.indptr.tobytes() + own.indices.tobytes()
        if key not in known:
            known[key] = _laplacian(own) if kind == "laplacian" else _walk(own)
        encoding[start:end, : known[key].shape[1]] = known[key]
    return torch.from_numpy(batch).long().to(device), torch.from_numpy(encoding).to(device)


def _laplacian(adjacency: csr_matrix) -> np.ndarray:
    """Eigenvectors of the normalised Laplacian by rising eigenvalue, without the first, of mean square 1."""
    root = np.asarray(adjacency.sum(axis=1)).ravel() ** -0.5
    laplacian = identity(len(root)) - adjacency.multiply(root[:, None]).multiply(root)
    if len(root) <= _DENSE:
        vectors = np.linalg.eigh(laplacian.toarray())[1]
    else:
        values, vectors = eigsh(laplacian.tocsc(), 1 + _ENCODINGS, sigma=-0.01, v0=np.ones(len(root)))
        vectors = vectors[:, np.argsort(values)]
    return vectors[:, 1 : 1 + _ENCODINGS] * len(root) ** 0.5


def _walk(adjacency: csr_matrix) -> np.ndarray:
    """How likely a walk is back after 1, 2, ... steps: the diagonal of ``P^a P^b`` needs no power beyond the half."""
    step = adjacency.multiply(1 / adjacency.sum(axis=1)).tocsr()
    powers = [identity(len(step.indptr) - 1, format="csr")]
    while len(powers) <= _ENCODINGS // 2:
        powers.append(powers[-1] @ step)
    lengths = range(1, 1 + _ENCODINGS)
    found = [powers[length // 2].multiply(powers[length - length // 2].T).sum(axis=1) for length in lengths]
    return np.asarray(np.concatenate(found, axis=1))
