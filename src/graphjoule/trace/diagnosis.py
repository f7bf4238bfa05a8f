"""From a trace to words: what is wrong with a deep network, where it begins, and what to try.

Every test looks at embeddings, the rows of a trace in order, and compares with the first of them, per channel. Layers
are ill from the first one after which none recovers: a dip that passes does not count.

The thresholds were set on networks of known fate, trained and untrained, on Cora, Pubmed and the digits: a GCN of 16
layers has lost its energy by 4e-7 to 2e-6, an EGNN of 64 layers by 0.02 to 0.08, a trained GCN of 2 to 4 layers gains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.trace.view import LayerTrace, RecordedTrace, TraceView, some, without_scores

Kind = Literal[
    "over-smoothing by norm collapse",
    "over-smoothing by direction collapse",
    "over-smoothing",
    "over-separation",
    "vanishing gradients",
    "exploding gradients",
    "unused depth",
]
HEALTHY, UNDECIDED = "healthy energy", "undecided"

ENERGY_LOST = 1e-5
"""Share of the first layer's energy per channel below which differences between neighbours are gone."""
NORM_LOST = 1e-2
"""Share of the first layer's norm per channel below which a lost energy is laid to the norm."""
RAYLEIGH_LOST = 1e-3
"""Share of the first layer's ``E / ||X||^2`` below which all nodes point along the kernel, whatever the norm."""
RANK_LEFT = 2.0
"""Effective rank below which nodes point one way or the opposite; an EGNN on Pubmed keeps 3.9, a dead GCN 1.4."""
RANK_LOST = 0.2
"""Share of the first layer's effective rank, or of a narrower layer's width, below which rank has been lost at all: a
problem may be of low rank, and one or two scores fill no more directions however well they tell nodes apart."""
RANK_OF_ONE, MANY_SCORES = 1.5, 4
"""Effective rank below which embeddings are one direction and little else, and so many scores that this may be too few:
a network that never had more is not healthy by its energy alone. GCNs of 16 to 32 layers on Cora, dead, keep 1.1 to 1.5
from their second layer on; sums over neighbours and targets that go together may live with as little."""
ENERGY_GAINED = 1e4
"""Times the first layer's energy per channel above which a network drives its nodes apart."""
RAYLEIGH_GAINED = 1.0
"""``E / ||X||^2`` above which neighbours point in opposite directions on average, if the first layer has half of it."""
GRADIENT_LOST = 1e-6
"""Share of the last row's gradient that reaches the first row below which the first does not learn."""
GRADIENT_GAINED = 1e4
"""Times the last row's gradient that reaches the first row above which a step is too large."""

REACH_SETTLED = 0.95
"""Share of the last layer's mean reach from which on a layer sees as far as all that follow."""
DEPTH_UNUSED = 0.5
"""Share of the layers that must come after it for them to be called unused."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: what it is called.
        layer: name of the layer where it begins; of gradients, the last layer that is still reached badly.
        evidence: the numbers that say so.
        advice: what to try.
        part: where, in a trace of several graphs, node types or relations; empty for the only one.
    """

    kind: Kind
    layer: str
    evidence: str
    advice: str
    part: str = ""

    def __str__(self) -> str:
        where = f"{self.part}: " if self.part else ""
        return f"{where}{self.kind}, from {self.layer} on: {self.evidence}. Try: {self.advice}"


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a network, as far as its trace tells.

    Attributes:
        findings: what is wrong, the most telling first; nothing if the energy is healthy.
        evidence: the numbers of the first and the last embeddings.
        not_judged: what could not be judged, and what is missing for it.
        is_decided: whether all illnesses of the embeddings could be judged; those of gradients may be left open.
    """

    findings: tuple[Finding, ...]
    evidence: str
    not_judged: tuple[str, ...] = ()
    is_decided: bool = True

    @property
    def is_healthy(self) -> bool:
        """Whether the embeddings could be judged and nothing is wrong with them; predictions may still be poor."""
        return self.is_decided and not self.findings

    @property
    def verdict(self) -> str:
        """The first finding's kind, or "healthy energy", or "undecided" where the measures do not tell."""
        return self.findings[0].kind if self.findings else HEALTHY if self.is_decided else UNDECIDED

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings] or [f"{self.verdict}: {self.evidence}."]
        return "\n".join([*lines, *(f"not judged: {what}." for what in self.not_judged)])

    def fields(self) -> dict[str, Any]:
        """Everything as a dict that JSON can hold."""
        return {"verdict": self.verdict, **asdict(self)}

    def to_json(self) -> str:
        """The same as JSON text."""
        return json_text(self.fields())


