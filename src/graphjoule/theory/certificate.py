"""`certify`: which limits given weights prove, at every layer and at any further depth, whatever training did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.graph.propagation import exact_propagation
from graphjoule.measures import Spectrum, dirichlet_energy
from graphjoule.nn.base import Onlooker, evaluating, is_as_written
from graphjoule.ops.propagate import check_rows
from graphjoule.ops.spectral import spectral_norm_bound
from graphjoule.theory.layers import Enclosure, Verdict
from graphjoule.theory.weights import energy_intervals
from graphjoule.trace.view import TraceView

_SQUARINGS = 40  # the bounds of norms are then at most 64^(1 / 2^42) times too large: 1e-12
_ROUNDING = 1e-11  # relative, of a norm: what is no further above 1 is 1
_FURTHER = 64  # layers beyond the last that are followed one by one before the rest is bounded
TOLERANCE = 1e-5
"""How far past a limit still counts as on it, relative: a float32 network rounds at every layer."""


@dataclass(frozen=True)
class CertifiedLimit:
    """One thing that the weights prove, or do not.

    Attributes:
        name: a word for it: "norm", "energy", "lower energy", "entries" or "activation".
        claim: what is claimed of every layer.
        holds: whether it is proved; "unknown" if it is not, which does not mean that it is false.
        value: the number that is proved for all layers: of norm and energy the factor of ``X_0``'s; infinite if there
            is none.
        beyond: the same for any further depth, see `Certificate`.
        why: the reason.
    """

    name: str
    claim: str
    holds: Verdict
    value: float
    beyond: float
    why: str

    def __str__(self) -> str:
        word = "proved" if self.holds == "yes" else "not proved"
        return f"{self.name}: {self.claim}: {word}. {self.why}"


@dataclass(frozen=True)
class CertifiedLayer:
    """What is proved of one layer.

    Attributes:
        layer: its number, from 1.
        sigma: a number that the spectral norm of its weight does not exceed.
        norm: ``||X_k|| / ||X_0||`` is at most this.
        energy: ``E(X_k) / E(X_0)`` is at most this.
        entries: no entry of ``X_k`` is larger, by absolute value; None without features.
    """

    layer: int
    sigma: float
    norm: float
    energy: float
    entries: float | None


@dataclass(frozen=True)
class Certificate:
    """What the weights of a network prove on a graph, for evaluation, without dropout.

    *Any further depth* means more layers of the same kind on top: with the same ``c_min`` and ``beta``, weights of a
    spectral norm of at most `sigma`, and shifts that are nowhere higher than the highest of this network.

    Attributes:
        limits: what is claimed, what is proved of it, and why.
        layers: the numbers of every layer.
        sigma: the largest spectral norm of a weight, or 1 if that is larger.
    """

    limits: tuple[CertifiedLimit, ...]
    layers: tuple[CertifiedLayer, ...]
    sigma: float

    def __getitem__(self, name: str) -> CertifiedLimit:
        found = next((limit for limit in self.limits if limit.name == name), None)
        if found is None:
            names = ", ".join(limit.name for limit in self.limits)
            raise GraphjouleError(f"The certificate has no limit {name!r}; it has {names}.")
        return found

    @property
    def holds(self) -> bool:
        """Whether the upper limits of norm and energy are proved."""
        return all(self[name].holds == "yes" for name in ("norm", "energy"))

    def broken_by(self, trace: TraceView) -> list[str]:
        """What a trace contradicts, in sentences; it should be nothing.

        Args:
            trace: of the network in evaluation mode, its rows ``X_0`` to ``X_K`` with energy and norm.
        """
        rows = trace.one_pass("check of a certificate")
        if len(rows) != len(self.layers) + 1:
            raise GraphjouleError(
                f"The trace has {len(rows)} rows; expected {len(self.layers) + 1}, X_0 and every layer: choose them "
                'with trace.select("encoder", "convs.*").'
            )
        sentences, first = [], rows[0]
        for layer, row in zip(self.layers, rows[1:], strict=True):
            for name, power in (("energy", 2), ("norm", 1)):
                limit = getattr(layer, name) * first[name] if first[name] else 0.0
                room = TOLERANCE * max(limit, first["norm"] ** power)
                if not row[name] <= limit + room:
                    sentences.append(f"{row.name}: {name} {row[name]:.6g} is above its limit {limit:.6g}.")
        return sentences

    def lines(self) -> list[str]:
        """The limits as text, one line each."""
        return [str(limit) for limit in self.limits]

    def fields(self) -> dict[str, Any]:
        """Everything as a dict that JSON can hold."""
        return {"holds": self.holds, **asdict(self)}

    def to_json(self) -> str:
        """The same as JSON text; what is not bounded is null."""
        return json_text(self.fields())


def certify(
    model: nn.Module,
    graph: Propagation | Tensor,
    x: Features | None = None,
    *,
    spectrum: Spectrum | None = None,
) -> Certificate:
    r"""What the weights of an EGNN or GCNII prove about every layer, from their spectral norms alone.

    ``S = (1 - c_min) P + alpha I`` has norm at most ``1 - beta`` and commutes with ``P``, and the root of the energy is
    a seminorm. So with ``sigma_k = ||W_k||_2``, and with an activation that adds neither energy nor norm,

    .. math::
        \sqrt{E(X_k)} \le \sigma_k \big( (1 - \beta) \sqrt{E(X_{k-1})} + \beta \sqrt{E(X_0)} \big)

    and the same for norms: with every ``sigma_k <= 1`` neither grows beyond that of ``X_0``, at any depth.

    ReLU and the identity add nothing. SReLU, ``max(b, z)``, never lengthens a row if ``b <= 0``, but it can add energy.
    It adds none in a channel where no entry is below ``b``, which is proved from the features: the rows of ``X_k`` are
    no longer than ``u_k = sigma_k (S u_{k-1} + beta u_0)``, with ``u_0`` the lengths of the rows of ``X_0``. In the
    other channels ``sqrt(E)`` rises by at most ``2 ||b|| sqrt(E(1))``.

    Args:
        model: a network whose `convs` are EGNN's or GCNII's layers, without batch norm.
        graph: the graph.
        x: node features, from which `model.encoder` makes ``X_0``. Without them nothing is claimed about entries, and
            of SReLU it is not known whether it acts.
        spectrum: of the graph; with it, a lower limit of the energy is looked for too, which takes longer.

    Returns:
        The certificate.

    Example:
        >>> from graphjoule.nn import EGNN
        >>> pair = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
        >>> model = EGNN(3, 4, 2, num_layers=8, certified=True)
        >>> found = certify(model, pair, torch.eye(2, 3))
        >>> found.holds, found["energy"].value <= 1 + 1e-9, found["activation"].holds
        (True, True, 'yes')
    """
    convs = _certifiable_layers(model)
    c_min, beta = float(convs[0].c_min), float(convs[0].beta)
    weights = torch.stack([conv.effective_weight().detach().double() for conv in convs])
    shifts = [None if (shift := conv.shift()) is None else shift.detach().double() for conv in convs]
    x0 = None if x is None else _encoded(model, x)
    _check_finite({"The weights hold": [weights], "The shifts hold": shifts, "X_0 holds": [x0]})
    graph = exact_propagation(graph, None if x0 is None else len(x0)).to(weights.device, torch.float64)
    if x0 is not None:
        check_rows(x0, graph)

    sigmas = (spectral_norm_bound(weights, _SQUARINGS) * (1 + weights.size(-1) * 1e-15)).tolist()
    sigma = max(1.0, *sigmas) if max(sigmas) > 1 + _ROUNDING else 1.0
    rows = None if x0 is None else _Rows.of(x0, graph, sigmas, shifts, c_min, beta, sigma)
    sizes, largest = _Sizes.of(x0, graph), [None] * (len(shifts) + 1) if rows is None else rows.before
    effects = [sizes.effect(shift, before) for shift, before in zip(shifts, largest[:-1], strict=True)]
    further = sizes.effect(_highest(shifts), largest[-1], or_lower=True)
    norms = _recursion(sigmas, beta, [effect.norm for effect in effects])
    roots = _recursion(sigmas, beta, [effect.root for effect in effects])
    energies, settled = [root * root for root in roots], _settled(roots[-1], sigma, beta, further.root)

    limit, why = max(1.0, float(getattr(convs[0], "scale", 1.0))), _why(sigmas, beta)
    limits = [
        _upper(
            "norm",
            f"||X_k|| <= {limit:.4g} ||X_0||",
            limit,
            max(norms),
            _settled(norms[-1], sigma, beta, further.norm),
            why + (" Shifts above 0 lengthen rows." if any(effect.norm for effect in effects) else ""),
        ),
        _upper(
            "energy",
            f"E(X_k) <= {limit**2:.4g} E(X_0)",
            limit**2,
            max(energies),
            settled * settled,
            why + _about_srelu(effects, has_features=rows is not None),
        ),
    ]
    if rows is not None:
        limits.append(_about_entries(rows))
    limits.append(_about_activation(shifts, effects, further, rows))
    if spectrum is not None:
        limits.append(_lower(spectrum, list(weights.cpu()), c_min, beta, any(effect.acts for effect in effects)))
    entries = [None] * len(sigmas) if rows is None else rows.after[:-1]
    numbers = zip(range(1, len(sigmas) + 1), sigmas, norms, energies, entries, strict=True)
    return Certificate(tuple(limits), tuple(CertifiedLayer(*each) for each in numbers), sigma)


def _certifiable_layers(model: nn.Module) -> list[Any]:
    """The layers of a model, if all compute what their weights say and are of one kind; refuse others."""
    convs: list[Any] = list(getattr(model, "convs", []))
    asked = ("effective_weight", "shift", "c_min", "beta")
    if not convs or not all(hasattr(conv, name) for conv in convs for name in asked):
        raise GraphjouleError(
            f"{type(model).__name__} is not a model whose `convs` are layers of EGNN or GCNII; there is no certificate "
            "for others."
        )
    if any(conv.norm is not None for conv in convs):
        raise GraphjouleError(
            "The layers have a batch norm, which rescales every channel: their weights limit nothing."
        )
    modules = [each for conv in convs for each in (conv, getattr(conv, "activation", None)) if each is not None]
    if changed := next((module for module in modules if not is_as_written(module)), None):
        raise GraphjouleError(
            f"A layer or its activation, of type {type(changed).__name__}, was replaced or changed: its weight proves "
            "nothing; expected the layers of EGNN or GCNII as they are written."
        )
    if any(_may_be_changed(module) for module in modules):
        raise GraphjouleError(
            "A hook on a layer may change what it computes, and its weight proves nothing; remove it."
        )
    if len({(conv.c_min, conv.beta) for conv in convs}) > 1:
        raise GraphjouleError("The layers differ in c_min or beta; expected the same in all of them.")
    return convs


def _check_finite(read: Mapping[str, Sequence[Tensor | None]]) -> None:
    """Refuse numbers that are not finite; the keys begin the sentence that says so."""
    for what, found in read.items():
        if not all(each is None or bool(each.isfinite().all()) for each in found):
            raise GraphjouleError(f"{what} a number that is not finite; it proves nothing.")


def _may_be_changed(module: nn.Module) -> bool:
    """Whether there is a forward hook that could put something else in the place of input or output."""
    hooks = module._forward_hooks.values()
    return bool(module._forward_pre_hooks) or not all(isinstance(hook, Onlooker) for hook in hooks)


@dataclass(frozen=True)
class _Effect:
    """What an activation ``max(b, z)`` may do at most: lengthen, add to the root of the energy; relative to X_0's."""

    norm: float
    root: float
    acts: bool  # whether it may change anything


