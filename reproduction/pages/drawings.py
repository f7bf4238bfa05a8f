"""The figures of the pages: the drawings of the studies, what they show in words, and the numbers behind them."""

from __future__ import annotations

import platform
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from graphjoule.report import Drawing, Evidence, Panel, SweepResult, drawings_of, find_sweeps
from graphjoule.studies import EnergyRecord
from reproduction.pages.layers import layers_drawing
from reproduction.pages.phrases import counted

__all__ = ["Figure", "describe_sweeps", "drawn_with", "figures_of", "means"]


@dataclass(frozen=True)
class Figure:
    """A drawing, and what it shows for those who cannot see it."""

    drawing: Drawing
    alt: str

    @property
    def name(self) -> str:
        """Of its file, without an ending."""
        return self.drawing.name

    def data(self) -> dict[str, Any]:
        """The numbers that are drawn, six digits of each."""
        return {"name": self.name, "alt": self.alt, "charts": [_panel_data(panel) for panel in self.drawing.panels]}


def drawn_with() -> dict[str, str]:
    """What the bytes of a picture depend on besides its numbers."""
    return {"machine": platform.machine(), **{name: version(name) for name in ("matplotlib", "numpy", "pillow")}}


def _panel_data(panel: Panel) -> dict[str, Any]:
    return {
        "title": panel.title,
        "x": panel.x_label,
        "y": panel.y_label,
        "lines": [
            {"label": line.label, "x": _short(range(len(line.y)) if line.x is None else line.x), "y": _short(line.y)}
            for line in panel.lines
        ],
        "bands": [
            {"label": band.label, "x": _short(band.x), "low": _short(band.low), "high": _short(band.high)}
            for band in panel.bands
        ],
        **({"shaded": list(panel.shaded)} if panel.shaded else {}),
        **({"mark": _short(panel.ring)} if panel.ring else {}),
    }


