"""Settings and networks for tests of the theory."""

import torch
from hypothesis import strategies as st

from graphjoule.graph import Propagation
from graphjoule.measures import dirichlet_energy
from graphjoule.ops import residual_mix
from graphjoule.theory import Setting
from tests.graphs import Edges

seeds = st.integers(0, 2**16)


@st.composite
def settings(draw: st.DrawFn, num_layers: int = 6) -> Setting:
    share = st.floats(1e-6, 1)  # squares of what is smaller vanish in float64 within a few layers
    c_min = draw(st.one_of(st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.75, 1.0]), share))
    beta = draw(st.one_of(st.just(0.0), st.just(c_min), share.map(lambda part: part * c_min)))
    return Setting(c_min, draw(st.sampled_from([0.05, 0.4, 1.0, 2.0])), beta, num_layers)


def bipartite(size: int) -> Edges:
    half = torch.cartesian_prod(torch.arange(size), torch.arange(size, 2 * size)).t()
    return Edges(torch.cat([half, half.flip(0)], dim=1), None, 2 * size)


def energies(x0: torch.Tensor, graph: Propagation, setting: Setting, weights=None) -> list[float]:
    """E(X_0) .. E(X_K) of the network without activation, layer by layer."""
    x, found = x0, [float(dirichlet_energy(x0, graph))]
    for k, scale in enumerate(setting.scales):
        weight = scale * torch.eye(x.size(1), dtype=torch.float64) if weights is None else weights[k]
        x = residual_mix(x, x0, graph, setting.c_min, setting.beta) @ weight
        found.append(float(dirichlet_energy(x, graph)))
    return found


def eigenvectors(edges: Edges) -> torch.Tensor:
    """Eigenvectors of P outside the kernel, in columns."""
    values, vectors = torch.linalg.eigh(edges.dense())
    return vectors[:, values < 1 - 1e-9]


def has_edges(edges: Edges) -> bool:
    return bool(edges.adjacency().sum() > 0)
