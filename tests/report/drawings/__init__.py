"""Studies of made-up runs to draw."""

from functools import cache

from graphjoule.report.drawings import Evidence
from graphjoule.studies import Collection, find_study
from tests.studies import made_up


@cache
def cells_of(name, datasets=None, layers=None):
    """Cells of a study, kept because each resolves its recipe once and that takes its time."""
    return find_study(name).cells(datasets, None, layers)


def evidence(name, accuracy, seeds=3, energies=(), **chosen):
    """A study of made-up runs; `accuracy` says what a cell reaches, in percent, or None where it is not run."""
    study = find_study(name)
    cells = cells_of(name, **chosen)
    records = [
        made_up(cell, seed, (percent + seed) / 100)
        for cell in cells
        if (percent := accuracy(cell)) is not None
        for seed in range(seeds)
    ]
    return Evidence(study, cells, Collection(records), energies)


def sweep_accuracy(cell):
    return 20.0 if cell.variant.value in {"0", "1"} and cell.variant.component in {"b", "c_min"} else 80.0
