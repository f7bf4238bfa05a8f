"""From a trace to words: what is wrong with a deep network, where it begins, and what to try."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.trace import LayerTrace, TraceView
from graphjoule.trace.symptoms import SYMPTOMS, Kind, Symptom

HEALTHY, UNDECIDED = "healthy", "undecided"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: what it is called.
        layer: name of the layer where it begins; of gradients, the last layer that is still reached badly.
        evidence: the numbers that say so.
        advice: what to try.
    """

    kind: Kind
    layer: str
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.kind}, from {self.layer} on: {self.evidence}. Try: {self.advice}"


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a network, as far as its trace tells.

    Attributes:
        findings: what is wrong, the most telling first; nothing if the network is healthy.
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
        """Whether the embeddings could be judged and nothing is wrong."""
        return self.is_decided and not self.findings

    @property
    def verdict(self) -> str:
        """The first finding's kind, or "healthy", or "undecided" where the measures do not tell."""
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
    """Say what is wrong with a network: over-smoothing, over-separation, its gradients, or nothing.

    The last call of the trace is looked at, of one run. Rows are compared with the first, so that one should be the
    embeddings ``X_0`` or the first layer. A last row of another width is class scores: it counts for gradients alone.
    Thresholds and their reasons are the constants of `graphjoule.trace.symptoms`.

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
    rows = trace.one_pass("diagnosis")
    embeddings = _embeddings(rows)
    if len(embeddings) < 2:
        raise GraphjouleError(
            f"A diagnosis compares layers, but the trace has embeddings of {len(embeddings)} only, "
            f"{embeddings[0].name!r}; watch more modules."
        )
    findings, not_judged, is_decided = [], [], True
    for symptom in SYMPTOMS:
        of_gradients = symptom.needs == (("gradient",),)
        looked_at = rows if of_gradients else embeddings
        if missing := _missing(symptom, looked_at):
            not_judged.append(missing)
            is_decided = is_decided and of_gradients
        elif (sign := symptom.find(looked_at)) is not None:
            findings.append(Finding(symptom.kind, sign.row.name, sign.evidence, symptom.advice))
    return Diagnosis(tuple(findings), _summary(embeddings), tuple(not_judged), is_decided)


def _embeddings(rows: Sequence[LayerTrace]) -> Sequence[LayerTrace]:
    """The rows without class scores, which are rows of another width at the end."""
    is_scores = len(rows) > 2 and rows[-1].channels != rows[-2].channels
    return rows[:-1] if is_scores else rows


def _missing(symptom: Symptom, rows: Sequence[LayerTrace]) -> str:
    """Why an illness cannot be judged, or nothing."""
    if not any(all(name in row for row in rows for name in names) for names in symptom.needs):
        wanted = " or ".join(" and ".join(names) for names in symptom.needs)
        how = (
            "gradients: Trace(..., gradients=True) and a backward pass, or --gradients"
            if wanted == "gradient"
            else f"measures {wanted}"
        )
        return f"{symptom.kind}, which needs {how}"
    first = rows[0].numbers()
    if any(math.isnan(first.get(name, 0.0)) for names in symptom.needs for name in names):
        return f"{symptom.kind}, for the numbers of {rows[0].name} are not finite"
    if "energy" in symptom.needs[0] and first["energy"] == 0:
        return f"{symptom.kind}, for the energy of {rows[0].name} is zero: no edges, or equal neighbours"
    return ""


def _summary(rows: Sequence[LayerTrace]) -> str:
    """The numbers of the first and the last row."""
    names = [name for name in ("energy", "norm", "effective_rank") if name in rows[0] and name in rows[-1]]
    changes = [f"{name.replace('_', ' ')} {rows[0][name]:.3g} to {rows[-1][name]:.3g}" for name in names]
    return f"{rows[0].name} to {rows[-1].name}: {', '.join(changes) or 'no measure that is judged'}"
