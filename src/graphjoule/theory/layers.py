"""The initialised network as a polynomial in ``P``: the least and most energy that each layer can leave on a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graphjoule.measures.spectrum import Spectrum
from graphjoule.theory.interval import Enclosure, Interval
from graphjoule.theory.setting import Setting

_CELLS = 2**16  # of the interval of eigenvalues, where not all are known; the bounds are off by about 1e-5 / beta


@dataclass(frozen=True)
class LayerRange:
    """How much Dirichlet energy a layer can leave, over all features ``X_0`` with energy.

    Attributes:
        layer: its number, from 1.
        step_min: the least ``E(X_k) / E(X_{k-1})``.
        step_max: the largest; infinite where a layer wipes out a frequency that the next brings back from ``X_0``.
        total_min: the least ``E(X_k) / E(X_0)``.
        total_max: the largest.
    """

    layer: int
    step_min: Enclosure
    step_max: Enclosure
    total_min: Enclosure
    total_max: Enclosure


def layer_ranges(spectrum: Spectrum, setting: Setting) -> list[LayerRange]:
    r"""The range of energy ratios of every layer of the initialised network, from the graph's own spectrum.

    Without activation ``X_k = q_k(P) X_0`` with ``q_0 = 1``, ``q_1(p) = sqrt(c_max) ((1 - c_min) p + c_min)`` and
    ``q_k(p) = ((1 - c_min) p + alpha) q_{k-1}(p) + beta``. In the basis of eigenvectors

    .. math::
        \frac{E(X_k)}{E(X_{k-1})} = \frac{\sum_i \lambda_i \|u_i^\top X_0\|^2 \, q_k(p_i)^2}
                                         {\sum_i \lambda_i \|u_i^\top X_0\|^2 \, q_{k-1}(p_i)^2}

    lies between the least and the largest of the quotients of its terms, and an eigenvector attains either. So the
    extremes are those of ``q_k^2`` and ``q_k^2 / q_{k-1}^2`` over the non-zero eigenvalues ``lambda = 1 - p``. They are
    evaluated in interval arithmetic: on every eigenvalue when all are known; else on small cells that cover all
    eigenvalues, which bounds the extremes from outside, and on the known ones, which bounds them from inside.

    Args:
        spectrum: of the graph.
        setting: of the network.

    Returns:
        One range for each layer; none if the graph has no edges, as then there is no energy.

    Example:
        >>> import torch
        >>> from graphjoule.graph import Propagation
        >>> from graphjoule.measures.spectrum import spectrum
        >>> pair = spectrum(Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]])))  # P has eigenvalues 1 and 0
        >>> first = layer_ranges(pair, Setting(c_min=0.2, beta=0.1, num_layers=2))[0]
        >>> round(first.total_min.low, 9), round(first.total_max.high, 9)
        (0.04, 0.04)
    """
    if spectrum.interval is None:
        return []
    outer = _energies(covering(spectrum), setting.c_min, setting.beta, setting.scales)
    inner = _energies(_known(spectrum), setting.c_min, setting.beta, setting.scales)
    return [
        LayerRange(layer, *_extremes(step, known_step), *_extremes(total, known_total))
        for layer, ((step, total), (known_step, known_total)) in enumerate(zip(outer, inner, strict=True), start=1)
    ]


def depth_limit(spectrum: Spectrum, setting: Setting) -> tuple[Enclosure, Enclosure] | None:
    """The least and the largest ``E(X_k) / E(X_0)`` as the depth grows without end.

    ``q_k(p)`` tends to ``beta / ((1 - c_min) lambda + beta)``, whatever `c_max` is: the scale of the first weight
    washes out, because ``X_0`` comes in again at every layer.
    """
    if spectrum.lambda_0 is None or spectrum.lambda_max is None:
        return None
    if setting.beta == 0:
        rest = setting.c_max if setting.c_min == 1 else 0.0  # nothing but the previous layer, or less and less of it
        return Enclosure(rest, rest), Enclosure(rest, rest)

    def limit(eigenvalue: float) -> float:
        return (setting.beta / ((1 - setting.c_min) * max(0.0, eigenvalue) + setting.beta)) ** 2

    return (
        Enclosure(limit(spectrum.lambda_max.high), limit(spectrum.lambda_max.low)),
        Enclosure(limit(spectrum.lambda_0.high), limit(spectrum.lambda_0.low)),
    )


def polynomials(p: Interval, c_min: float, beta: float, scales: Sequence[float]) -> Iterator[tuple[Interval, Interval]]:
    """Layer by layer ``q_k(p)``, and ``|q_k(p) / q_{k-1}(p)|``.

    Args:
        p: eigenvalues of ``P``.
        c_min: strength of all residual connections.
        beta: the part of `c_min` that goes to ``X_0``.
        scales: the weights, each a multiple of the identity.
    """
    t = p.times(1 - c_min).plus(c_min - beta)
    q = Interval.of(1.0, p)
    for k, scale in enumerate(scales):
        # The first layer gets X_0 twice; taken together, its two parts do not widen the interval twice.
        ratio = p.times(1 - c_min).plus(c_min).absolute() if k == 0 else t.plus_quotient(beta, q)
        q = (p.times(1 - c_min).plus(c_min) if k == 0 else t.times(q).plus(beta)).times(scale)
        yield q, ratio.scaled(abs(scale))


def _energies(p: Interval, c_min: float, beta: float, scales: Sequence[float]) -> Iterator[tuple[Interval, Interval]]:
    """Squares of ``q_k / q_{k-1}`` and of ``q_k``."""
    for q, ratio in polynomials(p, c_min, beta, scales):
        yield ratio.squared(), q.absolute().squared()


def covering(spectrum: Spectrum) -> Interval:
    """Small intervals of ``p`` that together hold all eigenvalues but those of the kernel."""
    assert spectrum.interval is not None
    if spectrum.is_complete:
        return _known(spectrum)
    low, high = spectrum.interval
    ends = np.linspace(1 - high, 1 - low, _CELLS + 1)
    return Interval(ends[:-1], ends[1:])


def _known(spectrum: Spectrum) -> Interval:
    """Intervals of ``p`` that each hold an eigenvalue."""
    p = 1 - spectrum.eigenvalues
    return Interval(p - spectrum.errors, p + spectrum.errors)


def _extremes(cells: Interval, known: Interval) -> tuple[Enclosure, Enclosure]:
    """The minimum and the maximum, each between what the cells allow and what a known eigenvalue attains."""
    lowest, highest = float(cells.low.min()), float(cells.high.max())
    attained_low = float(known.high.min(initial=highest))
    attained_high = float(known.low.max(initial=lowest))
    return Enclosure(lowest, max(lowest, attained_low)), Enclosure(min(highest, attained_high), highest)
