"""The Dirichlet energy of every layer before and after training, and EGNN's limits, as in figure 1 of the paper."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from graphjoule.nn import MODELS
from graphjoule.report.drawings.chart import Chart, Drawing
from graphjoule.report.drawings.evidence import Evidence
from graphjoule.studies import EnergyRecord, State
from graphjoule.trace.plots import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, Band, Line, Panel

__all__ = ["energy_drawings", "style_of"]

_STYLES: Final = {"gcn": (VERMILION, ":"), "gcnii": (GREEN, "--"), "egnn": (BLUE, "-")}
_OTHERS: Final = ((PURPLE, "-."), (ORANGE, "-"), (SKY, "--"), (BLACK, ":"), (PURPLE, "-"), (ORANGE, "--"))
_STATES: Final[dict[State, str]] = {"initial": "at initialisation", "trained": "after training"}
_DECADES: Final = 7  # shown: a GCN at initialisation falls through 25, and EGNN with its limits takes two or three
_SIZE: Final = (6.4, 3.4)  # inches of one panel


def energy_drawings(evidence: Evidence) -> list[Drawing]:
    """A drawing of all networks of a study whose energies are recorded; none where there are none."""
    records = [found for cell in evidence.cells if (found := evidence.energies_of(cell)) is not None]
    if not records:
        return []
    charts = [Chart(panel, dots="none") for panel in panels(records)]
    alt = f"Dirichlet energy of every layer. {'; '.join(describe(record) for record in records)}."
    return [Drawing(evidence.study.name, alt, charts, size=_SIZE)]


def style_of(model: str) -> tuple[str, str]:
    """Colour and line style of a model, the same in every figure."""
    others = [name for name in MODELS if name not in _STYLES]
    return _STYLES.get(model) or _OTHERS[others.index(model) % len(_OTHERS) if model in others else 0]


def describe(record: EnergyRecord) -> str:
    """One line about a record."""
    energy = record.median("trained")
    accuracy = _accuracy(record)
    return (
        f"{record.dataset}, {record.model}: test accuracy {accuracy}, energy {energy[0]:.3g} at layer "
        f"{record.first_layer}, {energy[-1]:.3g} at layer {record.first_layer + len(energy) - 1}{_held(record)}"
    )


def _accuracy(record: EnergyRecord) -> str:
    known = [accuracy for accuracy in record.test_score if accuracy is not None]
    return f"{100 * statistics.fmean(known):.1f} %" if known else "none"


def _limits(record: EnergyRecord, energy: list[float]) -> tuple[list[float], float] | None:
    """Lower limit of every layer after the first and the upper one; None for a model without."""
    options = record.resolved.model.options
    if not {"c_min", "c_max"} <= options.keys():
        return None
    return [options["c_min"] * before for before in energy[:-1]], options["c_max"] * energy[0]


def _held(record: EnergyRecord) -> str:
    energy = record.median("trained")
    found = _limits(record, energy)
    if found is None:
        return ""
    lower, upper = found
    within = [low <= now <= upper for low, now in zip(lower, energy[1:], strict=True)]
    return f", {sum(within)} of {len(within)} layers within both limits"


def panels(records: Sequence[EnergyRecord]) -> list[Panel]:
    """A panel per dataset and state: every run a thin line, the median in bold, the limits as a band."""
    datasets = dict.fromkeys(record.dataset for record in records)
    return [
        _panel([record for record in records if record.dataset == dataset], state)
        for state in _STATES
        for dataset in datasets
    ]


def _panel(records: Sequence[EnergyRecord], state: State) -> Panel:
    first = records[0]
    return Panel(
        title=f"{first.dataset.capitalize()}, {first.resolved.model.num_layers} layers, {_STATES[state]}",
        y_label="Dirichlet energy E(X)",
        lines=[line for record in records for line in _lines(record, state)],
        bands=[band for record in records if (band := _band(record, state)) is not None],
        decades=_DECADES,
    )


def _lines(record: EnergyRecord, state: State) -> list[Line]:
    colour, style = style_of(record.model)
    energies = record.energies(state)
    x = range(record.first_layer, record.first_layer + len(energies[0]))
    runs = [Line("", run, x, colour, width=0.8, alpha=0.25) for run in energies]
    accuracy = f"\n{_accuracy(record)} right" if state == "trained" else ""
    return [*runs, Line(record.model.upper() + accuracy, record.median(state), x, colour, style, width=2.4)]


def _band(record: EnergyRecord, state: State) -> Band | None:
    found = _limits(record, record.median(state))
    if found is None:
        return None
    lower, upper = found
    label = f"limits of {record.model.upper()}"
    return Band(label, range(1, len(lower) + 1), lower, [upper] * len(lower), style_of(record.model)[0])
