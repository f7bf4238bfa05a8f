"""What can go wrong in a deep network, as numbers: the thresholds, and one test per illness.

Every test looks at embeddings, the rows of a trace in order, and compares with the first of them, per channel. Layers
are ill from the first one after which none recovers: a dip that passes is no illness.

The thresholds were set on networks of known fate, trained and untrained, on Cora, Pubmed and the digits: a GCN of 16
layers has lost its energy by 4e-7 to 2e-6, an EGNN of 64 layers by 0.02 to 0.08, a trained GCN of 2 to 4 layers gains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from graphjoule.trace import LayerTrace

Kind = Literal[
    "over-smoothing by norm collapse",
    "over-smoothing by direction collapse",
    "over-smoothing",
    "over-separation",
    "vanishing gradients",
    "exploding gradients",
]

ENERGY_LOST = 1e-5
"""Share of the first layer's energy per channel below which differences between neighbours are gone."""
NORM_LOST = 1e-2
"""Share of the first layer's norm per channel below which a lost energy is laid to the norm."""
RAYLEIGH_LOST = 1e-3
"""Share of the first layer's ``E / ||X||^2`` below which all nodes point along the kernel, whatever the norm."""
RANK_LEFT = 2.0
"""Effective rank below which nodes point one way or the opposite; an EGNN on Pubmed keeps 3.9, a dead GCN 1.4."""
RANK_LOST = 0.2
"""Share of the first layer's effective rank below which rank has been lost at all: a problem may be of low rank."""
ENERGY_GAINED = 1e4
"""Times the first layer's energy per channel above which a network drives its nodes apart."""
RAYLEIGH_GAINED = 1.0
"""``E / ||X||^2`` above which neighbours point in opposite directions on average, if the first layer has half of it."""
GRADIENT_LOST = 1e-6
"""Share of the last row's gradient that reaches the first row below which the first does not learn."""
GRADIENT_GAINED = 1e4
"""Times the last row's gradient that reaches the first row above which a step is too large."""


@dataclass(frozen=True)
class Sign:
    """An illness found: the row where it begins and the numbers that say so."""

    row: LayerTrace
    evidence: str


@dataclass(frozen=True)
class Symptom:
    """One row of `SYMPTOMS`.

    Attributes:
        kind: what the illness is called.
        needs: measures without which it cannot be judged; any one of the alternatives does.
        find: the test, from the embeddings to a sign or None.
        advice: what to try.
    """

    kind: Kind
    needs: tuple[tuple[str, ...], ...]
    find: Callable[[Sequence[LayerTrace]], Sign | None]
    advice: str


def _share(rows: Sequence[LayerTrace], measure: str, power: int = 1) -> list[float]:
    """A measure at every row as a share of the first row's, per channel; NaN where the first has none."""
    first = rows[0][measure] / rows[0].channels ** (power / 2)
    return [row[measure] / row.channels ** (power / 2) / first if first > 0 else math.nan for row in rows]


def _rayleigh(rows: Sequence[LayerTrace]) -> list[float]:
    """``E / ||X||^2`` of every row, recorded or made from energy and norm; zero features have none left."""
    return [row["rayleigh"] if "rayleigh" in row else row.energy / row.norm**2 if row.norm > 0 else 0.0 for row in rows]


def _begin(is_ill: Sequence[bool]) -> int | None:
    """The first row from which all are ill to the end; the first row of all is what they are compared with."""
    begin = len(is_ill)
    while begin > 1 and is_ill[begin - 1]:
        begin -= 1
    return begin if begin < len(is_ill) else None


def _norm_collapse(rows: Sequence[LayerTrace]) -> Sign | None:
    energy, norm = _share(rows, "energy", power=2), _share(rows, "norm")
    at = _begin([e <= ENERGY_LOST and n <= NORM_LOST for e, n in zip(energy, norm, strict=True)])
    if at is None:
        return None
    rate = energy[-1] ** (1 / (len(rows) - 1))
    return Sign(
        rows[at],
        f"from {rows[0].name} to {rows[-1].name} the energy fell from {rows[0].energy:.3g} to {rows[-1].energy:.3g}, "
        f"by {1 / rate:.2g} x a layer, and the norm from {rows[0].norm:.3g} to {rows[-1].norm:.3g}"
        if rate > 0
        else f"energy and norm are {rows[-1].energy:.3g} and {rows[-1].norm:.3g} at {rows[-1].name}",
    )


def _direction_collapse(rows: Sequence[LayerTrace]) -> Sign | None:
    return _rank_collapse(rows) or _kernel_collapse(rows)


def _rank_collapse(rows: Sequence[LayerTrace]) -> Sign | None:
    if not _have(rows, "effective_rank"):
        return None
    rank = [row["effective_rank"] for row in rows]
    at = _begin([r <= RANK_LEFT and r <= RANK_LOST * rank[0] for r in rank])
    if at is None:
        return None
    return Sign(
        rows[at],
        f"the effective rank fell from {rank[0]:.3g} at {rows[0].name} to {rank[at]:.3g} at {rows[at].name} and "
        f"{rank[-1]:.3g} at {rows[-1].name}: all nodes lie along one direction",
    )


