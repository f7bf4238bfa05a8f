"""Two pictures of a search: how much each setting mattered, and every trial as a line through its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphjoule.errors import GraphjouleError, counted
from graphjoule.trace.plots import BLACK, BLUE, VERMILION, new_figure
from graphjoule.tuning.outcome import Outcome, Row
from graphjoule.tuning.ranges import Interval, Range

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_importance", "draw_parallel"]

_COLOURS = "cividis"  # even steps of lightness, the same for colour-blind eyes
_MOST_NAMED = 6  # ticks on one axis
_WORST_SHOWN = 0.9  # of the trials; the scale of the values ends there, for one that diverges would stretch it


def draw_importance(outcome: Outcome) -> Figure:
    """A bar per setting: its share in how much the trials differ."""
    if not outcome.importance:
        raise GraphjouleError("There are too few trials, or all are worth the same: no setting can be told to matter.")
    shares = sorted(outcome.importance.items(), key=lambda item: item[1])
    figure = new_figure((6.4, 1.3 + 0.4 * len(shares)))
    axes = figure.add_subplot()
    axes.barh([name for name, _ in shares], [100 * share for _, share in shares], color=BLUE, height=0.62)
    for place, (_, share) in enumerate(shares):
        axes.annotate(f"{100 * share:.0f} %", (100 * share, place), xytext=(4, 0), **_BESIDE)
    axes.set_xlim(0, 108)  # room for the label of a setting that is all that matters
    axes.set_xticks(range(0, 101, 20))
    axes.set_axisbelow(True)
    axes.set(xlabel=f"share in the differences of {_measure(outcome)}, %")
    axes.set_title(f"What mattered in {len(outcome.ranked)} trials", fontsize=11)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


_BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9}


def draw_parallel(outcome: Outcome, ranges: Mapping[str, Range]) -> Figure:
    """A line per trial through its settings to what it is worth; darker is better, the best is drawn on top.

    Args:
        outcome: the trials.
        ranges: what was searched: the extent of every axis.
    """
    best = outcome.best
    rows = outcome.ranked[::-1]  # the good ones on top
    names = list(outcome.importance) + [name for name in ranges if name not in outcome.importance]
    figure = new_figure((1.9 + 1.35 * (len(names) + 1), 4.6))
    axes = figure.add_subplot()
    values = _Values(outcome)
    for row in rows:
        y = [*(_place(ranges[name], row.params[name]) for name in names), values.place(row)]
        is_best = row.slot == best.slot
        colour = VERMILION if is_best else _colour(values.goodness(row))
        axes.plot(
            y, color=colour, linewidth=2.6 if is_best else 1.1, alpha=1.0 if is_best else 0.75, zorder=2 + is_best
        )
    for place, name in enumerate(names):
        _draw_axis(axes, place, _ticks(ranges[name]))
    _draw_axis(axes, len(names), values.ticks())
    labels = [*(_named(name, ranges[name]) for name in names), _measure(outcome)]
    axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(axis="x", length=0, pad=8)
    axes.set_yticks([])
    axes.set_xlim(-0.25, len(names) + 0.6)
    axes.set_ylim(-0.04, 1.04)
    axes.spines[:].set_visible(False)
    said = f"{counted(len(rows), 'trial')}, the darker the better; the thick line is the best, trial {best.slot}"
    axes.set_title(said, fontsize=11)
    return figure


class _Values:
    """Where a trial stands on the last axis, which ends where the worst tenth of the trials begins."""

    def __init__(self, outcome: Outcome) -> None:
        ranked = [row.value for row in outcome.ranked if row.value is not None]
        self._best = ranked[0]
        self._worst = ranked[max(0, math.ceil(_WORST_SHOWN * len(ranked)) - 1)]
        self._better_is_up = outcome.direction == "maximize"

    def goodness(self, row: Row) -> float:
        """From 0, the worst shown, to 1, the best."""
        assert row.value is not None
        extent = self._best - self._worst
        return 1.0 if extent == 0 else min(1.0, max(0.0, (row.value - self._worst) / extent))

    def place(self, row: Row) -> float:
        """The height: larger values are higher, whether or not they are better."""
        return self.goodness(row) if self._better_is_up else 1 - self.goodness(row)

    def ticks(self) -> list[tuple[float, str]]:
        """Five values along the axis; the one at the worse end stands for all that are worse still."""
        low, high = sorted((self._best, self._worst))
        if low == high:
            return [(0.0 if not self._better_is_up else 1.0, f"{low:.4g}")]
        found = [(step / 4, f"{low + step / 4 * (high - low):.4g}") for step in range(5)]
        edge = 0 if self._better_is_up else -1
        found[edge] = (found[edge][0], f"{found[edge][1]} or {'less' if self._better_is_up else 'more'}")
        return found


def _place(found: Range, value: Any) -> float:
    """The height of a setting's value on its axis, from 0 to 1."""
    if not isinstance(found, Interval):
        return found.values.index(value) / (len(found.values) - 1)
    if found.log:
        return math.log(value / found.low) / math.log(found.high / found.low)
    return float((value - found.low) / (found.high - found.low))


def _ticks(found: Range) -> list[tuple[float, str]]:
    if not isinstance(found, Interval):
        return [(_place(found, value), str(value)) for value in found.values]
    if found.log:
        powers = range(math.ceil(math.log10(found.low) - 1e-9), math.floor(math.log10(found.high) + 1e-9) + 1)
        inner = [10.0**power for power in powers][:: max(1, -(-len(powers) // _MOST_NAMED))]
        if found.high < 100 * found.low:
            inner = [step * 10.0**power for power in range(powers.start - 1, powers.stop) for step in (1, 2, 5)]
    else:
        inner = [found.low + part / 4 * (found.high - found.low) for part in range(1, 4)]
    within = [value for value in inner if found.low < value < found.high]
    marks = {_place(found, value): f"{value:.3g}" for value in (found.low, *within, found.high)}
    return _spaced(sorted(marks.items()))


def _spaced(marks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Those that do not run into another; both ends stay."""
    kept = [marks[0]]
    for mark in marks[1:-1]:
        if mark[0] - kept[-1][0] > 0.07 and marks[-1][0] - mark[0] > 0.07:
            kept.append(mark)
    return [*kept, marks[-1]]


def _draw_axis(axes: Axes, place: float, ticks: Sequence[tuple[float, str]]) -> None:
    axes.axvline(place, color=BLACK, linewidth=0.8, alpha=0.5, zorder=1)
    for height, text in ticks:
        axes.plot([place, place + 0.03], [height, height], color=BLACK, linewidth=0.8, zorder=4)
        box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
        axes.annotate(text, (place + 0.03, height), xytext=(2, 0), zorder=5, bbox=box, **(_BESIDE | {"fontsize": 8}))


def _named(name: str, found: Range) -> str:
    return f"{name.replace('.', chr(10))}{chr(10) + '(log)' if isinstance(found, Interval) and found.log else ''}"


def _measure(outcome: Outcome) -> str:
    return outcome.recipe.train.select_on.replace("val_", "validation ")


def _colour(goodness: float) -> Any:
    from matplotlib import colormaps

    return colormaps[_COLOURS](0.9 * (1 - goodness))  # the very end is too light on white
