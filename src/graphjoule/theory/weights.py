"""What trained weights still guarantee: singular values, energy intervals layer by layer, and which limits held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.graph import Propagation
from graphjoule.measures.spectrum import Spectrum, spectrum
from graphjoule.theory.interval import Enclosure, Verdict
from graphjoule.theory.propagated import energy_intervals


@dataclass(frozen=True)
class WeightLayer:
    """One layer with its weight as it is.

    Attributes:
        layer: its number, from 1.
        s_min: the least squared singular value of ``W``.
        s_max: the largest squared singular value of ``W``.
        step: ``E(X_k) / E(X_{k-1})`` lies in this interval, whatever the features.
        total: ``E(X_k) / E(X_0)`` lies in this interval.
        measured_step: ``E(X_k) / E(X_{k-1})`` of the energies that were given.
        measured_total: ``E(X_k) / E(X_0)`` of the energies that were given.
        keeps_lower: whether ``E(X_k) >= c_min E(X_{k-1})``: of the given energies, else as far as the weights tell.
        keeps_upper: whether ``E(X_k) <= c_max E(X_0)``, likewise.
    """

    layer: int
    s_min: float
    s_max: float
    step: Enclosure
    total: Enclosure
    measured_step: float | None
    measured_total: float | None
    keeps_lower: Verdict
    keeps_upper: Verdict


@dataclass(frozen=True)
class WeightReport:
    """The layers of an EGNN-like model with the limits they are held against."""

    c_min: float
    c_max: float
    layers: list[WeightLayer]

    def table(self) -> str:
        """The layers as text, one line each."""
        lines = [f"{'layer':>5}  {'s_min':>8}  {'s_max':>8}  {'E_k / E_k-1':>21}  {'E_k / E_0':>21}  lower    upper"]
        for layer in self.layers:
            step, total = (f"{ends.low:>9.3g} .. {ends.high:<8.3g}" for ends in (layer.step, layer.total))
            lines.append(
                f"{layer.layer:>5}  {layer.s_min:>8.3g}  {layer.s_max:>8.3g}  {step}  {total}"
                f"  {layer.keeps_lower:<7}  {layer.keeps_upper}"
            )
        return "\n".join(lines)

    def to_json(self) -> str:
        """Everything as JSON; what is not bounded is null."""
        return json_text(asdict(self))


def weight_report(
    model: nn.Module, graph: Propagation | Tensor | Spectrum, energies: Sequence[float] | None = None
) -> WeightReport:
    r"""Singular values of every weight of an EGNN-like model, and the energies they allow on a graph.

    The root of the energy is a seminorm, so with ``t(p) = (1 - c_min) p + alpha`` over the graph's spectrum

    .. math::
        \sqrt{E(X_k)} \le \sigma_{\max}(W_k) \big( \max|t| \sqrt{E(X_{k-1})} + \beta \sqrt{E(X_0)} \big)

    and likewise from below. A second bound follows the network whose weights are the nearest multiples of the identity,
    which is a polynomial in ``P``, and adds up how far the true weights lead away from it; the intervals are where both
    hold. At the initial point they are exact. The activation is taken to do nothing, as in the paper's proofs: SReLU
    does nothing where no entry is below its shift, and `srelu_energy_limit` says what it can do elsewhere.

    Args:
        model: a model whose `convs` are layers with `weight`, `c_min`, `beta` and `scale`, such as `EGNN`; ``c_max`` is
            the square of the first scale.
        graph: the graph, or its spectrum if it is at hand.
        energies: measured ``E(X_0) .. E(X_K)``, as a `Trace` gives them; then these decide which limits held.

    Returns:
        The layers with their intervals and verdicts.

    Example:
        >>> import torch
        >>> from graphjoule.nn import EGNN
        >>> pair = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
        >>> report = weight_report(EGNN(3, 4, 2, num_layers=2, c_min=0.2, beta=0.1), pair)
        >>> [(layer.s_max, round(layer.total.high, 9)) for layer in report.layers]
        [(1.0, 0.04), (1.0, 0.0144)]
    """
    convs = _convs(model)
    c_min, beta, scale = (float(getattr(convs[0], name)) for name in ("c_min", "beta", "scale"))
    if energies is not None and len(energies) != len(convs) + 1:
        raise GraphjouleError(
            f"{len(energies)} energies were given; expected {len(convs) + 1}, those of X_0 to X_{len(convs)}."
        )
    found = graph if isinstance(graph, Spectrum) else spectrum(graph)
    if found.interval is None:
        raise GraphjouleError("The graph has no edges, so no features have energy and no weight can keep any.")
    weights = [conv.weight.detach().cpu().double() for conv in convs]
    ratios = [_measured(energies, k) for k in range(1, len(convs) + 1)]
    layers = [
        _layer(k, Enclosure(c_min, scale**2), values, step, total, *measured)
        for k, ((values, step, total), measured) in enumerate(
            zip(energy_intervals(found, weights, c_min, beta), ratios, strict=True), start=1
        )
    ]
    return WeightReport(c_min, scale**2, layers)


def _layer(
    k: int,
    limits: Enclosure,
    singular: Tensor,
    step: Enclosure,
    total: Enclosure,
    measured_step: float | None,
    measured_total: float | None,
) -> WeightLayer:
    seen_step = step if measured_step is None else Enclosure(measured_step, measured_step)
    seen_total = total if measured_total is None else Enclosure(measured_total, measured_total)
    return WeightLayer(
        layer=k,
        s_min=float(singular.min() ** 2),
        s_max=float(singular.max() ** 2),
        step=step,
        total=total,
        measured_step=measured_step,
        measured_total=measured_total,
        keeps_lower=seen_step.is_at_least(limits.low),
        keeps_upper=seen_total.is_at_most(limits.high),
    )


def _convs(model: nn.Module) -> list[Any]:
    """The layers of an EGNN-like model, or a sentence about what is missing."""
    convs = list(getattr(model, "convs", []))
    asked = ("weight", "c_min", "beta", "scale")
    if not convs or not all(hasattr(conv, name) for conv in convs for name in asked):
        raise GraphjouleError(
            f"{type(model).__name__} is not a model whose `convs` have {', '.join(asked)}; expected one such as EGNN."
        )
    if any(getattr(conv, "norm", None) is not None for conv in convs):
        raise GraphjouleError(
            "The layers have a batch norm, which rescales every channel: their weights bound nothing."
        )
    if len({(conv.c_min, conv.beta) for conv in convs}) > 1:
        raise GraphjouleError("The layers differ in c_min or beta; expected the same in all of them.")
    return convs


def _measured(energies: Sequence[float] | None, k: int) -> tuple[float | None, float | None]:
    """Ratios of layer k to the one before and to the first, None where there is nothing to divide by."""
    if energies is None:
        return None, None
    before, first = float(energies[k - 1]), float(energies[0])
    return (float(energies[k]) / before if before else None), (float(energies[k]) / first if first else None)
