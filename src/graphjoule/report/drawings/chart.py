"""A drawing as data, and the picture of it: the same numbers give the same bytes."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, Literal

from graphjoule.trace.plots import BLACK, Panel, draw_panel, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Chart", "Drawing", "Key", "Mark", "Range", "draw", "drawn_with", "picture"]

SCALES: Final[dict[str, dict[str, Any]]] = {
    "linear": {"value": "linear"},
    "log": {"value": "log"},
    "depth": {"value": "log", "base": 2},
    "shift": {"value": "symlog", "linthresh": 1},
}
"""What a chart's x axis can be, as matplotlib's settings."""
_DOTTED: Final = {"all": slice(None), "last": slice(-1, None), "none": slice(0)}
_DPI = 150
_TITLE_LETTERS = 10.5  # an inch of a drawing holds as many of its title


@dataclass(frozen=True)
class Range:
    """A shaded part of the x axis; None for an end that is open."""

    low: float | None
    high: float | None

    def __contains__(self, x: float) -> bool:
        return (self.low is None or x >= self.low) and (self.high is None or x <= self.high)


@dataclass(frozen=True)
class Mark:
    """A point with a ring around it."""

    x: float
    y: float


@dataclass(frozen=True)
class Key:
    """What something in a drawing is.

    Attributes:
        label: in words.
        kind: "line", "shade" or "ring".
        colour: of a line.
        style: of a line.
    """

    label: str
    kind: Literal["line", "shade", "ring"] = "line"
    colour: str = BLACK
    style: str = "-"


@dataclass(frozen=True)
class Chart:
    """A panel, and what stands along its x axis.

    Attributes:
        panel: lines and bands.
        x_scale: a key of `SCALES`.
        x_ticks: where the axis has numbers; matplotlib chooses if there are none.
        y_limits: the lowest and highest value shown; matplotlib chooses if there are none.
        dots: which values of a line have a dot.
        shaded: a part of the x axis with a grey ground.
        mark: a point with a ring.
    """

    panel: Panel
    x_scale: str = "linear"
    x_ticks: Sequence[float] = ()
    y_limits: tuple[float, float] | None = None
    dots: Literal["all", "last", "none"] = "all"
    shaded: Range | None = None
    mark: Mark | None = None


@dataclass(frozen=True)
class Drawing:
    """A picture of several charts.

    Attributes:
        name: of its file, without an ending.
        alt: what it shows, for those who cannot see it.
        charts: in reading order.
        title: what stands above all.
        columns: how many charts stand in a row.
        size: inches of one chart, across and up.
        key: what things are.
    """

    name: str
    alt: str
    charts: Sequence[Chart]
    title: str = ""
    columns: int = 2
    size: tuple[float, float] = (6.4, 3.4)
    key: Sequence[Key] = ()

    def data(self) -> dict[str, Any]:
        """The numbers that are drawn, six digits of each."""
        return {"name": self.name, "alt": self.alt, "charts": [_chart_data(chart) for chart in self.charts]}


def draw(drawing: Drawing) -> Figure:
    """Draw it."""
    rows = math.ceil(len(drawing.charts) / drawing.columns)
    across, up = drawing.size
    figure = new_figure((across * drawing.columns, up * rows))
    for number, chart in enumerate(drawing.charts, start=1):
        _draw_chart(figure.add_subplot(rows, drawing.columns, number), chart)
    if drawing.title:
        figure.suptitle(fill(drawing.title, int(_TITLE_LETTERS * across * drawing.columns)), fontsize=12)
    if drawing.key:
        handles = [_handle(key) for key in drawing.key]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def picture(drawing: Drawing) -> bytes:
    """The drawing as a PNG without date or version."""
    content = BytesIO()
    draw(drawing).savefig(content, format="png", dpi=_DPI, metadata={"Software": None})
    return content.getvalue()


def drawn_with() -> dict[str, str]:
    """What the bytes of a picture depend on besides its numbers."""
    return {"machine": platform.machine(), **{name: version(name) for name in ("matplotlib", "numpy", "pillow")}}


def _draw_chart(axes: Axes, chart: Chart) -> None:
    axes.set_xscale(**SCALES[chart.x_scale])
    if chart.y_limits:  # before the panel: its labels stand at the heights of its lines' ends
        axes.set_ylim(*chart.y_limits)
    draw_panel(axes, chart.panel)
    if chart.y_limits:
        if chart.panel.is_log:  # limits are there to be the same in several charts, so the scale is too
            axes.set_yscale("log")
        axes.set_ylim(*chart.y_limits)
    for line in chart.panel.lines:
        x = range(len(line.y)) if line.x is None else line.x
        dotted = _DOTTED[chart.dots]
        axes.plot(x[dotted], line.y[dotted], "o", color=line.colour, markersize=4)
    if chart.mark:
        axes.plot(chart.mark.x, chart.mark.y, "o", clip_on=False, **_RING)
    if chart.x_ticks:
        axes.set_xticks(chart.x_ticks, [f"{x:g}" for x in chart.x_ticks])
        axes.minorticks_off()
    if chart.shaded:
        left, right = axes.get_xlim()
        low, high = chart.shaded.low, chart.shaded.high
        axes.axvspan(left if low is None else low, right if high is None else high, **_SHADE)
        axes.set_xlim(left, right)


_SHADE: Final[dict[str, Any]] = {"color": BLACK, "alpha": 0.07, "linewidth": 0, "zorder": 0}
_RING: Final[dict[str, Any]] = {
    "markersize": 11,
    "markerfacecolor": "none",
    "markeredgecolor": BLACK,
    "markeredgewidth": 1.5,
}


def _handle(key: Key) -> Any:
    """What stands for a thing in the key."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if key.kind == "shade":
        return Patch(label=key.label, **{name: value for name, value in _SHADE.items() if name != "zorder"})
    if key.kind == "ring":
        return Line2D([], [], marker="o", linestyle="none", label=key.label, **_RING)
    return Line2D([], [], marker="o", markersize=4, linewidth=2, color=key.colour, linestyle=key.style, label=key.label)


def _chart_data(chart: Chart) -> dict[str, Any]:
    panel = chart.panel
    lines = [
        {"label": line.label, "x": _short(range(len(line.y)) if line.x is None else line.x), "y": _short(line.y)}
        for line in panel.lines
    ]
    bands = [
        {"label": band.label, "x": _short(band.x), "low": _short(band.low), "high": _short(band.high)}
        for band in panel.bands
    ]
    return {
        "title": panel.title,
        "x": panel.x_label,
        "y": panel.y_label,
        "lines": lines,
        "bands": bands,
        **({"shaded": [chart.shaded.low, chart.shaded.high]} if chart.shaded else {}),
        **({"mark": _short([chart.mark.x, chart.mark.y])} if chart.mark else {}),
    }


def _short(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
