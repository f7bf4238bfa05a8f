"""`Term`: what may be added to anybody's loss."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from graphjoule.graph.features import Features


class Term(ABC):
    """Something added to the loss of one model, with a state of its own.

    A term belongs to the model it was made with. A trainer calls `see` and `value` after each forward pass and
    `updated` after each step. State goes in and comes out as tensors, so that many runs can train in one program, each
    with its own; a term must not keep any of it. A term without a state implements `value` alone. A term that compares
    `views` of the same nodes says how many, what each is given, and what they come to together.

    Example:
        >>> class SmallHead(Term):
        ...     def __init__(self, model, graph):
        ...         self.model = model
        ...     def value(self, state):
        ...         return 0.1 * self.model.head.weight.square().sum(), state
    """

    views: int = 1
    """How many passes a training step makes of the model; the loss is the mean over them."""

    def initial(self) -> Tensor:
        """The state before the first step, made after the model has been called once; empty by default."""
        return torch.zeros(0)

    @abstractmethod
    def value(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The number to add to the loss of the last forward pass, and what `updated` needs to know about it."""

    def view(self, x: Features, key: Tensor) -> Features:
        """The features that a pass is given, from those of the task and a key of its own; by default the same."""
        return x

    def see(self, output: Tensor) -> None:  # noqa: B027 - most look at weights or layers
        """Look at what the model returned in this pass, read out to a row per node or graph; by default not."""

    def joined(self, state: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """What several views add to the mean of their losses, and what `updated` needs to know of them.

        Args:
            state: of one run.
            seen: what `value` has seen in each view, shape ``[views, ...]``.
        """
        return torch.zeros((), dtype=seen.dtype, device=seen.device), seen.mean(dim=0)

    def updated(self, state: Tensor, seen: Tensor, epoch: Tensor) -> Tensor:
        """The state after the step of an epoch, counted from 1; by default unchanged."""
        return state

    def spectral_limits(self) -> dict[str, float]:
        """Weights of the model that a trainer holds to a spectral norm after every step, by name; by default none."""
        return {}

    def forget(self) -> None:  # noqa: B027 - most keep nothing
        """Let go of what the last forward pass left behind; by default nothing is kept."""


class ModelPenalty(Term):
    """The term that a model brings itself: what its method ``penalty`` returns.

    Args:
        model: a module with a method ``penalty`` without arguments.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def value(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The model's penalty."""
        return self._model.penalty(), state  # type: ignore[operator]

    def spectral_limits(self) -> dict[str, float]:
        """The model's own limits, if it has a method of this name."""
        own = getattr(self._model, "spectral_limits", None)
        return own() if callable(own) else {}
