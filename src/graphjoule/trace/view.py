"""The rows of a trace and what can be asked of them, be the trace running or read from a file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from graphjoule.errors import GraphjouleError, choices
from graphjoule.files import json_text, parse_json
from graphjoule.trace.plots import PALETTE, Line, Panel, draw_panels, save_figure
from graphjoule.trace.watch import name_matches

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SHOWN = 5
"""How many modules or parts a sentence names."""


@dataclass(frozen=True)
class LayerTrace:
    """One row of a trace: what one layer's output looked like at one call.

    Attributes:
        name: the module's name in the model; "act#2" is the second use of ``act`` in one call of the model.
        values: the recorded measures by name.
        module: the module's class.
        channels: number of columns of the output.
        part: which graph of a batch, node type or relation ("author writes paper") it is; None for all.
        operator: what its energy is that of, a key of `graphjoule.trace.operators.OPERATORS`.
        num_nodes: number of rows of the output.
        call: which call of the model it was, from 0.
        mark: the label that `Trace.mark` set last, such as the epoch.
        run: which run of a batch of runs; None where the output has no run axis.
        training: whether the module was in training mode.
        gradient: norm of the loss's gradient by the output, ``||dL/dX||``; None without a backward pass.
        weight_gradient: norm of the loss's gradient by all parameters of the module; None where it has no such.

    Example:
        >>> layer = LayerTrace("convs.0", {"energy": 2.0, "norm": 3.0})
        >>> layer.energy, layer["norm"]
        (2.0, 3.0)
    """

    name: str
    values: Mapping[str, float] = field(default_factory=dict)
    module: str = ""
    channels: int = 1
    part: str | None = None
    operator: str = "symmetric"
    num_nodes: int = 0
    call: int = 0
    mark: int | str | None = None
    run: int | None = None
    training: bool = False
    gradient: float | None = None
    weight_gradient: float | None = None

    @property
    def energy(self) -> float:
        """The Dirichlet energy ``E(X)``."""
        return self["energy"]

    @property
    def norm(self) -> float:
        """The Frobenius norm ``||X||``."""
        return self["norm"]

    def __getitem__(self, measure: str) -> float:
        found = self.numbers().get(measure)
        if found is None:
            raise GraphjouleError(f"{self.name} has no {measure!r}; recorded are: {choices(self.numbers())}.")
        return found

    def __contains__(self, measure: str) -> bool:
        return measure in self.numbers()

    def numbers(self) -> dict[str, float]:
        """The measures, and the norms of the gradients where they were recorded."""
        gradients = {"gradient": self.gradient, "weight_gradient": self.weight_gradient}
        return {**self.values, **{name: value for name, value in gradients.items() if value is not None}}


def without_scores(rows: Sequence[LayerTrace]) -> Sequence[LayerTrace]:
    """The rows that are embeddings: a last row of another width is class scores."""
    return rows[:-1] if len(rows) > 2 and rows[-1].channels != rows[-2].channels else rows


class TraceView:
    """Rows and the names of the measures in them."""

    @property
    def layers(self) -> list[LayerTrace]:
        """All rows in the order of the calls."""
        raise NotImplementedError

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the recorded measures."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """How much is there, and how to see it."""
        rows = self.layers
        if not rows:
            return f"<{type(self).__name__}: nothing recorded>"
        calls = len({row.call for row in rows})
        of = f"{len(rows)} rows of {calls} call{'s' * (calls > 1)}"
        return f"<{type(self).__name__}: {of}; .table() and .plot() show them>"

    def columns(self) -> list[str]:
        """The measures, and the gradients' norms where some row has one."""
        found = {name for row in self.layers for name in row.numbers()}
        return [*self.measures, *(name for name in ("gradient", "weight_gradient") if name in found)]

    def select(
        self,
        *names: str,
        call: int | None = None,
        mark: int | str | None = None,
        run: int | None = None,
        part: str | None = None,
    ) -> RecordedTrace:
        """A trace with some of the rows.

        Args:
            names: names of modules with ``*`` as a wildcard within one level; by default all.
            call: only those of this call; -1 is the last that was recorded.
            mark: only those with this mark.
            run: only those of this run, and those that all runs share.
            part: only those of this graph ("graph 3"), node type or relation ("author writes paper").
        """
        rows = self.layers
        if call is not None and call < 0:
            calls = sorted({row.call for row in rows})
            call = calls[call] if -call <= len(calls) else None
        kept = [
            row
            for row in rows
            if (not names or any(name_matches(row.name, name) for name in names))
            and call in (None, row.call)
            and mark in (None, row.mark)
            and (run is None or row.run in (None, run))
            and part in (None, row.part)
        ]
        return RecordedTrace(kept, self.measures)

    def one_pass(self, what: str) -> list[LayerTrace]:
        """The rows of the last call, which must be of one run; the error sentence says that `what` needs them."""
        rows = self.select(call=-1).layers
        if not rows:
            raise GraphjouleError(f"The trace is empty, so there is no {what}: no watched module gave node features.")
        runs = {row.run for row in rows if row.run is not None}
        if len(runs) > 1:
            raise GraphjouleError(
                f"The trace holds {len(runs)} runs, and {what} is about one: choose it with trace.select(run=0)."
            )
        parts = list(dict.fromkeys(row.part for row in rows))
        if len(parts) > 1:
            raise GraphjouleError(
                f"The trace holds {len(parts)} parts, and {what} is about one: choose it with "
                f"trace.select(part={parts[0]!r})."
            )
        operators = sorted({row.operator.replace("attention", "random_walk") for row in rows})
        if len(operators) > 1:
            raise GraphjouleError(
                f"The rows are measured by different operators, {' and '.join(operators)}, whose energies cannot be "
                "compared; choose one for all with Trace(..., operator=...)."
            )
        return rows

    def averaged(self) -> RecordedTrace:
        """One row per module and mark, such as the epoch: the mean over all calls, in which every node counts the same.

        Energies are sums over nodes: their mean is that of the calls, and norms are roots of such. Other measures are
        weighted by the number of nodes, and ``E / ||X||^2`` of "symmetric" and "loopless" by ``||X||^2``. `num_nodes`
        is the number of all nodes together.

        Example:
            >>> rows = [LayerTrace("convs.0", {"energy": 2.0, "mad": 0.5}, num_nodes=10, call=0, mark=1)]
            >>> rows += [LayerTrace("convs.0", {"energy": 8.0, "mad": 0.1}, num_nodes=30, call=1, mark=1)]
            >>> (row,) = RecordedTrace(rows, ["energy", "mad"]).averaged().layers
            >>> row.energy, round(row["mad"], 3), row.num_nodes
            (5.0, 0.2, 40)
        """
        groups: dict[tuple[object, ...], list[LayerTrace]] = {}
        for row in self.layers:
            groups.setdefault((row.mark, row.training, row.name, row.part, row.operator, row.run), []).append(row)
        calls = {key: number for number, key in enumerate(dict.fromkeys(key[:2] for key in groups))}
        averages = []
        for key, rows in groups.items():
            numbers = {name: _average(name, rows) for name in self.columns() if all(name in row for row in rows)}
            row = replace(rows[0], call=calls[key[:2]], num_nodes=sum(row.num_nodes for row in rows))
            row = replace(row, gradient=numbers.pop("gradient", None))
            averages.append(replace(row, weight_gradient=numbers.pop("weight_gradient", None), values=numbers))
        return RecordedTrace(sorted(averages, key=lambda row: row.call), self.measures)

    def table(self) -> str:
        """The rows as text, one line each; calls, marks, modes and runs have a column where they differ.

        Parts have one where there are some, and operators where one is not the paper's.

        Example:
            >>> rows = [LayerTrace("convs.0", {"energy": 2.0}), LayerTrace("head", {"energy": 1e-9})]
            >>> print(RecordedTrace(rows, ["energy"]).table())
            layer    energy
            convs.0       2
            head      1e-09
        """
        rows = self.layers
        facts = {
            "call": [str(row.call) for row in rows],
            "mark": ["" if row.mark is None else str(row.mark) for row in rows],
            "mode": ["train" if row.training else "eval" for row in rows],
            "run": ["" if row.run is None else str(row.run) for row in rows],
        }
        left = {name: cells for name, cells in facts.items() if len(set(cells)) > 1}
        left["layer"] = [row.name for row in rows]
        if any(row.part for row in rows):
            left["part"] = [row.part or "" for row in rows]
        if any(row.operator != "symmetric" for row in rows):
            left["operator"] = [row.operator for row in rows]
        columns = [_column(name, cells, "<") for name, cells in left.items()]
        for name in self.columns():
            numbers = [row.numbers().get(name) for row in rows]
            columns.append(_column(name, ["" if number is None else f"{number:.3g}" for number in numbers], ">"))
        return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))

    def to_json(self) -> str:
        """The rows as JSON text, to be read by `read_trace`; numbers that are not finite become null."""
        return json_text({"measures": list(self.measures), "layers": [asdict(row) for row in self.layers]})

    def plot(self, path: str | Path | None = None, measures: Sequence[str] | None = None, call: int = -1) -> Figure:
        """Draw measures over layers, a panel each: one line, or a thin line per run and part with their median in bold.

        Args:
            path: where to save the picture; its ending says the format.
            measures: what to draw; by default all that were recorded, the gradient too.
            call: which call to draw; the last by default.

        Returns:
            A matplotlib figure.
        """
        shown = self.select(call=call)
        names = shown.columns() if measures is None else measures
        recorded = {name for row in shown.layers for name in row.numbers()}
        for name in names:
            if name not in recorded:
                raise GraphjouleError(f"{name!r} was not recorded; recorded are: {choices(recorded) or 'nothing'}.")
        runs = sorted({row.run for row in shown.layers if row.run is not None})
        parts = list(dict.fromkeys(row.part for row in shown.layers))
        series = [
            [row for row in shown.layers if row.run in (None, run) and row.part == part]
            for part in parts
            for run in (runs or [None])  # type: ignore[list-item]
        ]
        if len({len(rows) for rows in series}) > 1:
            raise GraphjouleError(
                f"The parts {', '.join(str(part) for part in parts)} have different numbers of rows; choose one with "
                f"trace.select(part={parts[0]!r})."
            )
        panels = []
        for k, name in enumerate(names):
            colour = PALETTE[k % len(PALETTE)]
            curves = [[row.numbers().get(name, math.nan) for row in part] for part in series]
            lines = [Line("", curves[0], colour=colour)]
            if len(curves) > 1:
                median = [statistics.median(values) for values in zip(*curves, strict=True)]
                lines = [Line("", y, colour=colour, width=1.0, alpha=0.3) for y in curves]
                lines.append(Line("median", median, colour=colour))
            panels.append(Panel("", name.replace("_", " "), lines, x_names=[row.name for row in series[0]]))
        figure = draw_panels(panels)
        if path is not None:
            save_figure(figure, path)
        return figure