def _kernel_collapse(rows: Sequence[LayerTrace]) -> Sign | None:
    if not (_have(rows, "rayleigh") or _have(rows, "energy", "norm")):
        return None
    rayleigh = _rayleigh(rows)
    at = _begin([rayleigh[0] > 0 and r <= RAYLEIGH_LOST * rayleigh[0] for r in rayleigh])
    if at is None:
        return None
    return Sign(
        rows[at],
        f"E/||X||^2 fell from {rayleigh[0]:.3g} at {rows[0].name} to {rayleigh[at]:.3g} at {rows[at].name} and "
        f"{rayleigh[-1]:.3g} at {rows[-1].name}: only degrees and connected components still tell nodes apart",
    )


def _energy_loss(rows: Sequence[LayerTrace]) -> Sign | None:
    """Over-smoothing of a kind that the energy alone cannot tell; with the norm it is one of the two above."""
    if _have(rows, "norm"):
        return None
    at = _begin([share <= ENERGY_LOST for share in _share(rows, "energy", power=2)])
    if at is None:
        return None
    fell = f"from {rows[0].energy:.3g} at {rows[0].name} to {rows[-1].energy:.3g} at {rows[-1].name}"
    return Sign(rows[at], f"the energy fell {fell}; record the norm too, to tell which kind it is")


def _over_separation(rows: Sequence[LayerTrace]) -> Sign | None:
    energy, rayleigh = _share(rows, "energy", power=2), _rayleigh(rows)
    too_much = [not math.isfinite(row.energy) or e >= ENERGY_GAINED for row, e in zip(rows, energy, strict=True)]
    apart = [r >= RAYLEIGH_GAINED and rayleigh[0] <= r / 2 for r in rayleigh]
    at = _begin([a or b for a, b in zip(too_much, apart, strict=True)])
    if at is None:
        return None
    return Sign(
        rows[at],
        f"the energy went from {rows[0].energy:.3g} at {rows[0].name} to {rows[-1].energy:.3g} at {rows[-1].name}, "
        f"and E/||X||^2 from {rayleigh[0]:.3g} to {rayleigh[-1]:.3g}",
    )


def _gradient(rows: Sequence[LayerTrace]) -> list[float]:
    """Gradients as shares of the last row's, from the last row to the first."""
    last = rows[-1]["gradient"]
    return [row["gradient"] / last if last > 0 else 0.0 for row in reversed(rows)]


def _gradient_sign(rows: Sequence[LayerTrace], is_ill: Callable[[float], bool], word: str) -> Sign | None:
    at = _begin([is_ill(share) for share in _gradient(rows)])
    if at is None:
        return None
    first, last = rows[0], rows[-1]
    return Sign(
        rows[len(rows) - 1 - at],
        f"||dL/dX|| is {last['gradient']:.3g} at {last.name} and {word} {first['gradient']:.3g} at {first.name}",
    )


def _vanishing(rows: Sequence[LayerTrace]) -> Sign | None:
    return _gradient_sign(rows, lambda share: share <= GRADIENT_LOST, "falls to")


def _exploding(rows: Sequence[LayerTrace]) -> Sign | None:
    return _gradient_sign(rows, lambda share: not math.isfinite(share) or share >= GRADIENT_GAINED, "grows to")


def _have(rows: Sequence[LayerTrace], *measures: str) -> bool:
    return all(name in row for row in rows for name in measures)


SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "over-smoothing by norm collapse",
        (("energy", "norm"),),
        _norm_collapse,
        "Feed X_0 into every layer (EGNN with c_min = 0.15, GCNII, APPNP), start the weights near the identity, or "
        "normalise every layer (PairNorm, batch norm).",
    ),
    Symptom(
        "over-smoothing by direction collapse",
        (("effective_rank",), ("rayleigh",), ("energy", "norm")),
        _direction_collapse,
        "Scaling alone does not help, the directions are gone: feed X_0 into every layer (EGNN, GCNII, APPNP), join "
        "layers of several depths (JKNet), drop edges, or use fewer layers.",
    ),
    Symptom(
        "over-smoothing",
        (("energy",),),
        _energy_loss,
        "Feed X_0 into every layer (EGNN with c_min = 0.15, GCNII, APPNP), or use fewer layers.",
    ),
    Symptom(
        "over-separation",
        (("energy", "norm"),),
        _over_separation,
        "Keep the weights near orthogonal (EGNN's penalty gamma, c_max <= 1), add weight decay, normalise every layer, "
        "or start from smaller weights.",
    ),
    Symptom(
        "vanishing gradients",
        (("gradient",),),
        _vanishing,
        "Give the loss a short way back: residual connections to X_0 (EGNN, GCNII) or from layer to layer "
        "(DeepGCNLayer), or join all layers at the end (JKNet).",
    ),
    Symptom(
        "exploding gradients",
        (("gradient",),),
        _exploding,
        "Clip the gradient's norm, lower the learning rate, keep the weights near orthogonal (EGNN's penalty gamma), "
        "or normalise every layer.",
    ),
)
