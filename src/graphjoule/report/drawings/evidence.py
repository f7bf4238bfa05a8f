"""What a study's drawings and tables are made from: its cells, and all that is recorded."""

from __future__ import annotations

from collections.abc import Collection as AbstractCollection
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphjoule.studies import (
    Cell,
    Collection,
    EnergyRecord,
    LedgerRow,
    Outcome,
    Study,
    energies_of,
    judge,
    make_ledger,
)

__all__ = ["Evidence", "Series", "common_limits"]


@dataclass(frozen=True)
class Evidence:
    """A study and its records.

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
    recorded: Collection
    energies: Sequence[EnergyRecord] = ()
    seeds: AbstractCollection[int] | None = None
    unavailable: AbstractCollection[str] = ()

    @cached_property
    def rows(self) -> list[LedgerRow]:
        """The ledger of all cells."""
        return make_ledger(self.study, self.cells, self.recorded, seeds=self.seeds, unavailable=self.unavailable)

    def outcome(self, cell: Cell) -> Outcome:
        """What the runs of one cell come to; it may be a cell of another study."""
        return judge(self.recorded.runs(cell.recipe, self.seeds), cell.reference, self.study.reference)

    def energies_of(self, cell: Cell) -> EnergyRecord | None:
        """The energies of one cell's runs."""
        return energies_of(cell, self.energies)


@dataclass(frozen=True)
class Series:
    """Accuracies in percent along something, from the smallest.

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

    @classmethod
    def of(cls, points: Iterable[tuple[float, Outcome]]) -> Series:
        """The series of some outcomes; those without a mean are left out, the first counts of two at one place.

        >>> one = Outcome(70.0, None, 1, 0, None, None, "too few runs")
        >>> none = Outcome(None, None, 0, 0, None, None, "not run")
        >>> Series.of([(2.0, one), (1.0, one), (3.0, none)])
        Series(x=[1.0, 2.0], mean=[70.0, 70.0], std=[0.0, 0.0], n=[1, 1])
        """
        found: dict[float, tuple[float, float, int]] = {}
        for x, outcome in points:
            if outcome.mean is not None:
                found.setdefault(x, (outcome.mean, outcome.std or 0.0, outcome.n))
        places = sorted(found)
        rows = [found[place] for place in places]
        return cls(places, [mean for mean, _, _ in rows], [std for _, std, _ in rows], [n for _, _, n in rows])

    @property
    def low(self) -> list[float]:
        """Mean less standard deviation."""
        return [mean - std for mean, std in zip(self.mean, self.std, strict=True)]

    @property
    def high(self) -> list[float]:
        """Mean plus standard deviation."""
        return [mean + std for mean, std in zip(self.mean, self.std, strict=True)]


def common_limits(series: Iterable[Series]) -> tuple[float, float]:
    """Lowest and highest percent that several charts of accuracies show, with some room."""
    edges = [edge for one in series for edge in (*one.low, *one.high)]
    low, high = min(edges, default=0.0), max(edges, default=100.0)
    room = max(0.5, 0.06 * (high - low))
    return max(0.0, low - room), min(100.0, high + room)
