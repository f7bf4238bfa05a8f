"""Lemmas 1 to 5 of the paper on a given graph: the premise, the paper's bound, whether it holds, and the right one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, check_number
from graphjoule.graph import Propagation, exact_propagation
from graphjoule.measures import Estimate, Spectrum, dirichlet_energy
from graphjoule.theory.layers import Enclosure, LayerRange, Setting, Verdict, number

Bounds = tuple[Enclosure | None, Enclosure | None]


@dataclass(frozen=True, kw_only=True)
class Lemma:
    """One lemma of the paper on one graph with one setting; weights are those of the initial point.

    Attributes:
        number: as in the paper.
        claim: what it says.
        premise: what it asks for, with the numbers; empty if nothing.
        premise_holds: whether that is so here.
        conclusion_holds: whether what it says is so here, for all features and all layers.
        paper: the paper's lower and upper bound, None where it has no such bound.
        corrected: the right bounds, which are attained.
        why: the number that decides.
    """

    number: int
    claim: str
    premise: str = ""
    premise_holds: Verdict = "yes"
    conclusion_holds: Verdict
    paper: Bounds
    corrected: Bounds
    why: str

    @property
    def verdict(self) -> str:
        """The lemma on this graph in a word or two."""
        if self.premise_holds == "no":
            return "says nothing here"
        if self.conclusion_holds == "no":
            return "fails here" if self.premise_holds == "yes" else "premise open, conclusion fails"
        return "holds here" if self.conclusion_holds == "yes" else "open"


def lemmas(spectrum: Spectrum, setting: Setting, layers: Sequence[LayerRange]) -> list[Lemma]:
    """The five lemmas that bound energy, in the paper's order; none for a graph without edges.

    Args:
        spectrum: of the graph.
        setting: of the network.
        layers: what `layer_ranges` gives for the two.
    """
    if spectrum.interval is None:
        return []
    gap, top = _known(spectrum.lambda_0), _known(spectrum.lambda_max)
    least, most = (_enclosure(_known(factor)) for factor in (spectrum.min_factor, spectrum.max_factor))
    paper = _enclosure(gap.shifted(1, -1).squared("lower bound"))
    # The bound of lemma 1 is that of one end of the spectrum, which is enough unless the other end is further from 1.
    # Only weights above 1 can bring both ends to the same side of 1, and then the bounds themselves decide.
    ends = Enclosure(gap.low + top.low, gap.high + top.high)
    is_kept: Verdict = "unknown"
    if ends.is_at_most(2.0) == "yes" or most.is_at_most(paper.low) == "yes":
        is_kept = "yes"
    elif most.is_at_most(paper.high) == "no":
        is_kept = "no"
    depth, c_min, c_max = setting.num_layers, setting.c_min, setting.c_max
    deep_least, deep_most = (Enclosure(*(c_max * end**depth for end in factor)) for factor in (least, most))
    square = (2 * c_min - 1) ** 2
    needed = c_min / square if square else float("inf")
    step_least = _least([layer.step_min for layer in layers])

    def least_root(gap: float) -> float:
        return setting.beta / ((1 - c_min) * max(0.0, gap) + setting.beta) if setting.beta else 0.0

    root_needed, root = Enclosure(least_root(gap.high), least_root(gap.low)), c_max**0.5
    total_most = _most([layer.total_max for layer in layers])
    return [
        Lemma(
            number=1,
            claim="(1 - lambda_1)^2 s_min E(X) <= E(P X W) <= (1 - lambda_0)^2 s_max E(X)",
            conclusion_holds=is_kept,
            paper=(least, paper),
            corrected=(least, most),
            why=f"lambda_0 + lambda_max = {number(ends)}; the upper bound needs at most 2",
        ),
        Lemma(
            number=2,
            claim="0 <= E(P X W) <= s_max E(X)",
            conclusion_holds="yes",  # every |1 - lambda| with lambda > 0 is below 1: self-loops keep lambda below 2
            paper=(_point(0.0), _point(1.0)),
            corrected=(least, most),
            why=f"max (1 - lambda)^2 = {number(most)}, always below 1",
        ),
        Lemma(
            number=3,
            claim="without residual connections E(X_k) <= c_max E(X_0)",
            conclusion_holds="yes",
            paper=(None, _point(c_max)),
            corrected=(deep_least, deep_most),
            why=f"after {depth} layers at most {number(deep_most)} E(X_0) is left",
        ),
        Lemma(
            number=4,
            claim="E(X_k) >= c_min E(X_{k-1})",
            premise=f"c_max >= c_min / (2 c_min - 1)^2, here {c_max:g} >= {needed:.4g}",
            premise_holds=_point(c_max).is_at_least(needed),
            conclusion_holds=step_least.is_at_least(c_min),
            paper=(_point(c_min), None),
            corrected=(step_least, _most([layer.step_max for layer in layers])),
            why=f"the least E(X_k) / E(X_{{k-1}}) is {number(step_least)}; the claim needs {c_min:g}",
        ),
        Lemma(
            number=5,
            claim="E(X_k) <= c_max E(X_0)",
            premise=f"sqrt(c_max) >= beta / ((1 - c_min) lambda_0 + beta), here {root:.4g} >= {number(root_needed)}",
            premise_holds=root_needed.is_at_most(root),
            conclusion_holds=total_most.is_at_most(c_max),
            paper=(None, _point(c_max)),
            corrected=(_least([layer.total_min for layer in layers]), total_most),
            why=f"the largest E(X_k) / E(X_0) is {number(total_most)}; the claim needs at most {c_max:g}",
        ),
    ]


def srelu_energy_limit(energy: float, graph: Propagation, shift: Tensor) -> float:
    r"""The most energy that SReLU can leave, in place of Lemma 6, which covers ReLU and Leaky ReLU only.

    .. math:: \sqrt{E(\max(b, X))} \le \sqrt{E(X)} + 2 \, \|b\| \sqrt{E(\mathbf 1)}

    ``max(b, x) = relu(x - b) + b``; ReLU does not raise energy, the root of the energy is a seminorm, and a constant
    feature has energy unless all degrees of a component are equal.

    Args:
        energy: ``E(X)``.
        graph: the graph.
        shift: the shifts ``b``, one for each channel.

    Returns:
        The limit.

    Example:
        >>> pair = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))  # equal degrees: nothing to add
        >>> round(srelu_energy_limit(2.0, pair, torch.tensor([-10.0])), 9)
        2.0
    """
    check_number("energy", energy)
    if not energy >= 0:
        raise GraphjouleError(f"energy is {energy}; no energy is negative.")
    graph = graph if isinstance(graph, Propagation) else exact_propagation(graph)
    constant = dirichlet_energy(torch.ones(graph.num_nodes, 1, dtype=torch.float64, device=graph.device), graph)
    norm = torch.linalg.vector_norm(shift.detach().double())
    return float((energy**0.5 + 2 * norm.to(constant.device) * constant.sqrt()) ** 2)


def _known(estimate: Estimate | None) -> Estimate:
    assert estimate is not None  # a graph with an edge has a non-zero eigenvalue
    return estimate


def _enclosure(estimate: Estimate) -> Enclosure:
    return Enclosure(max(0.0, estimate.low), estimate.high)


def _point(value: float) -> Enclosure:
    return Enclosure(value, value)


def _least(found: Sequence[Enclosure]) -> Enclosure:
    return Enclosure(min(one.low for one in found), min(one.high for one in found))


def _most(found: Sequence[Enclosure]) -> Enclosure:
    return Enclosure(max(one.low for one in found), max(one.high for one in found))
