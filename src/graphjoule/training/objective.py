"""One run's model and its loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphjoule.features import Features
from graphjoule.graph import Propagation
from graphjoule.nn import MODELS, GraphModel
from graphjoule.recipe import Recipe
from graphjoule.tasks import NodeTask


def build_model(recipe: Recipe, task: NodeTask, seed: int) -> GraphModel:
    """The recipe's model for a task, initialised from a seed; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[recipe.model](
            task.num_features, recipe.hidden_channels, task.num_classes, recipe.num_layers, **recipe.options
        )


class Objective(nn.Module):
    """Model, cross entropy and penalty in one forward, which is what `functional_call` can call."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, x: Features, graph: Propagation, index: Tensor, target: Tensor, key: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Training loss, task loss and the scores of the nodes in `index`."""
        logits = self.model(x, graph, key=key)[index]
        task_loss = F.cross_entropy(logits, target)
        return (task_loss + self.model.penalty() if self.training else task_loss), task_loss, logits
