"""The gallery of architectures: pictures of energy, rank and reach over depth, and a table of accuracies."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from graphjoule.report import BLACK, Drawing, Key, Line, Panel
from reproduction.experiments.record import read_cells
from reproduction.pages.drawings import Figure

__all__ = ["ARCHITECTURES", "gallery_figures", "gallery_rows", "gallery_table"]

ARCHITECTURES: Final = (
    *("GCN", "GAT", "GATv2", "GIN", "SAGE", "GPS"),
    *("APPNP", "GCNII", "A-DGN", "TransformerConv", "PNA", "EGNN"),
)

# From light to dark: deeper is darker, and colour is not the only difference, as deeper lines are longer.
_SHADES: Final = {2: "#a6c8e0", 4: "#7fb0d3", 8: "#5295c2", 16: "#2b79ae", 32: "#0f5a8c", 64: "#063c61"}
_DECADES: Final = 9
_LIMITS: Final = {
    "rayleigh": (1e-10, 2.0),
    "effective_rank": (0.9, 40.0),
    "reach": (0.0, 6.0),
}  # the same in all panels
Row = Mapping[str, Any]


def gallery_rows(path: Path) -> list[dict[str, Any]]:
    """The cells of a file, architectures in the order of their list, shallow ones first."""
    rows = read_cells(path).values()
    return sorted(rows, key=lambda row: (ARCHITECTURES.index(row["model"]), row["layers"], row["seed"]))


def gallery_figures(rows: Sequence[Row]) -> list[Figure]:
    """Three pictures with a panel for each architecture: none without records."""
    if not rows:
        return []
    by_model = {name: [row for row in rows if row["model"] == name] for name in dict.fromkeys(r["model"] for r in rows)}
    return [
        _over_layers(by_model, "rayleigh", "E / ‖X‖²", "gallery-energy", "Energy by its own operator, of every layer"),
        _over_layers(by_model, "effective_rank", "effective rank", "gallery-rank", "Effective rank of every layer"),
        _over_depth(by_model),
    ]


def gallery_table(rows: Sequence[Row]) -> str:
    """Test accuracy by architecture and depth, in per cent: the mean over the seeds."""
    depths = sorted({row["layers"] for row in rows})
    lines = [
        f"| architecture | {' | '.join(f'{depth} layers' for depth in depths)} |",
        "|---" * (len(depths) + 1) + "|",
    ]
    for name in dict.fromkeys(row["model"] for row in rows):
        cells = []
        for depth in depths:
            found = [row["test_accuracy"] for row in rows if (row["model"], row["layers"]) == (name, depth)]
            cells.append(f"{100 * statistics.fmean(found):.1f}" if found else "-")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _over_layers(by_model: Mapping[str, Sequence[Row]], measure: str, label: str, name: str, what: str) -> Figure:
    """Every depth after training, and the deepest at initialisation; of the first seed."""
    panels, texts = [], []
    for model, rows in by_model.items():
        first = sorted((row for row in rows if row["seed"] == 0), key=lambda row: row["layers"])
        lines = [_line(row["trained"][measure], _SHADES[row["layers"]]) for row in first]
        before, after = (first[-1][state][measure] for state in ("initial", "trained"))
        lines.append(_line(before, BLACK, ":"))
        limits = _LIMITS[measure]
        panels.append(
            Panel(model, label, lines, x_scale="log2", x_ticks=(1, 4, 16, 64), decades=_DECADES, y_limits=limits)
        )
        texts.append(f"{model} {_text(before[-1])} and {_text(after[-1])}")
    depth = max(row["layers"] for rows in by_model.values() for row in rows)
    alt = f"{what}; at the last of {depth} layers, at initialisation and trained: {', '.join(texts)}."
    depths = sorted({row["layers"] for rows in by_model.values() for row in rows})
    legend = [Key(f"{depth} layers", "line", _SHADES[depth]) for depth in depths]
    legend.append(Key(f"{depth} layers at initialisation", "line", BLACK, ":"))
    return Figure(Drawing(name, panels, title=f"{what}, on Cora", columns=4, size=(3.2, 2.5), legend=legend), alt)


def _over_depth(by_model: Mapping[str, Sequence[Row]]) -> Figure:
    """The mean reach of the last layer, in hops, over the number of layers."""
    styles = {"initial": (BLACK, ":", "at initialisation"), "trained": (_SHADES[64], "-", "trained")}
    panels, texts = [], []
    for model, rows in by_model.items():
        first = sorted((row for row in rows if row["seed"] == 0), key=lambda row: row["layers"])
        means = {state: [row[state]["reach"] and row[state]["reach"]["mean"] for row in first] for state in styles}
        depths = [row["layers"] for row in first]
        lines = [_line(means[state], colour, style, depths) for state, (colour, style, _) in styles.items()]
        ticks, limits = (2, 8, 32), _LIMITS["reach"]
        panels.append(
            Panel(
                model,
                "hops",
                lines,
                (),
                "layers",
                x_scale="log2",
                x_ticks=ticks,
                is_log=False,
                y_limits=limits,
                dots="all",
            )
        )
        texts.append(f"{model} {_text(means['initial'][-1])} and {_text(means['trained'][-1])}")
    depth = max(row["layers"] for rows in by_model.values() for row in rows)
    alt = (
        f"Mean reach of the last layer in hops over the number of layers; with {depth} layers, at initialisation and "
        f"trained: {', '.join(texts)}."
    )
    legend = [Key(text, "line", colour, style) for colour, style, text in styles.values()]
    title = "Mean reach of the last layer, in hops, on Cora"
    return Figure(Drawing("gallery-reach", panels, title=title, columns=4, size=(3.2, 2.5), legend=legend), alt)


def _line(values: Sequence[float | None], colour: str, style: str = "-", x: Sequence[float] = ()) -> Line:
    """Over the layers, or over `x`; what is not finite, recorded as None, is left out."""
    points = [
        (at, value) for at, value in zip(x or range(1, len(values) + 1), values, strict=True) if value is not None
    ]
    return Line("", [y for _, y in points], [at for at, _ in points], colour, style, width=1.6)


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.2g}"