@dataclass(frozen=True)
class _Sizes:
    num_nodes: int
    root_of_ones: float
    norm: float | None
    root: float | None

    @classmethod
    def of(cls, x0: Tensor | None, graph: Propagation) -> _Sizes:
        """Of ``X_0``, if there are features."""
        ones = torch.ones(graph.num_nodes, 1, dtype=torch.float64, device=graph.device)
        return cls(
            num_nodes=graph.num_nodes,
            root_of_ones=float(dirichlet_energy(ones, graph)) ** 0.5,
            norm=None if x0 is None else float(x0.norm()),
            root=None if x0 is None else float(dirichlet_energy(x0, graph)) ** 0.5,
        )

    def effect(self, shift: Tensor | None, largest: float | None, *, or_lower: bool = False) -> _Effect:
        """Of the shifts of a layer, None for the identity, before which no entry is larger than `largest`.

        With `or_lower` of any shifts that are not higher, unless all are 0: that is ReLU, which has no others.
        """
        if shift is None:
            return _Effect(0.0, 0.0, acts=False)
        acts = shift > (-math.inf if largest is None else -largest)
        longer = float(shift.clamp(min=0).norm()) * self.num_nodes**0.5
        sizes = shift[acts].abs()
        if or_lower and bool(shift.any()):  # a shift below the lowest entry does nothing
            sizes = sizes.clamp(min=math.inf if largest is None else largest)
        rougher = 2 * float(sizes.norm()) * self.root_of_ones if bool(acts.any()) else 0.0
        return _Effect(_relative(longer, self.norm), _relative(rougher, self.root), bool(acts.any()))


