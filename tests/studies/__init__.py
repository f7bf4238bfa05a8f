"""A study that trains in milliseconds, and records that were never trained."""

from pathlib import Path

from graphjoule.studies import Cell, EnergyRecord, Plan, plan_study, record_files
from graphjoule.tasks import Task
from graphjoule.training.records import Record, read_records
from tests.training import facts, small_task

# Runs that stop at different epochs, so that records come one by one.
QUICK = {"hidden_channels": 8, "epochs": 8, "patience": 3, "lr": 0.1}
CELLS = [Cell("gcn", "small", 2, overrides=QUICK), Cell("egnn", "small", 2, overrides=QUICK)]
SEEDS = [0, 1, 2]


def load_small(name: str) -> Task:
    return small_task()


def small_plan(out: Path, cells=CELLS, seeds=SEEDS, **options) -> Plan:
    return plan_study(cells, seeds, out, load_small, **options)


def recorded_facts(out: Path) -> list[dict[str, object]]:
    """What all records below a folder say apart from times and memory; a run that was done twice is there twice."""
    records = [record for path in record_files([out]) for record in read_records(path)]
    return [facts(record) for record in sorted(records, key=lambda record: record.run_id)]


def made_up(cell: Cell, seed: int, accuracy: float | None, **fields: object) -> Record:
    """A record of a run that never was; without an accuracy it failed."""
    measured = (
        {"val": {"accuracy": 0.5}, "test": {"accuracy": accuracy}}
        if accuracy is not None
        else {"failure": "it is made up"}
    )
    given = {"device": "none", "runs_at_once": 1, "seconds": 1.0, "curve": {}, "epochs_run": 10, **measured, **fields}
    return Record.of(cell.recipe, seed=seed, split_sha256="0", **given)


def energy_record(cell, seeds=(0, 1), energies=(9.0, 2.0, 1.0), **changes):
    """A record of energies that were never measured."""
    runs = [[factor * energy for energy in energies] for factor in range(1, len(seeds) + 1)]
    fields = {
        "dataset": cell.dataset,
        "model": cell.model,
        "recipe": cell.recipe.model_dump(),
        "seeds": list(seeds),
        "first_layer": 0,
        "initial": runs,
        "trained": runs,
        "test_score": [0.5] * len(seeds),
        "epochs_run": [1] * len(seeds),
        "seconds": 1.0,
        "device": "none",
        "versions": {},
    }
    return EnergyRecord(**(fields | changes))