def diagnose(trace: TraceView) -> Diagnosis:
    """Say what is wrong with a network: over-smoothing, over-separation, its gradients, unused depth, or nothing.

    The last call of the trace is looked at, of one run. Rows are compared with the first, so that one should be the
    embeddings ``X_0`` or the first layer. A last row of another width is class scores: it counts for gradients alone.
    Graphs, node types and relations are judged each by itself; what several of them have is one finding, with the
    numbers of the first. Whether depth is used is judged where `graphjoule.trace.with_reach` has put the mean reach
    into some rows. Thresholds and their reasons are the constants of `graphjoule.trace.diagnosis`.

    Args:
        trace: a trace with energy, norm and effective rank, and with gradients to have those judged.

    Returns:
        The findings in words, each with the layer where it begins, the numbers and what to try.

    Example:
        >>> from graphjoule.trace import RecordedTrace
        >>> rows = [LayerTrace(f"convs.{k}", {"energy": 0.1**k, "norm": 0.4**k}, channels=8) for k in range(9)]
        >>> found = diagnose(RecordedTrace(rows, ["energy", "norm"]))
        >>> found.verdict, found.findings[0].layer
        ('over-smoothing by norm collapse', 'convs.6')
    """
    if not isinstance(trace, TraceView):
        raise GraphjouleError(f"What to diagnose is of type {type(trace).__name__}; expected a Trace of a model.")
    last = trace.select(call=-1)
    parts = list(dict.fromkeys(row.part for row in last.layers))
    if len(parts) < 2:
        return _diagnose(last)
    found: dict[str, Diagnosis] = {}
    for part in parts:
        rows = [row for row in last.layers if row.part == part]
        if len(rows) > 1:  # else there is nothing to compare: the first or the last layer alone knows it
            found[str(part)] = _diagnose(RecordedTrace(rows, last.measures))
    findings = []
    for symptom in SYMPTOMS:
        ill = {part: f for part, one in found.items() for f in one.findings if f.kind == symptom.kind}
        if ill:
            names = list(ill)
            where = names[0] if len(ill) == 1 else f"{len(ill)} of {len(found)} parts ({some(names, ', ')})"
            findings.append(replace(ill[names[0]], part=where))
    open_questions = Counter(what for one in found.values() for what in one.not_judged)
    not_judged = [
        f"{what}{'' if n == len(found) else f' ({n} of {len(found)} parts)'}" for what, n in open_questions.items()
    ]
    evidence = some([f"{part}, {one.evidence}" for part, one in found.items()], "; ")
    is_decided = bool(found) and all(one.is_decided for one in found.values())
    return Diagnosis(tuple(findings), evidence, tuple(not_judged), is_decided)


def _diagnose(trace: TraceView) -> Diagnosis:
    """The diagnosis of one part."""
    rows = trace.one_pass("diagnosis")
    read_out = [row for row in rows if _is_read_out(row, rows[0])]
    embeddings = without_scores([row for row in rows if row not in read_out])
    if len(embeddings) < 2:
        raise GraphjouleError(
            f"A diagnosis compares layers, but the trace has embeddings of {len(embeddings)} only, "
            f"{embeddings[0].name!r}; watch more modules."
        )
    findings, not_judged, is_decided = [], [], True
    if read_out:
        not_judged.append(f"{some([row.name for row in read_out], ', ')}, of other nodes that share no neighbours")
    for symptom in SYMPTOMS:
        if symptom.needs == (("reach",),) and not any("reach" in row for row in embeddings):
            continue  # measured on demand alone
        is_of_gradients = symptom.needs == (("gradient",),)
        judged = rows if is_of_gradients else embeddings
        if missing := _missing(symptom, judged):
            not_judged.append(f"{symptom.kind}, {missing}")
            is_decided = is_decided and is_of_gradients
        elif (sign := symptom.find(judged)) is not None:
            findings.append(Finding(symptom.kind, judged[sign[0]].name, sign[1], symptom.advice))
    first, last = embeddings[0], embeddings[-1]
    scores = rows[-1].channels if rows[-1] not in [*embeddings, *read_out] else 0
    if not findings and scores >= MANY_SCORES and last.numbers().get("effective_rank", math.inf) <= RANK_OF_ONE:
        is_decided, rank = False, last["effective_rank"]
        not_judged.insert(
            0,
            f"over-smoothing by direction collapse, for {last.name} has an effective rank of {rank:.3g}, "
            f"one direction for {scores} scores; whether they tell nodes apart, predictions say",
        )
    names = [name for name in ("energy", "norm", "effective_rank") if name in first and name in last]
    changes = ", ".join(f"{name.replace('_', ' ')} {first[name]:.3g} to {last[name]:.3g}" for name in names)
    evidence = f"{first.name} to {last.name}: {changes or 'no measure that is judged'}"
    return Diagnosis(tuple(findings), evidence, tuple(not_judged), is_decided)


