"""Models that a trace watches, and what their rows should be."""

from functools import partial

import torch
from torch import nn

from graphjoule.measures.energy import dirichlet_energy
from tests.graphs import Edges, normal

single = partial(normal, dtype=torch.float32)


class Plain(nn.Module):
    """A model that knows nothing of graphjoule, with outputs that are node features and some that are not."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 4), nn.Linear(4, 3)
        self.pool = nn.AdaptiveAvgPool1d(1)
        self.embedding = nn.Embedding(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.embedding(torch.tensor([0]))  # one row: not node features
        h = self.second(self.first(x).relu())
        self.pool(h[:, :2].t())  # as many rows as channels: not node features
        return h


def hooks(model: nn.Module) -> int:
    tables = [(m._forward_hooks, m._forward_pre_hooks) for m in model.modules()]
    tables += [(p._backward_hooks or (),) for p in model.parameters()]
    return sum(len(table) for group in tables for table in group)


def names(trace):
    return [row.name for row in trace.layers]


def norm(x: torch.Tensor) -> float:
    return float(x.detach().double().norm())


def energy(x: torch.Tensor, edges: Edges) -> float:
    return float(dirichlet_energy(x.detach(), edges.graph()))


class Odd(nn.Module):
    """Gives whatever it is told to."""

    def __init__(self, give):
        super().__init__()
        self.give, self.linear = give, nn.Linear(2, 4)

    def forward(self, x):
        return self.give(self.linear(x))
