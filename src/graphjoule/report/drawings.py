"""The figures of a study, from records alone: scores over depth or over a setting, and the energy of every layer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Final, TypeVar

from graphjoule.nn import MODELS
from graphjoule.report.cells import mean_score, metrics_of
from graphjoule.studies import (
    Cell,
    EnergyRecord,
    LedgerRow,
    Outcome,
    State,
    Study,
    Sweep,
    Variant,
    energies_of,
    judge,
    make_ledger,
)
from graphjoule.studies import Collection as Recorded
from graphjoule.tasks.metrics import ACCURACY, Metric
from graphjoule.trace.plots import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Band,
    Key,
    Line,
    Panel,
    draw_panels,
    picture_bytes,
)
from graphjoule.training.evaluation import spread
from graphjoule.training.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MODEL_STYLES: Final = {"gcn": (VERMILION, ":"), "gcnii": (GREEN, "--"), "egnn": (BLUE, "-")}
_OTHER_MODELS: Final = ((PURPLE, "-."), (ORANGE, "-"), (SKY, "--"), (BLACK, ":"), (PURPLE, "-"), (ORANGE, "--"))
_STYLES: Final = ((VERMILION, ":"), (BLUE, "-"), (GREEN, "--"), (PURPLE, "-."), (ORANGE, "-"))
_STATES: Final[dict[State, str]] = {"initial": "at initialisation", "trained": "after training"}
_MOST_TICKS: Final = 8  # numbers that have room along the axis; of more, every second has one
_MOST_POINTS: Final = 200  # of a line over layers, finer than its picture
_DECADES: Final = 12  # of energy in small panels: a deep GCN falls through hundreds
_LARGE_DECADES: Final = 7  # in large ones: a GCN at initialisation falls through 25, and EGNN with its limits through 3

K = TypeVar("K")
T = TypeVar("T")
Place = tuple[str, str, int]
"""Dataset, model and depth."""


@dataclass(frozen=True)
class Evidence:
    """A study and its records: what drawings and tables are made from.

    Attributes:
        study: which study.
        cells: those of its cells that are asked for.
        recorded: any records.
        energies: any records of energies.
        seeds: count only these seeds; None counts all that are recorded.
        unavailable: datasets whose data are not here.
    """

    study: Study
    cells: Sequence[Cell]
    recorded: Recorded
    energies: Sequence[EnergyRecord] = ()
    seeds: Collection[int] | None = None
    unavailable: Collection[str] = ()

    @cached_property
    def rows(self) -> list[LedgerRow]:
        """The ledger of all cells."""
        return make_ledger(self.study, self.cells, self.recorded, seeds=self.seeds, unavailable=self.unavailable)

    @cached_property
    def metric(self) -> Metric:
        """What the runs were scored by: the headline of the objective that their records name."""
        return metrics_of([record for cell in self.cells for record in self.runs(cell)])[0]

    def runs(self, cell: Cell) -> list[Record]:
        """The runs of one cell; it may be a cell of another study."""
        return self.recorded.runs(cell.recipe, self.seeds)

    def outcome(self, cell: Cell) -> Outcome:
        """What the runs of one cell come to."""
        return judge(self.runs(cell), cell.reference, self.study.reference, self.study.protocol, dataset=cell.dataset)

    def energies_of(self, cell: Cell) -> EnergyRecord | None:
        """The energies of one cell's runs."""
        return energies_of(cell, self.energies)

    def series(self, points: Iterable[tuple[float, Cell]]) -> Series:
        """The scores of cells along something; those without a score are left out, of two at one place the second."""
        found: dict[float, tuple[float, float, int]] = {}
        for x, cell in points:
            runs = [record for record in self.runs(cell) if record.status == "done"]
            mean, std = mean_score(runs, "test", self.metric)
            if mean is not None:
                found.setdefault(x, (self.metric.scaled(mean), self.metric.scaled(std or 0.0), len(runs)))
        means, stds, counts = zip(*(found[x] for x in sorted(found)), strict=True) if found else ((), (), ())
        return Series(sorted(found), list(means), list(stds), list(counts))


