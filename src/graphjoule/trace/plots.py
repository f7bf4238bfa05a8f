"""Charts as files, drawn by matplotlib: lines and bands in panels, labels at the lines, colours for colour-blind eyes.

matplotlib is an extra; it is imported when a picture is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, Literal

from graphjoule.errors import GraphjouleError, choices
from graphjoule.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, the yellow left out: it is too faint on white.
BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK)
X_SCALES: Final[Mapping[str, Mapping[str, Any]]] = {
    "linear": {"value": "linear"},
    "log": {"value": "log"},
    "log2": {"value": "log", "base": 2},  # depths
    "symlog": {"value": "symlog", "linthresh": 1},  # values of both signs
}
"""What a panel's x axis can be, as matplotlib's settings."""

_LOG_FROM = 10.0  # ratio of the largest to the smallest value from which a linear axis hides the small ones
_OUT_OF_SIGHT = 1e-3  # of the panel's bottom: where a line goes that leaves it
_LABEL_SPACE = 0.065  # a line of a label needs, of the panel's height
_TITLE_LETTERS = 10.5  # of a title fit in an inch
_DPI = 150
_SHADE: Final[Mapping[str, Any]] = {"color": BLACK, "alpha": 0.07, "linewidth": 0}
_RING: Final[Mapping[str, Any]] = {
    "markersize": 11,
    "markerfacecolor": "none",
    "markeredgecolor": BLACK,
    "markeredgewidth": 1.5,
}
_WITHOUT_DATE = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


class MissingLibraryError(GraphjouleError):
    """A picture is asked for and matplotlib is not installed."""


@dataclass(frozen=True)
class Line:
    """One line of a panel.

    Attributes:
        label: what stands at its right end; empty for none.
        y: its values; one that is not finite is a gap.
        x: where they stand; by default 0, 1, 2, ...
        colour: its colour.
        style: matplotlib's line style, so that colour is never the only difference.
        width: its width in points.
        alpha: its opacity.
    """

    label: str
    y: Sequence[float]
    x: Sequence[float] | None = None
    colour: str = BLUE
    style: str = "-"
    width: float = 2.0
    alpha: float = 1.0


@dataclass(frozen=True)
class Band:
    """An area between two limits, behind the lines; its label stands inside, in the middle of its upper edge."""

    label: str
    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: str = BLUE


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        title: what stands above.
        y_label: what the values are.
        lines: what to draw.
        bands: what to draw behind it.
        x_label: what grows along the panel.
        x_names: names of 0, 1, 2, ...; drawn if they are at most `most_names`.
        decades: how much of a logarithmic axis is shown; a line that falls further leaves the panel at its bottom.
        is_log: whether the values' axis may be logarithmic; it is where they span much and none is negative.
        x_scale: a key of `X_SCALES`.
        x_ticks: where the x axis has numbers; by default matplotlib chooses.
        y_limits: the lowest and highest value shown, to have the same scale in several panels; by default what fits.
        dots: which values of a line have a dot.
        shaded: a part of the x axis with a grey ground; None for an end that is open.
        ring: a point with a ring around it.
        y_scale: a key of `X_SCALES` for the values' axis; by default `is_log` says.
        most_names: of ticks that carry a name; beyond, they carry a number.
    """

    title: str
    y_label: str
    lines: Sequence[Line]
    bands: Sequence[Band] = ()
    x_label: str = "layer"
    x_names: Sequence[str] = ()
    decades: float = 16.0
    is_log: bool = True
    x_scale: str = "linear"
    x_ticks: Sequence[float] = ()
    y_limits: tuple[float, float] | None = None
    dots: Literal["all", "last", "none"] = "none"
    shaded: tuple[float | None, float | None] | None = None
    ring: tuple[float, float] | None = None
    y_scale: str = ""
    most_names: int = 12


