"""Energies of every layer in the terminal while a network trains."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from graphjoule.trace import LayerTrace

_MOST_ROWS = 16  # of a deep network, spread evenly, the first and the last among them
_MOST_NAMED = 6  # on a line
_BAR, _DECADES = 24, 12.0  # letters of the longest bar, and the energies that it stands for


class LayerTable:
    """The latest energies: a table on a terminal, which `rich` draws below the bar, and a line each time elsewhere.

    Args:
        title: of the training, at the beginning of a line.
    """

    def __init__(self, title: str) -> None:
        self._title, self._epoch = title, 0
        self._rows: Sequence[LayerTrace] = ()

    def show(self, epoch: int, rows: Sequence[LayerTrace]) -> None:
        """Take the rows of all layers after an epoch."""
        self._epoch, self._rows = epoch, rows
        if not sys.stderr.isatty():
            typer.echo(f"{self._title}: {self.line()}", err=True)

    def line(self) -> str:
        """The energies of some layers, and the layer whose neighbours are most alike."""
        energies = ", ".join(f"{k + 1}: {self._rows[k]['energy']:.3g}" for k in _spread(len(self._rows), _MOST_NAMED))
        least = min(range(len(self._rows)), key=lambda k: _size(self._rows[k]["rayleigh"]), default=None)
        ending = "" if least is None else f"; lowest E / |X|^2 {self._rows[least]['rayleigh']:.2g} at layer {least + 1}"
        return f"epoch {self._epoch}, energy of layer {energies}{ending}"

    def __rich__(self) -> Table:
        """The table."""
        from rich.table import Table

        table = Table(title=f"energy of every layer after epoch {self._epoch}" if self._rows else None, box=None)
        if not self._rows:
            return table
        for name in ("layer", "energy", "E / |X|^2"):
            table.add_column(name, justify="right")
        table.add_column("")
        top = max((_size(row["energy"]) for row in self._rows if math.isfinite(row["energy"])), default=0.0)
        for k in _spread(len(self._rows), _MOST_ROWS):
            row = self._rows[k]
            table.add_row(str(k + 1), f"{row['energy']:.3g}", f"{row['rayleigh']:.3g}", _bar(row["energy"], top))
        return table


def _size(value: float) -> float:
    """A number to compare by: what is not finite is below all."""
    return value if math.isfinite(value) else -1.0


def _bar(value: float, top: float) -> str:
    """A bar on a logarithmic scale; the longest is that of `top`.

    >>> len(_bar(1.0, 1.0)), len(_bar(1e-6, 1.0)), _bar(0.0, 1.0), _bar(float("nan"), 1.0)
    (24, 12, '', '')
    """
    if not (math.isfinite(value) and value > 0 and top > 0):
        return ""
    return "█" * max(1, round(_BAR * (1 + math.log10(value / top) / _DECADES)))


def _spread(count: int, most: int) -> list[int]:
    """At most so many of the numbers below `count`, evenly, with the first and the last."""
    return list(range(count)) if count <= most else sorted({round(k * (count - 1) / (most - 1)) for k in range(most)})
