"""The energy of a wave: what every layer of a `Wave` keeps, what damping takes, and the limits that follow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation, as_propagation
from graphjoule.graph.features import Features
from graphjoule.nn.base import evaluating
from graphjoule.nn.wave import Wave
from graphjoule.ops import propagate, wave_start


@dataclass(frozen=True)
class WaveEnergies:
    """What `wave_energies` found, in float64; lists begin with ``X_0`` and have one more entry than there are layers.

    Attributes:
        energy: Dirichlet energy ``E(X_k)``, channels weighted by their squared speed.
        total: ``J_k = (1 - delta / 2) |V|^2 + E(X) + mu |X - X_0|^2 - h <V, (I - P) X C + mu (X - X_0)>``.
        lost: what damping has taken until layer k, ``delta / 2`` times the sum of ``|V_j + V_{j-1}|^2``.
        norm: ``|X_k|``, which never exceeds ``|X_0|``.
        potential: ``E(X_k) + mu |X_k - X_0|^2``, which never exceeds ``E(X_0)``.
        lower: ``(mu / (mu + b))^2 E(X_0)``, which the energy of the limit of a damped wave is never below.
    """

    energy: list[float]
    total: list[float]
    lost: list[float]
    norm: list[float]
    potential: list[float]
    lower: float

    @property
    def drift(self) -> float:
        """How far ``J_k`` and what was lost are from ``J_0`` together, at most, relative to ``E(X_0)``: rounding."""
        balance = (abs(total + lost - self.total[0]) for total, lost in zip(self.total, self.lost, strict=True))
        return max(balance) / self.energy[0] if self.energy[0] else 0.0


@torch.no_grad()
def wave_energies(model: Wave, x: Features, graph: Propagation | Tensor) -> WaveEnergies:
    """The energies of every layer of a wave network, in evaluation mode, in the dtype of the model.

    The balance ``J_k + lost_k = J_0`` holds exactly at every layer, whatever the weights are; how far it does in
    floating-point numbers is `WaveEnergies.drift`.

    Args:
        model: the network.
        x: node features.
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> model = Wave(2, 8, 3, num_layers=100, delta=0.0).double()
        >>> wave_energies(model, torch.eye(3, 2).double(), edge_index).drift < 1e-13
        True
    """
    if not isinstance(model, Wave):
        raise GraphjouleError(f"{type(model).__name__} is not a Wave, and the balance of energies is about no other.")
    graph = as_propagation(graph, x.size(0), like=next(model.parameters()))
    graph.require_whole("wave_energies")
    with evaluating(model):
        x0 = model.encoder(x)
    first, speed = model.layers()[0], model.channel_speeds(x0)
    weight = 1.0 if speed is None else speed.double()
    h, delta, mu = first.h(graph), first.delta, first.mu
    x_k, v = x0, wave_start(x0, graph, h=h, delta=delta, speed=speed)
    lost = x0.new_zeros((), dtype=torch.float64)
    found: list[Tensor] = []

    def note() -> None:
        pull = propagate(x_k, graph, a=-1.0, alpha=1.0).double() * weight
        away, speeds = (x_k - x0).double(), v.double()
        energy = (x_k.double() * pull).sum()
        force = (speeds * (pull + mu * away)).sum()
        potential = energy + mu * away.square().sum()
        total = (1 - delta / 2) * speeds.square().sum() + potential - h * force
        found.append(torch.stack([energy, total, lost, torch.linalg.vector_norm(x_k.double()), potential]))

    note()
    for conv in model.convs:
        before = v
        x_k, v = conv(x_k, v, x0, graph, speed)
        lost = lost + delta / 2 * (v.double() + before.double()).square().sum()
        note()
    energy, total, taken, norm, potential = (column.tolist() for column in torch.stack(found).unbind(1))
    share = (mu / (mu + graph.laplacian_bound)) ** 2 if mu else 0.0
    return WaveEnergies(energy, total, taken, norm, potential, share * energy[0])
