"""The four numbers of EGNN that its energy limits depend on."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

from graphjoule.errors import GraphjouleError

_KINDS: dict[str, type] = {"c_min": Real, "c_max": Real, "beta": Real, "num_layers": Integral}


@dataclass(frozen=True)
class Setting:
    """An EGNN at its initial point, without activation.

    ``X_k = s_k [(1 - c_min) P X_{k-1} + alpha X_{k-1} + beta X_0]`` with ``s_1 = sqrt(c_max)``, all other ``s_k = 1``,
    and ``alpha = c_min - beta``.

    Args:
        c_min: strength of all residual connections together, the lower energy limit.
        c_max: the upper energy limit.
        beta: the part of `c_min` that goes to ``X_0``.
        num_layers: number of layers.

    Example:
        >>> round(Setting(c_min=0.15, beta=0.1).alpha, 9)
        0.05
    """

    c_min: float = 0.2
    c_max: float = 1.0
    beta: float = 0.1
    num_layers: int = 64

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                what = "a whole number" if kind is Integral else "a number"
                raise GraphjouleError(f"{name} is {value!r}; expected {what}.")
        if not 0 <= self.c_min <= 1:
            raise GraphjouleError(f"c_min is {self.c_min}; it must be in [0, 1].")
        if not 0 < self.c_max < float("inf"):
            raise GraphjouleError(f"c_max is {self.c_max}; it must be positive.")
        if not 0 <= self.beta <= self.c_min:
            raise GraphjouleError(f"beta is {self.beta}; it must be between 0 and c_min, which is {self.c_min}.")
        if self.num_layers < 1:
            raise GraphjouleError(f"num_layers is {self.num_layers}; it must be at least 1.")

    @property
    def alpha(self) -> float:
        """The part of `c_min` that goes to the previous layer."""
        return self.c_min - self.beta

    @property
    def scales(self) -> list[float]:
        """The initial weights, each a multiple ``s_k`` of the identity."""
        return [self.c_max**0.5, *[1.0] * (self.num_layers - 1)]
