"""The two ways to turn limits into a term of the loss, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, choices


@dataclass(frozen=True)
class Method:
    """One row of `METHODS`; both functions take the gaps, the multipliers and ``rho``.

    Attributes:
        term: the term of the loss, summed over the last two axes.
        updated: the multipliers after a step, the shape of the gaps.
    """

    term: Callable[[Tensor, Tensor, float], Tensor]
    updated: Callable[[Tensor, Tensor, float], Tensor]


def _penalty(gaps: Tensor, multipliers: Tensor, rho: float) -> Tensor:
    """``rho sum relu(g)^2``."""
    return rho * torch.relu(gaps).square().sum(dim=(-2, -1))


def _augmented_lagrangian(gaps: Tensor, multipliers: Tensor, rho: float) -> Tensor:
    """``1 / (2 rho) sum(relu(lambda + rho g)^2 - lambda^2)`` (Rockafellar 1973)."""
    shifted = torch.relu(multipliers + rho * gaps)
    return (shifted.square() - multipliers.square()).sum(dim=(-2, -1)) / (2 * rho)


METHODS = {
    "penalty": Method(_penalty, lambda gaps, multipliers, rho: multipliers),
    "augmented_lagrangian": Method(
        _augmented_lagrangian, lambda gaps, multipliers, rho: torch.relu(multipliers + rho * gaps)
    ),
}


def check_settings(c_min: float, c_max: float, method: str, rho: float) -> None:
    """Refuse settings that no network could satisfy, and methods that are none."""
    if not 0 < c_min < 1:
        raise GraphjouleError(f"c_min is {c_min}; it must be between 0 and 1.")
    if not c_min <= c_max < float("inf"):
        raise GraphjouleError(
            f"c_max is {c_max}; it must be a number from c_min = {c_min} on, or no energy is within both limits."
        )
    if method not in METHODS:
        raise GraphjouleError(f"method is {method!r}; the choices are: {choices(METHODS)}.")
    if not 0 < rho < float("inf"):
        raise GraphjouleError(f"rho is {rho}; it must be positive.")