@dataclass(frozen=True)
class Key:
    """What something in a figure is, for the legend below it.

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


def draw_panels(
    panels: Sequence[Panel],
    *,
    title: str = "",
    columns: int = 2,
    size: tuple[float, float] = (6.4, 3.8),
    legend: Sequence[Key] = (),
) -> Figure:
    """A figure with panels side by side; its ``axes`` are those of the panels, in their order.

    Args:
        panels: what to draw.
        title: what stands above all, in as many lines as it needs.
        columns: the most panels in a row.
        size: inches of one panel.
        legend: what a legend below all explains.
    """
    if not panels:
        raise GraphjouleError("There is nothing to draw: no measure was recorded.")
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure: Figure = _figure_class()(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    for number, panel in enumerate(panels, start=1):
        draw_panel(figure.add_subplot(rows, columns, number), panel)
    if title:
        figure.suptitle(fill(title, int(_TITLE_LETTERS * size[0] * columns)), fontsize=12)
    if legend:
        handles = [_handle(key) for key in legend]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def _handle(key: Key) -> Any:
    """What stands for a thing in the legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if key.kind == "shade":
        return Patch(label=key.label, **_SHADE)
    if key.kind == "ring":
        return Line2D([], [], marker="o", linestyle="none", label=key.label, **_RING)
    return Line2D([], [], marker="o", markersize=4, linewidth=2, color=key.colour, linestyle=key.style, label=key.label)


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw one panel; the values' axis is logarithmic where they span much and none is negative."""
    drawn = [*(line.y for line in panel.lines), *(edge for band in panel.bands for edge in (band.low, band.high))]
    values = [y for values in drawn for y in values if math.isfinite(y)]
    bottom = _log_bottom(values, panel.decades) if panel.is_log else None
    floor = -math.inf if bottom is None else bottom * _OUT_OF_SIGHT
    if panel.x_scale != "linear":
        axes.set_xscale(**X_SCALES[panel.x_scale])
    if panel.y_limits:  # now, for labels stand at the heights of the lines' ends
        axes.set_ylim(*panel.y_limits)
    if panel.y_scale:
        axes.set_yscale(**X_SCALES[panel.y_scale])
    if bottom is not None:
        axes.set_yscale("log")
    for band in panel.bands:
        low, high = _raised(band.low, floor), _raised(band.high, floor)
        axes.fill_between(band.x, low, high, color=band.colour, alpha=0.14, linewidth=0)
        axes.annotate(
            band.label,
            (band.x[len(band.x) // 2], high[len(high) // 2]),
            xytext=(0, -4),
            textcoords="offset points",
            color=band.colour,
            fontsize=9,
            ha="center",
            va="top",
        )
    for line in panel.lines:
        axes.plot(
            range(len(line.y)) if line.x is None else line.x,
            _raised(line.y, floor),
            marker="o" if len(line.y) == 1 else None,
            color=line.colour,
            linestyle=line.style,
            linewidth=line.width,
            alpha=line.alpha,
        )
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_title(panel.title, fontsize=11)
    axes.margins(x=0.01)
    if any(y <= (bottom or 0) for line in panel.lines for y in line.y) and bottom is not None:
        axes.set_ylim(bottom=bottom)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if 0 < len(panel.x_names) <= panel.most_names:
        axes.set_xticks(range(len(panel.x_names)), panel.x_names, rotation=30, ha="right", rotation_mode="anchor")
    _label_ends(axes, panel.lines, floor if bottom is None else bottom)
    if panel.y_limits:
        if panel.is_log:  # limits are there to be the same in several panels, so the scale is too
            axes.set_yscale("log")
        axes.set_ylim(*panel.y_limits)
    if panel.dots != "none":
        dotted = slice(-1, None) if panel.dots == "last" else slice(None)
        for line in panel.lines:
            x = range(len(line.y)) if line.x is None else line.x
            axes.plot(x[dotted], line.y[dotted], "o", color=line.colour, markersize=4)
    if panel.ring:
        axes.plot(*panel.ring, "o", clip_on=False, **_RING)
    if panel.x_ticks:
        axes.set_xticks(panel.x_ticks, [f"{x:g}" for x in panel.x_ticks])
        axes.minorticks_off()
    if panel.shaded:
        ends = axes.get_xlim()
        left, right = (end if given is None else given for given, end in zip(panel.shaded, ends, strict=True))
        axes.axvspan(left, right, zorder=0, **_SHADE)
        axes.set_xlim(*ends)


def picture_bytes(figure: Figure, ending: str = "png") -> bytes:
    """A picture as the bytes of a file without date and version, so that the same numbers give the same bytes."""
    content = BytesIO()
    figure.savefig(content, format=ending, dpi=_DPI, metadata=_WITHOUT_DATE.get(ending))
    return content.getvalue()


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a picture, whole or not at all; the path's ending says the format."""
    write_bytes(path, picture_bytes(figure, check_picture_path(path)))


def check_picture_path(path: str | Path) -> str:
    """The ending of a picture's path, or a sentence that lists those there are."""
    known = _figure_class()().canvas.get_supported_filetypes()
    ending = Path(path).suffix.lower().lstrip(".")
    if ending not in known:
        raise GraphjouleError(f"Cannot draw {path}: its ending must be one of {choices(known)}.")
    return ending


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure  # not pyplot, which keeps every figure and wants a display
    except ImportError as error:
        raise MissingLibraryError(
            "Drawing needs matplotlib, which is not installed: pip install 'graphjoule[plot]'."
        ) from error
    return Figure


def _log_bottom(values: Sequence[float], decades: float) -> float | None:
    """The lowest value that a logarithmic axis shows, or None where a linear one does."""
    top = max(values, default=0.0)
    if top <= 0 or min(values) < 0 or min(values) * _LOG_FROM > top:
        return None
    return float(top * 10.0**-decades)


def _raised(values: Sequence[float], floor: float) -> list[float]:
    return [max(value, floor) if math.isfinite(value) else math.nan for value in values]


def _label_ends(axes: Axes, lines: Sequence[Line], floor: float) -> None:
    """Write every label at its line's end, in the line's colour, pushed apart where two would overlap."""
    axes.autoscale_view()  # matplotlib puts it off until it draws, and the places depend on it
    to_axes = axes.transScale + axes.transLimits
    low = axes.get_xlim()[0]
    ends: list[tuple[float, Line]] = []
    for line in lines:
        finite = [y for y in _raised(line.y, floor) if math.isfinite(y)]
        if line.label and finite:
            ends.append((float(to_axes.transform((low, finite[-1]))[1]), line))
    height = free = -math.inf
    for place, line in sorted(ends, key=lambda end: end[0]):
        half = _LABEL_SPACE * (1 + line.label.count("\n")) / 2
        height = max(place, free + half)
        free = height + half
        axes.annotate(
            line.label,
            (1, height),
            xycoords="axes fraction",
            xytext=(5, 0),  # in points: the layout can leave exact room for it
            textcoords="offset points",
            color=line.colour,
            weight="bold",
            va="center",
        )
