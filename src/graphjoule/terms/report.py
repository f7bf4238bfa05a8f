"""How far each layer is from its limits, in words and numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from graphjoule.files import json_text


@dataclass(frozen=True)
class LayerState:
    """One layer's limits.

    Attributes:
        name: the layer's name.
        lower_gap: ``log(c_min E(X_{k-1}) / E(X_k))``; positive where the lower limit is broken.
        upper_gap: ``log(E(X_k) / (c_max E(X_0)))``; positive where the upper limit is broken.
        lower_multiplier: of the lower limit, not negative.
        upper_multiplier: of the upper limit, not negative.
    """

    name: str
    lower_gap: float
    upper_gap: float
    lower_multiplier: float = 0.0
    upper_multiplier: float = 0.0

    @property
    def violation(self) -> float:
        """By which factor the worse limit is missed, less 1: 0.01 is one per cent; 0 within both."""
        return _expm1(max(self.lower_gap, self.upper_gap, 0.0))

    @property
    def slackness(self) -> float:
        """``max |lambda g|`` of the two limits: zero where each either binds or does not matter."""
        return max(abs(self.lower_gap * self.lower_multiplier), abs(self.upper_gap * self.upper_multiplier))


@dataclass(frozen=True)
class ConstraintReport:
    """The limits of all layers of one run.

    Attributes:
        initial: name of ``X_0``.
        layers: one row per layer after it.

    Example:
        >>> report = ConstraintReport("encoder", (LayerState("convs.0", 0.5, -2.0), LayerState("convs.1", -0.2, -1.9)))
        >>> round(report.max_violation, 3), report.num_broken
        (0.649, 1)
    """

    initial: str
    layers: tuple[LayerState, ...]

    @property
    def max_violation(self) -> float:
        """The largest violation of all layers."""
        return max(layer.violation for layer in self.layers)

    @property
    def max_slackness(self) -> float:
        """The largest ``|lambda g|``: how well complementary slackness holds."""
        return max(layer.slackness for layer in self.layers)

    @property
    def num_broken(self) -> int:
        """How many layers miss a limit by more than one per cent."""
        return sum(not layer.violation <= 0.01 for layer in self.layers)

    def __str__(self) -> str:
        return (
            f"{self.num_broken} of {len(self.layers)} layers after {self.initial} miss a limit by more than 1 %; "
            f"the largest violation is {100 * self.max_violation:.3g} %, the largest |lambda g| "
            f"{self.max_slackness:.2g}."
        )

    def table(self) -> str:
        """The layers as text, one line each."""
        width = max(len(name) for name in ("layer", *(layer.name for layer in self.layers)))
        head = f"{'layer':<{width}}  {'lower gap':>9}  {'upper gap':>9}  {'violation':>9}  {'lambda':>17}"
        return "\n".join([head, *(_line(layer, width) for layer in self.layers)])

    def fields(self) -> dict[str, Any]:
        """Everything as a dict that JSON can hold."""
        rows = [{**asdict(layer), "violation": layer.violation} for layer in self.layers]
        return {"initial": self.initial, "max_violation": self.max_violation, "layers": rows}

    def to_json(self) -> str:
        """The same as JSON text."""
        return json_text(self.fields())


def _line(layer: LayerState, width: int) -> str:
    gaps = f"{layer.lower_gap:>9.3g}  {layer.upper_gap:>9.3g}  {100 * layer.violation:>7.3g} %"
    return f"{layer.name:<{width}}  {gaps}  {layer.lower_multiplier:>8.3g} {layer.upper_multiplier:>8.3g}"


def _expm1(gap: float) -> float:
    try:
        return math.expm1(gap)
    except OverflowError:
        return math.inf
