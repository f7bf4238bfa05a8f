"""One row of a trace: what one layer's output looked like at one call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from graphjoule.errors import GraphjouleError, choices


@dataclass(frozen=True)
class LayerTrace:
    """What one layer's output looked like.

    Attributes:
        name: the module's name in the model; "act#2" is the second use of ``act`` in one call of the model.
        values: the recorded measures by name.
        module: the module's class.
        channels: number of columns of the output.
        call: which call of the model it was, from 0.
        mark: what `Trace.mark` last said, such as the epoch.
        run: which run of a batch of runs; None where the output has no run axis.
        training: whether the module was in training mode.
        gradient: norm of the loss's gradient by the output, ``||dL/dX||``; None without a backward pass.
        weight_gradient: norm of the loss's gradient by all parameters of the module; None where it has no such.

    Example:
        >>> layer = LayerTrace("convs.0", {"energy": 2.0, "norm": 3.0})
        >>> layer.energy, layer["norm"]
        (2.0, 3.0)
    """

    name: str
    values: Mapping[str, float] = field(default_factory=dict)
    module: str = ""
    channels: int = 1
    call: int = 0
    mark: int | str | None = None
    run: int | None = None
    training: bool = False
    gradient: float | None = None
    weight_gradient: float | None = None

    @property
    def energy(self) -> float:
        """The Dirichlet energy ``E(X)``."""
        return self["energy"]

    @property
    def norm(self) -> float:
        """The Frobenius norm ``||X||``."""
        return self["norm"]

    def __getitem__(self, measure: str) -> float:
        found = self.numbers().get(measure)
        if found is None:
            raise GraphjouleError(f"{self.name} has no {measure!r}; recorded are: {choices(self.numbers())}.")
        return found

    def __contains__(self, measure: str) -> bool:
        return measure in self.numbers()

    def numbers(self) -> dict[str, float]:
        """The measures, and the gradients' norms where there are any."""
        gradients = {"gradient": self.gradient, "weight_gradient": self.weight_gradient}
        return {**self.values, **{name: value for name, value in gradients.items() if value is not None}}


def row_fields(row: LayerTrace) -> dict[str, Any]:
    """A row as a dict that JSON can hold."""
    return asdict(row)


def row_of(fields: Mapping[str, Any]) -> LayerTrace:
    """The row of a dict from `row_fields` that went through JSON, where NaN is null."""
    values = {name: math.nan if value is None else float(value) for name, value in fields["values"].items()}
    return LayerTrace(**{**fields, "values": values})