class RecordedTrace(TraceView):
    """Rows that no longer change: selected from another trace, or read from a file.

    Args:
        layers: the rows.
        measures: names of the measures in them.
    """

    def __init__(self, layers: Sequence[LayerTrace], measures: Sequence[str]) -> None:
        self._layers, self._measures = list(layers), tuple(measures)

    @property
    def layers(self) -> list[LayerTrace]:
        """All rows."""
        return self._layers

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the recorded measures."""
        return self._measures


def read_trace(text: str | bytes) -> RecordedTrace:
    """The trace that `to_json` wrote; null becomes NaN.

    Example:
        >>> trace = RecordedTrace([LayerTrace("convs.0", {"energy": 2.0})], ["energy"])
        >>> read_trace(trace.to_json()).layers == trace.layers
        True
    """
    try:
        found = parse_json(text)
        rows = []
        for fields in found["layers"]:
            values = {name: math.nan if value is None else float(value) for name, value in fields["values"].items()}
            rows.append(LayerTrace(**{**fields, "values": values}))
        return RecordedTrace(rows, found["measures"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise GraphjouleError(f"This is not a trace that graphjoule wrote: {type(error).__name__}, {error}.") from error


_SUMS = {"energy": 1, "combinatorial_energy": 1, "norm": 2, "kernel_distance": 2, "gradient": 2, "weight_gradient": 2}
"""Measures whose value to this power is a sum over nodes."""


def _average(name: str, rows: Sequence[LayerTrace]) -> float:
    values = [row[name] for row in rows]
    if name in _SUMS:
        return float(statistics.fmean(value ** _SUMS[name] for value in values) ** (1 / _SUMS[name]))
    weights: list[float] = [row.num_nodes for row in rows]
    if name == "rayleigh" and all(row.operator in ("symmetric", "loopless") and "norm" in row for row in rows):
        weights = [row.norm**2 for row in rows]
    return statistics.fmean(values, weights if sum(weights) > 0 else None)


def some(words: Sequence[str], between: str) -> str:
    """The first words of a list, for a sentence."""
    return between.join([*words[:MOST_SHOWN], *(["..."] if len(words) > MOST_SHOWN else [])])


def _column(name: str, cells: Sequence[str], side: str) -> list[str]:
    width = max(map(len, [name, *cells]))
    return [f"{cell:{side}{width}}" for cell in [name, *cells]]
