"""`SpectralLimit`: weights held to a spectral norm after every step, in any model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.ops import limit_spectral_norm
from graphjoule.terms.orthogonal import OrthogonalPenalty
from graphjoule.terms.term import Term
from graphjoule.trace.watch import Watch


class SpectralLimit(Term):
    """Holds the square weights of a model's layers to a spectral norm after every step; it adds nothing to the loss.

    A layer ``relu(P X W)`` with ``||W||_2 <= 1`` adds neither energy nor norm, whatever the learning rate was. `fit`
    holds the weights of all runs at once, on their device; in a loop of your own call `hold` after each step. A weight
    above the limit is scaled down, see `graphjoule.ops.limit_spectral_norm`.

    Args:
        model: any module.
        layers: modules to look for weights in: names with ``*``, or types, as for `EnergyConstraint`.
        limit: the largest spectral norm.

    Example:
        >>> from graphjoule.nn import GCN
        >>> model = GCN(3, 4, 2, num_layers=4)
        >>> held = SpectralLimit(model, layers=["convs.*"])
        >>> held.spectral_limits()
        {'convs.1.linear.weight': 1.0, 'convs.2.linear.weight': 1.0}
        >>> held.hold()
        >>> bool(torch.linalg.matrix_norm(model.convs[1].linear.weight, ord=2) <= 1)
        True
    """

    def __init__(self, model: nn.Module, *, layers: Watch | Sequence[Watch] | None = None, limit: float = 1.0) -> None:
        if not 0 < limit < float("inf"):
            raise GraphjouleError(f"limit is {limit}; it must be positive.")
        self.limit = float(limit)
        self.names = OrthogonalPenalty(model, layers=layers).names
        self._model = model

    def value(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Nothing."""
        return next(self._model.parameters()).new_zeros(()), state

    def spectral_limits(self) -> dict[str, float]:
        """The weights with the limit of each."""
        return dict.fromkeys(self.names, self.limit)

    @torch.no_grad()
    def hold(self) -> None:
        """Put the weights back within the limit, in place."""
        for name in self.names:
            weight = self._model.get_parameter(name)
            weight.copy_(limit_spectral_norm(weight, self.limit))
