"""A trace as panels to draw."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from graphjoule.errors import GraphjouleError, choices
from graphjoule.trace.layer import LayerTrace
from graphjoule.trace.plots import PALETTE, Line, Panel


def layer_panels(rows: Sequence[LayerTrace], measures: Sequence[str]) -> list[Panel]:
    """A panel per measure: one line, or a thin line per run with their median in bold.

    Args:
        rows: the rows of one call.
        measures: what to draw.
    """
    recorded = {name for row in rows for name in row.numbers()}
    for name in measures:
        if name not in recorded:
            raise GraphjouleError(f"{name!r} was not recorded; recorded are: {choices(recorded) or 'nothing'}.")
    return [_panel(rows, name, PALETTE[k % len(PALETTE)]) for k, name in enumerate(measures)]


def _panel(rows: Sequence[LayerTrace], measure: str, colour: str) -> Panel:
    runs = sorted({row.run for row in rows if row.run is not None})
    series = [[row for row in rows if row.run in (None, run)] for run in runs] or [list(rows)]
    curves = [[row.numbers().get(measure, math.nan) for row in part] for part in series]
    is_many = len(curves) > 1
    lines = [Line("", y, colour=colour, width=1.0 if is_many else 2.0, alpha=0.3 if is_many else 1.0) for y in curves]
    if is_many:
        lines.append(Line("median", [statistics.median(values) for values in zip(*curves, strict=True)], colour=colour))
    names = [row.name for row in series[0]]
    return Panel(title="", y_label=measure.replace("_", " "), lines=lines, x_names=names)
