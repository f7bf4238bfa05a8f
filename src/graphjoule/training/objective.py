"""One run's model and its loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from graphjoule.constraint import EnergyConstraint, OrthogonalPenalty
from graphjoule.errors import GraphjouleError
from graphjoule.features import Features
from graphjoule.graph import Propagation
from graphjoule.initial import initialised
from graphjoule.nn import GraphModel
from graphjoule.recipe import Recipe
from graphjoule.tasks import NodeTask

NO_NODE = -100
"""Target of a place that holds no node: processes have different numbers of a split's nodes, and so have runs."""


def build_model(recipe: Recipe, task: NodeTask, seed: int) -> GraphModel:
    """The recipe's model for a task, initialised from a seed alone in any thread, see `initialised`."""
    return initialised(recipe, task.num_features, task.num_classes, seed)


def build_constraint(recipe: Recipe, model: GraphModel, graph: Propagation) -> EnergyConstraint | None:
    """The recipe's constraint, hooked on every graph layer of a model, or None."""
    settings = recipe.constraint
    if settings is None:
        return None
    return EnergyConstraint(model, graph, layers="convs.*", **settings.model_dump(exclude={"every"}))


def build_penalty(recipe: Recipe, model: GraphModel) -> OrthogonalPenalty | None:
    """The recipe's penalty on the weights of every graph layer, or None; the model's own is not meant.

    Raises:
        GraphjouleError: the model has no such weights, and would have none at any depth.
    """
    if recipe.orthogonal_penalty is None:
        return None
    c_max = recipe.options.get("c_max", 1.0)
    penalty = OrthogonalPenalty(model, layers="convs.*", gamma=recipe.orthogonal_penalty, c_max=c_max)
    if not penalty.names and not OrthogonalPenalty(_deeper(recipe, model), layers="convs.*").names:
        raise GraphjouleError(
            f"orthogonal_penalty is {recipe.orthogonal_penalty}, but a graph layer of {recipe.model} has no square "
            "weight that it could pull to the identity, at any depth; leave it out or choose another model."
        )
    return penalty


def _deeper(recipe: Recipe, model: GraphModel) -> GraphModel:
    """The same model with two layers more: one between the first and the last, if those are not like the others."""
    deeper = recipe.model_copy(update={"num_layers": model.num_layers + 2})
    return initialised(deeper, model.in_channels, model.out_channels, seed=0)


@dataclass(frozen=True)
class SharedMean:
    """How one process's part of a loss is counted so that the parts of all processes add up to the whole.

    Attributes:
        num_nodes: number of nodes of all processes that the mean is over.
        num_processes: among how many a term that all of them have alike is divided.
    """

    num_nodes: int
    num_processes: int

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross entropy of this process's nodes over the number of all; `NO_NODE` does not count."""
        return F.cross_entropy(logits, target, reduction="sum", ignore_index=NO_NODE) / self.num_nodes


class Objective(nn.Module):
    """Model, cross entropy, penalties and constraint in one forward, which is what `functional_call` can call."""

    def __init__(
        self,
        model: GraphModel,
        constraint: EnergyConstraint | None = None,
        orthogonal: OrthogonalPenalty | None = None,
        *,
        shared: SharedMean | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.constraint = constraint
        self.orthogonal = orthogonal
        self.shared = shared

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
        loss = task_loss = F.cross_entropy(logits, target) if self.shared is None else self.shared.loss(logits, target)
        gaps = logits.new_zeros(2, 0)
        if self.training:
            penalty = self.penalty()
            loss = loss + (penalty if self.shared is None else penalty / self.shared.num_processes)
        if self.constraint is not None and multipliers is not None:
            gaps = self.constraint.gaps()
            loss = loss + self.constraint.term(gaps, multipliers)
            self.constraint.forget()  # inside a vmap nothing may be kept
        return loss, task_loss, logits, gaps

    def penalty(self) -> Tensor:
        """The model's own penalty, and the recipe's."""
        own = self.model.penalty()
        return own if self.orthogonal is None else own + self.orthogonal()