@dataclass(frozen=True)
class Series:
    """Scores along something, from the smallest, in the unit that people read them in.

    Attributes:
        x: along what.
        mean: over the seeds.
        std: sample standard deviation; 0 for a single run.
        n: how many runs.
    """

    x: list[float]
    mean: list[float]
    std: list[float]
    n: list[int]

    @property
    def low(self) -> list[float]:
        """Mean less standard deviation."""
        return [mean - std for mean, std in zip(self.mean, self.std, strict=True)]

    @property
    def high(self) -> list[float]:
        """Mean plus standard deviation."""
        return [mean + std for mean, std in zip(self.mean, self.std, strict=True)]


@dataclass(frozen=True)
class Drawing:
    """A picture of several panels, as data.

    Attributes:
        name: of its file, without an ending.
        panels: in reading order.
        title: what stands above all.
        columns: the most panels in a row.
        size: inches of one panel, across and up.
        legend: what things are.
    """

    name: str
    panels: Sequence[Panel]
    title: str = ""
    columns: int = 2
    size: tuple[float, float] = (6.4, 3.4)
    legend: Sequence[Key] = ()


def draw(drawing: Drawing) -> Figure:
    """Draw it."""
    options = {"title": drawing.title, "columns": drawing.columns, "size": drawing.size, "legend": drawing.legend}
    return draw_panels(drawing.panels, **options)  # type: ignore[arg-type]


def picture(drawing: Drawing) -> bytes:
    """The drawing as a PNG without date or version."""
    return picture_bytes(draw(drawing))


def drawings_of(evidence: Evidence) -> list[Drawing]:
    """The drawings of a study: an empty list for a table, and where nothing is recorded."""
    kind = evidence.study.drawing
    return DRAWINGS[kind](evidence) if kind else []


def style_of(model: str) -> tuple[str, str]:
    """Colour and line style of a model, the same in every figure."""
    others = [name for name in MODELS if name not in _MODEL_STYLES]
    return _MODEL_STYLES.get(model) or _OTHER_MODELS[others.index(model) % len(_OTHER_MODELS) if model in others else 0]


def variant_styles(cells: Iterable[Cell]) -> dict[str, tuple[str, str]]:
    """Colour and line style of every variant, the same in every drawing of a study."""
    return _numbered_styles(cell.variant.value for cell in cells)


def _numbered_styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    return {name: _STYLES[number % len(_STYLES)] for number, name in enumerate(dict.fromkeys(names))}


def score_limits(metric: Metric, series: Iterable[Series]) -> tuple[float, float]:
    """Lowest and highest score that several panels show, with some room; a share stays within its 100 percent."""
    edges = [edge for one in series for edge in (*one.low, *one.high)]
    low, high = min(edges, default=0.0), max(edges, default=100.0)
    if not metric.is_share:
        room = 0.06 * (high - low) or 0.5 * abs(high) or 0.5
        return low - room, high + room
    room = max(0.5, 0.06 * (high - low))
    return max(0.0, low - room), min(100.0, high + room)


