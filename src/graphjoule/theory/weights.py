"""What trained weights still guarantee: singular values, energy intervals layer by layer, and which limits held."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.graph import Propagation
from graphjoule.measures import Spectrum, spectrum
from graphjoule.theory.layers import Enclosure, Verdict, covering, polynomials


@dataclass(frozen=True)
class WeightLayer:
    """One layer with its weight as it is.

    Attributes:
        layer: its number, from 1.
        s_min: the least squared singular value of ``W``.
        s_max: the largest squared singular value of ``W``.
        step: ``E(X_k) / E(X_{k-1})`` lies in this interval, whatever the features.
        total: ``E(X_k) / E(X_0)`` lies in this interval.
        measured_step: ``E(X_k) / E(X_{k-1})`` of measured energies.
        measured_total: ``E(X_k) / E(X_0)`` of measured energies.
        keeps_lower: whether ``E(X_k) >= c_min E(X_{k-1})``: of measured energies, else as far as the weights show.
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
        energies: measured ``E(X_0) .. E(X_K)``, as a `Trace` measures them; then these decide which limits held.

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
    convs: list[Any] = list(getattr(model, "convs", []))
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
    c_min, beta, scale = (float(getattr(convs[0], name)) for name in ("c_min", "beta", "scale"))
    if energies is not None and len(energies) != len(convs) + 1:
        raise GraphjouleError(
            f"{len(energies)} energies were given; expected {len(convs) + 1}, those of X_0 to X_{len(convs)}."
        )
    found = graph if isinstance(graph, Spectrum) else spectrum(graph)
    if found.interval is None:
        raise GraphjouleError("The graph has no edges, so no features have energy and no weight can keep any.")
    weights = [conv.weight.detach().cpu().double() for conv in convs]
    layers = []
    for k, (singular, step, total) in enumerate(energy_intervals(found, weights, c_min, beta), start=1):
        measured_step = measured_total = None
        if energies is not None:  # None where there is nothing to divide by
            before, first, energy = (float(energies[at]) for at in (k - 1, 0, k))
            measured_step = energy / before if before else None
            measured_total = energy / first if first else None
        seen_step = step if measured_step is None else Enclosure(measured_step, measured_step)
        seen_total = total if measured_total is None else Enclosure(measured_total, measured_total)
        layers.append(
            WeightLayer(
                layer=k,
                s_min=float(singular.min() ** 2),
                s_max=float(singular.max() ** 2),
                step=step,
                total=total,
                measured_step=measured_step,
                measured_total=measured_total,
                keeps_lower=seen_step.is_at_least(c_min),
                keeps_upper=seen_total.is_at_most(scale**2),
            )
        )
    return WeightReport(c_min, scale**2, layers)


def energy_intervals(
    spectrum: Spectrum, weights: Sequence[Tensor], c_min: float, beta: float
) -> Iterator[tuple[Tensor, Enclosure, Enclosure]]:
    """Layer by layer the singular values of the weight, and the intervals of ``E_k / E_{k-1}`` and ``E_k / E_0``.

    Two bounds are carried through the layers, see `weight_report`; the intervals are where both hold.

    Args:
        spectrum: of the graph.
        weights: square float64 matrices.
        c_min: strength of all residual connections.
        beta: the part of `c_min` that goes to ``X_0``.
    """
    p = covering(spectrum)
    first = p.times(1 - c_min).plus(c_min).absolute().range()  # how the first layer scales a frequency
    later = p.times(1 - c_min).plus(c_min - beta).absolute().range()  # how the others do, X_0 aside: |t(p)|
    scales = [float(weight.diagonal().mean()) for weight in weights]
    root, near, drift = Enclosure(1.0, 1.0), Enclosure(1.0, 1.0), 0.0
    for k, (q, quotient) in enumerate(polynomials(p, c_min, beta, scales)):
        singular = torch.linalg.svdvals(weights[k])
        sigma = Enclosure(float(singular.min()), float(singular.max()))
        if k == 0:
            step = following = Enclosure(sigma.low * first.low, sigma.high * first.high)
        else:
            step, following = _by_triangle(later, sigma, beta, root)
        away = weights[k] - scales[k] * torch.eye(len(weights[k]), dtype=torch.float64)
        before = first.high if k == 0 else later.high * near.high + beta  # of what the weight multiplies
        drifted = sigma.high * later.high * drift + float(torch.linalg.matrix_norm(away, ord=2)) * before
        nearest = q.absolute().range()
        following = _both(following, Enclosure(max(0.0, nearest.low - drifted), nearest.high + drifted))
        quotients = Enclosure(_divided(following.low, root.high), _divided(following.high, root.low))
        step = _both(step, _near_step(quotient.range(), near.low, drift, drifted), quotients)
        yield singular, Enclosure(step.low**2, step.high**2), Enclosure(following.low**2, following.high**2)
        root, near, drift = following, nearest, drifted


def _by_triangle(size: Enclosure, sigma: Enclosure, beta: float, root: Enclosure) -> tuple[Enclosure, Enclosure]:
    """Roots of ``E_k / E_{k-1}`` and ``E_k / E_0`` from that of ``E_{k-1} / E_0`` by the triangle inequality."""
    least = max(0.0, size.low * root.low - beta, beta - size.high * root.high)
    total = Enclosure(sigma.low * least, sigma.high * (size.high * root.high + beta))
    most_again, least_again = _divided(beta, root.low), _divided(beta, root.high)  # what X_0 adds, relative
    step_least = max(0.0, size.low - most_again, least_again - size.high)
    # 0 times infinity: a weight of zero leaves nothing.
    return Enclosure(sigma.low * step_least, sigma.high * (size.high + most_again) if sigma.high else 0.0), total


def _near_step(ratio: Enclosure, least: float, drift: float, drifted: float) -> Enclosure:
    """Root of ``E_k / E_{k-1}`` near a polynomial network with this ratio, whose layer before has at least `least`."""
    if drift == drifted == 0:
        return ratio
    low = max(0.0, ratio.low * least - drifted) / (least + drift) if least + drift else 0.0
    return Enclosure(low, _divided(ratio.high * least + drifted, least - drift) if least > drift else math.inf)


def _both(*enclosures: Enclosure) -> Enclosure:
    """The interval where all hold; rounding must not turn it round."""
    low, high = max(one.low for one in enclosures), min(one.high for one in enclosures)
    return Enclosure(min(low, high), max(low, high))


def _divided(number: float, by: float) -> float:
    return number / by if by else (math.inf if number else 0.0)
