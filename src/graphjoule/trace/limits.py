"""The paper's principle as a check: does every layer's energy stay between its two limits?"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.trace.view import TraceView

TOLERANCE = 1e-6
"""How far past a limit still counts as on it, relative: features in float32 carry energies to about this."""


@dataclass(frozen=True)
class LayerLimits:
    """The limits of one layer ``k``.

    Attributes:
        name: the layer's name.
        energy: its energy ``E(X_k)``.
        lower: its lower limit ``c_min E(X_{k-1})``.
        upper: its upper limit ``c_max E(X_0)``.
    """

    name: str
    energy: float
    lower: float
    upper: float

    @property
    def lower_slack(self) -> float:
        """How many times the lower limit the energy is; below 1 the limit is broken."""
        return _ratio(self.energy, self.lower)

    @property
    def upper_slack(self) -> float:
        """How many times the energy the upper limit is; below 1 the limit is broken."""
        return _ratio(self.upper, self.energy)

    @property
    def holds_lower(self) -> bool:
        """Whether the energy is at or above its lower limit."""
        return self.lower_slack >= 1 - TOLERANCE

    @property
    def holds_upper(self) -> bool:
        """Whether the energy is at or below its upper limit."""
        return self.upper_slack >= 1 - TOLERANCE


@dataclass(frozen=True)
class Limits:
    """The limits of all layers after the first.

    Attributes:
        c_min: factor of the lower limit.
        c_max: factor of the upper limit.
        initial: name of the row that is ``X_0``.
        initial_energy: ``E(X_0)``.
        layers: one row per layer.
    """

    c_min: float
    c_max: float
    initial: str
    initial_energy: float
    layers: tuple[LayerLimits, ...]

    @property
    def holds(self) -> bool:
        """Whether every layer is within both limits."""
        return not self.broken

    @property
    def broken(self) -> tuple[LayerLimits, ...]:
        """The layers outside a limit."""
        return tuple(layer for layer in self.layers if not (layer.holds_lower and layer.holds_upper))

    def summary(self) -> str:
        """The result in one sentence."""
        lower = sum(layer.holds_lower for layer in self.layers)
        upper = sum(layer.holds_upper for layer in self.layers)
        found = (
            "all within both limits" if self.holds else f"{lower} at or above the lower, {upper} at or below the upper"
        )
        return f"Limits c_min = {self.c_min:g}, c_max = {self.c_max:g}: of {len(self.layers)} layers {found}."

    def table(self) -> str:
        """The layers as text, one line each."""
        width = max(len(name) for name in (self.initial, "layer", *(layer.name for layer in self.layers)))
        lines = [
            f"{'layer':<{width}}  {'lower':>9}  {'energy':>9}  {'upper':>9}  {'slack':>11}",
            f"{self.initial:<{width}}  {'':>9}  {self.initial_energy:>9.3g}",
        ]
        words = {(True, True): "", (False, True): "  below", (True, False): "  above", (False, False): "  outside"}
        for layer in self.layers:
            slack = min(layer.lower_slack, layer.upper_slack)
            numbers = f"{layer.lower:>9.3g}  {layer.energy:>9.3g}  {layer.upper:>9.3g}  {slack:>9.3g} x"
            lines.append(f"{layer.name:<{width}}  {numbers}{words[layer.holds_lower, layer.holds_upper]}")
        return "\n".join(lines)

    def fields(self) -> dict[str, Any]:
        """Everything as a dict that JSON can hold."""
        judged = ("holds_lower", "holds_upper", "lower_slack", "upper_slack")
        layers = [{**asdict(layer), **{name: getattr(layer, name) for name in judged}} for layer in self.layers]
        return {**asdict(self), "holds": self.holds, "layers": layers}

    def to_json(self) -> str:
        """The same as JSON text; a slack without end is null."""
        return json_text(self.fields())


def limits(trace: TraceView, c_min: float, c_max: float, *, initial: str | None = None) -> Limits:
    r"""The limits of Dirichlet energy constrained learning at every layer, Proposition 1 of the paper.

    .. math::
        c_{\min} E(X_{k-1}) \le E(X_k) \le c_{\max} E(X_0)

    Args:
        trace: a trace with energies; its last call is looked at, of one run. Every row after ``X_0`` is a layer, so
            leave out what is not: ``trace.select("encoder", "convs.*")``.
        c_min: factor of the lower limit, in (0, 1).
        c_max: factor of the upper limit, positive; usually in (0, 1].
        initial: name of the row that is ``X_0``; by default the first.

    Returns:
        Both limits of every layer, whether they hold, and the slack.

    Example:
        >>> from graphjoule.trace import LayerTrace, RecordedTrace
        >>> energies = {"encoder": 4.0, "convs.0": 2.0, "convs.1": 0.1}
        >>> rows = [LayerTrace(name, {"energy": energy}) for name, energy in energies.items()]
        >>> found = limits(RecordedTrace(rows, ["energy"]), c_min=0.2, c_max=1.0)
        >>> found.holds, [layer.name for layer in found.broken], round(found.broken[0].lower_slack, 3)
        (False, ['convs.1'], 0.25)
    """
    if not 0 < c_min < 1:
        raise GraphjouleError(f"c_min is {c_min}; it must be between 0 and 1.")
    if not 0 < c_max < math.inf:
        raise GraphjouleError(f"c_max is {c_max}; it must be positive.")
    rows = trace.one_pass("check of the limits")
    names = [row.name for row in rows]
    if initial is not None and initial not in names:
        raise GraphjouleError(f"The trace has no row {initial!r} to be X_0; it has {', '.join(names)}.")
    rows = rows[0 if initial is None else names.index(initial) :]
    if len(rows) < 2:
        raise GraphjouleError(f"There is no layer after {rows[0].name!r}: limits need X_0 and at least one layer.")
    energies = [row.energy for row in rows]
    upper = c_max * energies[0]
    layers = tuple(
        LayerLimits(row.name, energy, c_min * before, upper)
        for row, before, energy in zip(rows[1:], energies, energies[1:], strict=False)
    )
    return Limits(c_min, c_max, rows[0].name, energies[0], layers)


def _ratio(high: float, low: float) -> float:
    """``high / low``; without end where there is nothing below, for zero is within any limit."""
    if math.isnan(high) or math.isnan(low):
        return math.nan
    return math.inf if low == 0 else high / low
