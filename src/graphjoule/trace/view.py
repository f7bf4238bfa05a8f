"""What can be asked of a trace, be it running or read from a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.trace.layer import LayerTrace, row_fields, row_of
from graphjoule.trace.panels import layer_panels
from graphjoule.trace.plots import draw_panels, save_figure
from graphjoule.trace.table import table_text
from graphjoule.trace.watch import name_matches

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    def columns(self) -> list[str]:
        """The measures, and the gradients' norms where some row has one."""
        found = {name for row in self.layers for name in row.numbers()}
        return [*self.measures, *(name for name in ("gradient", "weight_gradient") if name in found)]

    def select(
        self, *names: str, call: int | None = None, mark: int | str | None = None, run: int | None = None
    ) -> RecordedTrace:
        """A trace with some of the rows.

        Args:
            names: names of modules with ``*`` as a wildcard within one level; by default all.
            call: only those of this call; -1 is the last that was recorded.
            mark: only those with this mark.
            run: only those of this run, and those that all runs share.
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
        ]
        return RecordedTrace(kept, self.measures)

    def one_pass(self, what: str) -> list[LayerTrace]:
        """The rows of the last call, which must be of one run; `what` wants them, says the error sentence."""
        rows = self.select(call=-1).layers
        if not rows:
            raise GraphjouleError(f"The trace is empty, so there is no {what}: no watched module gave node features.")
        runs = {row.run for row in rows if row.run is not None}
        if len(runs) > 1:
            raise GraphjouleError(
                f"The trace holds {len(runs)} runs, and {what} is about one: choose it with trace.select(run=0)."
            )
        return rows

    def table(self) -> str:
        """The rows as text, one line each."""
        return table_text(self.layers, self.columns())

    def to_json(self) -> str:
        """The rows as JSON text, to be read by `read_trace`; numbers that are not finite become null."""
        return json_text({"measures": list(self.measures), "layers": [row_fields(row) for row in self.layers]})

    def plot(self, path: str | Path | None = None, measures: Sequence[str] | None = None, call: int = -1) -> Figure:
        """Draw measures over layers, a panel each, every run as a line.

        Args:
            path: where to save the picture; its ending says the format.
            measures: what to draw; by default all that were recorded, the gradient too.
            call: which call to draw; the last by default.

        Returns:
            A matplotlib figure.
        """
        shown = self.select(call=call)
        figure = draw_panels(layer_panels(shown.layers, shown.columns() if measures is None else measures))
        if path is not None:
            save_figure(figure, path)
        return figure


class RecordedTrace(TraceView):
    """Rows that stand: selected from another trace, or read from a file.

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
        found = json.loads(text)
        return RecordedTrace([row_of(fields) for fields in found["layers"]], found["measures"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise GraphjouleError(f"This is not a trace that graphjoule wrote: {type(error).__name__}, {error}.") from error
