"""A graph and a setting audited: spectrum, lemmas, energy of every layer at the initial point, and what it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from graphjoule.errors import GraphjouleError, counted
from graphjoule.files import json_text
from graphjoule.graph import Propagation
from graphjoule.measures import Estimate, Reach, Spectrum, spectrum
from graphjoule.theory.layers import Enclosure, LayerRange, Setting, Verdict, depth_limit, layer_ranges, number
from graphjoule.theory.lemmas import Lemma, lemmas
from graphjoule.theory.reach import LAWS, StepLaw

_NODES = 64  # over which a reach is averaged
_ANSWERS = {"yes": "so it is", "no": "so it is not", "unknown": "open"}


class Section(NamedTuple):
    """A table: its title, the names of its columns and its rows."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Audit:
    """What theory says about an EGNN on a graph, before any training.

    Attributes:
        spectrum: the eigenvalues of the graph.
        setting: the numbers of the network.
        layers: least and most energy of every layer at the initial point; none for a graph without edges.
        lemmas: the paper's lemmas on this graph; none for a graph without edges.
        limit: least and largest ``E(X_k) / E(X_0)`` of endless depth; None for a graph without edges.
        reaches: the closed law of reach by network, and the reach on this graph that follows from it.
    """

    spectrum: Spectrum
    setting: Setting
    layers: list[LayerRange]
    lemmas: list[Lemma]
    limit: tuple[Enclosure, Enclosure] | None
    reaches: Mapping[str, tuple[StepLaw, Reach]] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """Everything but the list of eigenvalues, ready for JSON; an enclosure is ``[low, high]``."""
        return {
            "setting": asdict(self.setting) | {"alpha": self.setting.alpha},
            "spectrum": self.spectrum.fields(),
            "lemmas": [vars(lemma) | {"verdict": lemma.verdict} for lemma in self.lemmas],
            "layers": [vars(layer) for layer in self.layers],
            "limit": self.limit,
            "reach": {
                name: asdict(law) | {"mean_steps": law.mean_steps, "most_steps": law.most_steps} | found.fields()
                for name, (law, found) in self.reaches.items()
            },
            "meaning": self.meaning(),
        }

    def to_json(self) -> str:
        """The fields as JSON; what is not bounded is null."""
        return json_text(self.fields())

    def meaning(self) -> list[str]:
        """What the numbers mean, in sentences."""
        found, setting = self.spectrum, self.setting
        if self.limit is None or found.min_factor is None or found.max_factor is None:
            return ["The graph has no edges: every feature has energy 0, and every limit reads 0 <= 0."]
        sentences = []
        if found.num_components > 1:
            sentences.append(
                f"The graph has {found.num_components:,} connected components. Energy compares nodes within a "
                "component only: it says nothing about differences between them."
            )
        least, most = (number(Enclosure(factor.low, factor.high)) for factor in (found.min_factor, found.max_factor))
        twins = ""
        if found.twins is not None:
            first, second = found.twins
            twins = f" Nodes {first} and {second} are twins: after one propagation their features are equal."
        sentences.append(
            f"One plain propagation leaves between {least} and {most} of the energy, depending on the features.{twins}"
        )
        sentences += [
            f"Lemma {one.number} {one.verdict}: {one.why}." for one in self.lemmas if one.verdict != "holds here"
        ]
        lowest = min(self.layers, key=lambda layer: layer.step_min.high)
        highest = max(self.layers, key=lambda layer: layer.total_max.low)
        sentences += [
            _about_limit(
                f"The lower limit E(X_k) >= {setting.c_min:g} E(X_{{k-1}})",
                [layer.step_min.is_at_least(setting.c_min) for layer in self.layers],
                f"layer {lowest.layer} leaves {number(lowest.step_min)} of the energy before it",
            ),
            _about_limit(
                f"The upper limit E(X_k) <= {setting.c_max:g} E(X_0)",
                [layer.total_max.is_at_most(setting.c_max) for layer in self.layers],
                f"layer {highest.layer} has {number(highest.total_max)} E(X_0)",
            ),
        ]
        if setting.beta == 0 and setting.c_min < 1:
            sentences.append("With endless depth all energy is lost: beta = 0, so nothing brings X_0 in again.")
        else:
            least, most = (number(end) for end in self.limit)
            sentences.append(f"With endless depth between {least} and {most} of E(X_0) is left, whatever c_max is.")
        if "egnn" in self.reaches:
            law, reach = self.reaches["egnn"]
            sentences.append(
                f"A node sees what random walks of {law.mean_steps:.3g} steps on average bring, {law.most_steps:.3g} "
                f"with endless depth: 95 % of the steps are made by layer {law.layers_in_use()}. On this graph that is "
                f"a mean reach of {reach}."
            )
        if not found.is_complete:
            how = "proved" if not found.risk else f"certain up to a risk of {found.risk:g} over the random start"
            low, high = found.interval or (0.0, 2.0)
            sentences.append(
                f"Not all eigenvalues were computed. That those above 0 lie between {low:.6g} and {high:.6g} is {how}; "
                "energies per layer are bounds over that interval, and 'a to b' is where the exact number lies."
            )
        left_out = "activation, dropout, batch norm, and what training does to the weights"
        return [*sentences, f"Left out, as in the paper's proofs: {left_out}."]

    def sections(self) -> list[Section]:
        """The tables to show, for a printer to lay out."""
        found = self.spectrum
        eigenvalues = {
            "lambda_0, the smallest above 0": found.lambda_0,
            "lambda_1, the closest to 1": found.lambda_1,
            "lambda_max": found.lambda_max,
            "min (1 - lambda)^2": found.min_factor,
            "max (1 - lambda)^2": found.max_factor,
        }
        header: tuple[str, ...] = ("", "value", "between", "kind", "residual", "method")
        rows: list[tuple[str, ...]] = [_estimate_row(name, estimate) for name, estimate in eigenvalues.items()]
        sections = [Section("Non-zero eigenvalues of L = I - P", header, rows)]
        if self.lemmas:
            header = ("", "verdict", "paper, least", "most", "right, least", "most", "claim")
            rows, reasons = [], []
            for lemma in self.lemmas:
                bounds = ("-" if bound is None else number(bound) for bound in (*lemma.paper, *lemma.corrected))
                rows.append((str(lemma.number), lemma.verdict, *bounds, lemma.claim))
                premise = [f"asks for {lemma.premise}: {_ANSWERS[lemma.premise_holds]}"] if lemma.premise else []
                reasons += [(str(lemma.number), text) for text in (*premise, lemma.why)]
            sections.append(Section("Lemmas, as shares of energy", header, rows))
            sections.append(Section("What decides them", ("", ""), reasons))
        if self.layers:
            header, last = ("layer", "least E_k/E_k-1", "most", "least E_k/E_0", "most"), len(self.layers)
            shown = {1, 2, 3, 4, last, *range(8, last, max(8, last // 8))}
            rows = [
                (str(one.layer), *map(number, (one.step_min, one.step_max, one.total_min, one.total_max)))
                for one in self.layers
                if one.layer in shown
            ]
            sections.append(Section("Energy at the initial point, over all features", header, rows))
        if self.reaches:
            header = ("", "mean steps", "endless depth", "95 % by layer", "mean reach in hops", "99 % within")
            rows = [
                (
                    f"{name}, {law.num_layers} layers",
                    f"{law.mean_steps:.4g}",
                    f"{law.most_steps:.4g}",
                    str(law.layers_in_use()),
                    f"{reach.mean:.3g} ± {reach.mean_error:.1g}",
                    str(reach.range()),
                )
                for name, (law, reach) in self.reaches.items()
            ]
            sections.append(Section("Reach with weights near the identity", header, rows))
        return sections

    def lines(self) -> list[str]:
        """The whole audit as plain text."""
        lines = [self.title(), ""]
        for section in self.sections():
            widths = [max(map(len, column)) for column in zip(section.header, *section.rows, strict=True)]
            lines.append(section.title)
            for row in (*([section.header] if any(section.header) else []), *section.rows):
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                lines.append(f"  {'  '.join(cells)}".rstrip())
            lines.append("")
        return [*lines, "What it means", *(f"- {sentence}" for sentence in self.meaning())]

    def title(self) -> str:
        """The graph and the setting in one line."""
        size, set_ = self.spectrum, self.setting
        return (
            f"{counted(size.num_nodes, 'node')}, {counted(size.num_edges, 'edge')}, "
            f"{counted(size.num_components, 'connected component')}; "
            f"c_min {set_.c_min:g}, c_max {set_.c_max:g}, alpha {set_.alpha:g}, beta {set_.beta:g}, "
            f"{counted(set_.num_layers, 'layer')}"
        )


def audit(graph: Propagation | Tensor, setting: Setting, *, alphas: Mapping[str, float] | None = None) -> Audit:
    """What the paper's theory, corrected, says about an EGNN with this setting on this graph.

    Args:
        graph: a `Propagation`, or an ``edge_index`` with both directions of each edge; without edges there is no
            energy, and the audit says so.
        setting: the numbers of the network.
        alphas: ``alpha`` of APPNP and GCNII, whose reach is shown beside EGNN's; by default 0.1 each.

    Returns:
        The audit, with `lines` for people and `to_json` for programs.

    Example:
        >>> import torch
        >>> pair = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
        >>> audit(pair, Setting(num_layers=2)).lines()[0]
        '2 nodes, 1 edge, 1 connected component; c_min 0.2, c_max 1, alpha 0.1, beta 0.1, 2 layers'
    """
    if not isinstance(setting, Setting):
        raise GraphjouleError(f"The setting is {setting!r}; expected a Setting, such as Setting(num_layers=64).")
    found = spectrum(graph)
    layers = layer_ranges(found, setting)
    reaches = {}
    for name in LAWS:
        options = asdict(setting) | {"alpha": (alphas or {}).get(name, 0.1)}
        law = StepLaw.of(name, options, setting.num_layers)
        reaches[name] = law, law.reach(graph, num_nodes=_NODES)
    limit = depth_limit(found, setting)
    return Audit(found, setting, layers, lemmas(found, setting, layers), limit, reaches)


def _estimate_row(name: str, estimate: Estimate | None) -> tuple[str, ...]:
    if estimate is None:
        return name, "none", "", "", "", ""
    low, high = max(0.0, estimate.low), estimate.high
    between = "" if estimate.kind == "exact" else f"{low:.7g} and {high:.7g}"
    residual = f"{estimate.residual:.0e}" if estimate.residual else ""
    return name, f"{estimate.value:.7g}", between, estimate.kind, residual, estimate.method


def _about_limit(limit: str, verdicts: Sequence[Verdict], worst: str) -> str:
    """Whether a limit holds at every layer; `worst` is said where it is broken."""
    broken, open_ = (
        [layer for layer, verdict in enumerate(verdicts, start=1) if verdict == wanted] for wanted in ("no", "unknown")
    )
    if broken:
        rest = f"; at {_layers(open_)} it is open" if open_ else ""
        return f"{limit} is broken by some features at {_layers(broken)}{rest}. At worst, {worst}."
    if open_:
        return f"{limit} could be neither proved nor refuted at {_layers(open_)}; it holds at all others."
    return f"{limit} holds at every layer of the initialised network, whatever the features."


def _layers(numbers: Sequence[int]) -> str:
    """Layer numbers, runs of them shortened.

    >>> _layers([1]), _layers([1, 2, 3, 7])
    ('layer 1', 'layers 1 to 3, 7')
    """
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return f"layer{'s' if len(numbers) > 1 else ''} {text}"