def _is_read_out(row: LayerTrace, first: LayerTrace) -> bool:
    """Whether a row is of other nodes without any neighbours, as of molecules that layers read out from their atoms.

    Features of neighbours that have become alike still differ by their rounding.
    """
    if "energy" not in row or "norm" not in row or row.num_nodes == first.num_nodes:
        return False
    return row.norm > 0 and row.energy <= 1e-30 * row.norm**2


def _missing(symptom: Symptom, rows: Sequence[LayerTrace]) -> str:
    """Why an illness cannot be judged; empty if it can."""
    if symptom.needs == (("reach",),):
        return ""
    if not any(_have(rows, *names) for names in symptom.needs):
        if symptom.needs == (("gradient",),):
            return "which needs `gradients=True` and a backward pass"
        return f"which needs measures {' or '.join(' and '.join(names) for names in symptom.needs)}"
    first = rows[0].numbers()
    if any(math.isnan(first.get(name, 0.0)) for names in symptom.needs for name in names):
        return f"for the numbers of {rows[0].name} are not finite"
    if "energy" in symptom.needs[0] and first["energy"] == 0:
        return f"for the energy of {rows[0].name} is zero: no edges, or equal neighbours"
    return ""


Sign = tuple[int, str]
"""An illness found: the number of the row where it begins, and the numbers that say so."""


@dataclass(frozen=True)
class Symptom:
    """One row of `SYMPTOMS`.

    Attributes:
        kind: what the illness is called.
        needs: measures without which it cannot be judged; any one of the alternatives does.
        find: the test, from the rows to a sign or None.
        advice: what to try.
    """

    kind: Kind
    needs: tuple[tuple[str, ...], ...]
    find: Callable[[Sequence[LayerTrace]], Sign | None]
    advice: str


def _have(rows: Sequence[LayerTrace], *measures: str) -> bool:
    return all(name in row for row in rows for name in measures)


def _share(rows: Sequence[LayerTrace], measure: str, power: int = 1) -> list[float]:
    """A measure at every row as a share of the first row's, per channel; NaN where the first is zero."""
    first = rows[0][measure] / rows[0].channels ** (power / 2)
    return [row[measure] / row.channels ** (power / 2) / first if first > 0 else math.nan for row in rows]


def _rayleigh(rows: Sequence[LayerTrace]) -> list[float]:
    """``E / ||X||^2`` of every row, recorded or made from energy and norm; 0 for zero features."""
    return [row["rayleigh"] if "rayleigh" in row else row.energy / row.norm**2 if row.norm > 0 else 0.0 for row in rows]


def _sign(is_ill: Sequence[bool], evidence: Callable[[int], str]) -> Sign | None:
    """From the first row from which all are ill to the end; the first row of all is what they are compared with."""
    begin = len(is_ill)
    while begin > 1 and is_ill[begin - 1]:
        begin -= 1
    return (begin, evidence(begin)) if begin < len(is_ill) else None


def _norm_collapse(rows: Sequence[LayerTrace]) -> Sign | None:
    energy, norm = _share(rows, "energy", power=2), _share(rows, "norm")
    first, last = rows[0], rows[-1]

    def evidence(at: int) -> str:
        rate = energy[-1] ** (1 / (len(rows) - 1))
        if rate == 0:
            return f"energy and norm are {last.energy:.3g} and {last.norm:.3g} at {last.name}"
        return (
            f"from {first.name} to {last.name} the energy fell from {first.energy:.3g} to {last.energy:.3g}, "
            f"by {1 / rate:.2g} x a layer, and the norm from {first.norm:.3g} to {last.norm:.3g}"
        )

    return _sign([e <= ENERGY_LOST and n <= NORM_LOST for e, n in zip(energy, norm, strict=True)], evidence)