def _grouped(each: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for one in each:
        groups.setdefault(key(one), []).append(one)
    return groups


# Over depth.


@dataclass(frozen=True)
class _Lines:
    """What a line of a panel is of: the name that cells of one line share, and how the line of a name is drawn."""

    name_of: Callable[[Cell], str]
    styles: Mapping[str, tuple[str, str]]

    @classmethod
    def of_networks(cls, cells: Sequence[Cell]) -> _Lines:
        """A line for every model, or for every model and variant where there are several variants."""
        if len({cell.variant.value for cell in cells}) == 1:
            return cls(lambda cell: cell.model.upper(), {cell.model.upper(): style_of(cell.model) for cell in cells})

        def name_of(cell: Cell) -> str:
            return f"{cell.model.upper()}, {cell.variant.value}"

        return cls(name_of, _numbered_styles(map(name_of, cells)))


def _depth_drawings(evidence: Evidence) -> list[Drawing]:
    """A line for every network: scores with a panel per dataset, and energies of a dataset with a panel per depth."""
    lines = _Lines.of_networks(evidence.cells)
    datasets = _grouped(evidence.cells, lambda cell: cell.dataset)
    panels = {dataset.capitalize(): cells for dataset, cells in datasets.items()}
    drawings = _score_drawings(evidence, "", panels, lines)
    for dataset, cells in datasets.items():
        drawings += _energy_drawings(evidence, dataset, cells, lambda cell: f"{cell.num_layers:,} layers", lines)
    return drawings


def _side_drawings(evidence: Evidence) -> list[Drawing]:
    """A line for every variant, for each dataset: scores with a panel per model, energies with one per depth too."""
    lines = _Lines(lambda cell: cell.variant.value, variant_styles(evidence.cells))
    drawings = []
    for dataset, cells in _grouped(evidence.cells, lambda cell: cell.dataset).items():
        drawings += _score_drawings(evidence, dataset, _grouped(cells, lambda cell: cell.model.upper()), lines)
        drawings += _energy_drawings(
            evidence, dataset, cells, lambda cell: f"{cell.model.upper()}, {cell.num_layers:,} layers", lines
        )
    return drawings


def _score_drawings(
    evidence: Evidence, dataset: str, panels: Mapping[str, Sequence[Cell]], lines: _Lines
) -> list[Drawing]:
    """Scores over the number of layers in one drawing, or none where nothing is run.

    The drawing of a `dataset` has a legend below; the one of all datasets, which is called "", has names at the lines.
    """
    found: dict[str, dict[str, Series]] = {}
    for title, cells in panels.items():
        series = {
            name: evidence.series((cell.num_layers, cell) for cell in own)
            for name, own in _grouped(cells, lines.name_of).items()
        }
        if any(one.x for one in series.values()):
            found[title] = {name: one for name, one in series.items() if one.x}
    if not found:
        return []
    limits = score_limits(evidence.metric, (one for series in found.values() for one in series.values()))
    drawn = []
    for title, series in found.items():
        depths = sorted({x for one in series.values() for x in one.x})
        panel = Panel(
            title,
            _score_label(evidence.metric),
            [Line("" if dataset else name, s.mean, s.x, *lines.styles[name]) for name, s in series.items()],
            [Band("", s.x, s.low, s.high, lines.styles[name][0]) for name, s in series.items()],
            "number of layers",
            is_log=False,
            x_scale="log2",
            x_ticks=depths if len(depths) <= _MOST_TICKS else depths[::-2][::-1],
            y_limits=limits,
            dots="all",
        )
        drawn.append(panel)
    name = "-".join([evidence.study.name, evidence.metric.name, *([dataset] if dataset else [])])
    if not dataset:
        return [Drawing(name, drawn, columns=3, size=(4.0, 3.0))]
    title = f"{dataset.capitalize()}: mean over the seeds, ± standard deviation" if len(drawn) > 1 else ""
    size = (3.7, 2.7) if len(drawn) > 1 else (6.4, 3.4)  # one panel must hold the legend
    return [Drawing(name, drawn, title, 3, size, [Key(name, "line", *style) for name, style in lines.styles.items()])]


def _score_label(metric: Metric) -> str:
    return metric.heading(f"test {metric.label}")


def _energy_drawings(
    evidence: Evidence, dataset: str, cells: Sequence[Cell], panel_of: Callable[[Cell], str], lines: _Lines
) -> list[Drawing]:
    """The energies of a dataset's networks after training, in small panels on one scale; none without a record."""
    records = [(cell, found) for cell in cells if (found := evidence.energies_of(cell)) is not None]
    records.sort(key=lambda pair: pair[0].num_layers)
    if not records:
        return []
    top = max(max(record.median("trained")) for _, record in records)
    panels: dict[str, Panel] = {}
    for cell, record in records:
        title, energies = panel_of(cell), record.median("trained")
        kept = spread(len(energies), _MOST_POINTS)
        x = [record.first_layer + k for k in kept]
        line = Line("", [energies[k] for k in kept], x, *lines.styles[lines.name_of(cell)])
        panels[title] = Panel(
            title,
            "",
            [*(panels[title].lines if title in panels else ()), line],
            decades=_DECADES,
            y_limits=(top * 10.0**-_DECADES, 4 * top) if top > 0 else None,
            x_ticks=[0, cell.num_layers // 2, cell.num_layers],
            dots="last",
        )
    names = dict.fromkeys(lines.name_of(cell) for cell, _ in records)
    return [
        Drawing(
            f"{evidence.study.name}-energy-{dataset}",
            list(panels.values()),
            title=f"{dataset.capitalize()}: Dirichlet energy of every layer after training, median over the seeds",
            columns=5,
            size=(2.5, 2.2) if len(panels) > 2 else (5.6, 3.2),
            legend=[Key(name, "line", *lines.styles[name]) for name in names],
        )
    ]


# The energy of every layer before and after training, and EGNN's limits, as in figure 1 of the paper.


def _limit_drawings(evidence: Evidence) -> list[Drawing]:
    """All networks of a study whose energies are recorded: a panel per state, dataset and depth."""
    lines = _Lines.of_networks(evidence.cells)
    places = _grouped(evidence.cells, lambda cell: (cell.dataset, cell.num_layers))
    panels = []
    for state, words in _STATES.items():
        for (dataset, depth), cells in places.items():
            found = [(lines.name_of(c), record) for c in cells if (record := evidence.energies_of(c)) is not None]
            if found:
                title = f"{dataset.capitalize()}, {depth} layers, {words}"
                panels.append(_limit_panel(title, found, state, lines, evidence.metric))
    return [Drawing(evidence.study.name, panels)] if panels else []


def _limit_panel(
    title: str, records: Sequence[tuple[str, EnergyRecord]], state: State, lines: _Lines, metric: Metric
) -> Panel:
    """Every run a thin line, the median in bold, the limits as a band."""
    drawn, bands = [], []
    for name, record in records:
        colour, style = lines.styles[name]
        runs, median = record.energies(state), record.median(state)
        x = range(record.first_layer, record.first_layer + len(median))
        drawn += [Line("", run, x, colour, width=0.8, alpha=0.25) for run in runs]
        scores = [score for score in record.test_score if score is not None]
        text = name
        if state == "trained" and scores:
            mean = metric.scaled(statistics.fmean(scores))
            text += f"\n{mean:.1f} % right" if metric == ACCURACY else f"\n{metric.label} {mean:.3g}"
        drawn.append(Line(text, median, x, colour, style, width=2.4))
        options = record.resolved.model.options
        if {"c_min", "c_max"} <= options.keys():
            lower, upper = [options["c_min"] * before for before in median[:-1]], options["c_max"] * median[0]
            places = range(1, len(lower) + 1)
            bands.append(Band(f"limits of {name}", places, lower, [upper] * len(lower), colour))
    return Panel(title, "Dirichlet energy E(X)", drawn, bands, decades=_LARGE_DECADES)


# Over one setting at a time, as in figures 2 to 5 of the paper.


@dataclass(frozen=True)
class SweepResult:
    """The scores over one setting.

    Attributes:
        sweep: the setting and its values.
        series: over its values, the recipe's own among them.
        own: the recipe's value and its score; None where it is not run.
    """

    sweep: Sweep
    series: Series
    own: tuple[float, float] | None

    @property
    def recommended(self) -> tuple[float | None, float | None] | None:
        """The lowest and the highest value that the reference recommends, None for an end that is open."""
        if self.sweep.recommended is None:
            return None
        low, high = (end if isfinite(end) else None for end in self.sweep.recommended)
        return low, high


def find_sweeps(evidence: Evidence) -> dict[Place, list[SweepResult]]:
    """The sweeps of a study by dataset, model and depth, in the study's order."""
    found: dict[Place, list[SweepResult]] = {}
    for place, family in _grouped(evidence.cells, lambda c: (c.dataset, c.model, c.num_layers)).items():
        by_component = _grouped(family, lambda cell: cell.variant.component)
        for sweep in evidence.study.sweeps:
            cells = by_component[sweep.component]
            setting = next(iter(cells[0].variant.settings))  # by its dotted name
            plain = replace(cells[0], variant=Variant())
            value = float(plain.recipe.settings()[setting])
            points = [(float(cell.variant.settings[setting]), cell) for cell in cells]
            own = evidence.series([(value, plain)]).mean
            series = evidence.series([*points, (value, plain)])
            found.setdefault(place, []).append(SweepResult(sweep, series, (value, own[0]) if own else None))
    return found


def _sweep_drawings(evidence: Evidence) -> list[Drawing]:
    """A drawing per dataset, model and depth, a panel per setting; none where nothing is run."""
    legend = (
        Key("mean over the seeds, ± standard deviation", colour=BLUE),
        Key(f"values the {evidence.study.reference.name} recommends", "shade"),
        Key("the recipe's own value", "ring"),
    )
    drawings = []
    for (dataset, model, layers), results in find_sweeps(evidence).items():
        if not any(len(result.series.x) > 1 for result in results):
            continue
        limits = score_limits(evidence.metric, (result.series for result in results))
        has_range = any(result.recommended for result in results)
        drawing = Drawing(
            f"{evidence.study.name}-{dataset}-{layers}",
            [_sweep_panel(result, limits, evidence.metric) for result in results],
            title=f"{dataset.capitalize()}, {model.upper()} with {layers} layers",
            size=(5.2, 2.8),
            legend=legend if has_range else (legend[0], legend[2]),
        )
        drawings.append(drawing)
    return drawings


def _sweep_panel(result: SweepResult, limits: tuple[float, float], metric: Metric) -> Panel:
    series, sweep = result.series, result.sweep
    return Panel(
        "",
        _score_label(metric),
        [Line("", series.mean, series.x, BLUE)] if series.x else [],
        [Band("", series.x, series.low, series.high, BLUE)] if series.x else [],
        sweep.label or sweep.component,
        is_log=False,
        x_scale="symlog" if sweep.scale == "shift" else sweep.scale,
        x_ticks=series.x if sweep.scale == "shift" else (),
        y_limits=limits,
        dots="all",
        shaded=result.recommended,
        ring=result.own,
    )


# The ledger: every cell less the reference's value.

_VERDICTS: Final = {"equal": GREEN, "better": BLUE, "worse": VERMILION, "undecided": BLACK}


def _difference_drawings(evidence: Evidence) -> list[Drawing]:
    """Our mean less the reference's value with its 95 % interval, a panel per dataset, or none where nothing is run."""
    panels = []
    for dataset, rows in _grouped(evidence.rows, lambda row: row.cell.dataset).items():
        lines: list[Line] = []
        names: list[str] = []
        for row in rows:
            found, width = row.outcome, row.outcome.half_width
            if found.difference is None or width is None:
                continue
            place, colour = len(names), _VERDICTS.get(found.verdict, BLACK)
            ends = [found.difference - width, found.difference + width]
            lines += [Line("", ends, [place, place], colour, width=1.5), Line("", [found.difference], [place], colour)]
            changed = f" {row.cell.variant.component} {row.cell.variant.value}".rstrip()
            names.append(f"{row.cell.model} {row.cell.num_layers}{changed}")
        if names:
            margin = evidence.study.protocol.margin or (1.0 if evidence.metric.is_share else 0.0)
            across = [-0.5, len(names) - 0.5]
            panels.append(
                Panel(
                    dataset.capitalize(),
                    f"ours less the {evidence.study.reference.name}'s",
                    lines,
                    [Band("", across, [-margin] * 2, [margin] * 2, BLACK)] if margin else [],
                    "",
                    names,
                    is_log=False,
                    y_scale="symlog",
                    most_names=len(names),
                )
            )
    legend = [Key(verdict, colour=colour) for verdict, colour in _VERDICTS.items()]
    title = "Difference of the means with its 95 % interval; grey: the margin within which two are equal"
    size = (11.0, 3.4)
    return [Drawing(f"{evidence.study.name}-differences", panels, title, 1, size, legend)] if panels else []


DRAWINGS: Final[dict[str, Callable[[Evidence], list[Drawing]]]] = {
    "depth": _depth_drawings,
    "differences": _difference_drawings,
    "energies": _limit_drawings,
    "sides": _side_drawings,
    "sweeps": _sweep_drawings,
}
"""How a study can be drawn: what its file says as `drawing`."""
