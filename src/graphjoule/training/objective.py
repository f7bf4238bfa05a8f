"""One run's model and its loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphjoule.constraint import EnergyConstraint
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


def build_constraint(recipe: Recipe, model: GraphModel, graph: Propagation) -> EnergyConstraint | None:
    """The recipe's constraint, hooked on every graph layer of a model, or None."""
    settings = recipe.constraint
    if settings is None:
        return None
    return EnergyConstraint(model, graph, layers="convs.*", **settings.model_dump(exclude={"every"}))


class Objective(nn.Module):
    """Model, cross entropy, penalty and constraint in one forward, which is what `functional_call` can call."""

    def __init__(self, model: GraphModel, constraint: EnergyConstraint | None = None) -> None:
        super().__init__()
        self.model = model
        self.constraint = constraint

    def forward(
        self,
        x: Features,
        graph: Propagation,
        index: Tensor,
        target: Tensor,
        key: Tensor | None,
        multipliers: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Training loss, task loss, the scores of the nodes in `index`, and the gaps of the constraint if it has one.

        Multipliers are an argument because each run has its own; what they become is for the caller to decide.
        """
        logits = self.model(x, graph, key=key)[index]
        loss = task_loss = F.cross_entropy(logits, target)
        gaps = logits.new_zeros(2, 0)
        if self.training:
            loss = loss + self.model.penalty()
        if self.constraint is not None and multipliers is not None:
            gaps = self.constraint.gaps()
            loss = loss + self.constraint.term(gaps, multipliers)
            self.constraint.forget()  # inside a vmap nothing may be kept
        return loss, task_loss, logits, gaps