def _short(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def figures_of(evidence: Evidence) -> list[Figure]:
    """The figures of a study; of sides, every layer under the instruments in place of the energies alone."""
    kind = evidence.study.drawing
    figures = [Figure(one, _DESCRIBE[kind](evidence, one)) for one in drawings_of(evidence)] if kind else []
    if kind != "sides":
        return figures
    accuracies = {figure.name: figure for figure in figures}
    sides = []
    for dataset in dict.fromkeys(cell.dataset for cell in evidence.cells):
        found = accuracies.get(f"{evidence.study.name}-accuracy-{dataset}")
        layers = layers_drawing(evidence, dataset)
        sides += [*([found] if found else []), *([Figure(*layers)] if layers else [])]
    return sides


def _describe_depth(evidence: Evidence, drawing: Drawing) -> str:
    """The accuracies at the end of every line, or the energies of the deepest network of every model."""
    if drawing.name == f"{evidence.study.name}-accuracy":
        texts = []
        for panel in drawing.panels:
            ends = [f"{line.label} {line.y[-1]:.1f} % at {(line.x or [0])[-1]:,}" for line in panel.lines]
            texts.append(f"On {panel.title.lower()}: {', '.join(ends)} layers.")
        return f"Test accuracy over the number of layers. {' '.join(texts)}"
    dataset = drawing.name.removeprefix(f"{evidence.study.name}-energy-")
    deepest: dict[str, EnergyRecord] = {}
    for cell in sorted(evidence.cells, key=lambda cell: cell.num_layers):
        record = evidence.energies_of(cell) if cell.dataset == dataset else None
        if record is not None:
            deepest[cell.model] = record
    texts = [_describe_energy(key.label, deepest[key.label.lower()]) for key in drawing.legend]
    return (
        f"Dirichlet energy of every layer after training on {dataset}, a small chart for each of "
        f"{counted(len(drawing.panels), 'depth')}. {' '.join(texts)}"
    )


def _describe_energy(name: str, record: EnergyRecord) -> str:
    energies = record.median("trained")
    return (
        f"{name} with {record.resolved.model.num_layers:,} layers: {energies[0]:.2g} at first, "
        f"{min(energies):.2g} at the lowest, {energies[-1]:.2g} at last."
    )


def _describe_energies(evidence: Evidence, drawing: Drawing) -> str:
    records = [found for cell in evidence.cells if (found := evidence.energies_of(cell)) is not None]
    return f"Dirichlet energy of every layer. {'; '.join(describe_record(record) for record in records)}."


def describe_record(record: EnergyRecord) -> str:
    """One line about a record: accuracy, energy of the first and the last layer, and how many keep their limits."""
    energy, options = record.median("trained"), record.resolved.model.options
    known = [accuracy for accuracy in record.test_score if accuracy is not None]
    accuracy = f"{100 * statistics.fmean(known):.1f} %" if known else "none"
    held = ""
    if {"c_min", "c_max"} <= options.keys():
        lower = [options["c_min"] * before for before in energy[:-1]]
        upper = options["c_max"] * energy[0]
        within = [low <= now <= upper for low, now in zip(lower, energy[1:], strict=True)]
        held = f", {sum(within)} of {len(within)} layers within both limits"
    return (
        f"{record.dataset}, {record.model}: test accuracy {accuracy}, energy {energy[0]:.3g} at layer "
        f"{record.first_layer}, {energy[-1]:.3g} at layer {record.first_layer + len(energy) - 1}{held}"
    )


def _describe_sides(evidence: Evidence, drawing: Drawing) -> str:
    """Where the sides of every model differ most."""
    names = {(key.colour, key.style): key.label for key in drawing.legend}
    texts = []
    for panel in drawing.panels:
        sides: dict[float, dict[str, float]] = {}
        for line in panel.lines:
            for depth, mean in zip(line.x or (), line.y, strict=True):
                sides.setdefault(depth, {})[names[line.colour, line.style]] = mean
        widest = max(sorted(sides), key=lambda depth: max(sides[depth].values()) - min(sides[depth].values()))
        means_text = ", ".join(f"{side} {mean:.1f} %" for side, mean in sides[widest].items())
        texts.append(f"{panel.title} differs most with {widest:,} layers: {means_text}.")
    dataset = drawing.name.rpartition("-")[2]
    return f"Test accuracy over the number of layers on {dataset}, a chart for every model. {' '.join(texts)}"


def _describe_sweep(evidence: Evidence, drawing: Drawing) -> str:
    (dataset, model, layers), sweeps = next(
        (place, found)
        for place, found in find_sweeps(evidence).items()
        if drawing.name == f"{evidence.study.name}-{place[0]}-{place[2]}"
    )
    *first, last = [sweep.sweep.component for sweep in sweeps]
    names = f"{', '.join(first)} and {last}" if first else last
    said = describe_sweeps(sweeps, f"the {evidence.study.reference.name}")
    return f"Test accuracy of {model.upper()} with {layers} layers on {dataset} over {names}. {said}"


def describe_sweeps(sweeps: Sequence[SweepResult], source: str) -> str:
    """The message of the sweeps in a sentence; empty where nothing is recommended."""
    if not any(sweep.recommended for sweep in sweeps):
        return ""
    inside, outside = ([m for sweep in sweeps for m in means(sweep, inside=side)] for side in (True, False))
    parts = [
        f"{where} between {min(found):.1f} and {max(found):.1f} %"
        for where, found in (("the means lie", inside), ("outside", outside))
        if found
    ]
    return f"Within the ranges that {source} recommends {', '.join(parts)}." if inside else ""


def means(sweep: SweepResult, *, inside: bool) -> list[float]:
    """The means at the recommended values, both ends among them, or at the others."""
    low, high = sweep.sweep.recommended or (-float("inf"), float("inf"))
    points = zip(sweep.series.x, sweep.series.mean, strict=True)
    return [mean for x, mean in points if (low <= x <= high) == inside]


def _describe_differences(evidence: Evidence, drawing: Drawing) -> str:
    rows = [row for row in evidence.rows if row.outcome.half_width is not None]
    verdicts = Counter(row.outcome.verdict for row in rows)
    said = ", ".join(f"{number} {verdict}" for verdict, number in sorted(verdicts.items()))
    name = evidence.study.title.partition(":")[0].lower()
    return f"Ours less the {evidence.study.reference.name}'s in {counted(len(rows), 'cell')} of {name}: {said}."


_DESCRIBE: Final[dict[str, Callable[[Evidence, Drawing], str]]] = {
    "depth": _describe_depth,
    "differences": _describe_differences,
    "energies": _describe_energies,
    "sides": _describe_sides,
    "sweeps": _describe_sweep,
}