def _relative(added: float, to: float | None) -> float:
    return 0.0 if added == 0 else added / to if to else math.inf


@dataclass(frozen=True)
class _Rows:
    """Lengths that no row exceeds, layer by layer and last at any further depth: before and after the activation."""

    first: float
    before: list[float]
    after: list[float]

    @classmethod
    def of(
        cls,
        x0: Tensor,
        graph: Propagation,
        sigmas: Sequence[float],
        shifts: Sequence[Tensor | None],
        c_min: float,
        beta: float,
        sigma: float,
    ) -> _Rows:
        """The recursion ``u_k = sigma_k (S u_{k-1} + beta u_0)``, then further layers with `sigma`, then all others."""
        start: Tensor = torch.linalg.vector_norm(x0, dim=1)
        before, after, u = [], [], start

        def mixed(u: Tensor) -> Tensor:
            around = graph.product(u[:, None])[:, 0]
            found = (1 - c_min) * around + (c_min - beta) * u + beta * start
            return found.nan_to_num(nan=math.inf, posinf=math.inf)  # 0 times a length that is not bounded

        for own, shift in zip(sigmas, shifts, strict=True):
            z = own * mixed(u) if own else torch.zeros_like(u)
            u = z + (0.0 if shift is None else shift.clamp(min=0).norm())
            before.append(z.max())
            after.append(u.max())
        highest, scale = _highest(shifts), (1 + graph.degree).sqrt()
        more = 0.0 if highest is None else float(highest.clamp(min=0).norm())
        shrink, far = sigma * (1 - beta), u.max()
        if shrink < 1:  # the change of u / sqrt(1 + d) shrinks by this at every layer
            for _ in range(_FURTHER):
                last, u = u, sigma * mixed(u) + more
                far = torch.maximum(far, u.max())
            far = torch.maximum(far, (u + scale * ((u - last).abs() / scale).max() * shrink / (1 - shrink)).max())
        elif sigma == 1 and not more:  # beta = 0: the largest u / sqrt(1 + d) does not grow
            far = scale.max() * (u / scale).max()
        else:
            far = torch.full_like(far, math.inf)
        numbers = torch.stack([start.max(), *before, *after, far]).tolist()
        return cls(numbers[0], [*numbers[1 : len(before) + 1], numbers[-1]], numbers[len(before) + 1 :])


