"""A trace as text."""

from __future__ import annotations

from collections.abc import Sequence

from graphjoule.trace.layer import LayerTrace

_FEW = 3  # significant digits that a table shows


def table_text(rows: Sequence[LayerTrace], columns: Sequence[str]) -> str:
    """Rows as text, one line each; calls, marks, modes and runs have a column where they differ.

    Args:
        rows: the rows.
        columns: names of the measures to show.

    Example:
        >>> rows = [LayerTrace("convs.0", {"energy": 2.0}), LayerTrace("head", {"energy": 1e-9})]
        >>> print(table_text(rows, ["energy"]))
        layer    energy
        convs.0       2
        head      1e-09
    """
    facts = {
        "call": [str(row.call) for row in rows],
        "mark": ["" if row.mark is None else str(row.mark) for row in rows],
        "mode": ["train" if row.training else "eval" for row in rows],
        "run": ["" if row.run is None else str(row.run) for row in rows],
    }
    left = {name: cells for name, cells in facts.items() if len(set(cells)) > 1}
    left["layer"] = [row.name for row in rows]
    right = {name: [_cell(row.numbers().get(name)) for row in rows] for name in columns}
    texts = [_column(name, cells, "<") for name, cells in left.items()]
    texts += [_column(name, cells, ">") for name, cells in right.items()]
    return "\n".join("  ".join(line).rstrip() for line in zip(*texts, strict=True))


def _column(name: str, cells: list[str], side: str) -> list[str]:
    width = max(map(len, [name, *cells]))
    return [f"{cell:{side}{width}}" for cell in [name, *cells]]


def _cell(number: float | None) -> str:
    return "" if number is None else f"{number:.{_FEW}g}"
