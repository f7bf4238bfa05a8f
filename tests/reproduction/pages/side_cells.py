"""Cells of the study of the constraint that were never trained."""

from functools import cache

from graphjoule.report import Evidence
from graphjoule.studies import STUDIES, Collection
from tests.studies import energy_record, made_up

STUDY = STUDIES["constraint"]


FREE, HELD, NEAR = "free", "constraint", "orthogonal penalty"


ALIVE, DEAD = (9.0, 8.95, 8.9), (9.0, 1e-9, 90.0)


@cache
def cells_of(datasets=("cora",), models=("gcn", "egnn"), layers=(2, 8, 16)):
    """Cells of the study, kept because each resolves its recipe once and that takes its time."""
    return tuple(STUDY.cells(datasets, models, layers))


def measured(cell, energies=ALIVE, rank=4.0, gradient=0.1, accuracy=0.5, **changes):
    """A record of all three instruments; the gradient of the first layer, that of the last is 0.1."""
    runs, n = 2, len(energies)
    return energy_record(
        cell,
        energies=energies,
        effective_rank=[[9.0, *[rank] * (n - 2), 5.0]] * runs,
        gradient=[[gradient, *[0.1] * (n - 1)]] * runs,
        test_score=[accuracy] * runs,
        first_layer=1,
        **changes,
    )


def evidence(accuracy=lambda cell: 80.0, energies=(), cells=None, seeds=3):
    cells = cells_of() if cells is None else cells
    records = [
        made_up(cell, seed, (percent + seed) / 100)
        for cell in cells
        if (percent := accuracy(cell)) is not None
        for seed in range(seeds)
    ]
    return Evidence(STUDY, cells, Collection(records), energies)


def collapsing(cell):
    """A free GCN falls with depth; with the weight penalty no network does."""
    falls = cell.model == "gcn" and cell.num_layers > 2 and cell.variant.value != NEAR
    return 30.0 if falls else 80.0