def _highest(shifts: Sequence[Tensor | None]) -> Tensor | None:
    """The highest shift of every channel over all layers."""
    known = [shift for shift in shifts if shift is not None]
    return torch.stack(known).amax(dim=0) if known else None


def _encoded(model: nn.Module, x: Features) -> Tensor:
    """``X_0`` in evaluation mode, float64."""
    encoder = getattr(model, "encoder", None)
    if encoder is None:
        raise GraphjouleError(f"{type(model).__name__} has no `encoder` that makes X_0 from the features.")
    with torch.no_grad(), evaluating(encoder):
        out: Tensor = encoder(x)
    return out.double()


def _recursion(sigmas: Sequence[float], beta: float, added: Sequence[float]) -> list[float]:
    """``a_k = sigma_k ((1 - beta) a_{k-1} + beta) + added_k`` of every layer, from ``a_0 = 1``."""
    a, found = 1.0, []
    for sigma, more in zip(sigmas, added, strict=True):
        a = (sigma * ((1 - beta) * a + beta) if sigma else 0.0) + more  # zeros leave nothing of what is not bounded
        found.append(a)
    return found


def _settled(now: float, sigma: float, beta: float, added: float) -> float:
    """The most that ``a <- sigma ((1 - beta) a + beta) + added`` can become from `now` on, at any depth."""
    shrink = sigma * (1 - beta)
    if shrink < 1:
        return max(now, (sigma * beta + added) / (1 - shrink))
    return now if sigma == 1 and added == 0 else math.inf


