"""Lines, bars and dots as SVG text: for readers without scripts and on paper, and where nothing is to be read off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from markupsafe import Markup

NUM_COLOURS = 10
"""Colours of dots that the style sheet has, p0 to p9; p10 is grey, and q0 to q4 go from low to high."""
NUM_STYLES = 8
"""Colours and dashes that the style sheet has; more lines than that begin again."""
MOST_DECADES = 24
"""What a logarithmic axis shows below its top; anything smaller is drawn at the bottom."""
WIDE, NARROW = (720, 380), (480, 340)
"""Width and height of a chart that has the page for itself, and of one beside others."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 14, 12, 46


@dataclass(frozen=True)
class Line:
    """One line of a chart; a value that is None or not finite is a gap."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    style: int = 0


@dataclass(frozen=True)
class Band:
    """The area between two limits."""

    label: str
    x: Sequence[float]
    lower: Sequence[float]
    upper: Sequence[float]


@dataclass(frozen=True)
class Bars:
    """Bars between edges, each with a text at its foot."""

    label: str
    edges: Sequence[float]
    heights: Sequence[float]
    texts: Sequence[str] = ()
    is_faint: bool = False


@dataclass(frozen=True)
class Dots:
    """Nodes as dots of one colour."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = "p0"


@dataclass(frozen=True)
class Chart:
    """What is drawn.

    Attributes:
        title: what a screen reader says of the picture.
        x_label: under the axis.
        y_label: beside the axis.
        lines: the lines.
        band: an area behind them.
        is_log: whether the vertical axis is logarithmic, if there is a positive value.
        mark: where a vertical line stands.
        bars: behind the lines.
        dots: before them.
        x_range: ends of the horizontal axis; by default those of the lines.
        y_range: ends of the vertical axis; by default 0, or less, to the highest value.
        x_ticks: places and texts under the axis; by default round numbers, whole ones without an `x_range`.
        size: width and height.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    band: Band | None = None
    is_log: bool = False
    mark: float | None = None
    bars: Bars | None = None
    dots: Sequence[Dots] = ()
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    x_ticks: Sequence[tuple[float, str]] | None = None
    size: tuple[int, int] = WIDE


def draw(chart: Chart) -> Markup:
    """The chart as an ``<svg>`` element; all text is escaped, colours come from the page's style sheet.

    Example:
        >>> picture = draw(Chart("energy", "layer", "E", [Line("a < b", [0, 1], [1.0, 0.1])], is_log=True))
        >>> picture.startswith("<svg"), "a < b" in picture, picture.count("<path")
        (True, False, 1)
    """
    (width, full_height), kind = chart.size, "static" if chart.size == WIDE else "narrow"
    right, bottom = width - _RIGHT, full_height - _BOTTOM
    xs = [x for line in chart.lines for x in line.x]
    first, last = chart.x_range or (min(xs, default=0), max(xs, default=1))
    (low, high), is_log = value_range(chart)
    low, high = min(max(low, -1e300), 1e299), max(min(high, 1e300), -1e299)  # of what is further the ends are infinite
    bend = math.log10 if is_log else float

    def across(x: float) -> str:
        return _at(_LEFT + (x - first) / ((last - first) or 1) * (right - _LEFT))

    def height(y: float) -> str:
        share = (bend(min(max(y, low), high)) - bend(low)) / (bend(high) - bend(low))
        return _at(bottom - share * (bottom - _TOP))

    parts = [_SVG.format(kind, width, full_height, chart.title)]
    for value in log_ticks(low, high) if is_log else linear_ticks(low, high):
        parts.append(_LINE.format("grid", _LEFT, right, height(value), height(value)))
        parts.append(_TEXT.format(_LEFT - 8, height(value), "end", _tick(value)))
    ticks = linear_ticks(first, last, 8 if chart.size == WIDE else 6) if last > first else xs[:1]
    whole = [(x, f"{x:g}") for x in ticks if x == int(x) or chart.x_range]
    named = whole if chart.x_ticks is None else chart.x_ticks
    parts += [_TEXT.format(across(x), bottom + 18, "middle", text) for x, text in named]
    parts.append(_LINE.format("axis", _LEFT, right, bottom, bottom))
    parts.append(_TEXT.format((_LEFT + right) / 2, full_height - 8, "middle", chart.x_label))
    parts.append(_TURNED.format((_TOP + bottom) / 2, chart.y_label))
    if chart.band is not None:
        limits = zip(chart.band.x, chart.band.lower, chart.band.upper, strict=True)
        there = [limit for limit in limits if all(map(math.isfinite, limit))]
        corners = [*((x, y) for x, _, y in there), *((x, y) for x, y, _ in reversed(there))]
        parts.append(_BAND.format(" ".join(f"{across(x)},{height(y)}" for x, y in corners), chart.band.label))
    if chart.bars is not None:
        parts += _draw_bars(chart.bars, across, height, low)
    if chart.mark is not None:
        parts.append(_LINE.format("mark", across(chart.mark), across(chart.mark), _TOP, bottom))
    for line in chart.lines:
        steps, pen = [], "M"
        for x, y in zip(line.x, line.y, strict=True):
            if _is_number(y):
                steps.append(f"{pen}{across(x)} {height(y)}")
            pen = "L" if _is_number(y) else "M"
        if len(steps) == 1:
            steps.append("h0.1")  # with round ends, a dot
        parts.append(_PATH.format(line.style % NUM_STYLES, "".join(steps), line.label))
    for dots in chart.dots:
        places = zip(dots.x, dots.y, strict=True)
        steps = [f"M{across(min(max(x, first), last))} {height(y)}h0" for x, y in places]
        parts.append(_DOTS.format(dots.colour, "".join(steps), dots.label))
    return Markup("").join([*parts, Markup("</svg>")])


def _draw_bars(
    bars: Bars, across: Callable[[float], str], height: Callable[[float], str], low: float
) -> Iterator[Markup]:
    texts = bars.texts or [""] * len(bars.heights)
    kind = "bar faint" if bars.is_faint else "bar"
    for left, right, value, text in zip(bars.edges, bars.edges[1:], bars.heights, texts, strict=False):
        if not _is_number(value):
            continue
        x, end, top, base = (float(at) for at in (across(left), across(right), height(value), height(max(low, 0.0))))
        size = _at(max(end - x - 1, 0.5)), _at(abs(base - top))
        said = f"{bars.label}: {value:.4g}{f', {text}' if text else ''}"
        yield _BAR.format(kind, _at(x + 0.5), _at(min(top, base)), *size, said)
        if text:
            yield _TEXT.format(_at((x + end) / 2), _at(base - 9), "middle small", text)


def draw_plane(title: str, size: int, groups: Sequence[tuple[str, str, Sequence[tuple[int, int]]]]) -> Markup:
    """Dots in a square without axes, a path for each group, its label, colour and places; a script may move them."""
    parts = [_SQUARE.format(size + 12, title)]
    for label, colour, places in groups:
        steps = "".join(f"M{x} {y}h0" for x, y in places)
        parts.append(_DOTS.format(colour, steps, label))
    return Markup("").join([*parts, Markup("</svg>")])


_SVG = Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">')
_SQUARE = Markup('<svg class="plane-dots" viewBox="-6 -6 {0} {0}" role="img" aria-label="{1}">')
_LINE = Markup('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>')
_TEXT = Markup('<text x="{}" y="{}" class="{}">{}</text>')
_TURNED = Markup('<text transform="translate(14 {}) rotate(-90)" class="middle turned">{}</text>')
_BAND = Markup('<polygon class="band" points="{}"><title>{}</title></polygon>')
_BAR = Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>')
_DOTS = Markup('<path class="dots {}" d="{}"><title>{}</title></path>')
_PATH = Markup('<path class="line s{}" d="{}"><title>{}</title></path>')


def value_range(chart: Chart) -> tuple[tuple[float, float], bool]:
    """Bottom and top of the vertical axis, and whether it is logarithmic: without a positive value it cannot be."""
    if chart.y_range is not None:
        return chart.y_range, False
    values = [y for line in chart.lines for y in line.y if _is_number(y)]
    values += [y for y in (chart.bars.heights if chart.bars else ()) if _is_number(y)]
    values += [y for dots in chart.dots for y in dots.y]
    if chart.band is not None:
        values += [y for y in (*chart.band.lower, *chart.band.upper) if math.isfinite(y)]
    positive = [y for y in values if y > 0]
    if chart.is_log and positive:
        top = max(positive)
        bottom = max(min(positive), top * 10.0**-MOST_DECADES)
        return ((bottom / 1.5, top * 1.5) if bottom < top else (bottom / 2, top * 2)), True
    low, high = min([*values, 0.0]), max(values, default=1.0)
    return (low, high if high > low else low + 1), False


def linear_ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Round numbers between two ends, about so many.

    >>> linear_ticks(0, 64), linear_ticks(0, 0.83)
    ([0.0, 20.0, 40.0, 60.0], [0.0, 0.2, 0.4, 0.6, 0.8])
    """
    raw = (high - low) / max(wanted - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two ends, at most about seven; their halves and fifths too where they are few.

    >>> log_ticks(0.002, 300), log_ticks(30, 600)
    ([0.01, 0.1, 1.0, 10.0, 100.0], [50.0, 100.0, 200.0, 500.0])
    """
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    step = max(1, math.ceil((last - first + 1) / 7))
    if last - first >= 3:
        return [10.0**k for k in range(first, last + 1, step)]
    steps = [float(f"{m}e{k}") for k in range(first - 1, last + 1) for m in (1, 2, 5)]
    ticks = [tick for tick in steps if low <= tick <= high]
    return ticks if len(ticks) > 1 else [tick for tick in linear_ticks(low, high, 5) if tick > 0]


def _tick(value: float) -> str:
    """A tick's number, without an exponent as long as it is short.

    >>> _tick(2000.0), _tick(0.005), _tick(1e-9), _tick(0.0)
    ('2000', '0.005', '1e-09', '0')
    """
    return f"{value:.6g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.0e}"


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _at(value: float) -> str:
    """A coordinate: a tenth of a pixel is finer than any screen."""
    return f"{value:.1f}".removesuffix(".0")
