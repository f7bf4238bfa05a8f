"""`OrthogonalPenalty`: EGNN's penalty on the weights, alone and for any model."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.terms.term import Term
from graphjoule.trace.watch import Watch, watched_modules


class OrthogonalPenalty(Term):
    """``gamma sum_k ||W_k - I||_F`` over the square weights of a model's layers, the first against ``sqrt(c_max) I``.

    The second of the three ways to keep to the paper's limits: weights near the identity neither add nor take energy.
    EGNN has this term of its own and starts at its minimum; here it is for models that have neither.

    Args:
        model: any module.
        layers: modules to look for weights in, in order: names with ``*``, or types, as for `EnergyConstraint`.
        gamma: factor of the penalty.
        c_max: factor of the upper limit, which the first weight takes on.

    Example:
        >>> from graphjoule.nn import GCN
        >>> model = GCN(3, 4, 2, num_layers=4)
        >>> penalty = OrthogonalPenalty(model, layers=["convs.*"], gamma=0.5)
        >>> penalty.names
        ['convs.1.linear.weight', 'convs.2.linear.weight']
        >>> with torch.no_grad():
        ...     for name in penalty.names:
        ...         _ = model.get_parameter(name).copy_(torch.eye(4))
        >>> penalty().item()
        0.0
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Watch | Sequence[Watch] | None = None,
        gamma: float = 20.0,
        c_max: float = 1.0,
    ) -> None:
        if not 0 <= gamma < float("inf"):
            raise GraphjouleError(f"gamma is {gamma}; it must be a number that is not negative.")
        if not 0 < c_max < float("inf"):
            raise GraphjouleError(f"c_max is {c_max}; it must be positive.")
        self.gamma, self.c_max = gamma, c_max
        self._model = model
        self.names = [
            f"{layer}.{name}"
            for layer, module in watched_modules(model, layers).items()
            for name, weight in module.named_parameters()
            if weight.dim() == 2 and weight.size(0) == weight.size(1)
        ]

    def __call__(self) -> Tensor:
        """The term to add to the loss; zero for a model without square weights. Its gradient at zero is zero."""
        # Not `get_parameter`: inside `functional_call` a parameter is a plain tensor, which that refuses.
        weights: list[Tensor] = [attrgetter(name)(self._model) for name in self.names]
        if not weights:
            return next(self._model.parameters()).new_zeros(())
        starts = [self.c_max**0.5, *[1.0] * (len(weights) - 1)]
        offsets = [
            weight - start * torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
            for weight, start in zip(weights, starts, strict=True)
        ]
        return self.gamma * torch.stack([torch.linalg.vector_norm(offset) for offset in offsets]).sum()

    def value(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `Term.value`; there is no state."""
        return self(), state
