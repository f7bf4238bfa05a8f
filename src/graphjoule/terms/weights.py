"""Terms on the square weights of any model's layers: EGNN's penalty by itself, and a limit of the spectral norm."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError, check_number
from graphjoule.nn.base import whole_weight, zero_of
from graphjoule.ops import limit_spectral_norm
from graphjoule.terms.term import Term
from graphjoule.trace.watch import Watch, watched_modules


def square_weights(model: nn.Module, layers: Watch | Sequence[Watch] | None) -> list[str]:
    """Names of the square weights of some modules, in their order, each weight once; see `OrthogonalPenalty`."""
    if not isinstance(model, nn.Module):
        raise GraphjouleError(f"The model is of type {type(model).__name__}; expected a torch.nn.Module.")
    weights = {
        f"{layer}.{name}": weight
        for layer, module in watched_modules(model, layers).items()
        for name, weight in module.named_parameters()
    }
    if any(getattr(weight, "_fsdp_flattened", False) for weight in weights.values()):  # no square one is left
        raise GraphjouleError(
            "The weights are flat parts of FullyShardedDataParallel; make the term before the model is wrapped."
        )
    first = {id(weight): name for name, weight in reversed(weights.items())}  # one that layers share has many names
    square = [name for name, weight in weights.items() if weight.dim() == 2 and weight.size(0) == weight.size(1)]
    return [name for name in square if first[id(weights[name])] == name]


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
        check_number("gamma", gamma)
        check_number("c_max", c_max)
        if not 0 <= gamma < float("inf"):
            raise GraphjouleError(f"gamma is {gamma}; it must be a number that is not negative.")
        if not 0 < c_max < float("inf"):
            raise GraphjouleError(f"c_max is {c_max}; it must be positive.")
        self.gamma, self.c_max = gamma, c_max
        self._model, self.names = model, square_weights(model, layers)

    def __call__(self) -> Tensor:
        """The term to add to the loss; zero for a model without square weights. Its gradient at zero is zero."""
        # Not `get_parameter`: inside `functional_call` a parameter is a plain tensor, which that refuses.
        weights: list[Tensor] = [whole_weight(attrgetter(name)(self._model)) for name in self.names]
        if not weights:
            return zero_of(self._model)
        starts = [self.c_max**0.5, *[1.0] * (len(weights) - 1)]
        offsets = [
            weight - start * torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
            for weight, start in zip(weights, starts, strict=True)
        ]
        return self.gamma * torch.stack([torch.linalg.vector_norm(offset) for offset in offsets]).sum()

    def value(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `Term.value`; there is no state."""
        return self(), state


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
        check_number("limit", limit)
        if not 0 < limit < float("inf"):
            raise GraphjouleError(f"limit is {limit}; it must be positive.")
        self.limit = float(limit)
        self._model, self.names = model, square_weights(model, layers)

    def value(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Nothing."""
        return zero_of(self._model), state

    def spectral_limits(self) -> dict[str, float]:
        """The weights with the limit of each."""
        return dict.fromkeys(self.names, self.limit)

    @torch.no_grad()
    def hold(self) -> None:
        """Put the weights back within the limit, in place."""
        for name in self.names:
            weight = self._model.get_parameter(name)
            weight.copy_(limit_spectral_norm(weight, self.limit))
