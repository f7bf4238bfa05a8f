"""The closed law of reach: how many steps of ``P`` a network with initial residuals makes, whatever its depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.propagation import exact_propagation
from graphjoule.measures.eigenvalues import Floats
from graphjoule.measures.reach import Reach, reach_of_rows
from graphjoule.theory.layers import Setting

LAWS: dict[str, Callable[[Mapping[str, Any]], tuple[float, float]]] = {
    "egnn": lambda options: (options["c_min"], options["beta"]),
    "appnp": lambda options: (options["alpha"], options["alpha"]),
    "gcnii": lambda options: (options["alpha"], options["alpha"]),
    "sgc": lambda options: (0.0, 0.0),
}
"""``c_min`` and ``beta`` of each network whose reach has a closed law, from its options."""


@dataclass(frozen=True)
class StepLaw:
    r"""The steps of a network ``X_k = (1 - c_min) P X_{k-1} + (c_min - beta) X_{k-1} + beta X_0``.

    That is EGNN at its initial point, and where training leaves the weights near the identity and the activation
    inert; APPNP and GCNII with ``c_min = beta = alpha``; SGC with both 0. Then ``X_K = sum_j a_j P^j X_0`` with
    ``a_j >= 0`` and ``sum_j a_j = 1``: a node sees what random walks bring that make ``j`` steps with probability
    ``a_j``. The mean number of steps is

    .. math:: \sum_j j \, a_j = \frac{1 - c_{\min}}{\beta} \big( 1 - (1 - \beta)^K \big) < \frac{1 - c_{\min}}{\beta}

    Args:
        c_min: strength of all residual connections together.
        beta: the part of it that goes to ``X_0``.
        num_layers: the depth ``K``.

    Example:
        >>> law = StepLaw(c_min=0.15, beta=0.1, num_layers=64)
        >>> round(law.mean_steps, 2), round(law.most_steps, 2), law.layers_in_use()
        (8.49, 8.5, 29)
    """

    c_min: float
    beta: float
    num_layers: int

    def __post_init__(self) -> None:
        Setting(c_min=self.c_min, beta=self.beta, num_layers=self.num_layers)  # refuses what is no setting

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any], num_layers: int) -> StepLaw:
        """The law of a network by its name in `MODELS` and its options."""
        if name not in LAWS:
            raise GraphjouleError(f"The reach of {name} has no closed law; there is one for {', '.join(LAWS)}.")
        c_min, beta = LAWS[name](options)
        return cls(float(c_min), float(beta), num_layers)

    def __str__(self) -> str:
        return (
            f"with weights near the identity a node sees what random walks of {self.mean_steps:.3g} steps on average "
            f"bring; 95 % of the steps are made by layer {self.layers_in_use()}"
        )

    @property
    def mean_steps(self) -> float:
        """The mean number of steps."""
        if self.beta == 0:
            return (1 - self.c_min) * self.num_layers
        return (
            (1 - self.c_min) / self.beta * -math.expm1(self.num_layers * math.log1p(-self.beta))
            if self.beta < 1
            else 0.0
        )

    @property
    def most_steps(self) -> float:
        """What the mean number of steps tends to with endless depth; infinite without `beta`."""
        if self.beta:
            return (1 - self.c_min) / self.beta
        return 0.0 if self.c_min == 1 else math.inf

    def layers_in_use(self, share: float = 0.95) -> int:
        """The fewest layers that make this share of the steps of all; the layers after them add hardly any."""
        if not 0 < share <= 1:
            raise GraphjouleError(f"share is {share}; it must be in (0, 1].")
        if self.beta == 1:
            return 1
        rate = math.log1p(-self.beta)
        made = math.expm1(self.num_layers * rate)
        layers = math.log1p(share * made) / rate if made else share * self.num_layers  # without beta all make as many
        return min(self.num_layers, math.ceil(layers - 1e-9))

    def steps(self) -> Floats:
        """The probabilities ``a_0 .. a_K`` of the numbers of steps."""
        start = np.zeros(self.num_layers + 1)
        start[0] = 1
        weights = start
        for _ in range(self.num_layers):
            moved = np.concatenate([[0.0], weights[:-1]])
            weights = (1 - self.c_min) * moved + (self.c_min - self.beta) * weights + self.beta * start
        return weights

    def reach(self, graph: Propagation | Tensor, *, num_nodes: int = 128, seed: int = 0) -> Reach:
        """What `graphjoule.trace.reach` measures of such a network on a graph, from the law alone.

        Influences are those of one channel; a network of ``d`` channels has ``d`` times as much at every hop.

        Args:
            graph: the graph.
            num_nodes: how many nodes to average over.
            seed: what they are drawn with.

        Example:
            >>> edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
            >>> path = Propagation.from_edge_index(edges, symmetrize=True)
            >>> round(StepLaw(c_min=0.0, beta=0.0, num_layers=2).reach(path).mean, 2)
            0.73
        """
        graph = exact_propagation(graph).to(dtype=torch.float64)
        if num_nodes < min(2, graph.num_nodes):
            raise GraphjouleError(f"num_nodes is {num_nodes}; expected at least 2, as one has no standard error.")
        order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
        nodes = order[:num_nodes].to(graph.device)

        def influences(part: Tensor) -> Tensor:
            start = torch.zeros(graph.num_nodes, len(part), dtype=torch.float64, device=graph.device)
            start[nodes[part], torch.arange(len(part), device=graph.device)] = 1
            x = start
            for _ in range(self.num_layers):
                x = (1 - self.c_min) * graph.product(x) + (self.c_min - self.beta) * x + self.beta * start
            return x.t()

        return reach_of_rows(influences, nodes, graph, at_once=128, num_all=graph.num_nodes)