def _direction_collapse(rows: Sequence[LayerTrace]) -> Sign | None:
    def fell(values: Sequence[float], at: int) -> str:
        ends = f"{values[at]:.3g} at {rows[at].name} and {values[-1]:.3g} at {rows[-1].name}"
        return f"fell from {values[0]:.3g} at {rows[0].name} to {ends}"

    found = None
    if _have(rows, "effective_rank"):
        rank = [row["effective_rank"] for row in rows]
        most = [min(rank[0], row.channels) for row in rows]
        ill = [r <= RANK_LEFT and r <= RANK_LOST * m for r, m in zip(rank, most, strict=True)]
        found = _sign(ill, lambda at: f"the effective rank {fell(rank, at)}: all nodes lie along one direction")
    if found is None and (_have(rows, "rayleigh") or _have(rows, "energy", "norm")):
        rayleigh = _rayleigh(rows)
        left = "degrees and connected components" if rows[0].operator == "symmetric" else "connected components"
        told_apart = f"only {left} still tell nodes apart"
        ill = [rayleigh[0] > 0 and r <= RAYLEIGH_LOST * rayleigh[0] for r in rayleigh]
        found = _sign(ill, lambda at: f"E/||X||^2 {fell(rayleigh, at)}: {told_apart}")
    return found


def _energy_loss(rows: Sequence[LayerTrace]) -> Sign | None:
    """Over-smoothing of a kind that the energy alone cannot tell; with the norm it is one of the two above."""
    if _have(rows, "norm"):
        return None
    fell = f"from {rows[0].energy:.3g} at {rows[0].name} to {rows[-1].energy:.3g} at {rows[-1].name}"
    ill = [share <= ENERGY_LOST for share in _share(rows, "energy", power=2)]
    return _sign(ill, lambda at: f"the energy fell {fell}; record the norm too, to tell which kind it is")


def _over_separation(rows: Sequence[LayerTrace]) -> Sign | None:
    energy, rayleigh = _share(rows, "energy", power=2), _rayleigh(rows)
    ill = [
        not math.isfinite(row.energy) or e >= ENERGY_GAINED or (r >= RAYLEIGH_GAINED and rayleigh[0] <= r / 2)
        for row, e, r in zip(rows, energy, rayleigh, strict=True)
    ]
    went = f"from {rows[0].energy:.3g} at {rows[0].name} to {rows[-1].energy:.3g} at {rows[-1].name}"
    return _sign(ill, lambda at: f"the energy went {went}, and E/||X||^2 from {rayleigh[0]:.3g} to {rayleigh[-1]:.3g}")


def _gradient_sign(rows: Sequence[LayerTrace], is_ill: Callable[[float], bool], word: str) -> Sign | None:
    """Gradients as shares of the last row's, followed from the last row to the first."""
    first, last = rows[0]["gradient"], rows[-1]["gradient"]
    evidence = f"||dL/dX|| is {last:.3g} at {rows[-1].name} and {word} {first:.3g} at {rows[0].name}"
    ill = [is_ill(row["gradient"] / last if last > 0 else 0.0) for row in reversed(rows)]
    found = _sign(ill, lambda at: evidence)
    return None if found is None else (len(rows) - 1 - found[0], evidence)


def _unused_depth(rows: Sequence[LayerTrace]) -> Sign | None:
    """From the first measured layer on whose reach is that of the last, if most layers come after it."""
    measured = [at for at, row in enumerate(rows) if "reach" in row]
    last = rows[measured[-1]]["reach"]
    settled = [rows[at]["reach"] >= REACH_SETTLED * last for at in measured]
    at = measured[max((k + 1 for k, is_settled in enumerate(settled) if not is_settled), default=0)]
    after = len(rows) - 1 - at
    if len(measured) < 3 or not last > 0 or after < DEPTH_UNUSED * len(rows):
        return None
    here, end = rows[at], rows[measured[-1]]
    return at, (
        f"depth beyond {here.name} is not used: its mean reach is {here['reach']:.3g} hops and that of {end.name} "
        f"{end['reach']:.3g}, so the {after} layers between them go no further"
    )


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
        lambda rows: _gradient_sign(rows, lambda share: share <= GRADIENT_LOST, "falls to"),
        "Give the loss a short way back: residual connections to X_0 (EGNN, GCNII) or from layer to layer "
        "(DeepGCNLayer), or join all layers at the end (JKNet).",
    ),
    Symptom(
        "exploding gradients",
        (("gradient",),),
        lambda rows: _gradient_sign(
            rows, lambda share: not math.isfinite(share) or share >= GRADIENT_GAINED, "grows to"
        ),
        "Clip the gradient's norm, lower the learning rate, keep the weights near orthogonal (EGNN's penalty gamma), "
        "or normalise every layer.",
    ),
    Symptom(
        "unused depth",
        (("reach",),),
        _unused_depth,
        "Use as many layers as are used, or let the network go further: a smaller beta (EGNN) or alpha (APPNP, GCNII), "
        "by which the reach is set, not by the depth.",
    ),
)