def _upper(name: str, claim: str, limit: float, value: float, beyond: float, why: str) -> CertifiedLimit:
    is_bounded = math.isfinite(value) and Enclosure(value, value).is_at_most(limit) == "yes"
    further = f"At any further depth it is at most {beyond:.6g}." if math.isfinite(beyond) else ""
    return CertifiedLimit(name, claim, "yes" if is_bounded else "unknown", value, beyond, f"{why} {further}".strip())


def _why(sigmas: Sequence[float], beta: float) -> str:
    largest = max(sigmas)
    if largest <= 1 + _ROUNDING:
        return f"No weight has a spectral norm above 1, and (1 - c_min) P + alpha I has at most {1 - beta:.4g}."
    above = [k for k, sigma in enumerate(sigmas, start=1) if sigma > 1 + _ROUNDING]
    number = f"{len(above)} of {len(sigmas)} weights have a spectral norm above 1"
    return f"{number}, the largest {largest:.6g} at layer {sigmas.index(largest) + 1}."


def _about_srelu(effects: Sequence[_Effect], *, has_features: bool) -> str:
    if not any(effect.root for effect in effects):
        return ""
    if not has_features:
        return " SReLU can add energy; whether it does depends on the features, which were not given."
    layers = sum(effect.root > 0 for effect in effects)
    return f" SReLU may act at {layers} layers, where it can add energy."


def _about_entries(rows: _Rows) -> CertifiedLimit:
    largest = max(rows.after[:-1])
    claim = f"|x| <= {largest:.4g} for every entry of every layer"
    why = f"No row of X_0 is longer than {rows.first:.4g}, and rows grow only towards nodes of high degree."
    return _upper("entries", claim, math.inf, largest, rows.after[-1], why)


def _about_activation(
    shifts: Sequence[Tensor | None], effects: Sequence[_Effect], further: _Effect, rows: _Rows | None
) -> CertifiedLimit:
    highest = _highest(shifts)
    if highest is None:
        why, value = "There is no activation.", 0.0
    elif rows is None:
        why, value = "Without features it is not known how low an entry can be.", math.inf
    else:
        value = max(rows.before[:-1])
        why = f"No entry before an activation is below {-value:.4g}; the highest shift is {float(highest.max()):.4g}."
    verdict: Verdict = "unknown" if any(effect.acts for effect in effects) else "yes"
    beyond = math.inf if rows is None or further.acts else rows.before[-1]
    claim = "max(b, z) = z at every layer: the network is linear after its encoder"
    return CertifiedLimit("activation", claim, verdict, value, 0.0 if highest is None else beyond, why)


def _lower(spectrum: Spectrum, weights: Sequence[Tensor], c_min: float, beta: float, acts: bool) -> CertifiedLimit:
    if spectrum.interval is None:
        raise GraphjouleError("The graph has no edges, so no features have energy and no weight can keep any.")
    least = 0.0 if acts else min(total.low for _, _, total in energy_intervals(spectrum, weights, c_min, beta))
    why = "The activation may act." if acts else "From the graph's eigenvalues and the singular values of the weights."
    claim = f"E(X_k) >= {least:.4g} E(X_0)"
    return CertifiedLimit("lower energy", claim, "yes" if least > 0 else "unknown", least, 0.0, why)
