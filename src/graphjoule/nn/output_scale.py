"""A network whose outputs are numbers in the unit of their targets."""

from __future__ import annotations

import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.nn.base import GraphModel


class OutputScale(GraphModel):
    """``center + scale * model(X, P)``: what a regression trains, so that prices and shares need the same settings.

    The two are buffers, so a saved model gives its numbers in the unit of the targets it was trained on. They and the
    outputs are float64: numbers that lie far from 0 and close together would round to the same float32.

    Args:
        model: gives numbers near 0 and 1.
    """

    center: Tensor
    scale: Tensor

    def __init__(self, model: GraphModel) -> None:
        super().__init__(model.in_channels, model.hidden_channels, model.out_channels, model.num_layers)
        self.model = model
        self.parameter_group_names = model.parameter_group_names  # type: ignore[misc]
        self.is_stackable = model.is_stackable  # type: ignore[misc]
        self.register_buffer("center", torch.zeros(model.out_channels, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(model.out_channels, dtype=torch.float64))

    def set_scale(self, center: Tensor, scale: Tensor) -> None:
        """Take mean and standard deviation of the targets, each of shape ``[out_channels]``."""
        self.center.copy_(center)
        self.scale.copy_(scale)

    def in_loss_units(self, values: Tensor) -> Tensor:
        """Outputs or targets in standard deviations of the targets, in the dtype of the model."""
        return (self.centered(values) / self.scale).to(next(self.model.parameters()).dtype)

    def centered(self, values: Tensor) -> Tensor:
        """Outputs or targets less the mean of the targets: differences are the same, and squares are not as large."""
        columns = values if values.dim() == 2 else values[:, None]
        return columns - self.center.to(values.device)

    @property
    def output_center(self) -> Tensor:
        """The mean of the targets."""
        return self.center

    def forward(
        self,
        x: Features,
        graph: Propagation | Tensor,
        edge_weight: Tensor | None = None,
        *,
        key: Tensor | None = None,
    ) -> Tensor:
        """Numbers in the unit of the targets, shape ``[num_nodes, out_channels]``; see `GraphModel.forward`."""
        weights = () if edge_weight is None else (edge_weight,)
        output: Tensor = self.center + self.scale * self.model(x, graph, *weights, key=key)
        return output

    def penalty(self) -> Tensor:
        """The model's own penalty."""
        return self.model.penalty()

    def spectral_limits(self) -> dict[str, float]:
        """The model's own limits."""
        return {f"model.{name}": limit for name, limit in self.model.spectral_limits().items()}

    def kept_activations(self, *, is_fused: bool) -> int:
        """See `GraphModel.kept_activations`."""
        return self.model.kept_activations(is_fused=is_fused)

    def parameter_group(self, name: str) -> str:
        """The group that the model has for it."""
        return self.model.parameter_group(name.removeprefix("model."))
